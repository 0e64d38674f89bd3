//! `mixture/1`: several streams in one order, in exact proportions.
//!
//! Each stream is a range of samples with a whole-numbered weight w; W is the sum of the weights. Stream i is owed one read every W/w positions: its
//! k-th read has the *window* of positions from floor(k*W/w) until ceil((k+1)*W/w), and of the reads whose window has begun, the one whose window
//! ends first comes next; the first stream does where several end together. As the shares add up to one, no window is ever missed and no
//! position stays empty (S. Baruah et al., "Proportionate progress", Algorithmica 1996, for one processor). So of the first p positions of a run
//! a stream has p*w/W, rounded down or up, and after every W positions exactly its share. What happens in W positions then repeats, so that one
//! such *period* is all that is kept: 12 bytes per unit of weight, and both directions are look-ups.
//!
//! The k-th read of a stream in the run, counted from 0, is the position k mod n of its own pass k / n over its n samples: a small stream comes
//! round several times in an epoch, and each time in another order; a large one goes on in the next epoch where it stopped. An epoch is a
//! stretch of the run, of any length.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};

use super::keyed::Keyed;
use super::mix::key;
use crate::spec::Share;

/// Passes of a stream that are kept: ranks and windows that are apart by a little read from two, and a look back or ahead takes one more.
const KEPT_PASSES: usize = 4;

/// One read of a period.
#[derive(Clone, Copy, Debug)]
struct Read {
    stream: u32,
    /// Which of its stream's reads in the period.
    rank: u32,
}

/// Whose turn it is at each position of a period.
#[derive(Debug)]
struct Period {
    reads: Vec<Read>,
    /// By stream: the positions of its reads.
    places: Vec<Vec<u32>>,
}

impl Period {
    fn new(weights: &[u64]) -> Self {
        let total: u64 = weights.iter().sum();
        let begin = |stream: usize, rank: u64| rank * total / weights[stream];
        let end = |stream: usize, rank: u64| ((rank + 1) * total).div_ceil(weights[stream]);
        // By the beginnings and by the ends of their windows: each stream's next read is in one of the two.
        let mut later: BinaryHeap<_> = (0..weights.len()).map(|stream| Reverse((0, stream))).collect();
        let mut open = BinaryHeap::new();
        let mut period = Period {
            reads: Vec::with_capacity(total as usize),
            places: weights
                .iter()
                .map(|&weight| Vec::with_capacity(weight as usize))
                .collect(),
        };
        for position in 0..total {
            while let Some(&Reverse((begins, stream))) = later.peek()
                && begins <= position
            {
                later.pop();
                open.push(Reverse((end(stream, period.places[stream].len() as u64), stream)));
            }
            let Reverse((_, stream)) = open.pop().expect("the shares add up to one read for each position");
            let places = &mut period.places[stream];
            period.reads.push(Read {
                stream: stream as u32,
                rank: places.len() as u32,
            });
            places.push(position as u32);
            if (places.len() as u64) < weights[stream] {
                later.push(Reverse((begin(stream, places.len() as u64), stream)));
            }
        }
        period
    }

    fn len(&self) -> u64 {
        self.reads.len() as u64
    }
}

/// A pass of a stream, and which one.
type Pass = (u64, Arc<Keyed>);

/// A stream: its samples, and the passes over it that were used last.
#[derive(Debug)]
struct Stream {
    first: u64,
    samples: u64,
    /// `None`: its samples come in their own order.
    seed: Option<u64>,
    passes: Mutex<Vec<Pass>>,
}

impl Stream {
    /// What a pass reads at a position of it, or where it reads a sample: the same question, asked of the two directions.
    fn ask(&self, pass: u64, of: u64, answer: impl FnOnce(&Keyed, u64) -> u64) -> u64 {
        let Some(seed) = self.seed else { return of };
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = passes.iter().position(|(number, _)| *number == pass);
        let last = match known {
            Some(at) => passes.remove(at),
            None => {
                if passes.len() == KEPT_PASSES {
                    passes.remove(0);
                }
                (pass, Arc::new(Keyed::new(seed, pass, self.samples)))
            }
        };
        let order = Arc::clone(&last.1);
        passes.push(last);
        drop(passes);
        answer(&order, of)
    }
}

/// The order of a run over several streams.
#[derive(Debug)]
pub(super) struct Mixture {
    streams: Vec<Stream>,
    period: Period,
    length: u64,
}

impl Mixture {
    /// Checked by the spec: weights and samples are positive, and few enough.
    pub(super) fn new(shares: &[Share], seed: u64, shuffle: bool, length: u64) -> Self {
        let mut first = 0;
        let streams = shares.iter().zip(0..).map(|(share, number)| {
            let stream = Stream {
                first,
                samples: share.samples,
                // Of two streams over the same samples each has its own order.
                seed: shuffle.then(|| key(&[seed, number])),
                passes: Mutex::default(),
            };
            first += share.samples;
            stream
        });
        let weights: Vec<u64> = shares.iter().map(|share| share.weight).collect();
        Self {
            streams: streams.collect(),
            period: Period::new(&weights),
            length,
        }
    }

    pub(super) fn epoch(self: &Arc<Self>, epoch: u32) -> Stretch {
        // Beyond 64 bits when all 2^32 epochs are as long as can be.
        let begin = u128::from(epoch) * u128::from(self.length);
        let (periods, offset) = (
            begin / u128::from(self.period.len()),
            begin % u128::from(self.period.len()),
        );
        let offset = offset as u64;
        let starts = self.streams.iter().zip(&self.period.places).map(|(stream, places)| {
            let before = places.partition_point(|&place| u64::from(place) < offset) as u64;
            let read = periods * places.len() as u128 + u128::from(before);
            Start {
                before,
                pass: (read / u128::from(stream.samples)) as u64,
                at: (read % u128::from(stream.samples)) as u64,
            }
        });
        Stretch {
            mixture: Arc::clone(self),
            offset,
            starts: starts.collect(),
        }
    }
}

/// Where a stream stands when an epoch begins.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// Its reads in the epoch's first period before the epoch.
    before: u64,
    /// The pass over it, and the position there.
    pass: u64,
    at: u64,
}

/// An epoch of a mixture.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    mixture: Arc<Mixture>,
    /// Where in a period it begins.
    offset: u64,
    starts: Arc<[Start]>,
}

impl Stretch {
    /// Position to sample.
    pub(super) fn sample_at(&self, position: u64) -> u64 {
        let period = &self.mixture.period;
        let at = self.offset + position;
        let read = period.reads[(at % period.len()) as usize];
        let number = read.stream as usize;
        let (stream, start) = (&self.mixture.streams[number], self.starts[number]);
        let reads = at / period.len() * period.places[number].len() as u64 + u64::from(read.rank) - start.before;
        let at = start.at + reads;
        let pass = start.pass.wrapping_add(at / stream.samples);
        stream.first + stream.ask(pass, at % stream.samples, Keyed::sample_at)
    }

    /// The first position of a sample.
    pub(super) fn position_of(&self, sample: u64) -> Option<u64> {
        let number = self
            .mixture
            .streams
            .partition_point(|stream| stream.first <= sample)
            .checked_sub(1)?;
        let (stream, start) = (&self.mixture.streams[number], self.starts[number]);
        let place = |pass| stream.ask(pass, sample - stream.first, Keyed::position_of);
        // In the pass that the epoch begins in, or else in the one after.
        let reads = match place(start.pass).checked_sub(start.at) {
            Some(reads) => reads,
            None => stream.samples - start.at + place(start.pass.wrapping_add(1)),
        };
        let (period, places) = (&self.mixture.period, &self.mixture.period.places[number]);
        let (periods, rank) = (
            (start.before + reads) / places.len() as u64,
            (start.before + reads) % places.len() as u64,
        );
        let position = periods * period.len() + u64::from(places[rank as usize]) - self.offset;
        Some(position).filter(|&position| position < self.mixture.length)
    }

    /// Whether a stream may come round in the epoch.
    pub(super) fn repeats(&self) -> bool {
        let (period, end) = (&self.mixture.period, self.offset + self.mixture.length);
        let streams = self.mixture.streams.iter().zip(&period.places).zip(&*self.starts);
        streams.into_iter().any(|((stream, places), start)| {
            let rest = places.partition_point(|&place| u64::from(place) < end % period.len()) as u64;
            let reads = end / period.len() * places.len() as u64 + rest - start.before;
            start.at + reads > stream.samples
        })
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        let passes = self.mixture.streams.iter().flat_map(|stream| {
            let passes = stream.passes.lock().unwrap_or_else(PoisonError::into_inner);
            passes.iter().map(|(_, order)| order.heap_bytes()).collect::<Vec<_>>()
        });
        self.mixture.period.len() * (size_of::<Read>() + size_of::<u32>()) as u64 + passes.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(weights: &[u64]) -> Vec<u32> {
        Period::new(weights).reads.iter().map(|read| read.stream).collect()
    }

    #[test]
    fn turns_are_spread_evenly() {
        assert_eq!(turns(&[1]), [0]);
        assert_eq!(turns(&[2, 1]), [0, 0, 1]);
        assert_eq!(turns(&[1, 1, 1]), [0, 1, 2]);
        assert_eq!(turns(&[7, 2, 1]), [0, 0, 0, 1, 0, 0, 1, 0, 0, 2]);
    }

    #[test]
    fn a_stream_keeps_few_passes() {
        let share = Share { samples: 3, weight: 1 };
        let mixture = Arc::new(Mixture::new(&[share], 0, true, 1000));
        let epoch = mixture.epoch(0);
        let read: Vec<u64> = (0..1000).map(|position| epoch.sample_at(position)).collect();
        assert_eq!(mixture.streams[0].passes.lock().expect("whole").len(), KEPT_PASSES);
        let back: Vec<u64> = (0..1000).rev().map(|position| epoch.sample_at(position)).collect();
        assert!(read.iter().eq(back.iter().rev()));
    }
}
