//! Where a job's bytes move: fetches from the bucket, reads from and writes to the disk tiers.
//!
//! Each ends with the completion of its action. Bytes are checked before they are reported: length and ETag by the source, checksums here and by the disk
//! tier.

use super::{Job, SLOWEST};
use crate::dataset::{NOWHERE, trouble};
use crate::disk::{Entry, Refusal};
use crate::protocol::{Say, Trouble};
use crate::scatter::{Check, Scatter};
use crate::sync::Mutex;
use foreload_plan::action::{Action, Command, Event, Failure, Load};
use foreload_plan::blocks::Content;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What is read from a disk at a time, outside the job's memory: the most that a lock is held for.
const READ_BYTES: u64 = 1 << 20;

impl Job {
    pub(super) async fn fetch(self: Rc<Self>, action: Action, cancel: Rc<Notify>) {
        let id = action.id();
        let Command::Load(load) = action.command() else { return };
        let bytes = load.len;
        self.state.borrow_mut().partial.expect(load);
        let deadline = self.begun + Duration::from_nanos(load.deadline_ns);
        let begun = Instant::now();
        let object = match load.pieces.first() {
            // Why the index places it nowhere.
            Some(piece) if load.object == NOWHERE => self
                .streams
                .placed(self.blocks.samples_of(piece.content).start)
                .and_then(|()| self.streams.object(load.object)),
            _ => self.streams.object(load.object),
        };
        let outcome = match object {
            Err(trouble) => Err(trouble),
            Ok((dataset, object)) => {
                let checks = self.checks(load);
                let mut sink = Scatter::new(Arc::clone(&self.cache), load, &checks);
                let range = load.offset..load.offset + load.len;
                let fetched = tokio::select! {
                    biased;
                    fetched = dataset.source.fetch_indexed(&object, range, deadline, &mut sink) => Some(fetched),
                    () = cancel.notified() => None,
                };
                match fetched {
                    None => Err(Trouble::new("cancelled", "")),
                    Some(Err(error)) => Err(trouble(&error)),
                    Some(Ok(fetched)) => {
                        self.note_speed(begun.elapsed(), || dataset.source.url_of(&object.key));
                        self.check(load, &checks, &sink).map(|()| fetched)
                    }
                }
            }
        };
        let completion = match outcome {
            Ok(fetched) => {
                let mut state = self.state.borrow_mut();
                state.stats.retries += u64::from(fetched.attempts.saturating_sub(1));
                state.stats.hedges_won += u64::from(load.hedge);
                let (first, all) = (fetched.first_byte.as_nanos() as u64, fetched.transfer.as_nanos() as u64);
                if fetched.attempts > 1 {
                    action.done_throttled(first, all)
                } else {
                    action.done(first, all)
                }
            }
            Err(trouble) => {
                let failure = match trouble.kind.as_str() {
                    "cancelled" => Failure::Cancelled,
                    "unavailable" | "timeout" => Failure::Unavailable,
                    "corrupt" => Failure::Corrupt,
                    _ => Failure::Final,
                };
                if failure != Failure::Cancelled {
                    let mut state = self.state.borrow_mut();
                    state.stats.failures += 1;
                    for piece in &load.pieces {
                        state.troubles.insert(piece.content, trouble.clone());
                    }
                }
                action.failed(failure)
            }
        };
        self.state.borrow_mut().cancels.remove(&id);
        self.seat.ended(&completion, bytes);
        self.step(Event::Completed(completion));
    }

    /// What of a load has a checksum in the index: the samples in each piece, or the part of a large one, or of one of several ranges, that it is. What
    /// comes with a piece before it is compared there.
    fn checks(&self, load: &Load) -> Vec<Check> {
        let (mut checks, mut end) = (Vec::new(), 0);
        for (number, piece) in load.pieces.iter().enumerate() {
            if piece.at + piece.len <= end {
                continue;
            }
            end = piece.at + piece.len;
            let samples = self.blocks.samples_of(piece.content);
            let first = self.blocks.place(samples.start).offset;
            let is_known = |sample: &u64| self.streams.crc32c(*sample).is_some();
            checks.extend(samples.filter(is_known).map(|sample| {
                let place = self.blocks.place(sample);
                Check {
                    sample,
                    piece: number,
                    at: piece.at + (place.offset - first),
                    len: place.len.min(piece.len),
                }
            }));
        }
        checks
    }

    /// Compares what came with the index' checksums.
    fn check(&self, load: &Load, checks: &[Check], sink: &Scatter) -> Result<(), Trouble> {
        let crcs = sink
            .checksums()
            .ok_or_else(|| Trouble::new("bug", "a fetch ended before all its pieces came"))?;
        for (check, &crc) in checks.iter().zip(crcs) {
            let piece = &load.pieces[check.piece];
            let mut crc = crc;
            if piece.len < piece.content_len {
                match self.state.borrow_mut().partial.arrived(piece, crc) {
                    Some(whole) => crc = whole,
                    None => continue,
                }
            }
            if let Some(known) = self.streams.crc32c(check.sample)
                && known != crc
            {
                let name = self.streams.name(check.sample);
                self.state.borrow_mut().partial.forget(piece.handle);
                return Err(Trouble::new(
                    "corrupt",
                    format!(
                        "{name}: its checksum is {crc:08x}, the index says {known:08x} (the object is damaged, or was replaced: run `foreload index --update --checksum`)"
                    ),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn note_speed(&self, took: Duration, url: impl FnOnce() -> String) {
        let seconds = took.as_secs_f64();
        let slowest = &mut self.state.borrow_mut().stats.slowest;
        if slowest.len() < SLOWEST || slowest.last().is_some_and(|(_, least)| seconds > *least) {
            let at = slowest.partition_point(|(_, other)| *other >= seconds);
            slowest.insert(at, (url(), seconds));
            slowest.truncate(SLOWEST);
        }
    }

    /// Reads from a disk tier until the deadline. What a disk that hangs still brings after that goes nowhere: its slots are another load's by then.
    pub(super) fn read_from_disk(self: &Rc<Self>, tier: u8, action: Action, cancel: Rc<Notify>) {
        let Command::Load(load) = action.command() else { return };
        let deadline = self.begun + Duration::from_nanos(load.deadline_ns);
        let entries: Vec<Option<(Entry, Range<u64>)>> = load
            .pieces
            .iter()
            .map(|piece| {
                let block = self
                    .blocks
                    .place_of(Content::block(self.blocks.block_of(piece.content)));
                let entry = self
                    .tiers
                    .get(usize::from(tier))?
                    .borrow()
                    .find(&self.key(piece.content)?)?;
                let from = load.offset + piece.at - block.offset;
                (entry.len() == block.len).then_some((entry, from..from + piece.len))
            })
            .collect();
        let given_up = Arc::new(Mutex::new(false));
        let (cache, pieces, job, begun) = (
            Arc::clone(&self.cache),
            load.pieces.clone(),
            Rc::clone(self),
            Instant::now(),
        );
        let reading = {
            let given_up = Arc::clone(&given_up);
            tokio::task::spawn_blocking(move || {
                let longest = pieces.iter().map(|piece| piece.len).max().unwrap_or(0);
                let mut buffer = vec![0; longest.min(READ_BYTES) as usize];
                pieces.iter().zip(entries).all(|(piece, entry)| {
                    let write = |at, bytes: &[u8]| {
                        let given_up = given_up.lock().unwrap_or_else(PoisonError::into_inner);
                        !*given_up && cache.write(piece.slot_offset + at, bytes).is_ok()
                    };
                    entry.is_some_and(|(entry, range)| matches!(entry.read(range, &mut buffer, write), Ok(true)))
                })
            })
        };
        tokio::task::spawn_local(async move {
            let read = tokio::select! {
                biased;
                read = reading => Ok(read.unwrap_or(false)),
                () = cancel.notified() => Err(Failure::Cancelled),
                () = tokio::time::sleep_until(deadline) => Err(Failure::Unavailable),
            };
            let took = begun.elapsed().as_nanos() as u64;
            job.state.borrow_mut().cancels.remove(&action.id());
            let completion = match read {
                Ok(true) => action.done(took / 8, took),
                Ok(false) => {
                    if let Command::Load(load) = action.command() {
                        job.quarantine(tier, load);
                    }
                    action.failed(Failure::Corrupt)
                }
                Err(failure) => {
                    *given_up.lock().unwrap_or_else(PoisonError::into_inner) = true;
                    if failure == Failure::Unavailable {
                        job.note_disk_trouble(tier, "reading from", &"it doesn't answer");
                    }
                    action.failed(failure)
                }
            };
            job.step(Event::Completed(completion));
        });
    }

    pub(super) fn quarantine(&self, tier: u8, load: &Load) {
        let mut state = self.state.borrow_mut();
        for piece in &load.pieces {
            if let (Some(key), Some(tier)) = (self.key(piece.content), self.tiers.get(usize::from(tier))) {
                let mut tier = tier.borrow_mut();
                if let Some(entry) = tier.find(&key) {
                    tier.quarantine(&entry);
                }
            }
            state.stats.quarantined += 1;
        }
    }

    /// Writes blocks to a disk tier: one task for all that a step ordered.
    pub(super) fn write_to_disk(self: &Rc<Self>, actions: Vec<Action>) {
        let mut work = Vec::with_capacity(actions.len());
        for action in actions {
            let Command::Keep { tier, block, slot, .. } = action.command() else {
                continue;
            };
            let (number, block, slot) = (*tier, *block, *slot);
            let place = self.key(Content::block(block)).and_then(|key| {
                let tier = self.tiers.get(usize::from(number))?;
                Some(tier.borrow_mut().reserve(u64::from(self.id), key, slot.len))
            });
            match place {
                Some(Ok(place)) => {
                    let samples = self.blocks.range(block);
                    work.push((action, number, slot, place, samples.end - samples.start));
                }
                refused => {
                    // A tier that is full or failing for a moment refuses for a moment; the plan offers it the next block all the same.
                    let stays = matches!(refused, Some(Err(Refusal::Exists)));
                    if let Some(Err(refusal)) = &refused
                        && !stays
                    {
                        self.note_disk_trouble(number, "writing to", refusal);
                    }
                    self.end_later(if stays {
                        action.done(0, 0)
                    } else {
                        action.failed(Failure::Final)
                    });
                }
            }
        }
        let (job, cache) = (Rc::clone(self), Arc::clone(&self.cache));
        tokio::task::spawn_local(async move {
            let written = tokio::task::spawn_blocking(move || {
                let write = |(action, tier, slot, place, samples): (
                    Action,
                    u8,
                    foreload_plan::arena::Slot,
                    crate::disk::Reservation,
                    u64,
                )| {
                    let bytes = cache.map().bytes(slot.offset, slot.len).unwrap_or_default();
                    (action, tier, samples, place.write(bytes))
                };
                work.into_iter().map(write).collect::<Vec<_>>()
            });
            let Ok(written) = written.await else { return };
            for (action, number, samples, result) in written {
                let Some(tier) = job.tiers.get(usize::from(number)) else {
                    continue;
                };
                let completion = match result {
                    Ok(written) => {
                        tier.borrow_mut().commit(written);
                        job.state.borrow_mut().stats.kept_samples += samples;
                        action.done(0, 0)
                    }
                    Err(failed) => {
                        job.note_disk_trouble(number, "writing to", &failed.error);
                        tier.borrow_mut().failed(failed);
                        action.failed(Failure::Final)
                    }
                };
                job.step(Event::Completed(completion));
            }
            job.do_chores();
        });
    }

    /// Lets the disk tiers seal and unlink segments, off this thread.
    pub(super) fn do_chores(&self) {
        for tier in &self.tiers {
            let mut chores = Vec::new();
            while let Some(chore) = tier.borrow_mut().chore() {
                chores.push(chore);
            }
            if !chores.is_empty() {
                tokio::task::spawn_blocking(move || chores.into_iter().for_each(crate::disk::Chore::run));
            }
        }
    }

    /// Says once a minute that a disk tier doesn't do what it should; training goes on without.
    pub(super) fn note_disk_trouble(&self, tier: u8, doing: &str, error: &dyn std::fmt::Display) {
        let mut state = self.state.borrow_mut();
        if state
            .disk_trouble
            .is_some_and(|at| at.elapsed() < Duration::from_secs(60))
        {
            return;
        }
        state.disk_trouble = Some(Instant::now());
        let directory = self
            .attach
            .disks
            .get(usize::from(tier))
            .map_or_else(String::new, |disk| disk.directory.display().to_string());
        let message = format!(
            "{doing} the disk cache at {directory}: {error}; what it doesn't hold is fetched again, training goes on"
        );
        eprintln!("foreload-agent: job {}: {message}", self.id);
        let body = serde_json::to_string(&Trouble::new("unavailable", message)).unwrap_or_default();
        for (who, _) in state.wants.values() {
            if let Some(who) = who.upgrade() {
                who.say(&Say::Notice { body: body.clone() });
            }
        }
    }

    pub(super) fn end_later(self: &Rc<Self>, completion: foreload_plan::action::Completion) {
        let job = Rc::clone(self);
        tokio::task::spawn_local(async move { job.step(Event::Completed(completion)) });
    }
}
