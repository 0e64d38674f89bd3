//! Several samples in one request: each comes by itself, and none spoils the others.

use super::*;
use crate::carriers::{Bundle, Carrier, Carriers, Landed, Part};
use crate::scatter::{Check, Scatter};
use foreload_plan::action::{BUNDLED_BYTES, Load, Piece, Source as From};
use foreload_plan::blocks::Content;
use foreload_store::{Error, ErrorKind};

/// What is asked for, and where it goes.
pub(super) struct Asker {
    source: Source,
    arena: Arc<Shared>,
    back: UnboundedSender<Landed>,
    pub landed: UnboundedReceiver<Landed>,
    carriers: Carriers,
}

/// Bytes between the places of two parts.
const APART: u64 = 128 << 10;

impl Asker {
    pub fn new(place: &Place) -> Self {
        let trust = Trust {
            secret: SECRET.to_owned(),
            tls: false,
        };
        let (back, landed) = unbounded_channel();
        Asker {
            source: source(place.address, &trust).expect("a source"),
            arena: Arc::new(Shared::new("asker", 64 * APART, true).expect("memory")),
            back,
            landed,
            carriers: Carriers::default(),
        }
    }

    /// Where a part goes, by its place.
    fn sink(&self, at: usize, len: u64) -> Scatter {
        let handle = Handle {
            index: at as u32,
            generation: 0,
        };
        let piece = Piece {
            content: Content::block(at as u64),
            handle,
            at: 0,
            slot_offset: at as u64 * APART,
            len,
            content_offset: 0,
            content_len: len,
        };
        let load = Load {
            job: 0,
            source: From::Peer(1),
            object: at as u64,
            offset: 0,
            len,
            pieces: vec![piece],
            steps: 0,
            deadline_ns: 0,
            attempt: 0,
            hedge: false,
            bundle: Some(1),
        };
        let check = Check {
            sample: 0,
            piece: 0,
            at: 0,
            len,
        };
        Scatter::new(Arc::clone(&self.arena), &load, &[check])
    }

    /// Asks for samples together, each of which should have a length.
    fn ask(&self, wanted: &[(u64, u64)]) -> Carrier {
        self.ask_as(7, wanted)
    }

    /// The same under a name.
    pub fn ask_as(&self, name: u64, wanted: &[(u64, u64)]) -> Carrier {
        let part = |(at, &(_, len)): (usize, &(u64, u64))| Part {
            action: at as u64,
            len,
            sink: self.sink(at, len),
        };
        let carriers = self.carriers.carry_all(Bundle {
            name: (1, name),
            source: self.source.clone(),
            key: key(our_dataset(), 3, wanted.iter().map(|(sample, _)| *sample)),
            parts: wanted.iter().enumerate().map(part).collect(),
            deadline: Instant::now() + Duration::from_secs(30),
            back: self.back.clone(),
        });
        assert_eq!(carriers.len(), wanted.len());
        carriers[0]
    }

    /// Asks for a sample alone.
    pub fn ask_alone(&self, name: u64, sample: u64, len: u64) {
        let object = foreload_store::ObjectRef {
            key: key(our_dataset(), 3, [sample]),
            size: len,
            etag: None,
            version: None,
        };
        let _ = self.carriers.carry(crate::carriers::Order {
            name: (1, name),
            source: self.source.clone(),
            object,
            range: 0..len,
            deadline: Instant::now() + Duration::from_secs(30),
            sink: self.sink(0, len),
            back: self.back.clone(),
        });
    }

    /// The next part that ends: which, and its bytes if they are what was said of them.
    pub async fn next(&mut self) -> (u64, Option<Result<Vec<u8>, ErrorKind>>) {
        let landed = tokio::time::timeout(Duration::from_secs(30), self.landed.recv());
        let landed = landed.await.expect("in time").expect("open");
        let bytes = |fetched: foreload_store::Fetched| {
            let said = fetched.etag.as_deref().and_then(Said::of).expect("said");
            let bytes = self.arena.map().bytes(landed.action * APART, fetched.bytes);
            match landed.sink.checksums() == Some(&[said.crc]) {
                true => Ok(bytes.expect("inside").to_vec()),
                false => Err(ErrorKind::Corrupt),
            }
        };
        let ended = landed
            .fetched
            .map(|it| it.map_err(|error: Error| error.kind()).and_then(bytes));
        (landed.action, ended)
    }

    /// All of some parts, by their places.
    async fn all(&mut self, count: usize) -> Vec<Option<Result<Vec<u8>, ErrorKind>>> {
        let mut all = vec![None; count];
        for _ in 0..count {
            let (at, ended) = self.next().await;
            assert!(all[at as usize].replace(ended).is_none(), "{at} came twice");
        }
        all.into_iter().map(|ended| ended.expect("each once")).collect()
    }
}

pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), test);
}

#[test]
fn each_sample_of_a_bundle_comes_or_is_said_to_be_missing_by_itself() {
    let lens: Vec<u64> = (0..14)
        .map(|at| 1 + at * 1001)
        .chain([BUNDLED_BYTES - 1, BUNDLED_BYTES])
        .collect();
    let mut place = Place::new(limits(), &lens);
    run(async {
        let mut asker = Asker::new(&place);
        for turn in 0..3 {
            let mut wanted: Vec<(u64, u64)> = (0..).zip(lens.iter().copied()).collect();
            (wanted[2].0, wanted[9].0) = (NOWHERE, 1000 + turn);
            // What is longer here than there.
            wanted[5].1 += 1;
            asker.ask(&wanted);
            for (at, ended) in asker.all(lens.len()).await.into_iter().enumerate() {
                let expected = match at {
                    // The last is too large to come together with others.
                    2 | 9 | 15 => Err(ErrorKind::NotFound),
                    5 => Err(ErrorKind::Corrupt),
                    _ => Ok(bytes(at as u64, lens[at])),
                };
                assert!(ended == Some(expected), "{at}");
            }
        }
    });
    let mut back = Vec::new();
    wait_for("all memory comes back", || {
        back.extend(place.back());
        back.len() == 3 * 14
    });
    assert_eq!(place.withdrawn.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_there_comes_at_once_and_what_has_to_be_fetched_first_follows() {
    let place = Place::new(limits(), &[3000, 4000, 5000]);
    run(async {
        let mut asker = Asker::new(&place);
        asker.ask(&[(LATER, 3000), (1, 4000), (2, 5000)]);
        for sample in [1, 2] {
            assert!(asker.next().await == (sample, Some(Ok(bytes(sample, 4000 + 1000 * (sample - 1))))));
        }
        assert!(asker.landed.try_recv().is_err());
        place.opens.store(true, Ordering::Relaxed);
        place.settle();
        assert!(asker.next().await == (0, Some(Ok(bytes(0, 3000)))));
    });
}

#[test]
fn a_sample_whose_bytes_are_not_what_they_were_is_noticed_and_the_others_are_as_good() {
    let place = Place::new(limits(), &[3000, 4000, 5000]);
    run(async {
        let mut asker = Asker::new(&place);
        let wanted = [(0, 3000), (1, 4000), (2, 5000)];
        asker.ask(&wanted);
        assert!(
            asker
                .all(3)
                .await
                .into_iter()
                .all(|ended| ended.is_some_and(|it| it.is_ok()))
        );
        // The checksum is known since.
        place
            .arena
            .write(place.slots[1].0 + 77, &[!byte(1, 77)])
            .expect("inside");
        asker.ask(&wanted);
        let ended = asker.all(3).await;
        assert_eq!(ended[1], Some(Err(ErrorKind::Corrupt)));
        assert!(ended[0] == Some(Ok(bytes(0, 3000))) && ended[2] == Some(Ok(bytes(2, 5000))));
    });
}

#[test]
fn a_bundle_that_is_called_off_ends_for_all_that_have_not_come_and_is_withdrawn_there() {
    let mut place = Place::new(limits(), &[3000, 4000]);
    run(async {
        let mut asker = Asker::new(&place);
        let carrier = asker.ask(&[(NEVER, 10), (1, 4000), (NEVER, 20)]);
        assert!(asker.next().await == (1, Some(Ok(bytes(1, 4000)))));
        for action in [0, 2] {
            asker.carriers.call_off((1, 7), action, carrier);
        }
        let mut off = [asker.next().await, asker.next().await];
        off.sort_unstable_by_key(|(at, _)| *at);
        assert_eq!(off, [(0, None), (2, None)]);
    });
    wait_for("it is withdrawn", || place.withdrawn.load(Ordering::Relaxed) == 1);
    place.wait_for_back(1);
}

#[test]
fn a_sample_of_a_bundle_that_is_called_off_comes_back_at_once_and_those_that_go_with_it_come() {
    let mut place = Place::new(limits(), &[3000, 4000]);
    run(async {
        let mut asker = Asker::new(&place);
        let carrier = asker.ask(&[(LATER, 3000), (NEVER, 10), (1, 4000)]);
        assert!(asker.next().await == (2, Some(Ok(bytes(1, 4000)))));
        asker.carriers.call_off((1, 7), 1, carrier);
        // What has come, and what goes with another order, isn't.
        asker.carriers.call_off((1, 7), 2, carrier);
        asker.carriers.call_off((1, 8), 0, carrier);
        assert!(asker.next().await == (1, None));
        assert_eq!(place.withdrawn.load(Ordering::Relaxed), 0);
        place.opens.store(true, Ordering::Relaxed);
        place.settle();
        assert!(asker.next().await == (0, Some(Ok(bytes(0, 3000)))));
    });
    wait_for("what nobody waits for is withdrawn", || {
        place.withdrawn.load(Ordering::Relaxed) == 1
    });
    let mut back = Vec::new();
    wait_for("the memory comes back", || {
        back.extend(place.back());
        back.len() == 2
    });
}

#[test]
fn what_a_peer_with_another_secret_or_none_at_all_says_counts_for_nothing() {
    let place = Place::new(limits(), &[3000, 4000]);
    run(async {
        let mut asker = Asker::new(&place);
        let trust = Trust {
            secret: "another one than the others know".to_owned(),
            tls: false,
        };
        asker.source = source(place.address, &trust).expect("a source");
        asker.ask(&[(0, 3000), (1, 4000)]);
        assert_eq!(asker.all(2).await, vec![Some(Err(ErrorKind::Denied)); 2]);
    });
    // Who answers without a seal, whatever is in it.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let liar = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("asked");
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    });
    run(async {
        let mut asker = Asker::new(&place);
        let trust = Trust {
            secret: SECRET.to_owned(),
            tls: false,
        };
        asker.source = source(address, &trust).expect("a source");
        asker.ask(&[(0, 3000), (1, 4000)]);
        assert_eq!(asker.all(2).await, vec![Some(Err(ErrorKind::Corrupt)); 2]);
    });
    liar.join().expect("ended");
}

/// Hands on what two sides say to each other, on one connection after the other: of each answer so many bytes, of which the one at a place is another.
fn between(listener: TcpListener, to: SocketAddr, cases: Vec<(usize, Option<usize>)>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for (cut, altered) in cases {
            let (mut near, _) = listener.accept().expect("asked");
            let mut far = TcpStream::connect(to).expect("connects");
            far.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
            let mut request = vec![0; 8192];
            let count = near.read(&mut request).expect("a request");
            far.write_all(&request[..count]).expect("sent");
            let mut done = 0;
            while done < cut {
                let mut piece = vec![0; 1000.min(cut - done)];
                let Ok(count @ 1..) = far.read(&mut piece) else { break };
                if let Some(at) = altered.filter(|at| (done..done + count).contains(at)) {
                    piece[at - done] ^= 1;
                }
                if near.write_all(&piece[..count]).is_err() {
                    break;
                }
                done += count;
            }
        }
    })
}

#[test]
fn an_answer_that_is_cut_or_altered_anywhere_gives_right_bytes_or_none() {
    let lens = [3000, 10, 4000];
    let wanted: Vec<(u64, u64)> = (0..).zip(lens).collect();
    let cuts = (0..8000).step_by(331).map(|cut| (cut, None));
    let cases: Vec<_> = cuts
        .chain((0..7400).step_by(97).map(|at| (usize::MAX, Some(at))))
        .collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let behind = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut place = Place::known_as(address, behind, limits(), &lens, 1 << 50);
    let thread = between(listener, place.address, cases.clone());
    // Who asks knows the one between them alone.
    place.address = address;
    let (mut came, mut whole) = ([0; 3], 0);
    run(async {
        for case in cases {
            let mut asker = Asker::new(&place);
            asker.ask(&wanted);
            let mut right = 0;
            for (at, ended) in asker.all(3).await.into_iter().enumerate() {
                if let Some(Ok(got)) = ended {
                    assert!(got == bytes(at as u64, lens[at]), "{at}, {case:?}");
                    came[at] += 1;
                    right += 1;
                }
            }
            whole += u32::from(right == 3);
        }
    });
    thread.join().expect("ended");
    assert!(
        came.iter().all(|&came| came > 10) && whole < 10,
        "{came:?}, {whole} whole ones"
    );
}
