//! The files' bytes, by way of the agent: data sets of known files, the samples of which are chunks.
//!
//! What the agent reads are data sets, and a mount comes to know files one by one. So files that are known and have no place yet become a data set together, a *shelf*, when one of
//! them is opened: after a directory was listed, all of its files. An index is made of what the listing said, so that nothing is asked of the bucket, and the agent takes it as a
//! saved one. When there are many shelves, the small ones become one.
//!
//! All shelves share the agent's memory, disks and requests, for their jobs are alike; the first one brings the memory.

use crate::layout::Layout;
use crate::locked;
use crate::names::Names;
use crate::orders::{Orders, Teller, Turns};
use crate::room::Room;
use crate::settings::Settings;
use crate::tree::{Ino, Object, Spot};
use foreload_engine::calls::{Attach, Call, Open};
use foreload_engine::client::{Attached, Client, ClientError, Opened, Place};
use foreload_engine::env;
use foreload_engine::protocol::{Ask, Trouble};
use foreload_plan::Digest;
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::policy::Policy;
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_store::index::{NewObject, NewSample};
use foreload_store::{Format, IndexBuilder, Source};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Files that become a shelf at once, at most.
const MOST_FILES: usize = 200_000;
/// Shelves beside each other, before the small ones become one.
const MOST_SHELVES: usize = 8;
/// How often it is begun anew when the agent has ended: another one is started.
pub const AGENTS: u32 = 3;
/// Longest chunks that a shelf has memory for, at least: those that wait and those that are read.
const LEAST_CHUNKS: u64 = 4;
/// Of a job's memory, what is for batches, which a mount makes none of.
const BATCH_BYTES: u64 = 1 << 16;

/// Files that are read by way of one job of the agent.
pub struct Shelf {
    number: u64,
    attached: Attached,
    files: usize,
}

impl Shelf {
    /// The agent's job.
    #[must_use]
    pub fn attached(&self) -> &Attached {
        &self.attached
    }
}

/// All of them.
pub struct Shelves {
    settings: Settings,
    root: String,
    known: Mutex<Known>,
    /// Never held while the agent is waited for.
    orders: Mutex<Orders<Arc<Shelf>>>,
    room: Arc<Room>,
    next: AtomicU64,
    is_closing: Arc<AtomicBool>,
}

/// One that is being made: for whom, its number, and until when that is waited for.
struct New<'a> {
    client: &'a Arc<Client>,
    number: u64,
    until: Instant,
}

#[derive(Default)]
struct Known {
    client: Option<Arc<Client>>,
    /// The one that has brought the memory of all, which stays.
    first: Option<Arc<Shelf>>,
    shelves: BTreeMap<u64, Arc<Shelf>>,
}

impl Shelves {
    /// None yet.
    #[must_use]
    pub fn new(settings: Settings, source: &Source, room: Arc<Room>, is_closing: Arc<AtomicBool>) -> Self {
        Shelves {
            settings,
            root: source.root().to_owned(),
            known: Mutex::default(),
            orders: Mutex::default(),
            room,
            next: AtomicU64::new(1),
            is_closing,
        }
    }

    /// An object's chunks.
    #[must_use]
    pub fn layout(&self, bytes: u64) -> Layout {
        self.settings.chunking.layout(bytes)
    }

    /// Connects to the agent, starting it if there is none.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(&self) -> Result<(), ClientError> {
        self.client(&mut locked(&self.known), self.until()).map(drop)
    }

    /// The agent is waited for until then: one that is stopped answers nothing, and is no reason to hang.
    fn until(&self) -> Instant {
        Instant::now() + self.settings.timeout()
    }

    /// Asked while the agent is waited for; false: nobody waits any more.
    fn waits(&self, until: Instant) -> bool {
        !self.is_closing.load(Ordering::Relaxed) && Instant::now() < until
    }

    /// Says of a wait that was broken off why.
    fn told<T>(&self, answer: Result<T, ClientError>) -> Result<T, ClientError> {
        match answer {
            Err(ClientError::Interrupted) if !self.is_closing.load(Ordering::Relaxed) => {
                Err(ClientError::TimedOut(self.settings.timeout_s))
            }
            answer => answer,
        }
    }

    /// The agent; one that has ended has taken its shelves along.
    fn client(&self, known: &mut Known, until: Instant) -> Result<Arc<Client>, ClientError> {
        if let Some(client) = known.client.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        known.first = None;
        known.shelves.clear();
        locked(&self.orders).end(&self.room);
        let linger = env::linger().map_err(ClientError::NoAgent)?;
        let place = Place::of(self.settings.cache_dir.clone(), self.settings.agent.clone(), linger);
        let client = Client::connect(&place, &mut || self.waits(until))?;
        known.client = Some(Arc::clone(&client));
        Ok(client)
    }

    /// The shelf of a file that is known, and its first chunk there; made now if it has none.
    ///
    /// # Errors
    /// What the agent says.
    pub fn find(&self, names: &Names, ino: Ino, key: &str, object: &Object) -> Result<(Arc<Shelf>, u64), ClientError> {
        let until = self.until();
        self.told(self.find_until(until, names, ino, key, object))
    }

    fn find_until(
        &self,
        until: Instant,
        names: &Names,
        ino: Ino,
        key: &str,
        object: &Object,
    ) -> Result<(Arc<Shelf>, u64), ClientError> {
        let mut known = locked(&self.known);
        if !self.waits(until) {
            // Others have waited all that time.
            return Err(ClientError::Interrupted);
        }
        let client = self.client(&mut known, until)?;
        let spot = names.tree().spot(ino, object);
        if let Some((shelf, spot)) = spot.and_then(|spot| Some((known.shelves.get(&spot.shelf)?, spot))) {
            return Ok((Arc::clone(shelf), spot.first));
        }
        if known.shelves.len() >= MOST_SHELVES {
            let largest = known.shelves.values().max_by_key(|shelf| shelf.files);
            let largest = largest.map(|shelf| shelf.number);
            known.shelves.retain(|number, _| Some(*number) == largest);
        }
        let begun = Instant::now();
        let mut files = names
            .tree()
            .unplaced(MOST_FILES, |spot| known.shelves.contains_key(&spot.shelf));
        // Of its name there may be another object by now.
        files.retain(|(other, other_key, _)| *other != ino && other_key != key);
        files.push((ino, key.to_owned(), object.clone()));
        // Neighbours in the index are neighbours in the bucket.
        files.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        let new = New {
            client: &client,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            until,
        };
        let (opened, firsts) = self.open(&new, files.iter().map(|(_, key, object)| (key.as_str(), object)))?;
        let kind = OrderKind::Supplied {
            length: opened.index.len(),
        };
        let brings = self.brings(files.iter().map(|(_, _, object)| object));
        let shelf = self.make(&mut known, &new, &opened, kind, files.len(), brings)?;
        known.shelves.insert(new.number, Arc::clone(&shelf));
        let mut tree = names.tree();
        let mut found = None;
        for ((other, _, object), first) in files.iter().zip(firsts) {
            let spot = Spot {
                shelf: new.number,
                first,
            };
            tree.set_spot(*other, object, spot, begun);
            if *other == ino {
                found = Some(first);
            }
        }
        let first = found.ok_or_else(|| bug("the file that was asked for isn't on its shelf"))?;
        Ok((shelf, first))
    }

    /// The memory that a job of these files brings: what some of their chunks take.
    fn brings<'a>(&self, objects: impl Iterator<Item = &'a Object>) -> u64 {
        let largest = objects
            .map(|object| self.layout(object.size).chunk.min(object.size))
            .max();
        (LEAST_CHUNKS * largest.unwrap_or(0) + BATCH_BYTES).min(self.settings.ram_bytes)
    }

    /// Joins or starts a job of the agent's.
    fn make(
        &self,
        known: &mut Known,
        new: &New<'_>,
        opened: &Opened,
        kind: OrderKind,
        files: usize,
        brings: u64,
    ) -> Result<Arc<Shelf>, ClientError> {
        let New { client, number, until } = *new;
        let ram_bytes = match known.first {
            None => self.settings.ram_bytes,
            Some(_) => brings,
        };
        let attach = self.attach(opened, number, kind, ram_bytes);
        let mut pulse = || self.waits(until);
        let attached = Attached::new(client, attach, &mut pulse)?;
        let shelf = Arc::new(Shelf {
            number,
            attached,
            files,
        });
        known.first.get_or_insert_with(|| Arc::clone(&shelf));
        // The job has it, for as long as it is.
        let let_go = Call::LetGo {
            dataset: opened.dataset,
        };
        drop(client.call(&let_go, &mut || self.waits(until))?);
        Ok(shelf)
    }

    fn open<'a>(
        &self,
        new: &New<'_>,
        files: impl Iterator<Item = (&'a str, &'a Object)>,
    ) -> Result<(Opened, Vec<u64>), ClientError> {
        let New { client, number, until } = *new;
        let (index, firsts) = self.index(files)?;
        let kept = Temporary::write(&self.settings.cache_dir, number, index.as_bytes())?;
        let mut pulse = || self.waits(until);
        let open = Open {
            url: self.root.clone(),
            storage_options: self.settings.storage_options.clone(),
            index: Some(kept.0.to_string_lossy().into_owned()),
            // The listing is as new as can be.
            stale: true,
            ..Open::default()
        };
        Ok((Opened::new(client, &Call::Open(open), &mut pulse, &mut |_| ())?, firsts))
    }

    /// Somebody is about to say what is read next.
    pub fn tells(&self, teller: Teller, number: u64) {
        locked(&self.orders).tells(teller, number);
    }

    /// These files will be read next, in this order: they are fetched ahead by it. What was told before by the same one is over; no files: that is all.
    ///
    /// # Errors
    /// What the agent says.
    pub fn order(&self, (teller, number): (Teller, u64), files: Vec<(String, Object)>) -> Result<(), ClientError> {
        let (until, mut agents) = (self.until(), 0);
        loop {
            match self.order_until(until, (teller, number), &files) {
                // One may end while it starts, too.
                Err(ClientError::Closed(why) | ClientError::NoAgent(why)) if agents < AGENTS => {
                    agents += 1;
                    crate::log::line(format_args!("the agent has ended ({why}): starting another one"));
                }
                ordered => return self.told(ordered),
            }
        }
    }

    fn order_until(
        &self,
        until: Instant,
        (teller, number): (Teller, u64),
        files: &[(String, Object)],
    ) -> Result<(), ClientError> {
        let mut known = locked(&self.known);
        if !self.waits(until) {
            return Err(ClientError::Interrupted);
        }
        // Asked with the lock: a later one may have got it before.
        if !locked(&self.orders).is_last(teller, number) {
            return Ok(());
        }
        let client = self.client(&mut known, until)?;
        let mut each = files.to_vec();
        each.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        each.dedup_by(|a, b| a.0 == b.0);
        let brings = self.brings(each.iter().map(|(_, object)| object));
        let most = self.settings.ram_bytes;
        let over = locked(&self.orders).over(teller, (brings, most), Instant::now(), is_process, &self.room);
        for (shelf, unread) in over {
            // Whoever reads by it still has what was asked for, and nothing more is fetched ahead.
            let leave = Ask::Leave {
                job: shelf.attached.job,
                rank: 0,
            };
            client.send(&leave)?;
            give_back(&shelf, &unread);
        }
        let new = New {
            client: &client,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            until,
        };
        if each.iter().all(|(_, object)| object.size == 0) {
            return Ok(());
        }
        let (opened, firsts) = self.open(&new, each.iter().map(|(key, object)| (key.as_str(), object)))?;
        let first_of: FxHashMap<&str, u64> = each.iter().map(|(key, _)| key.as_str()).zip(firsts).collect();
        let (mut list, mut lens, mut turns) = (Vec::new(), Vec::new(), Turns::default());
        for (key, object) in files {
            let Some(first) = first_of.get(key.as_str()) else {
                continue;
            };
            let layout = self.layout(object.size);
            let count = layout.count();
            lens.extend(
                (0..count)
                    .map(|nth| layout.span(nth))
                    .map(|span| (span.end - span.start) as u32),
            );
            let turn = turns
                .entry(key.clone())
                .or_insert_with(|| (object.clone(), VecDeque::new()));
            turn.1.push_back(list.len() as u64);
            list.extend(*first..first + count);
        }
        let kind = OrderKind::Explicit { list: list.into() };
        let shelf = self.make(&mut known, &new, &opened, kind, each.len(), brings)?;
        let begin = Ask::Start {
            job: shelf.attached.job,
            rank: 0,
            epoch: 0,
            batch: 0,
        };
        client.send(&begin)?;
        locked(&self.orders).add((teller, brings), shelf, turns, lens, Instant::now());
        Ok(())
    }

    /// Where a file comes next in an order that was told, if it does and is as it was then.
    #[must_use]
    pub fn turn_of(&self, key: &str, object: &Object) -> Option<(Arc<Shelf>, u64)> {
        let turn = locked(&self.orders).turn_of(key, object, Instant::now());
        turn.filter(|(shelf, _)| !shelf.attached.client.is_closed())
    }

    /// Asks for what comes there in an order, or has asked for it already; and for what comes next in it, as far as there is room.
    ///
    /// # Errors
    /// As of [`Attached::want_reads`].
    pub fn read_in_order(&self, shelf: &Arc<Shelf>, place: u64) -> Result<u64, ClientError> {
        let ask = |place| shelf.attached.want_reads(0, vec![(0, place)]);
        let is_it = |other: &Arc<Shelf>| Arc::ptr_eq(other, shelf);
        let asked = locked(&self.orders).read(is_it, place, Instant::now(), &self.room, ask);
        // It may be over.
        asked.unwrap_or_else(|| ask(place))
    }

    /// Gives back what was asked for ahead by an order so long ago, and not read.
    pub fn rest(&self, patience: Duration) {
        let unread = locked(&self.orders).rest(Instant::now(), patience, &self.room);
        unread.iter().for_each(|(shelf, unread)| give_back(shelf, unread));
    }

    /// Chunks as samples, and the first one of each file.
    fn index<'a>(
        &self,
        files: impl Iterator<Item = (&'a str, &'a Object)>,
    ) -> Result<(foreload_store::Index, Vec<u64>), ClientError> {
        let failed = |error: foreload_store::Error| bug(&error.to_string());
        let mut builder = IndexBuilder::new(self.root.as_str(), Format::Flat);
        let mut firsts = Vec::new();
        for (key, object) in files {
            firsts.push(builder.samples());
            let layout = self.layout(object.size);
            let new = NewObject {
                key,
                size: object.size,
                etag: object.etag.as_deref(),
                version: object.version.as_deref(),
            };
            if layout.count() == 0 {
                continue;
            }
            if layout.count() == 1 {
                builder.whole_object(new, None, None).map_err(failed)?;
                continue;
            }
            let number = builder.object(new).map_err(failed)?;
            for nth in 0..layout.count() {
                let span = layout.span(nth);
                let chunk = NewSample {
                    object: number,
                    offset: span.start,
                    length: span.end - span.start,
                    ..NewSample::default()
                };
                builder.sample(chunk).map_err(failed)?;
            }
        }
        Ok((builder.finish().map_err(failed)?, firsts))
    }

    fn attach(&self, opened: &Opened, number: u64, kind: OrderKind, ram_bytes: u64) -> Attach {
        let settings = &self.settings;
        let samples = opened.index.len();
        let concurrency = settings
            .connections
            .map_or_else(ConcurrencySettings::default, ConcurrencySettings::fixed);
        Attach {
            dataset: opened.dataset,
            more: Vec::new(),
            session: format!("mount-{}-{number}", std::process::id()),
            order: OrderSpec {
                dataset: Digest::from_bytes(opened.index.digest()),
                samples,
                kind,
                seed: 0,
                global_batch: 1,
                tail: Tail::Pad { multiple: 1 },
            },
            world: 1,
            ranks: vec![0],
            uneven: false,
            deal: None,
            nodes: None,
            policy: Policy::default(),
            ram_bytes,
            batch_bytes: BATCH_BYTES,
            skip_large: false,
            // The page cache keeps what was read: memory that is used again and again is warm.
            staging_bytes: Some(settings.ram_bytes),
            disks: settings.disks.clone(),
            concurrency,
            io_threads: None,
            hedge_per_cent: 5,
            request_bytes: Some(settings.chunking.most_bytes()),
            timeout_s: settings.timeout_s,
            stall_s: settings.timeout_s,
            epochs: None,
            bucket: None,
            metrics_log: None,
        }
    }

    /// Lets all of them go: the agent ends by itself.
    pub fn close(&self) {
        let known = std::mem::take(&mut *locked(&self.known));
        drop(known);
    }
}

fn give_back(shelf: &Shelf, wants: &[u64]) {
    for want in wants {
        // Where the agent has ended there is nothing to give back.
        let _ = shelf.attached.client.withdraw(shelf.attached.job, *want);
    }
}

fn is_process(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn bug(why: &str) -> ClientError {
    ClientError::Trouble(Trouble::new("bug", why.to_owned()))
}

/// A file that is there until the agent has read it.
struct Temporary(PathBuf);

impl Temporary {
    fn write(cache_dir: &Path, number: u64, bytes: &[u8]) -> Result<Self, ClientError> {
        let directory = cache_dir.join("mounts");
        let path = directory.join(format!("{}-{number}.flx", std::process::id()));
        let written = std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&path, bytes));
        let file = Temporary(path);
        written.map_err(|error| {
            let why = format!("writing {}: {error}", file.0.display());
            ClientError::Trouble(Trouble::new("disk", why))
        })?;
        Ok(file)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
