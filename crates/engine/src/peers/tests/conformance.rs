//! Another node obeys the suite that every carrier of bytes obeys.
//!
//! It is asked for all of a sample, never for a part: a range is what is cut from that. What comes is compared with the checksum that is said of it.

use super::bundles::run;
use super::*;
use foreload_store::{Error, ErrorKind, Sink};
use foreload_testkit::conformance::{Carrier, SPOILS, Spoil, obeys};
use std::ops::Range;

/// A place that gets its samples while it is asked for others.
struct Peer {
    place: Place,
    source: Source,
    /// By name: the sample's number, and its length.
    put: HashMap<String, (u64, u64)>,
    /// The next sample's number, and where it goes.
    next: (u64, u64),
}

impl Peer {
    fn new(place: Place) -> Self {
        let trust = Trust {
            secret: SECRET.to_owned(),
            tls: false,
        };
        Peer {
            source: source(place.address, &trust).expect("a source"),
            place,
            put: HashMap::new(),
            next: (1000, 0),
        }
    }

    async fn fetch<S: Sink>(&self, sample: u64, len: u64, sink: &mut S) -> Result<Said, String> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        let key = key(our_dataset(), 3, [sample]);
        let fetched = self.source.fetch(&key, 0..len, None, deadline, sink).await;
        let fetched = fetched.map_err(|error| error.to_string())?;
        Ok(fetched.etag.as_deref().and_then(Said::of).expect("a checksum"))
    }
}

/// Gives up at its first frame.
struct Tired;

impl Sink for Tired {
    fn write(&mut self, _at: u64, _frame: &[u8]) -> foreload_store::Result<()> {
        Err(Error::new(ErrorKind::Closed, "given up"))
    }

    fn restart(&mut self) {}
}

impl Carrier for Peer {
    async fn put(&mut self, name: &str, bytes: &[u8]) {
        let ((sample, at), len) = (self.next, bytes.len() as u64);
        self.place.arena.write(at, bytes).expect("inside");
        self.place.lendable().insert(sample, (at, len));
        self.put.insert(name.to_owned(), (sample, len));
        // Anywhere in a page.
        self.next = (sample + 1, at + len + 100);
    }

    async fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, String> {
        let (sample, len) = self.put.get(name).copied().unwrap_or((NOWHERE, 1));
        let mut bytes = Vec::new();
        let said = self.fetch(sample, len.max(range.end), &mut bytes).await?;
        if said.crc != crate::scatter::crc32c(&bytes) {
            return Err("another checksum".to_owned());
        }
        Ok(bytes[range.start as usize..range.end as usize].to_vec())
    }

    async fn give_up(&self, name: &str) {
        let (sample, len) = self.put[name];
        // Once by its own will, once because nobody waits any more.
        assert!(self.fetch(sample, len, &mut Tired).await.is_err());
        let mut bytes = Vec::new();
        let fetch = self.fetch(sample, len, &mut bytes);
        drop(tokio::time::timeout(Duration::from_micros(300), fetch).await);
    }

    async fn spoil(&mut self, name: &str, how: Spoil) -> bool {
        let sample = self.put[name].0;
        let (at, len) = self.place.lendable()[&sample];
        let mut bytes = self.place.arena.map().bytes(at, len).expect("inside").to_vec();
        match how {
            Spoil::Gone => drop(self.place.lendable().remove(&sample)),
            Spoil::Cut => drop(self.place.lendable().insert(sample, (at, len / 2))),
            Spoil::Exchanged => bytes.iter_mut().for_each(|byte| *byte ^= 0x55),
            Spoil::Altered => bytes[len as usize / 2] ^= 1,
        }
        self.place.arena.write(at, &bytes).expect("inside");
        true
    }
}

#[test]
fn a_peer_obeys_whether_its_bytes_are_copied_or_sent_from_a_file() {
    for sendfile_from in [0, u64::MAX] {
        let limits = Limits {
            sendfile_from,
            ..limits()
        };
        // Memory for what the suite puts.
        let place = Place::new(limits, &[48 << 20]);
        run(async { obeys(&mut Peer::new(place), &SPOILS).await });
    }
}
