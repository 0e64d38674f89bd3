//! Orders that were told: which files are read next, and where each of them comes in them.
//!
//! Each process has one: the ranks of a node tell theirs beside each other. What a process has told is over when it tells another, and when it has ended and nobody reads by it
//! any more. Who reads a file isn't who has told it, often: a loader's workers read, or another program. So a file is read by the order that has it next.
//!
//! Pure: time comes from outside, and so does who is there.

use crate::tree::{Ino, Object};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// An order that nobody has read by for so long is over, if whoever has told it has ended.
const QUIET: Duration = Duration::from_secs(60);
/// Orders beside each other: those that nobody has read by for longest are over first.
const MOST: usize = 64;

/// Where each file comes: the places that its first chunk has in an order, and the object that it was then.
pub type Turns = FxHashMap<Ino, (Object, VecDeque<u64>)>;

/// All that were told.
#[derive(Debug)]
pub struct Orders<S> {
    all: Vec<Order<S>>,
}

#[derive(Debug)]
struct Order<S> {
    /// Who has told it: a process; 0 is one that can't be seen.
    teller: u32,
    /// By what it is read.
    shelf: S,
    turns: Turns,
    /// Files that weren't come to yet.
    left: usize,
    /// Up to where it was read.
    front: u64,
    read_at: Instant,
}

impl<S> Default for Orders<S> {
    fn default() -> Self {
        Orders { all: Vec::new() }
    }
}

impl<S: Clone> Orders<S> {
    /// This process tells another one: what is over then leaves.
    pub fn over(&mut self, teller: u32, now: Instant, is_there: impl Fn(u32) -> bool) -> Vec<S> {
        let is_over = |order: &mut Order<S>| {
            let is_quiet = now.saturating_duration_since(order.read_at) >= QUIET;
            let has_ended = order.teller == 0 || !is_there(order.teller);
            (teller != 0 && order.teller == teller) || order.left == 0 || (is_quiet && has_ended)
        };
        let mut over: Vec<S> = self.all.extract_if(.., is_over).map(|order| order.shelf).collect();
        while self.all.len() >= MOST {
            let oldest = (0..self.all.len()).min_by_key(|&nth| self.all[nth].read_at);
            over.extend(oldest.map(|nth| self.all.remove(nth).shelf));
        }
        over
    }

    /// One more.
    pub fn add(&mut self, teller: u32, shelf: S, turns: Turns, now: Instant) {
        let left = turns.values().map(|(_, turns)| turns.len()).sum();
        self.all.push(Order {
            teller,
            shelf,
            turns,
            left,
            front: 0,
            read_at: now,
        });
    }

    /// Where a file comes next, in the order that is nearest to it, if it is as it was when that was told.
    pub fn turn_of(&mut self, ino: Ino, object: &Object, now: Instant) -> Option<(S, u64)> {
        let turn_in = |order: &Order<S>| {
            let (known, turns) = order.turns.get(&ino)?;
            turns.front().filter(|_| known == object).copied()
        };
        let has_it = |(nth, order): (usize, &Order<S>)| Some((turn_in(order)?.abs_diff(order.front), nth));
        let (_, nearest) = self.all.iter().enumerate().filter_map(has_it).min()?;
        let order = &mut self.all[nearest];
        let turn = order.turns.get_mut(&ino)?.1.pop_front()?;
        (order.left, order.front, order.read_at) = (order.left - 1, turn + 1, now);
        Some((order.shelf.clone(), turn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str) -> Object {
        Object {
            size: 1,
            etag: Some(version.into()),
            version: None,
            modified: None,
        }
    }

    /// These files in this order, a chunk each.
    fn turns(files: &[Ino]) -> Turns {
        let mut turns = Turns::default();
        for (nth, &ino) in files.iter().enumerate() {
            let turn = turns.entry(ino).or_insert_with(|| (object("a"), VecDeque::new()));
            turn.1.push_back(nth as u64);
        }
        turns
    }

    fn told(orders: &mut Orders<&'static str>, teller: u32, shelf: &'static str, files: &[Ino], now: Instant) {
        orders.add(teller, shelf, turns(files), now);
    }

    #[test]
    fn two_processes_are_read_for_beside_each_other_and_each_replaces_its_own() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        told(&mut orders, 1, "one", &[10, 11, 12], now);
        assert_eq!(orders.over(2, now, |_| true), [""; 0]);
        told(&mut orders, 2, "two", &[20, 21], now);
        assert_eq!(orders.turn_of(10, &object("a"), now), Some(("one", 0)));
        assert_eq!(orders.turn_of(20, &object("a"), now), Some(("two", 0)));
        assert_eq!(orders.over(1, now, |_| true), ["one"]);
        told(&mut orders, 1, "again", &[12, 20], now);
        assert_eq!(orders.turn_of(11, &object("a"), now), None);
        assert_eq!(orders.turn_of(12, &object("a"), now), Some(("again", 0)));
        assert_eq!(orders.turn_of(21, &object("a"), now), Some(("two", 1)));
    }

    #[test]
    fn a_file_of_two_orders_is_read_by_the_one_that_has_it_next() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        let upwards: Vec<Ino> = (100..200).collect();
        let downwards: Vec<Ino> = (100..200).rev().collect();
        told(&mut orders, 1, "up", &upwards, now);
        told(&mut orders, 2, "down", &downwards, now);
        for nth in 0..49 {
            assert_eq!(orders.turn_of(100 + nth, &object("a"), now), Some(("up", nth)));
            assert_eq!(orders.turn_of(199 - nth, &object("a"), now), Some(("down", nth)));
        }
    }

    #[test]
    fn a_file_that_comes_twice_has_two_turns_and_another_object_none() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        told(&mut orders, 1, "one", &[10, 11, 10], now);
        assert_eq!(orders.turn_of(10, &object("a"), now), Some(("one", 0)));
        assert_eq!(orders.turn_of(11, &object("b"), now), None);
        assert_eq!(orders.turn_of(10, &object("a"), now), Some(("one", 2)));
        assert_eq!(orders.turn_of(10, &object("a"), now), None);
    }

    #[test]
    fn what_was_read_to_its_end_and_what_nobody_reads_of_who_has_ended_is_over() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        told(&mut orders, 1, "read", &[10], now);
        orders.turn_of(10, &object("a"), now);
        told(&mut orders, 2, "ended", &[20, 21], now);
        told(&mut orders, 3, "there", &[30], now);
        told(&mut orders, 0, "unseen", &[40, 41], now);
        assert_eq!(orders.over(4, now, |pid| pid == 3), ["read"]);
        let later = now + QUIET;
        // Somebody reads by it still.
        orders.turn_of(20, &object("a"), later);
        assert_eq!(orders.over(4, later, |pid| pid == 3), ["unseen"]);
        assert_eq!(orders.over(4, later + QUIET, |pid| pid == 3), ["ended"]);
    }

    #[test]
    fn there_are_no_more_than_so_many() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        for nth in 0..200 {
            let now = now + Duration::from_secs(nth);
            let over = orders.over(nth as u32 + 1, now, |_| true);
            assert_eq!(over.len(), usize::from(nth >= MOST as u64));
            told(&mut orders, nth as u32 + 1, "some", &[nth], now);
        }
    }
}
