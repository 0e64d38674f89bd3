//! What peers say to each other, and a place where they are answered over loopback by a pool that is a list.

mod bench;
mod bundles;
mod conformance;
mod loans;
mod requests;
mod signs;

use super::door::{House, Limits};
use super::serve::serve;
use super::*;
use ring::hmac;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::LocalSet;

const SECRET: &str = "known to these two only";
/// A sample whose asker never hears anything.
const NEVER: u64 = 1 << 40;
/// One that isn't there; who asks has the time that the serving thread has been busy put down.
const NOWHERE: u64 = 1 << 41;
/// One that is there, as the first is, when the place is told so and asked for anything.
const LATER: u64 = 1 << 42;
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn limits() -> Limits {
    Limits {
        silence: LONG,
        patience: LONG,
        progress: LONG,
        sign: LONG,
        least_rate: LEAST_RATE,
        sendfile_from: 0,
    }
}

/// The one that is there.
fn our_dataset() -> Digest {
    Digest::from_bytes([7; 16])
}

/// Waits until something is so.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Byte `at` of a sample.
fn byte(sample: u64, at: u64) -> u8 {
    (sample * 37 + at % 251 + at / 4096) as u8
}

fn bytes(sample: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| byte(sample, at)).collect()
}

/// What came of an answer.
#[derive(Debug)]
struct Heard {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Reads one answer, and nothing that comes behind it.
fn hear(stream: &mut TcpStream) -> std::io::Result<Heard> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut next = [0];
        stream.read_exact(&mut next)?;
        head.push(next[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; len.expect("a length").parse().expect("a number")];
    stream.read_exact(&mut body)?;
    let status = head[9..12].parse().expect("a status");
    Ok(Heard { status, head, body })
}

/// First byte and length of each sample that is there.
type Lendable = Arc<Mutex<HashMap<u64, (u64, u64)>>>;

/// A thread that answers peers, and samples that lie one behind the other.
struct Place {
    address: SocketAddr,
    arena: Arc<Shared>,
    /// First byte and length of each sample.
    slots: Vec<(u64, u64)>,
    lendable: Lendable,
    /// What was given back.
    back: UnboundedReceiver<Handle>,
    withdrawn: Arc<AtomicU64>,
    /// For how long the serving thread has been busy, when it was asked last.
    busy_ns: Arc<AtomicU64>,
    /// What comes later may come.
    opens: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    key: hmac::Key,
    next: Cell<u64>,
}

impl Place {
    fn new(limits: Limits, lens: &[u64]) -> Self {
        Place::of(limits, lens, 1 << 50)
    }

    /// With so much memory to plan with.
    fn of(limits: Limits, lens: &[u64], pool_bytes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Place::at(listener, limits, lens, pool_bytes)
    }

    /// Behind a port.
    fn at(listener: TcpListener, limits: Limits, lens: &[u64], pool_bytes: u64) -> Self {
        let host = listener.local_addr().expect("bound");
        Place::known_as(host, listener, limits, lens, pool_bytes)
    }

    /// Behind a port, for who asks another one.
    fn known_as(host: SocketAddr, listener: TcpListener, limits: Limits, lens: &[u64], pool_bytes: u64) -> Self {
        // Slots begin anywhere in a page.
        let starts = lens
            .iter()
            .scan(100, |at, len| Some(std::mem::replace(at, *at + len + 64)));
        let slots: Vec<(u64, u64)> = starts.zip(lens.iter().copied()).collect();
        let all = slots.last().map_or(0, |(at, len)| at + len);
        let arena = Arc::new(Shared::new("test", all, true).expect("memory"));
        for (sample, &(at, len)) in slots.iter().enumerate() {
            arena.write(at, &bytes(sample as u64, len)).expect("inside");
        }
        let lendable: Lendable = Arc::new(Mutex::new((0..).zip(slots.iter().copied()).collect()));
        let address = listener.local_addr().expect("bound");
        let (questions, heard) = unbounded_channel();
        let (lent, back) = unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let (withdrawn, busy_ns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let opens = Arc::new(AtomicBool::new(false));
        let pool = Pool {
            arena: Arc::clone(&arena),
            lendable: Arc::clone(&lendable),
            pool_bytes,
            lent,
            withdrawn: Arc::clone(&withdrawn),
            busy_ns: Arc::clone(&busy_ns),
            opens: Arc::clone(&opens),
        };
        let house = House::new(SECRET, &host.to_string(), questions, limits);
        let thread = std::thread::Builder::new().name("serving".to_owned());
        let thread = thread.spawn(move || run(listener, house, pool, heard, stopped));
        Place {
            address,
            arena,
            slots,
            lendable,
            back,
            withdrawn,
            busy_ns,
            opens,
            stop: Some(stop),
            thread: Some(thread.expect("started")),
            key: hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()),
            next: Cell::new(1),
        }
    }

    fn lendable(&self) -> MutexGuard<'_, HashMap<u64, (u64, u64)>> {
        self.lendable.lock().expect("whole")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        stream.set_nodelay(true).expect("set");
        // So that a whole answer finds room in it.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 2 << 20).expect("set");
        stream
    }

    /// What a request is sealed with.
    fn seal(&self, path: &str) -> String {
        let number = self.next.replace(self.next.get() + 1);
        let (name, host) = (7, self.address);
        let text = format!("foreload request\n{name:016x}\n{number}\nGET\n{host}\n{path}");
        let seal = hmac::sign(&self.key, text.as_bytes());
        let seal: String = seal.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("Foreload {name:016x}.{number:x}.{seal}")
    }

    /// A request for all of a sample.
    fn request(&self, sample: u64) -> Vec<u8> {
        let path = format!("/peer/{}", key(our_dataset(), 3, [sample]));
        let seal = self.seal(&path);
        let len = self.slots.get(sample as usize).map_or(1, |(_, len)| *len);
        let (host, last) = (self.address, len.saturating_sub(1));
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nrange: bytes=0-{last}\r\nauthorization: {seal}\r\n\r\n").into()
    }

    fn ask(&self, stream: &mut TcpStream, sample: u64) {
        stream.write_all(&self.request(sample)).expect("sent");
    }

    /// Asks for a sample and compares what comes.
    fn read(&self, stream: &mut TcpStream, sample: u64) {
        self.ask(stream, sample);
        self.compare(stream, sample);
    }

    fn compare(&self, stream: &mut TcpStream, sample: u64) {
        let heard = hear(stream).expect("an answer");
        assert_eq!(heard.status, 206, "{}", heard.head);
        assert!(
            heard.body == bytes(sample, self.slots[sample as usize].1),
            "sample {sample}"
        );
    }

    /// Waits until the serving thread has done what it could: each of its connections has had a turn.
    fn settle(&self) {
        let mut stream = self.connect();
        for _ in 0..3 {
            self.ask(&mut stream, NOWHERE);
            assert_eq!(hear(&mut stream).expect("an answer").status, 404);
        }
    }

    /// The samples whose memory has come back since.
    fn back(&mut self) -> Vec<u64> {
        let back = &mut self.back;
        std::iter::from_fn(|| back.try_recv().ok())
            .map(|handle| handle.index.into())
            .collect()
    }

    /// Waits until a sample's memory has come back.
    fn wait_for_back(&mut self, sample: u64) {
        let mut all = Vec::new();
        wait_for("the memory comes back", || {
            all.extend(self.back());
            all.contains(&sample)
        });
        assert_eq!(all, [sample]);
    }

    /// Waits until all of an answer lies in the receiving socket.
    fn wait_for_answer(&self, stream: &TcpStream, samples: &[u64]) {
        let body: u64 = samples.iter().map(|&sample| self.slots[sample as usize].1).sum();
        let least = body + 100 * samples.len() as u64;
        wait_for("the answer comes", || {
            rustix::io::ioctl_fionread(stream).expect("asked") > least
        });
        self.settle();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop.take();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

/// Who lends what is there.
struct Pool {
    arena: Arc<Shared>,
    lendable: Lendable,
    pool_bytes: u64,
    lent: UnboundedSender<Handle>,
    withdrawn: Arc<AtomicU64>,
    busy_ns: Arc<AtomicU64>,
    opens: Arc<AtomicBool>,
}

impl Pool {
    async fn answer(self, mut heard: UnboundedReceiver<Question>) {
        let (mut waiting, mut late) = (Vec::new(), Vec::new());
        while let Some(question) = heard.recv().await {
            match question {
                Question::Report { answer, .. } => drop(answer.send(None)),
                Question::Withdraw(_) => drop(self.withdrawn.fetch_add(1, Ordering::Relaxed)),
                Question::Ask {
                    dataset,
                    samples,
                    answer,
                    ..
                } => {
                    for (at, sample) in samples.into_iter().enumerate() {
                        match sample {
                            NEVER => waiting.push((at, answer.clone())),
                            LATER => late.push((at, answer.clone())),
                            sample => {
                                if sample == NOWHERE {
                                    self.note_busy();
                                }
                                // Who has gone gets nothing.
                                let lent = (dataset == our_dataset()).then(|| self.lend(sample)).flatten();
                                drop(answer.send((at, lent)));
                            }
                        }
                    }
                    if self.opens.load(Ordering::Relaxed) {
                        late.drain(..)
                            .for_each(|(at, answer)| drop(answer.send((at, self.lend(0)))));
                    }
                }
            }
        }
    }

    fn note_busy(&self) {
        let busy = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let busy_ns = busy.tv_sec as u64 * 1_000_000_000 + busy.tv_nsec as u64;
        self.busy_ns.store(busy_ns, Ordering::Relaxed);
    }

    fn lend(&self, sample: u64) -> Option<Lent> {
        let &(offset, len) = self.lendable.lock().expect("whole").get(&sample)?;
        Some(Lent {
            arena: Arc::clone(&self.arena),
            offset,
            len,
            via: Via::Ram,
            pool_bytes: self.pool_bytes,
            handle: Handle {
                index: sample as u32,
                generation: 0,
            },
            back: self.lent.clone(),
        })
    }
}

fn run(
    listener: TcpListener,
    house: House,
    pool: Pool,
    heard: UnboundedReceiver<Question>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), async move {
        listener.set_nonblocking(true).expect("set");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        let house = Rc::new(house);
        tokio::task::spawn_local(pool.answer(heard));
        let accept = async {
            while let Ok((stream, _)) = listener.accept().await {
                let (house, stream) = (Rc::clone(&house), stream.into_std().expect("a socket"));
                tokio::task::spawn_local(async move { serve(stream, &house).await });
            }
        };
        tokio::select! {
            () = accept => {}
            _ = stopped => {}
        }
    });
}

#[test]
fn what_an_answer_says_is_read_as_it_was_written_and_nothing_else_is() {
    for (crc, was_fetched) in [(0, false), (0xdead_beef, true), (u32::MAX, false)] {
        let said = Said { crc, was_fetched };
        assert_eq!(Said::of(&said.etag()), Some(said));
    }
    for other in [
        "",
        "\"\"",
        "\"0\"",
        "deadbeef",
        "\"deadbeef",
        "\"+eadbeef\"",
        "\"deadbeef-1\"",
        "\"deadbeef0\"",
        "W/\"deadbeef\"",
    ] {
        assert_eq!(Said::of(other), None, "{other}");
    }
}

#[test]
fn a_path_names_a_data_set_and_a_sample_or_nothing() {
    let digest = Digest::from_bytes([7; 16]);
    let path = format!("/peer/{}", key(digest, 5, [12]));
    assert_eq!(
        asked(&path),
        Some(What::Sample(Wish {
            dataset: digest,
            steps: 5,
            samples: 12
        }))
    );
    assert_eq!(asked(&format!("/peer/{digest}/report")), Some(What::Report(digest)));
    let some = |count: usize| (0..count as u64).map(|at| at * at).collect::<Vec<_>>();
    for count in [2, BUNDLE_LOADS] {
        let path = format!("/peer/{}", key(digest, 5, some(count)));
        assert_eq!(
            asked(&path),
            Some(What::Samples(Wish {
                dataset: digest,
                steps: 5,
                samples: some(count)
            }))
        );
    }
    assert_eq!(
        asked(&format!("/peer/{}", key(digest, 5, some(BUNDLE_LOADS + 1)))),
        None
    );
    let hex = digest.to_string();
    let others = [
        String::new(),
        "/".to_owned(),
        "/peer".to_owned(),
        "/peer//5/12".to_owned(),
        format!("/peer/{hex}"),
        format!("/peer/{hex}/"),
        format!("/peer/{hex}/12"),
        format!("/peer/{hex}//12"),
        format!("/peer/{hex}/5/"),
        format!("/peer/{hex}/-5/1"),
        format!("/peer/{hex}/5/-1"),
        format!("/peer/{hex}/5/+1"),
        format!("/peer/{hex}/5/1/2"),
        format!("/peer/{hex}/5/1-"),
        format!("/peer/{hex}/5/1--2"),
        format!("/peer/{hex}/5/1-+2"),
        format!("/peer/{hex}/5/1-report"),
        format!("/peer/{hex}/5/18446744073709551616"),
        format!("/peer/{hex}/18446744073709551616/1"),
        format!("/peer/{}/5/1", &hex[1..]),
        format!("/peers/{hex}/5/1"),
        format!("/peer/../{hex}/5/1"),
    ];
    for other in others {
        assert_eq!(asked(&other), None, "{other}");
    }
}
