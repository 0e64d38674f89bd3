//! The source under load: streams share t(gamma) while they read, and speed up when others stop.
//!
//! A *stream* is what one node reads with one set of threads at a time. Between two changes every stream advances at a constant rate,
//! proportional to its weight (its threads); so instead of moving every stream on each change, one virtual clock advances for
//! all, and a stream that needs w MB is done when that clock has gone w/weight further (processor sharing). Starting or ending
//! a read costs O(log streams).

use crate::{Curve, scenario::Share};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A time or amount that orders; never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ordered(pub f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The shared source.
#[derive(Debug)]
pub struct SharedSource {
    curve: Curve,
    share: Share,
    now: f64,
    /// MB per unit of weight delivered so far.
    virtual_mb: f64,
    weights: f64,
    readers: u32,
    streams_of: Vec<u16>,
    reading: BinaryHeap<Reverse<(Ordered, u32)>>,
    node_of: Vec<u32>,
    weight_of: Vec<f64>,
}

impl SharedSource {
    /// A source without readers. Stream s belongs to node `node_of[s]` and reads with `weight_of[s]` threads.
    pub fn new(curve: Curve, share: Share, node_of: Vec<u32>, weight_of: Vec<f64>) -> Self {
        let nodes = node_of.iter().max().map_or(0, |n| *n as usize + 1);
        Self {
            curve,
            share,
            now: 0.0,
            virtual_mb: 0.0,
            weights: 0.0,
            readers: 0,
            streams_of: vec![0; nodes],
            reading: BinaryHeap::new(),
            node_of,
            weight_of,
        }
    }

    /// Virtual MB per second: what a stream of weight 1 gets.
    fn rate(&self) -> f64 {
        match self.share {
            Share::Shared => self.curve.total(self.readers) / self.weights,
            Share::Literal => self.curve.share(self.readers),
        }
    }

    fn advance(&mut self, to: f64) {
        if to > self.now {
            if self.readers > 0 {
                self.virtual_mb += (to - self.now) * self.rate();
            }
            self.now = to;
        }
    }

    /// What one more thread of a node would get now, in MB/s: t(gamma)/gamma of paper 001.
    pub fn per_thread(&self, node: u32, threads: f64) -> f64 {
        let joins = self.streams_of[node as usize] == 0;
        let readers = self.readers + u32::from(joins);
        match self.share {
            Share::Shared => self.curve.total(readers) / (f64::from(readers) * threads),
            Share::Literal => self.curve.share(readers),
        }
    }

    /// `stream` starts to read `mb` at time `at`.
    pub fn start(&mut self, stream: u32, mb: f64, at: f64) {
        self.advance(at);
        let (weight, node) = (self.weight_of[stream as usize], self.node_of[stream as usize]);
        self.reading
            .push(Reverse((Ordered(self.virtual_mb + mb / weight), stream)));
        self.weights += weight;
        self.streams_of[node as usize] += 1;
        self.readers += u32::from(self.streams_of[node as usize] == 1);
    }

    /// When the next read ends, if nothing else starts before.
    pub fn next_end(&self) -> Option<f64> {
        let Reverse((target, _)) = self.reading.peek()?;
        Some(self.now + ((target.0 - self.virtual_mb) / self.rate()).max(0.0))
    }

    /// Ends the read that is due next; returns its stream and the time.
    pub fn end_next(&mut self) -> Option<(u32, f64)> {
        let at = self.next_end()?;
        let Reverse((target, stream)) = self.reading.pop()?;
        self.now = at;
        self.virtual_mb = target.0;
        let node = self.node_of[stream as usize] as usize;
        self.streams_of[node] -= 1;
        self.readers -= u32::from(self.streams_of[node] == 0);
        self.weights = match self.reading.is_empty() {
            true => 0.0,
            false => self.weights - self.weight_of[stream as usize],
        };
        Some((stream, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(share: Share, weights: &[f64]) -> SharedSource {
        let points = [("1", 60.0), ("2", 100.0)]
            .map(|(k, v)| (k.to_owned(), v))
            .into_iter()
            .collect();
        let nodes = weights.len() as u32;
        SharedSource::new(
            Curve::new(&points, nodes).expect("valid"),
            share,
            (0..nodes).collect(),
            weights.to_vec(),
        )
    }

    #[test]
    fn two_readers_share_and_the_second_speeds_up_when_alone() {
        let mut s = source(Share::Shared, &[1.0, 1.0]);
        s.start(0, 100.0, 0.0);
        s.start(1, 160.0, 0.0);
        assert_eq!(s.end_next(), Some((0, 2.0)));
        assert_eq!(s.end_next(), Some((1, 3.0)));
        assert_eq!(s.end_next(), None);
    }

    #[test]
    fn literally_each_thread_gets_a_full_share() {
        let mut shared = source(Share::Shared, &[2.0, 2.0]);
        let mut literal = source(Share::Literal, &[2.0, 2.0]);
        for s in [&mut shared, &mut literal] {
            s.start(0, 100.0, 0.0);
            s.start(1, 100.0, 0.0);
        }
        assert_eq!(
            (shared.end_next(), literal.end_next()),
            (Some((0, 2.0)), Some((0, 1.0)))
        );
        assert_eq!((shared.per_thread(0, 2.0), literal.per_thread(0, 2.0)), (25.0, 50.0));
    }
}
