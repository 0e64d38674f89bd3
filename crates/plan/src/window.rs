//! What a program that maps a file will touch next, from what it has touched.
//!
//! Nobody tells how far such a program is; its page table does. Whoever looks there from time to time passes on what was touched since
//! ([`Detector::touched`], [`Detector::looked`]), and is told what to fetch ([`Detector::next`]) and where to look first the next time ([`Detector::watch`]). What was only fetched isn't touched: a
//! page that the program didn't ask for is in no page table.
//!
//! A file is read by several *streams* at once. One is a *part*, bytes that were touched without a gap, and what is known of the parts before it: a part that grows is read
//! on, as far ahead as it has grown and what it grows by in a few looks, forwards or backwards, for a large copy may begin at its end; parts that begin at equal distances make a *stride*, and the next ones are fetched, as many ahead as were seen. So a stream
//! that proves nothing costs nothing, and one that ends has fetched at most as much in vain as it had read. What was fetched in vain is counted, too, and where it is much a stream has to prove more.
//!
//! Everything is a pure function of the calls. Time is counted in bytes touched: a program that pauses has not left a stream, one that reads elsewhere has. Nothing is allocated, for the preload
//! library decides with this inside other programs.
//!
//! [`watch`] makes touches out of looks at a page table, which [`pagemap`] knows how to ask, and [`pace`] says how often. [`glob`] says which files are meant. Both who looks from inside a program (the preload library) and who looks from
//! outside (`foreload attach`) use all of them.

pub mod checkpoint;
pub mod glob;
pub mod pace;
pub mod pagemap;
mod stream;
pub mod watch;

use core::time::Duration;
use stream::Stream;

/// Streams that are followed at once; of more, those touched last.
pub const STREAMS: usize = 24;
/// Bytes that a part must grow by before it is read on: below it, random reads of records would be read on, too.
const PROOF: u64 = 512 << 10;
/// The same for a program of which so much was read ahead and used.
const PROOF_TRUSTED: u64 = 192 << 10;
const TRUSTED: u64 = 32 << 20;
/// Equal distances before a stride is believed. Two are no proof where little lies between the parts.
const PROOF_STRIDES: u64 = 3;
/// What may be fetched in vain before anything is judged.
const GRACE: u64 = 4 << 20;
/// And then: one part in so many of what was touched.
const VAIN_SHARE: u64 = 8;
/// By which more proof is asked for.
const SUSPICION: u64 = 4;
/// Beyond this proof nothing is fetched any more.
const MOST_PROOF: u64 = 4 << 30;
/// No file is longer; with it, sums of a few places and lengths are numbers still.
const MOST_BYTES: u64 = 1 << 58;
/// What is fetched at a time while a part is read on: less isn't worth a look.
const LEAST_ASK: u64 = 1 << 20;

/// Some bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub from: u64,
    /// The one behind the last.
    pub to: u64,
}

impl Span {
    /// Bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.to <= self.from
    }
}

/// What has come of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes that were touched.
    pub touched_bytes: u64,
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Of those: what was touched afterwards.
    pub used_bytes: u64,
    /// Of those: what wasn't, as far as that is known.
    pub vain_bytes: u64,
    /// Streams that something was asked for.
    pub streams: u64,
}

impl core::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.touched_bytes += other.touched_bytes;
        self.asked_bytes += other.asked_bytes;
        self.used_bytes += other.used_bytes;
        self.vain_bytes += other.vain_bytes;
        self.streams += other.streams;
    }
}

/// Follows one mapping of a file.
#[derive(Clone, Debug)]
pub struct Detector {
    bytes: u64,
    granule: u64,
    window: u64,
    streams: [Stream; STREAMS],
    /// Where the last part began.
    previous: Option<u64>,
    proof: u64,
    proof_strides: u64,
    /// What was fetched in vain, and touched, since it was judged.
    vain: u64,
    judged_at: u64,
    tally: Tally,
}

impl Detector {
    /// Begins with a file of which nothing was touched.
    ///
    /// `granule_bytes` is how exactly touches are known: a fault maps what is in memory around it, 64 KiB on Linux. `window_bytes` is what a stream is read ahead at most; 0: nothing
    /// is fetched, and touches are followed all the same.
    #[must_use]
    pub const fn new(bytes: u64, granule_bytes: u64, window_bytes: u64) -> Self {
        Detector {
            bytes: if bytes < MOST_BYTES { bytes } else { MOST_BYTES },
            granule: if granule_bytes == 0 { 1 } else { granule_bytes },
            window: if window_bytes < MOST_BYTES {
                window_bytes
            } else {
                MOST_BYTES
            },
            streams: [Stream::NONE; STREAMS],
            previous: None,
            proof: PROOF,
            proof_strides: PROOF_STRIDES,
            vain: 0,
            judged_at: 0,
            tally: Tally {
                touched_bytes: 0,
                asked_bytes: 0,
                used_bytes: 0,
                vain_bytes: 0,
                streams: 0,
            },
        }
    }

    /// What has come of it so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// Bytes that were asked for and may still be touched.
    #[must_use]
    pub fn outstanding_bytes(&self) -> u64 {
        self.streams.iter().map(Stream::outstanding).sum()
    }

    /// These bytes were touched, for the first time, or again after they had gone. Of several that were found at once, the one that lies first comes first.
    pub fn touched(&mut self, span: Span) {
        let span = Span {
            from: span.from,
            to: span.to.min(self.bytes),
        };
        if span.is_empty() {
            return;
        }
        self.tally.touched_bytes = self.tally.touched_bytes.saturating_add(span.len());
        let (now, granule) = (self.tally.touched_bytes, self.granule);
        let live = || {
            self.streams
                .iter()
                .enumerate()
                .filter(|(_, stream)| stream.is_followed())
        };
        let growing = live().filter_map(|(at, stream)| Some((stream.gap(span, granule)?, at)));
        if let Some((_, at)) = growing.min() {
            self.grow(at, span);
            return;
        }
        let (strides, previous) = (self.proof_strides, self.previous.replace(span.from));
        let striding = live().filter_map(|(at, stream)| {
            let (error, count) = stream.meets(span.from, granule, strides)?;
            Some((error, at, count))
        });
        if let Some((_, at, count)) = striding.min() {
            let Some(stream) = self.streams.get_mut(at) else { return };
            // A part that is being read on stays a stream of its own: other threads may be at it.
            let part = stream.part(self.proof);
            let (used, vain) = stream.step(span, count, part.is_some(), now);
            self.tally.used_bytes += used;
            self.judge(vain);
            part.into_iter().for_each(|part| self.follow(part));
            return;
        }
        self.follow(Stream::begin(span, previous, now));
    }

    /// Follows one more, in the place of the one that was touched longest ago; free places never were.
    fn follow(&mut self, stream: Stream) {
        let Some(place) = self.streams.iter_mut().min_by_key(|stream| stream.touched_at) else {
            return;
        };
        let vain = place.outstanding();
        *place = stream;
        self.judge(vain);
    }

    /// Lets a stream's part grow, and take over the one that it has reached: several threads that read pieces of one part each.
    fn grow(&mut self, at: usize, span: Span) {
        let (now, granule, strides) = (self.tally.touched_bytes, self.granule, self.proof_strides);
        let Some(stream) = self.streams.get_mut(at) else { return };
        let (used, vain) = stream.grow(span, now);
        let mut grown = *stream;
        self.tally.used_bytes += used;
        for other in &mut self.streams {
            if grown.reaches(other, granule) {
                if other.is_stride(strides) {
                    self.tally.used_bytes += grown.settle(other);
                } else {
                    self.tally.used_bytes += grown.join(other);
                    *other = Stream::NONE;
                }
            }
        }
        if let Some(stream) = self.streams.get_mut(at) {
            *stream = grown;
        }
        self.judge(vain);
    }

    /// A look is over, so long after the one before: all that was touched since has been passed on.
    pub fn looked(&mut self, elapsed: Duration) {
        self.streams.iter_mut().for_each(|stream| stream.looked(elapsed));
    }

    /// Bytes that a part must grow by now. Of a program that has read much on, and little of it in vain, less is asked for.
    fn proof(&self) -> u64 {
        let is_trusted = self.tally.used_bytes >= TRUSTED && self.tally.vain_bytes <= self.tally.used_bytes / 16;
        if is_trusted {
            self.proof.min(PROOF_TRUSTED)
        } else {
            self.proof
        }
    }

    /// What to fetch next, if anything; to be called until it says nothing. No more than `most_bytes` are on their way for this file.
    #[must_use]
    pub fn next(&mut self, most_bytes: u64) -> Option<Span> {
        if self.window == 0 || self.proof > MOST_PROOF {
            return None;
        }
        let mut room = most_bytes
            .checked_sub(self.outstanding_bytes())
            .filter(|&room| room > 0)?;
        for at in 0..STREAMS {
            let (now, window, proof) = (self.tally.touched_bytes, self.window.min(most_bytes), self.proof());
            let begins = self.streams.get(at)?.begins();
            let before = self.streams.iter().filter_map(|other| other.ends_before(begins)).max();
            let stream = self.streams.get_mut(at)?;
            if !stream.is_followed() {
                continue;
            }
            if stream.is_left(now, window) {
                let vain = stream.leave();
                self.judge(vain);
                room += vain;
                continue;
            }
            let was_asked = stream.has_asked;
            let found = stream
                .ahead(self.bytes, self.proof_strides, window, self.granule, room)
                .or_else(|| stream.on(self.bytes, proof, window, room))
                .or_else(|| stream.back(before.unwrap_or(0), proof, window, room));
            if let Some(span) = found {
                self.tally.streams += u64::from(!was_asked);
                self.tally.asked_bytes = self.tally.asked_bytes.saturating_add(span.len());
                return Some(span);
            }
        }
        None
    }

    /// Where stream number `at` is expected to touch something next, if there is such a stream and it is worth a look.
    #[must_use]
    pub fn watch(&self, at: usize) -> Option<[Span; 3]> {
        let is_watched = |stream: &&Stream| stream.is_watched(self.tally.touched_bytes, self.proof_strides);
        let stream = self.streams.get(at).filter(is_watched)?;
        Some(stream.watched(self.granule, self.window).map(|span| Span {
            from: span.from.min(self.bytes),
            to: span.to.min(self.bytes),
        }))
    }

    /// So much more was fetched in vain. Where that is much, streams have to prove more from now on.
    fn judge(&mut self, vain: u64) {
        if vain == 0 {
            return;
        }
        self.tally.vain_bytes += vain;
        self.vain += vain;
        let touched = self.tally.touched_bytes - self.judged_at;
        if self.vain > GRACE + touched / VAIN_SHARE {
            self.proof = self.proof.saturating_mul(SUSPICION);
            self.proof_strides = self.proof_strides.saturating_mul(SUSPICION);
            (self.vain, self.judged_at) = (0, self.tally.touched_bytes);
        }
    }
}

#[cfg(test)]
mod tests;
