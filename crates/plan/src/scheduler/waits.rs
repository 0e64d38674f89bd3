//! What waits in a lane for one job: what is to come first, because it failed or came back, and then everything else; of both what is needed soonest.
//!
//! Nearly all of it comes in that order. But a rank that begins elsewhere, or another node that needs something sooner, puts what it needs before all that was read ahead, which may be a hundred thousand loads. So they are kept in a tree, and not in a
//! row in which each of them would be moved for each that comes before.

use super::flights::Pending;
use std::cmp::Reverse;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Waits {
    /// By the line that needs it, and of those for one line the last that came.
    first: BTreeMap<(u64, Reverse<u64>), Pending>,
    /// By the line that needs it, and of those for one line by when they came.
    needed: BTreeMap<(u64, u64), Pending>,
    came: u64,
}

impl Waits {
    pub fn len(&self) -> usize {
        self.first.len() + self.needed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.needed.is_empty()
    }

    /// What is next.
    pub fn front(&self) -> Option<&Pending> {
        let first = self.first.first_key_value().map(|(_, pending)| pending);
        first.or_else(|| self.needed.first_key_value().map(|(_, pending)| pending))
    }

    pub fn pop_front(&mut self) -> Option<Pending> {
        let first = self.first.pop_first().map(|(_, pending)| pending);
        first.or_else(|| self.needed.pop_first().map(|(_, pending)| pending))
    }

    /// Waits behind all that is needed as soon. O(log n).
    pub fn push(&mut self, pending: Pending) {
        self.came += 1;
        self.needed.insert((pending.line, self.came), pending);
    }

    /// Waits before all others that aren't first, too, and needed sooner. Where all of a source fails, as a file system that falls silent, what somebody waits for is tried again before what was read ahead.
    pub fn push_first(&mut self, pending: Pending) {
        self.came += 1;
        self.first.insert((pending.line, Reverse(self.came)), pending);
    }

    /// Takes the first of those that a line needs of which `is_it` says so.
    pub fn take(&mut self, line: u64, is_it: impl Fn(&Pending) -> bool) -> Option<Pending> {
        let mut of_line = self.needed.range((line, 0)..=(line, u64::MAX));
        let (&key, _) = of_line.find(|(_, pending)| is_it(pending))?;
        self.needed.remove(&key)
    }

    /// The same of those that are to come first.
    pub fn take_first(&mut self, line: u64, is_it: impl Fn(&Pending) -> bool) -> Option<Pending> {
        let mut of_line = self.first.range((line, Reverse(u64::MAX))..=(line, Reverse(0)));
        let (&key, _) = of_line.find(|(_, pending)| is_it(pending))?;
        self.first.remove(&key)
    }

    /// Takes all of which `is_taken` says so, in their order: mostly none of very many.
    pub fn take_if(&mut self, is_taken: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut taken = Vec::new();
        taken.extend(taken_of(&mut self.first, &is_taken));
        taken.extend(taken_of(&mut self.needed, &is_taken));
        taken
    }
}

fn taken_of<K: Copy + Ord>(waits: &mut BTreeMap<K, Pending>, is_taken: impl Fn(&Pending) -> bool) -> Vec<Pending> {
    let gone = waits.iter().filter(|(_, pending)| is_taken(pending));
    let gone: Vec<K> = gone.map(|(&key, _)| key).collect();
    gone.iter().filter_map(|key| waits.remove(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::flights::{Asker, Part};
    use super::*;
    use crate::action::{Handle, Source};
    use crate::blocks::Content;
    use crate::catalog::Place;
    #[allow(clippy::disallowed_types, reason = "it is the time that is tested")]
    use std::time::{Duration, Instant};

    fn pending(line: u64, object: u64) -> Pending {
        let place = Place {
            object,
            offset: 0,
            len: 100,
        };
        let handle = Handle {
            index: object as u32,
            generation: 0,
        };
        let part = Part {
            handle,
            content: Content::block(object),
            at: 0,
            len: 100,
            content_offset: 0,
            content_len: 100,
            own: None,
        };
        Pending::of(Source::Bucket, place, part, Asker { job: 0, line }, 0)
    }

    fn objects(mut waits: Waits) -> Vec<u64> {
        std::iter::from_fn(|| waits.pop_front().map(|pending| pending.object)).collect()
    }

    #[test]
    fn what_is_needed_as_soon_stays_in_its_order_and_what_is_first_comes_before_all() {
        let mut waits = Waits::default();
        for (line, object) in [(5, 0), (7, 1), (5, 2), (3, 3), (7, 4)] {
            waits.push(pending(line, object));
        }
        waits.push_first(pending(1, 6));
        waits.push_first(pending(9, 5));
        assert_eq!((waits.len(), waits.is_empty()), (7, false));
        assert_eq!(waits.front().map(|pending| pending.object), Some(6));
        let taken = waits.take(5, |pending| pending.object != 0).expect("it waits");
        assert_eq!((taken.line, taken.object), (5, 2));
        assert!(waits.take(5, |pending| pending.object == 2).is_none());
        let odd = waits.take_if(|pending| pending.object % 2 == 1);
        assert_eq!(odd.iter().map(|pending| pending.object).collect::<Vec<_>>(), [5, 3, 1]);
        assert_eq!(objects(waits), [6, 0, 4]);
        assert!(Waits::default().is_empty() && Waits::default().front().is_none());
    }

    #[test]
    #[allow(
        clippy::disallowed_types,
        clippy::disallowed_methods,
        reason = "it is the time that is tested"
    )]
    fn what_is_needed_sooner_than_very_much_costs_no_more_for_that() {
        let mut waits = Waits::default();
        let each = 100_000;
        let begun = Instant::now();
        (0..each).for_each(|object| waits.push(pending(1 << 40, object)));
        (0..each).for_each(|object| waits.push(pending(object / 8, each + object)));
        let took = begun.elapsed();
        assert_eq!(objects(waits), (each..2 * each).chain(0..each).collect::<Vec<_>>());
        // In a row each of them would be moved for each of the others: minutes.
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
