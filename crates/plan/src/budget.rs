//! How much of the memory that a job asked for it may use.
//!
//! A job asks for memory once, and the machine is shared: with what trains, with other jobs, and with whatever else runs. So a budget is what was asked
//! for as long as that is there, and otherwise what is in use already and what is left, less a reserve for the others. It shrinks at once, because who
//! finds no memory is killed, and grows by a part of what has become free, because others may be about to take it.
//!
//! Whoever carries a plan out measures; this only reckons.

/// The bounds of a job's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What was asked for.
    pub asked: u64,
    /// With less than this the job can't work.
    pub least: u64,
    /// What is to stay free for everybody else.
    pub reserve: u64,
}

impl Budget {
    /// The budget to begin with, of which nothing is in use yet, when the system has `left` bytes left.
    #[must_use]
    pub fn first(&self, left: u64) -> u64 {
        if self.asked <= left {
            return self.asked;
        }
        self.bounded(left.saturating_sub(self.reserve))
    }

    /// The budget after `now`, of which `used` bytes are in use, when the system has `left` bytes left.
    #[must_use]
    pub fn next(&self, now: u64, used: u64, left: u64) -> u64 {
        let there = used.saturating_add(left);
        if left < self.reserve {
            return now.min(self.bounded(there.saturating_sub(self.reserve)));
        }
        // Twice the reserve: what shrinks and grows around one figure would fetch the same samples again and again.
        let spare = there.saturating_sub(self.reserve.saturating_mul(2));
        if spare > now {
            return self.bounded(now.saturating_add((spare - now) / 4));
        }
        now
    }

    fn bounded(&self, bytes: u64) -> u64 {
        bytes.max(self.least).min(self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: Budget = Budget {
        asked: 1000,
        least: 100,
        reserve: 50,
    };

    #[test]
    fn what_is_there_is_given_as_asked() {
        assert_eq!(BUDGET.first(1000), 1000);
        assert_eq!(BUDGET.first(u64::MAX), 1000);
    }

    #[test]
    fn what_is_not_there_is_not_promised() {
        assert_eq!(BUDGET.first(999), 949);
        assert_eq!(BUDGET.first(400), 350);
        assert_eq!(BUDGET.first(20), 100, "less would not do");
    }

    #[test]
    fn a_shortage_is_answered_at_once() {
        // 700 in use and 10 left: 40 go back.
        assert_eq!(BUDGET.next(1000, 700, 10), 660);
        assert_eq!(BUDGET.next(1000, 700, 0), 650);
        assert_eq!(BUDGET.next(600, 600, 10), 560);
        assert_eq!(BUDGET.next(1000, 110, 0), 100);
    }

    #[test]
    fn what_becomes_free_is_taken_in_parts() {
        assert_eq!(BUDGET.next(400, 400, 500), 500);
        assert_eq!(BUDGET.next(950, 900, 5000), 1000);
        assert_eq!(BUDGET.next(400, 400, 60), 400, "enough for others, and not more");
    }

    #[test]
    fn less_is_never_asked_for_than_the_job_was_made_with() {
        let small = Budget { asked: 80, ..BUDGET };
        assert_eq!((small.first(0), small.next(80, 80, 0)), (80, 80));
    }

    proptest! {
        #[test]
        fn a_budget_stays_within_its_bounds_and_what_is_there(
            asked in 0u64..10_000, least in 0u64..10_000, reserve in 0u64..10_000,
            now in 0u64..10_000, used in 0u64..10_000, left in 0u64..10_000,
        ) {
            let budget = Budget { asked, least, reserve };
            let now = now.min(asked);
            let next = budget.next(now, used, left);
            prop_assert!(next <= asked);
            prop_assert!(next >= now.min(least));
            if next < now {
                prop_assert!(left < reserve);
                // What is used beyond goes back, and then the reserve is there.
                prop_assert!(next == least.min(asked) || next + reserve <= used + left);
            }
            if next > now {
                prop_assert!(next + 2 * reserve <= used + left || next == least.min(asked));
            }
            prop_assert!(budget.first(left) >= least.min(asked));
        }
    }
}
