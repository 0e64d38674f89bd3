//! Seals: how two sides that know one secret tell each other's requests and answers from everybody else's.
//!
//! A request says who asks (a number that was drawn once), how many of theirs came before, and a seal over both, its method, host and path. The answer has a
//! seal over the request's, its status, and what it says of its body. So what was sent once counts for nothing when it is sent again, an answer can't be put to another question,
//! and no two clocks are compared. An answer of several objects has more of them, each over the request's and a [table](super::parts) of what is said. A seal is an HMAC-SHA256 (RFC 2104). Nothing is encrypted, and the body itself is only as safe as the checksum that its ETag holds.

use super::sign::hex;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The scheme of the field `authorization`.
const SCHEME: &str = "Foreload ";
/// The field of an answer that has its seal.
pub const FIELD: &str = "foreload-seal";
/// Requests of one caller may overtake each other by so many: more than can be under way.
const WINDOW: u64 = 4096;
/// Callers that a gate remembers: a node is a new one each time it is told of the others.
const MOST_CALLERS: usize = 1 << 14;

/// A seal.
pub type Seal = [u8; 32];

/// Who asks.
pub(crate) struct Caller {
    key: hmac::Key,
    name: u64,
    next: AtomicU64,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Caller({:016x})", self.name)
    }
}

impl Caller {
    /// With a secret that the other side knows.
    ///
    /// # Errors
    /// The system draws no random numbers.
    pub fn new(secret: &str) -> Result<Self, ring::error::Unspecified> {
        let mut name = [0; 8];
        SystemRandom::new().fill(&mut name)?;
        Ok(Caller {
            key: key_of(secret),
            name: u64::from_be_bytes(name),
            next: AtomicU64::new(1),
        })
    }

    /// Seals a request of a method for a percent-encoded path.
    pub fn seal(&self, method: &str, host: &str, path: &str) -> Sealed {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let seal = of_request(&self.key, self.name, number, method, host, path);
        let mut field = format!("{SCHEME}{:016x}.{number:x}.", self.name);
        hex(&seal, &mut field);
        Sealed {
            key: self.key.clone(),
            seal,
            field,
        }
    }
}

/// A request that was sealed.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    key: hmac::Key,
    seal: Seal,
    /// Its field `authorization`.
    pub field: String,
}

impl Sealed {
    /// Whether an answer, by its field `foreload-seal`, is one to this request.
    pub fn is_answered_by(&self, status: u16, etag: &str, len: u64, seal: &str) -> bool {
        let signed = of_answer(&self.seal, status, etag, len);
        unhex(seal).is_some_and(|seal| hmac::verify(&self.key, signed.as_bytes(), &seal).is_ok())
    }

    /// Whether a table of an answer of several objects is one to this request.
    pub fn has_table(&self, table: &[u8], seal: &[u8]) -> bool {
        hmac::verify(&self.key, &of_table(&self.seal, table), seal).is_ok()
    }
}

/// The other side: lets in each request of whoever knows the secret once.
pub struct Gate {
    key: hmac::Key,
    host: String,
    callers: Mutex<Callers>,
}

#[derive(Default)]
struct Callers {
    known: FxHashMap<u64, Seen>,
    /// How many there were.
    were: u64,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gate({})", self.host)
    }
}

impl Gate {
    /// Of a secret, where requests are for a host.
    #[must_use]
    pub fn new(secret: &str, host: &str) -> Self {
        Gate {
            key: key_of(secret),
            host: host.to_owned(),
            callers: Mutex::default(),
        }
    }

    /// Lets a request in, by its field `authorization`; its seal. `None`: it is nobody's who knows the secret, or was let in before.
    pub fn admit(&self, method: &str, path: &str, field: &str) -> Option<Seal> {
        let mut parts = field.strip_prefix(SCHEME)?.split('.');
        let (name, number, seal) = (parts.next()?, parts.next()?, parts.next()?);
        let is_whole = parts.next().is_none() && name.len() == 16 && number.len() <= 16;
        let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_whole || !is_hex(name) || !is_hex(number) {
            return None;
        }
        let name = u64::from_str_radix(name, 16).ok()?;
        let (number, seal) = (u64::from_str_radix(number, 16).ok()?, unhex(seal)?);
        let signed = request_text(name, number, method, &self.host, path);
        hmac::verify(&self.key, signed.as_bytes(), &seal).ok()?;
        let mut callers = self.callers.lock().unwrap_or_else(|e| e.into_inner());
        callers.of(name).take(number).then_some(seal)
    }

    /// The field `foreload-seal` of the answer to a request that was let in.
    #[must_use]
    pub fn answer(&self, request: &Seal, status: u16, etag: &str, len: u64) -> String {
        let signed = of_answer(request, status, etag, len);
        let mut field = String::with_capacity(64);
        hex(hmac::sign(&self.key, signed.as_bytes()).as_ref(), &mut field);
        field
    }

    /// The seal of a table of the answer to a request that was let in.
    pub(super) fn table(&self, request: &Seal, table: &[u8]) -> Seal {
        seal_of(&self.key, &of_table(request, table))
    }
}

impl Callers {
    fn of(&mut self, name: u64) -> &mut Seen {
        if self.known.len() >= MOST_CALLERS && !self.known.contains_key(&name) {
            // Only who knows the secret makes more, by being told of the others so often. The first has most likely ended.
            let first = self
                .known
                .iter()
                .min_by_key(|(_, seen)| seen.turn)
                .map(|(&name, _)| name);
            first.and_then(|first| self.known.remove(&first));
        }
        let were = &mut self.were;
        self.known.entry(name).or_insert_with(|| {
            *were += 1;
            Seen {
                turn: *were,
                ..Seen::default()
            }
        })
    }
}

/// Which requests of a caller were let in: all below a window but those that came too late, and some in it.
#[derive(Clone)]
struct Seen {
    /// After how many others it came.
    turn: u64,
    last: u64,
    bits: Box<[u64; (WINDOW / 64) as usize]>,
}

impl Default for Seen {
    fn default() -> Self {
        Seen {
            turn: 0,
            last: 0,
            bits: Box::new([0; (WINDOW / 64) as usize]),
        }
    }
}

impl Seen {
    /// Whether a number is a new one; it isn't from then on.
    fn take(&mut self, number: u64) -> bool {
        if number == 0 || number.saturating_add(WINDOW) <= self.last {
            return false;
        }
        if number > self.last {
            // The places of those between are taken over from numbers that left the window.
            let first = (self.last + 1).max(number.saturating_sub(WINDOW - 1));
            (first..=number).for_each(|number| self.set(number, false));
            self.last = number;
        }
        let is_new = !self.has(number);
        self.set(number, true);
        is_new
    }

    fn place(number: u64) -> (usize, u64) {
        let place = number % WINDOW;
        ((place / 64) as usize, 1 << (place % 64))
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.bits[word] & bit != 0
    }

    fn set(&mut self, number: u64, to: bool) {
        let (word, bit) = Self::place(number);
        self.bits[word] = if to {
            self.bits[word] | bit
        } else {
            self.bits[word] & !bit
        };
    }
}

fn key_of(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

fn request_text(name: u64, number: u64, method: &str, host: &str, path: &str) -> String {
    format!("foreload request\n{name:016x}\n{number}\n{method}\n{host}\n{path}")
}

fn of_request(key: &hmac::Key, name: u64, number: u64, method: &str, host: &str, path: &str) -> Seal {
    seal_of(key, request_text(name, number, method, host, path).as_bytes())
}

fn seal_of(key: &hmac::Key, of: &[u8]) -> Seal {
    let mut seal = [0; 32];
    seal.copy_from_slice(hmac::sign(key, of).as_ref());
    seal
}

fn of_table(request: &Seal, table: &[u8]) -> Vec<u8> {
    [b"foreload table\n", &request[..], table].concat()
}

fn of_answer(request: &Seal, status: u16, etag: &str, len: u64) -> String {
    let mut text = String::from("foreload answer\n");
    hex(request, &mut text);
    let _ = write!(text, "\n{status}\n{len}\n{etag}");
    text
}

fn unhex(text: &str) -> Option<Seal> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut seal = [0; 32];
    for (byte, at) in seal.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(seal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const SECRET: &str = "known to these two only";
    const HOST: &str = "10.0.0.7:4001";

    fn pair() -> (Caller, Gate) {
        (Caller::new(SECRET).expect("drawn"), Gate::new(SECRET, HOST))
    }

    #[test]
    fn who_knows_the_secret_is_let_in_and_nobody_else() {
        let (caller, gate) = pair();
        let field = |caller: &Caller, host: &str| caller.seal("GET", host, "/peer/ab/12").field;
        assert!(gate.admit("GET", "/peer/ab/12", &field(&caller, HOST)).is_some());
        let other = Caller::new("guessed by somebody").expect("drawn");
        let own = field(&caller, HOST);
        let refused = [
            gate.admit("GET", "/peer/ab/13", &field(&caller, HOST)),
            gate.admit("HEAD", "/peer/ab/12", &field(&caller, HOST)),
            gate.admit("GET", "/peer/ab/12", &field(&caller, "10.0.0.8:4001")),
            gate.admit("GET", "/peer/ab/12", &field(&other, HOST)),
            gate.admit("GET", "/peer/ab/12", &own[1..]),
            gate.admit("GET", "/peer/ab/12", &own[..own.len() - 1]),
            gate.admit("GET", "/peer/ab/12", &format!("{own}.00")),
            gate.admit("GET", "/peer/ab/12", &own.replacen('.', ".+", 1)),
            gate.admit("GET", "/peer/ab/12", &own.replace('.', "")),
            gate.admit("GET", "/peer/ab/12", ""),
            gate.admit("GET", "/peer/ab/12", "Foreload \u{e9}.\u{e9}.\u{e9}"),
        ];
        assert_eq!(refused, [None; 11]);
        assert!(gate.admit("GET", "/peer/ab/12", &own).is_some());
    }

    #[test]
    fn what_was_sent_once_counts_for_nothing_when_it_is_sent_again() {
        let (caller, gate) = pair();
        let sealed: Vec<Sealed> = (0..10).map(|_| caller.seal("GET", HOST, "/a")).collect();
        for at in [3, 0, 9, 1] {
            assert!(gate.admit("GET", "/a", &sealed[at].field).is_some());
            assert!(gate.admit("GET", "/a", &sealed[at].field).is_none());
        }
        for _ in 0..WINDOW {
            let sealed = caller.seal("GET", HOST, "/a");
            assert!(gate.admit("GET", "/a", &sealed.field).is_some());
        }
        assert!(gate.admit("GET", "/a", &sealed[2].field).is_none(), "too late to know");
        assert!(gate.admit("GET", "/a", &sealed[3].field).is_none());
    }

    #[test]
    fn an_answer_is_one_to_its_request_only() {
        let (caller, gate) = pair();
        let (one, other) = (caller.seal("GET", HOST, "/a"), caller.seal("GET", HOST, "/a"));
        let seal = gate.admit("GET", "/a", &one.field).expect("let in");
        let answer = gate.answer(&seal, 206, "\"abc\"", 12);
        assert!(one.is_answered_by(206, "\"abc\"", 12, &answer));
        let others = [
            other.is_answered_by(206, "\"abc\"", 12, &answer),
            one.is_answered_by(200, "\"abc\"", 12, &answer),
            one.is_answered_by(206, "\"abd\"", 12, &answer),
            one.is_answered_by(206, "\"abc\"", 13, &answer),
            one.is_answered_by(206, "\"abc\"", 12, &answer[1..]),
            one.is_answered_by(206, "\"abc\"", 12, ""),
            one.is_answered_by(
                206,
                "\"abc\"",
                12,
                &Gate::new("another secret", HOST).answer(&seal, 206, "\"abc\"", 12),
            ),
        ];
        assert_eq!(others, [false; 7]);
    }

    #[test]
    fn callers_that_are_forgotten_are_those_that_came_first() {
        let gate = Gate::new(SECRET, HOST);
        let callers: Vec<Caller> = (0..=MOST_CALLERS)
            .map(|_| Caller::new(SECRET).expect("drawn"))
            .collect();
        let sealed: Vec<Sealed> = callers.iter().map(|caller| caller.seal("GET", HOST, "/a")).collect();
        for each in &sealed {
            assert!(gate.admit("GET", "/a", &each.field).is_some());
        }
        assert_eq!(gate.callers.lock().expect("whole").known.len(), MOST_CALLERS);
        assert!(
            sealed[1..]
                .iter()
                .all(|each| gate.admit("GET", "/a", &each.field).is_none())
        );
    }

    proptest! {
        #[test]
        fn proptest_each_number_is_taken_once(numbers in prop::collection::vec(1u64..10_000, 1..500)) {
            let (mut seen, mut taken, mut last) = (Seen::default(), HashSet::new(), 0u64);
            for number in numbers {
                let is_new = taken.insert(number) && number + WINDOW > last;
                last = last.max(number);
                prop_assert_eq!(seen.take(number), is_new);
            }
        }

        #[test]
        fn proptest_no_field_ends_it(field in "\\PC{0,200}", path in "\\PC{0,40}") {
            let (_, gate) = pair();
            prop_assert_eq!(gate.admit("GET", &path, &field), None);
            prop_assert_eq!(gate.admit("GET", &path, &format!("{SCHEME}{field}")), None);
        }
    }
}
