//! Orders that were told: which files are read next, and where each of them comes in them.
//!
//! Each process has its own: the ranks of a node tell theirs beside each other, and a loader's pass beside those of others. What was told is over when the same one tells another,
//! and when its process has ended and nobody reads by it any more. Who reads a file isn't who has told it, often: a loader's workers read, or another program. So a file is read by the order that has it next.
//!
//! Pure: time comes from outside, and so does who is there.

use crate::room::Room;
use crate::tree::Object;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// An order that nobody has read by for so long is over, if whoever has told it has ended.
const QUIET: Duration = Duration::from_secs(60);
/// So many chunks are asked for before they are read, behind each that is.
const NEXT: u64 = 16;
/// Processes of which it is known what they told last.
const MOST_TELLERS: usize = 10_000;
/// Orders beside each other: those that nobody has read by for longest are over first.
const MOST: usize = 64;

/// Where each file comes: the places that its first chunk has in an order, and the object that it was then.
pub type Turns = FxHashMap<String, (Object, VecDeque<u64>)>;

/// Who tells an order: a process (0 is one that can't be seen), and which of its orders that is, by its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Teller {
    /// The process.
    pub process: u32,
    /// Which of its orders.
    pub which: u64,
}

/// All that were told.
#[derive(Debug)]
pub struct Orders<S> {
    all: Vec<Order<S>>,
    /// The number of what each process has told last. Two that it tells quickly may be found in another order.
    last: FxHashMap<Teller, u64>,
}

#[derive(Debug)]
struct Order<S> {
    teller: Teller,
    /// The memory that it brings.
    brings: u64,
    /// By what it is read.
    shelf: S,
    turns: Turns,
    /// Files that weren't come to yet.
    left: usize,
    /// Up to where it was read.
    front: u64,
    read_at: Instant,
    ahead: NextOnes,
}

/// What comes at each place of an order, and was asked for before anybody reads it: then it is here, and nobody is woken to bring it.
#[derive(Debug)]
struct NextOnes {
    /// The bytes of each chunk, and a bit for each that was read.
    lens: Vec<u32>,
    read: Vec<u64>,
    /// By its place: the number by which it was asked for, and when.
    asked: BTreeMap<u64, (u64, Instant)>,
}

impl NextOnes {
    fn new(lens: Vec<u32>) -> Self {
        NextOnes {
            read: vec![0; lens.len().div_ceil(64)],
            lens,
            asked: BTreeMap::new(),
        }
    }

    fn len(&self, place: u64) -> u64 {
        self.lens.get(place as usize).copied().unwrap_or(0).into()
    }

    fn is_read(&self, place: u64) -> bool {
        let word = self.read.get((place / 64) as usize);
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn has_read(&mut self, place: u64) {
        if let Some(word) = self.read.get_mut((place / 64) as usize) {
            *word |= 1 << (place % 64);
        }
    }

    /// The number by which it was asked for.
    fn take(&mut self, place: u64, room: &Room) -> Option<u64> {
        let (want, _) = self.asked.remove(&place)?;
        room.give(self.len(place));
        Some(want)
    }

    /// Asks for what comes behind this place, several at a time.
    fn go_on<E>(&mut self, place: u64, now: Instant, room: &Room, mut ask: impl FnMut(u64) -> Result<u64, E>) {
        let next = place + 1..(place + 1 + NEXT).min(self.lens.len() as u64);
        let is_lacking = |place: &u64| !self.is_read(*place) && !self.asked.contains_key(place);
        let lacking: Vec<u64> = next.clone().filter(is_lacking).collect();
        if (lacking.len() as u64) < (next.end - next.start) / 2 {
            return;
        }
        for place in lacking {
            let len = self.len(place);
            if !room.has(len) {
                return;
            }
            // Who reads it asks again, and says so himself if it fails.
            let Ok(want) = ask(place) else { return };
            room.take(len);
            self.asked.insert(place, (want, now));
        }
    }

    /// What was asked for so long ago, and not read.
    fn unread(&mut self, now: Instant, patience: Duration, room: &Room) -> Vec<u64> {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= patience;
        let old = self.asked.iter().filter(|(_, (_, at))| is_old(*at));
        let old: Vec<u64> = old.map(|(place, _)| *place).collect();
        old.into_iter().filter_map(|place| self.take(place, room)).collect()
    }
}

impl<S> Default for Orders<S> {
    fn default() -> Self {
        Orders {
            all: Vec::new(),
            last: FxHashMap::default(),
        }
    }
}

impl<S: Clone> Orders<S> {
    /// Another one is told, by this number.
    pub fn tells(&mut self, teller: Teller, number: u64) {
        if self.last.len() >= MOST_TELLERS {
            self.last.clear();
        }
        self.last.insert(teller, number);
    }

    /// Whether it is what was told last there.
    #[must_use]
    pub fn is_last(&self, teller: Teller, number: u64) -> bool {
        teller.process == 0 || self.last.get(&teller).is_none_or(|last| *last == number)
    }

    /// Another one was told, which brings so much memory: what is over then leaves, with what was asked for and not read. All bring no more than `most`.
    pub fn over(
        &mut self,
        teller: Teller,
        (brings, most): (u64, u64),
        now: Instant,
        is_there: impl Fn(u32) -> bool,
        room: &Room,
    ) -> Vec<(S, Vec<u64>)> {
        let is_over = |order: &mut Order<S>| {
            let is_quiet = now.saturating_duration_since(order.read_at) >= QUIET;
            let process = order.teller.process;
            let has_ended = process == 0 || !is_there(process);
            (process != 0 && order.teller == teller) || order.left == 0 || (is_quiet && has_ended)
        };
        let mut over: Vec<Order<S>> = self.all.extract_if(.., is_over).collect();
        let brought = |all: &[Order<S>]| all.iter().map(|order| order.brings).sum::<u64>();
        while !self.all.is_empty() && (self.all.len() >= MOST || brought(&self.all) + brings > most) {
            let oldest = (0..self.all.len()).min_by_key(|&nth| self.all[nth].read_at);
            over.extend(oldest.map(|nth| self.all.remove(nth)));
        }
        let leave = |mut order: Order<S>| (order.shelf, order.ahead.unread(now, Duration::ZERO, room));
        over.into_iter().map(leave).collect()
    }

    /// One more: who has told it, and what it brings; where its files come, and the bytes of the chunk at each place.
    pub fn add(&mut self, (teller, brings): (Teller, u64), shelf: S, turns: Turns, lens: Vec<u32>, now: Instant) {
        let left = turns.values().map(|(_, turns)| turns.len()).sum();
        self.all.push(Order {
            teller,
            brings,
            shelf,
            turns,
            left,
            front: 0,
            read_at: now,
            ahead: NextOnes::new(lens),
        });
    }

    /// What comes there in an order is read: the number by which it is asked for. None: there is no such order any more.
    pub fn read<E>(
        &mut self,
        is_it: impl Fn(&S) -> bool,
        place: u64,
        now: Instant,
        room: &Room,
        mut ask: impl FnMut(u64) -> Result<u64, E>,
    ) -> Option<Result<u64, E>> {
        let order = self.all.iter_mut().find(|order| is_it(&order.shelf))?;
        order.read_at = now;
        order.ahead.has_read(place);
        let want = match order.ahead.take(place, room) {
            Some(want) => want,
            None => match ask(place) {
                Ok(want) => want,
                error => return Some(error),
            },
        };
        order.ahead.go_on(place, now, room, ask);
        Some(Ok(want))
    }

    /// What was asked for ahead so long ago, and not read.
    pub fn rest(&mut self, now: Instant, patience: Duration, room: &Room) -> Vec<(S, Vec<u64>)> {
        let unread = |order: &mut Order<S>| (order.shelf.clone(), order.ahead.unread(now, patience, room));
        self.all.iter_mut().map(unread).collect()
    }

    /// All are over, and whom was asked has ended.
    pub fn end(&mut self, room: &Room) {
        for mut order in self.all.drain(..) {
            order.ahead.unread(Instant::now(), Duration::ZERO, room);
        }
    }

    /// Where a file comes next, in the order that is nearest to it, if it is as it was when that was told.
    pub fn turn_of(&mut self, key: &str, object: &Object, now: Instant) -> Option<(S, u64)> {
        let turn_in = |order: &Order<S>| {
            let (known, turns) = order.turns.get(key)?;
            turns.front().filter(|_| known == object).copied()
        };
        let has_it = |(nth, order): (usize, &Order<S>)| Some((turn_in(order)?.abs_diff(order.front), nth));
        let (_, nearest) = self.all.iter().enumerate().filter_map(has_it).min()?;
        let order = &mut self.all[nearest];
        let turn = order.turns.get_mut(key)?.1.pop_front()?;
        (order.left, order.front, order.read_at) = (order.left - 1, turn + 1, now);
        Some((order.shelf.clone(), turn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(process: u32) -> Teller {
        Teller { process, which: 0 }
    }

    fn object(version: &str) -> Object {
        Object {
            size: 1,
            etag: Some(version.into()),
            version: None,
            modified: None,
        }
    }

    /// These files in this order, a chunk each.
    fn turns(files: &[u64]) -> Turns {
        let mut turns = Turns::default();
        for (nth, &ino) in files.iter().enumerate() {
            let turn = turns
                .entry(ino.to_string())
                .or_insert_with(|| (object("a"), VecDeque::new()));
            turn.1.push_back(nth as u64);
        }
        turns
    }

    fn turn_of(
        orders: &mut Orders<&'static str>,
        file: u64,
        version: &str,
        now: Instant,
    ) -> Option<(&'static str, u64)> {
        orders.turn_of(&file.to_string(), &object(version), now)
    }

    /// Who has left.
    fn over(
        orders: &mut Orders<&'static str>,
        teller: u32,
        now: Instant,
        is_there: impl Fn(u32) -> bool,
    ) -> Vec<&'static str> {
        let over = orders.over(of(teller), (100, 100 * MOST as u64), now, is_there, &Room::new(0));
        over.into_iter().map(|(shelf, _)| shelf).collect()
    }

    fn told(orders: &mut Orders<&'static str>, teller: u32, shelf: &'static str, files: &[u64], now: Instant) {
        orders.add((of(teller), 100), shelf, turns(files), vec![10; files.len()], now);
    }

    #[test]
    fn two_processes_are_read_for_beside_each_other_and_each_replaces_its_own() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        told(&mut orders, 1, "one", &[10, 11, 12], now);
        assert_eq!(over(&mut orders, 2, now, |_| true), [""; 0]);
        told(&mut orders, 2, "two", &[20, 21], now);
        assert_eq!(turn_of(&mut orders, 10, "a", now), Some(("one", 0)));
        assert_eq!(turn_of(&mut orders, 20, "a", now), Some(("two", 0)));
        assert_eq!(over(&mut orders, 1, now, |_| true), ["one"]);
        told(&mut orders, 1, "again", &[12, 20], now);
        assert_eq!(turn_of(&mut orders, 11, "a", now), None);
        assert_eq!(turn_of(&mut orders, 12, "a", now), Some(("again", 0)));
        assert_eq!(turn_of(&mut orders, 21, "a", now), Some(("two", 1)));
    }

    #[test]
    fn a_process_has_several_beside_each_other_if_it_says_so() {
        let (mut orders, now, room) = (Orders::default(), Instant::now(), Room::new(0));
        for which in [1, 2] {
            let teller = Teller { process: 7, which };
            orders.add((teller, 100), "one", turns(&[10 * which]), vec![10], now);
        }
        let again = Teller { process: 7, which: 2 };
        assert_eq!(orders.over(again, (0, 1000), now, |_| true, &room).len(), 1);
        assert_eq!(turn_of(&mut orders, 10, "a", now), Some(("one", 0)));
        assert_eq!(turn_of(&mut orders, 20, "a", now), None);
    }

    #[test]
    fn what_is_found_late_and_was_told_before_something_else_is_over() {
        let mut orders = Orders::<&'static str>::default();
        orders.tells(of(1), 10);
        orders.tells(of(2), 11);
        orders.tells(of(1), 12);
        let is_last = [(1, 10), (1, 12), (2, 11), (3, 1)].map(|(teller, number)| orders.is_last(of(teller), number));
        assert_eq!(is_last, [false, true, true, true]);
        // Of those that can't be seen it isn't known whether they are one.
        orders.tells(of(0), 13);
        orders.tells(of(0), 14);
        assert!(orders.is_last(of(0), 13));
    }

    #[test]
    fn a_file_of_two_orders_is_read_by_the_one_that_has_it_next() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        let upwards: Vec<u64> = (100..200).collect();
        let downwards: Vec<u64> = (100..200).rev().collect();
        told(&mut orders, 1, "up", &upwards, now);
        told(&mut orders, 2, "down", &downwards, now);
        for nth in 0..49 {
            assert_eq!(turn_of(&mut orders, 100 + nth, "a", now), Some(("up", nth)));
            assert_eq!(turn_of(&mut orders, 199 - nth, "a", now), Some(("down", nth)));
        }
    }

    #[test]
    fn a_file_that_comes_twice_has_two_turns_and_another_object_none() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        told(&mut orders, 1, "one", &[10, 11, 10], now);
        assert_eq!(turn_of(&mut orders, 10, "a", now), Some(("one", 0)));
        assert_eq!(turn_of(&mut orders, 11, "b", now), None);
        assert_eq!(turn_of(&mut orders, 10, "a", now), Some(("one", 2)));
        assert_eq!(turn_of(&mut orders, 10, "a", now), None);
    }

    #[test]
    fn what_was_read_to_its_end_and_what_nobody_reads_of_who_has_ended_is_over() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        told(&mut orders, 1, "read", &[10], now);
        turn_of(&mut orders, 10, "a", now);
        told(&mut orders, 2, "ended", &[20, 21], now);
        told(&mut orders, 3, "there", &[30], now);
        told(&mut orders, 0, "unseen", &[40, 41], now);
        assert_eq!(over(&mut orders, 4, now, |pid| pid == 3), ["read"]);
        let later = now + QUIET;
        // Somebody reads by it still.
        turn_of(&mut orders, 20, "a", later);
        assert_eq!(over(&mut orders, 4, later, |pid| pid == 3), ["unseen"]);
        assert_eq!(over(&mut orders, 4, later + QUIET, |pid| pid == 3), ["ended"]);
    }

    /// Reads a place; what was asked for by it, and all that was asked for then.
    fn read(orders: &mut Orders<&'static str>, place: u64, room: &Room) -> (u64, Vec<u64>) {
        let mut asked = Vec::new();
        let ask = |place| {
            asked.push(place);
            Ok::<u64, ()>(1000 + place)
        };
        let want = orders.read(|shelf| *shelf == "one", place, Instant::now(), room, ask);
        (want.expect("it is there").expect("it can be asked for"), asked)
    }

    #[test]
    fn what_comes_next_is_asked_for_before_it_is_read_several_at_a_time_and_each_once() {
        let (mut orders, now, room) = (Orders::default(), Instant::now(), Room::new(10_000));
        let files: Vec<u64> = (0..200).collect();
        told(&mut orders, 1, "one", &files, now);
        let (mut all, mut times) = (Vec::new(), 0);
        // Two workers, each with a part of its own.
        for nth in 0..100 {
            for place in [nth, 100 + nth] {
                let (want, asked) = read(&mut orders, place, &room);
                assert_eq!(want, 1000 + place);
                times += usize::from(!asked.is_empty());
                all.extend(asked);
                assert!(room.taken() <= 2 * 10 * NEXT);
            }
        }
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert!(times <= 200 / (NEXT as usize / 2) + 4, "{times}");
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn without_room_nothing_is_asked_for_before_it_is_read() {
        let (mut orders, now, room) = (Orders::default(), Instant::now(), Room::new(25));
        told(&mut orders, 1, "one", &(0..100).collect::<Vec<_>>(), now);
        assert_eq!(read(&mut orders, 0, &room), (1000, vec![0, 1, 2]));
        assert_eq!(read(&mut orders, 50, &room), (1050, vec![50]));
        assert_eq!(read(&mut orders, 1, &room).0, 1001);
        assert!(room.taken() <= 25);
    }

    #[test]
    fn what_nobody_reads_of_it_is_given_back_and_asked_for_again() {
        let (mut orders, now, room) = (Orders::default(), Instant::now(), Room::new(1000));
        told(&mut orders, 1, "one", &(0..10).collect::<Vec<_>>(), now);
        read(&mut orders, 0, &room);
        assert_eq!(room.taken(), 90);
        assert_eq!(orders.rest(now, QUIET, &room), [("one", vec![])]);
        let given: Vec<u64> = (1001..1010).collect();
        assert_eq!(orders.rest(now + 2 * QUIET, QUIET, &room), [("one", given.clone())]);
        assert_eq!(room.taken(), 0);
        assert_eq!(read(&mut orders, 5, &room), (1005, vec![5, 6, 7, 8, 9]));
        let over = orders.over(of(1), (100, 1000), now, |_| true, &room);
        assert_eq!(over, [("one", given[5..].to_vec())]);
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn there_are_no_more_than_so_many() {
        let (mut orders, now) = (Orders::default(), Instant::now());
        for nth in 0..200 {
            let now = now + Duration::from_secs(nth);
            let over = over(&mut orders, nth as u32 + 1, now, |_| true);
            assert_eq!(over.len(), usize::from(nth >= MOST as u64));
            told(&mut orders, nth as u32 + 1, "some", &[nth], now);
        }
    }

    #[test]
    fn they_bring_no_more_memory_than_so_much() {
        let (mut orders, now, room) = (Orders::default(), Instant::now(), Room::new(0));
        for (nth, shelf) in ["one", "two", "three"].into_iter().enumerate() {
            told(
                &mut orders,
                nth as u32 + 1,
                shelf,
                &[1],
                now + Duration::from_secs(nth as u64),
            );
        }
        let leave = |orders: &mut Orders<&'static str>, brings, most| {
            let over = orders.over(of(9), (brings, most), now, |_| true, &room);
            over.into_iter().map(|(shelf, _)| shelf).collect::<Vec<_>>()
        };
        assert_eq!(leave(&mut orders, 100, 400), [""; 0]);
        assert_eq!(leave(&mut orders, 150, 400), ["one"]);
        // One there is, however much it takes.
        assert_eq!(leave(&mut orders, 5000, 400), ["two", "three"]);
    }
}
