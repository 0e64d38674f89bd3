//! Who carries bytes: the threads that fetch.
//!
//! The scheduler's thread hands out [`Order`]s, and gets each back as [`Landed`]. A thread carries an order from its first byte to its last: connection, TLS,
//! checksum, and the copy into the arena. Each has a runtime and connections of its own, so nothing is shared between them but the arena, where
//! no two orders write to the same bytes. Orders and answers go through queues without locks. Waking another thread costs more than deciding what
//! it does, so both go in [batches](Outbox): what one turn of a thread has for another leaves at its end, and wakes that once.
//!
//! With one carrier, it is the scheduler's own thread: where that has time for both, a hand-over would only cost. More are threads beside it
//! ([`Carriers::want`]), and an order goes to the one with the fewest bytes under way; a few small ones go to one and the same.
//!
//! A [`Bundle`] is several orders that one request brings, of a peer: each comes back by itself, when it is there.
//!
//! They also [host](Carriers::host) the connections of other nodes, which ask for what is here.
//!
//! An order that is called off has ended when it comes back, and not before: until then its thread may write into the memory that it is for.

mod bundles;

use crate::scatter::Scatter;
use foreload_store::index::ObjectRef;
use foreload_store::{Error, Fetched, Source};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::Instant;

/// More threads than a network card feeds.
pub const MOST: u32 = 64;
/// Cores for each: a carrier is busy with 1 to 2 GB/s, and the cores are there for the training's own processes.
const CORES_EACH: u32 = 4;
/// Orders that a thread takes up before it looks at its connections again.
const AT_ONCE: usize = 64;
/// What a carrier may have more under way than the idlest before that one is woken.
const AHEAD_BYTES: u64 = 256 << 10;

/// Names an order: its pool, and its action there.
pub type Name = (u32, u64);

/// A range to fetch, and where its bytes go.
pub struct Order {
    /// Its name, which no other order under way has.
    pub name: Name,
    /// Where from.
    pub source: Source,
    /// What.
    pub object: ObjectRef,
    /// Of the object.
    pub range: Range<u64>,
    /// When it has failed.
    pub deadline: Instant,
    /// Where to.
    pub sink: Scatter,
    /// Who is told.
    pub back: UnboundedSender<Landed>,
}

/// Small samples of a peer that one request asks for. Each comes back as an order would.
pub struct Bundle {
    /// Its name, which no order under way has.
    pub name: Name,
    /// Where from.
    pub source: Source,
    /// What names all of them to it.
    pub key: String,
    /// By their places in the request.
    pub parts: Vec<Part>,
    /// When what isn't there has failed.
    pub deadline: Instant,
    /// Who is told.
    pub back: UnboundedSender<Landed>,
}

/// One of a bundle.
pub struct Part {
    /// The action in its pool.
    pub action: u64,
    /// Its bytes.
    pub len: u64,
    /// Where to.
    pub sink: Scatter,
}

/// An order that has ended: nobody writes into its memory any more.
pub struct Landed {
    /// The action in its pool.
    pub action: u64,
    /// What was asked for.
    pub object: ObjectRef,
    /// What came.
    pub sink: Scatter,
    /// How; `None`: it was called off.
    pub fetched: Option<Result<Fetched, Error>>,
    /// Time since it was handed out, but for what it waited for a connection.
    pub took: Duration,
}

enum Message {
    Carry(Box<Order>, Instant),
    CarryAll(Box<Bundle>, Instant),
    CallOff(Name, u64),
    Host(Visit),
}

/// Begins what a thread does beside its orders, for as long as that takes; runs on that thread, inside its `LocalSet`.
pub type Visit = Box<dyn FnOnce() + Send>;

/// What a thread has for others, until its turn ends.
pub(crate) struct Outbox<T>(Rc<RefCell<Vec<Addressed<T>>>>);

type Addressed<T> = (UnboundedSender<T>, T);

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Outbox(Rc::clone(&self.0))
    }
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Outbox(Rc::default())
    }
}

impl<T: 'static> Outbox<T> {
    /// Must run inside a `LocalSet`.
    pub fn put(&self, to: &UnboundedSender<T>, item: T) {
        self.0.borrow_mut().push((to.clone(), item));
        if self.0.borrow().len() == 1 {
            let gathered = Rc::clone(&self.0);
            // It runs when those have run that are ready now. Who listens may be gone.
            tokio::task::spawn_local(async move {
                for (to, item) in gathered.take() {
                    let _ = to.send(item);
                }
            });
        }
    }
}

/// What of an order nobody waits for any more: its actions, which come back at once.
#[derive(Default)]
struct CalledOff {
    actions: RefCell<Vec<u64>>,
    more: Notify,
}

/// What one thread has under way.
#[derive(Clone, Default)]
struct Hands {
    orders: Rc<RefCell<FxHashMap<Name, Rc<CalledOff>>>>,
    /// For the scheduler's thread; `None`: it is this one.
    landed: Option<Outbox<Landed>>,
}

impl Hands {
    fn take(&self, message: Message) {
        match message {
            Message::Carry(order, since) => {
                let called_off = self.expect_call(order.name);
                tokio::task::spawn_local(carry(self.clone(), *order, since, called_off));
            }
            Message::CarryAll(bundle, since) => {
                let called_off = self.expect_call(bundle.name);
                tokio::task::spawn_local(carry_all(self.clone(), *bundle, since, called_off));
            }
            Message::CallOff(name, action) => {
                if let Some(called_off) = self.orders.borrow().get(&name) {
                    called_off.actions.borrow_mut().push(action);
                    called_off.more.notify_one();
                }
            }
            Message::Host(begin) => begin(),
        }
    }

    fn expect_call(&self, name: Name) -> Rc<CalledOff> {
        let called_off = Rc::new(CalledOff::default());
        self.orders.borrow_mut().insert(name, Rc::clone(&called_off));
        called_off
    }

    fn land(&self, back: &UnboundedSender<Landed>, landed: Landed) {
        match &self.landed {
            Some(outbox) => outbox.put(back, landed),
            // Its pool may be gone.
            None => drop(back.send(landed)),
        }
    }
}

async fn carry(hands: Hands, order: Order, since: Instant, called_off: Rc<CalledOff>) {
    let Order {
        name,
        source,
        object,
        range,
        deadline,
        mut sink,
        back,
    } = order;
    let fetched = tokio::select! {
        biased;
        fetched = source.fetch_indexed(&object, range, deadline, &mut sink) => Some(fetched),
        () = called_off.more.notified() => None,
    };
    hands.orders.borrow_mut().remove(&name);
    let connecting = match &fetched {
        Some(Ok(fetched)) => fetched.connecting,
        _ => Duration::ZERO,
    };
    let landed = Landed {
        action: name.1,
        object,
        sink,
        fetched,
        took: since.elapsed().saturating_sub(connecting),
    };
    hands.land(&back, landed);
}

async fn carry_all(hands: Hands, bundle: Bundle, since: Instant, called_off: Rc<CalledOff>) {
    let Bundle {
        name,
        source,
        key,
        parts,
        deadline,
        back,
    } = bundle;
    let coming = bundles::Coming::new(hands.clone(), back, &key, parts, since);
    let mut fetching = std::pin::pin!(coming.fetch(&source, &key, deadline));
    while coming.is_awaited() {
        tokio::select! {
            biased;
            ended = &mut fetching => coming.end(ended),
            () = called_off.more.notified() => coming.call_off(&called_off.actions.take()),
        }
    }
    hands.orders.borrow_mut().remove(&name);
}

/// Carries what comes until nobody can send any more.
async fn serve(mut inbox: UnboundedReceiver<Message>) {
    let hands = Hands {
        landed: Some(Outbox::default()),
        ..Hands::default()
    };
    let mut messages = Vec::with_capacity(AT_ONCE);
    while inbox.recv_many(&mut messages, AT_ONCE).await > 0 {
        messages.drain(..).for_each(|message| hands.take(message));
    }
}

/// A thread beside the scheduler's.
struct Beside {
    inbox: UnboundedSender<Message>,
    bytes: Cell<u64>,
}

impl Beside {
    fn start(number: usize) -> io::Result<Self> {
        let (inbox, messages) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name(format!("carrier-{number}"))
            .spawn(move || LocalSet::new().block_on(&runtime, serve(messages)))?;
        Ok(Beside {
            inbox,
            bytes: Cell::new(0),
        })
    }
}

/// Which of the carriers has an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// `None`: the scheduler's own thread.
    beside: Option<usize>,
    bytes: u64,
}

/// The carriers of an agent.
#[derive(Default)]
pub struct Carriers {
    here: Hands,
    beside: RefCell<Vec<Beside>>,
    /// Who had the last order.
    last: Cell<usize>,
    /// Who has the next guest.
    host: Cell<usize>,
    orders: Outbox<Message>,
}

impl Carriers {
    /// So many carriers from now on, if there aren't as many yet; one is the thread that calls.
    ///
    /// # Errors
    /// When the system has no room for another thread; those that could be started are there.
    pub fn want(&self, carriers: u32) -> io::Result<()> {
        let mut beside = self.beside.borrow_mut();
        let wanted = if carriers > 1 { carriers.min(MOST) as usize } else { 0 };
        while beside.len() < wanted {
            let next = Beside::start(beside.len())?;
            beside.push(next);
        }
        Ok(())
    }

    /// The carrier of the next order. `None`: the thread that calls.
    fn next(beside: &[Beside], last: usize) -> Option<usize> {
        let bytes = |at: usize| beside[at].bytes.get();
        let idlest = (0..beside.len()).min_by_key(|&at| bytes(at))?;
        let goes_on = last < beside.len() && bytes(last) < bytes(idlest) + AHEAD_BYTES;
        Some(if goes_on { last } else { idlest })
    }

    /// Hands an order to a carrier that has little to do.
    #[must_use]
    pub fn carry(&self, order: Order) -> Carrier {
        let bytes = order.range.end - order.range.start;
        self.hand_out(bytes, Message::Carry(Box::new(order), Instant::now()))
    }

    /// The same of a bundle: who has it, for each of its parts.
    #[must_use]
    pub fn carry_all(&self, bundle: Bundle) -> Vec<Carrier> {
        let lens: Vec<u64> = bundle.parts.iter().map(|part| part.len).collect();
        let message = Message::CarryAll(Box::new(bundle), Instant::now());
        let Carrier { beside, .. } = self.hand_out(lens.iter().sum(), message);
        lens.into_iter().map(|bytes| Carrier { beside, bytes }).collect()
    }

    fn hand_out(&self, bytes: u64, message: Message) -> Carrier {
        let beside = self.beside.borrow();
        let next = Self::next(&beside, self.last.get());
        match next {
            None => self.here.take(message),
            Some(at) => {
                self.last.set(at);
                beside[at].bytes.set(beside[at].bytes.get() + bytes);
                self.orders.put(&beside[at].inbox, message);
            }
        }
        Carrier { beside: next, bytes }
    }

    /// Calls an action of an order off; it comes back soon, and others that go with it come as they would have.
    pub fn call_off(&self, name: Name, action: u64, carrier: Carrier) {
        let message = Message::CallOff(name, action);
        match carrier.beside {
            None => self.here.take(message),
            Some(at) => self.orders.put(&self.beside.borrow()[at].inbox, message),
        }
    }

    /// Has the carriers do something beside their orders, one after the other.
    pub fn host(&self, begin: Visit) {
        let (beside, next) = (self.beside.borrow(), self.host.get());
        match beside.get(next % beside.len().max(1)) {
            None => self.here.take(Message::Host(begin)),
            Some(host) => {
                self.host.set(next + 1);
                self.orders.put(&host.inbox, Message::Host(begin));
            }
        }
    }

    /// An order has come back.
    pub fn landed(&self, carrier: Carrier) {
        if let Some(at) = carrier.beside {
            let bytes = &self.beside.borrow()[at].bytes;
            bytes.set(bytes.get() - carrier.bytes);
        }
    }
}

/// Carriers where nothing else is asked for: one for four of the cores that this process may use, which a control group's quota counts for too.
#[must_use]
pub fn usual() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (u32::try_from(cores).unwrap_or(MOST) / CORES_EACH).clamp(1, 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Shared;
    use foreload_plan::action::{Handle, Load, Piece, Source as From};
    use foreload_plan::blocks::Content;
    use foreload_store::SourceOptions;
    use std::sync::Arc;

    const LEN: u64 = 200_000;

    /// Files, an arena with room for all of them, and a queue.
    struct Place {
        _directory: tempfile::TempDir,
        source: Source,
        arena: Arc<Shared>,
        back: UnboundedSender<Landed>,
    }

    fn byte(file: u64, at: u64) -> u8 {
        (file * 37 + at * 11 % 251) as u8
    }

    impl Place {
        fn new(files: u64) -> (Self, UnboundedReceiver<Landed>) {
            let directory = tempfile::tempdir().expect("made");
            for file in 0..files {
                let bytes: Vec<u8> = (0..LEN).map(|at| byte(file, at)).collect();
                std::fs::write(directory.path().join(file.to_string()), bytes).expect("written");
            }
            let root = format!("file://{}", directory.path().display());
            let (back, landed) = unbounded_channel();
            let place = Place {
                source: Source::open(&root, &SourceOptions::default()).expect("a source"),
                arena: Arc::new(Shared::new("t", (files + 1) * LEN, true).expect("memory")),
                _directory: directory,
                back,
            };
            (place, landed)
        }

        fn order(&self, file: u64) -> Order {
            let piece = Piece {
                content: Content::block(file),
                handle: Handle {
                    index: file as u32,
                    generation: 0,
                },
                at: 0,
                slot_offset: file * LEN,
                len: LEN,
                content_offset: 0,
                content_len: LEN,
            };
            let load = Load {
                job: 0,
                source: From::Bucket,
                object: file,
                offset: 0,
                len: LEN,
                pieces: vec![piece],
                steps: 0,
                deadline_ns: 0,
                attempt: 0,
                hedge: false,
                bundle: None,
            };
            Order {
                name: (7, file),
                source: self.source.clone(),
                object: ObjectRef {
                    key: file.to_string(),
                    size: LEN,
                    etag: None,
                    version: None,
                },
                range: 0..LEN,
                deadline: Instant::now() + Duration::from_secs(30),
                sink: Scatter::new(Arc::clone(&self.arena), &load, &[]),
                back: self.back.clone(),
            }
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        LocalSet::new().block_on(&runtime.expect("a runtime"), test);
    }

    #[test]
    fn each_order_comes_back_once_with_its_bytes_whoever_carries() {
        for threads in [1, 2, 5] {
            run(async {
                let (place, mut landed) = Place::new(40);
                let carriers = Carriers::default();
                carriers.want(threads).expect("started");
                let sent: Vec<Carrier> = (0..40).map(|file| carriers.carry(place.order(file))).collect();
                let used: std::collections::BTreeSet<_> = sent.iter().map(|it| it.beside).collect();
                assert_eq!(used.len(), threads as usize, "all have a part");
                let mut seen = [false; 40];
                for _ in 0..40 {
                    let landed = landed.recv().await.expect("all come back");
                    let at = landed.action as usize;
                    assert!(landed.fetched.expect("not called off").is_ok() && !seen[at]);
                    assert!(landed.sink.checksums().is_some());
                    seen[at] = true;
                    carriers.landed(sent[at]);
                    let bytes = place.arena.map().bytes(landed.action * LEN, LEN).expect("inside");
                    assert!((0..LEN).all(|i| bytes[i as usize] == byte(landed.action, i)));
                }
                assert!(carriers.beside.borrow().iter().all(|it| it.bytes.get() == 0));
                assert!(landed.try_recv().is_err());
            });
        }
    }

    #[test]
    fn what_is_called_off_comes_back_and_nothing_is_written_after_that() {
        for threads in [1, 3] {
            run(async {
                let (place, mut landed) = Place::new(1);
                // A server that says nothing.
                let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
                let url = format!("http://{}/", silent.local_addr().expect("bound"));
                let carriers = Carriers::default();
                carriers.want(threads).expect("started");
                let order = Order {
                    source: Source::open(&url, &SourceOptions::default()).expect("a source"),
                    ..place.order(1)
                };
                let name = order.name;
                let carrier = carriers.carry(order);
                tokio::time::sleep(Duration::from_millis(50)).await;
                assert!(landed.try_recv().is_err(), "it hangs");
                carriers.call_off((7, 99), 99, carrier);
                carriers.call_off(name, name.1, carrier);
                let landed = tokio::time::timeout(Duration::from_secs(10), landed.recv()).await;
                assert!(landed.expect("soon").expect("back").fetched.is_none());
                carriers.call_off(name, name.1, carrier);
            });
        }
    }

    #[test]
    fn what_one_turn_gathers_leaves_at_its_end_in_order() {
        run(async {
            let (to, mut inbox) = unbounded_channel();
            let (other, mut others) = unbounded_channel();
            let outbox = Outbox::default();
            outbox.put(&to, 1);
            outbox.put(&other, 2);
            outbox.put(&to, 3);
            assert!(inbox.try_recv().is_err() && others.try_recv().is_err());
            tokio::task::yield_now().await;
            assert_eq!((inbox.try_recv(), inbox.try_recv()), (Ok(1), Ok(3)));
            assert_eq!(others.try_recv(), Ok(2));
            // Who has gone away is no reason to stop.
            drop(inbox);
            outbox.put(&to, 4);
            outbox.put(&other, 5);
            assert_eq!(others.recv().await, Some(5));
        });
    }

    #[test]
    fn more_carriers_are_there_at_once_and_fewer_are_no_wish() {
        run(async {
            let (place, mut landed) = Place::new(5);
            let carriers = Carriers::default();
            let first = carriers.carry(place.order(0));
            carriers.want(2).expect("started");
            carriers.want(1).expect("nothing to do");
            let second = carriers.carry(place.order(1));
            assert_eq!((first.beside, second.beside), (None, Some(0)));
            // The first may have a little more than the other, and not much.
            let more: Vec<_> = (2..5).map(|file| carriers.carry(place.order(file)).beside).collect();
            assert_eq!(more, [Some(0), Some(1), Some(1)]);
            for _ in 0..5 {
                assert!(landed.recv().await.is_some_and(|it| matches!(it.fetched, Some(Ok(_)))));
            }
        });
    }
}
