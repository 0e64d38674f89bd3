//! Twins: which request is late enough that asking again is likely to be faster, and how many may be asked twice.
//!
//! A request that takes long isn't a reason to ask again; that another one would be through first is. Where all requests take about the same, one
//! that is late is nearly through, and its twin would lose. Where a few hang, one that is late probably hangs. Which of the two it is shows in how long
//! requests took before: [`Twins`] keeps their distribution, in multiples of what a request of its size is expected to take, and says from which
//! age on a twin is more likely than not to come first.
//!
//! Requests that were called off tell how long they had not ended yet, and no more: survival is estimated with them as censored observations
//! (Kaplan and Meier, *Nonparametric estimation from incomplete observations*, 1958). One request longer than any that was seen is assumed, of a length
//! that nobody knows, so that the first one that hangs has a twin, too.
//!
//! A budget bounds them, a share of all requests: whatever the distribution says, a store that is slow isn't asked twice for everything. A race that the
//! twin lost costs as much as four, for then the store was slow for both, and the distribution said otherwise.

/// Buckets of the distribution: four to each doubling, from a fourth of the expected time to a thousand times that.
const BUCKETS: usize = 48;
const PER_DOUBLING: f64 = 4.0;
const LOWEST_LOG2: f64 = -2.0;
/// From here on a request of unknown length is assumed.
const UNKNOWN_FROM: usize = 12;
/// A twin has to be as likely as this to come first.
const WINS: f64 = 0.5;
/// Requests that teach what is late.
const TAUGHT_BY: f64 = 32.0;
/// What was seen counts half after so many requests more.
const REMEMBERED: f64 = 8192.0;
/// The age is found anew after so many.
const ANEW_EVERY: u32 = 32;
/// Twins that the budget holds at first, and at most.
const AT_FIRST: i64 = 2;
const AT_MOST: i64 = 20;
/// What a lost race costs beyond its twin.
const LOST: i64 = 3;

/// The twins of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct Twins {
    /// Requests that ended, by bucket, and those that were called off.
    ended: [f64; BUCKETS],
    left: [f64; BUCKETS],
    seen: f64,
    since: u32,
    /// From here on a request is late, in multiples of its expected time.
    late_from: f64,
    per_cent: u32,
    /// Twins in hand, in hundredths.
    credit: i64,
}

fn bucket(ratio: f64) -> usize {
    let at = (ratio.max(1e-9).log2() - LOWEST_LOG2) * PER_DOUBLING;
    (at.max(0.0) as usize).min(BUCKETS - 1)
}

/// Where a bucket begins.
fn begins(bucket: usize) -> f64 {
    (bucket as f64 / PER_DOUBLING + LOWEST_LOG2).exp2()
}

impl Twins {
    /// `per_cent` twins for each hundred requests; 0 switches them off.
    #[must_use]
    pub fn new(per_cent: u32) -> Self {
        Twins {
            ended: [0.0; BUCKETS],
            left: [0.0; BUCKETS],
            seen: 0.0,
            since: 0,
            late_from: f64::INFINITY,
            per_cent,
            credit: if per_cent == 0 { 0 } else { AT_FIRST * 100 },
        }
    }

    /// A request was issued.
    pub fn earn(&mut self) {
        self.credit = (self.credit + i64::from(self.per_cent)).min(AT_MOST * 100);
    }

    /// Takes one twin from the budget, if it is there.
    pub fn spend(&mut self) -> bool {
        let can = self.credit >= 100;
        if can {
            self.credit -= 100;
        }
        can
    }

    /// A twin ended after the request that it was to overtake.
    pub fn lost(&mut self) {
        self.credit -= LOST * 100;
    }

    /// A request ended after `ratio` times what was expected.
    pub fn ended(&mut self, ratio: f64) {
        self.ended[bucket(ratio)] += 1.0;
        self.note();
    }

    /// A request was called off at that age.
    pub fn left(&mut self, ratio: f64) {
        self.left[bucket(ratio)] += 1.0;
        self.note();
    }

    fn note(&mut self) {
        self.seen += 1.0;
        if self.seen >= 2.0 * REMEMBERED {
            let counts = self.ended.iter_mut().chain(&mut self.left).chain([&mut self.seen]);
            counts.for_each(|count| *count /= 2.0);
        }
        self.since += 1;
        if self.since >= ANEW_EVERY && self.seen >= TAUGHT_BY {
            self.since = 0;
            self.late_from = self.found();
        }
    }

    /// The age from which on a request is late, in multiples of the time that it is expected to take; infinite until that is known.
    #[must_use]
    pub fn late_from(&self) -> f64 {
        self.late_from
    }

    /// The share of requests that take longer than up to the beginning of each bucket; one more at the end.
    fn survival(&self) -> [f64; BUCKETS + 1] {
        let unknown = |at: usize| {
            if at >= UNKNOWN_FROM {
                1.0 / (BUCKETS - UNKNOWN_FROM) as f64
            } else {
                0.0
            }
        };
        let mut at_risk = 1.0 + self.ended.iter().chain(&self.left).sum::<f64>();
        let mut share = [1.0; BUCKETS + 1];
        for at in 0..BUCKETS {
            let ended = self.ended[at] + unknown(at);
            // Of those that were called off within the bucket, half were there all along.
            let there = (at_risk - self.left[at] / 2.0).max(ended).max(1e-9);
            share[at + 1] = share[at] * (1.0 - ended / there);
            at_risk -= ended + self.left[at];
        }
        share
    }

    fn found(&self) -> f64 {
        let survival = self.survival();
        let wins_at = |age: f64| {
            let still_there = survival[bucket(age)].max(1e-12);
            let twin = (0..BUCKETS).map(|at| {
                let through = begins(at + 1);
                (survival[at] - survival[at + 1]) * survival[bucket(age + through)] / still_there
            });
            twin.sum::<f64>()
        };
        let ages = (bucket(1.0)..BUCKETS).map(begins);
        ages.into_iter()
            .find(|&age| wins_at(age) >= WINS)
            .unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between 0 and 1, always the same.
    fn dice() -> impl FnMut() -> f64 {
        let mut state = 1u64;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Lognormal around 1, as latencies of a store are.
    fn usual(roll: &mut impl FnMut() -> f64, sigma: f64) -> f64 {
        let normal = (0..12).map(|_| roll()).sum::<f64>() - 6.0;
        (sigma * normal - sigma * sigma / 2.0).exp()
    }

    /// Requests of which one in `hangs_one_in` takes `hangs` times as long as expected, with twins for all that are late: twins, races won, and the hanging that
    /// were left alone.
    fn race(requests: u32, sigma: f64, hangs_one_in: u32, hangs: f64) -> (u32, u32, u32) {
        let (mut twins, mut roll) = (Twins::new(5), dice());
        let (mut sent, mut won, mut alone) = (0, 0, 0);
        for i in 0..requests {
            twins.earn();
            let is_hanging = hangs_one_in > 0 && i % hangs_one_in == hangs_one_in - 1;
            let own = if is_hanging { hangs } else { usual(&mut roll, sigma) };
            let late_from = twins.late_from();
            if own < late_from || !twins.spend() {
                alone += u32::from(is_hanging);
                twins.ended(own);
                continue;
            }
            sent += 1;
            let twin = late_from + usual(&mut roll, sigma);
            if twin < own {
                won += 1;
                twins.left(twin);
                twins.ended(twin - late_from);
            } else {
                twins.lost();
                twins.left(own - late_from);
                twins.ended(own);
            }
        }
        (sent, won, alone)
    }

    #[test]
    fn where_all_take_about_the_same_hardly_any_has_a_twin() {
        for sigma in [0.1, 0.3, 0.5] {
            let (sent, ..) = race(50_000, sigma, 0, 0.0);
            assert!(sent <= 50, "{sent} of 50,000, spread {sigma}");
        }
    }

    #[test]
    fn those_that_hang_have_twins_which_win() {
        for one_in in [1000, 100] {
            let (sent, won, alone) = race(50_000, 0.3, one_in, 30.0);
            let hanging = 50_000 / one_in;
            assert!(
                won * 2 >= sent && sent <= 3 * hanging && alone * 10 <= hanging,
                "one in {one_in}: {won} of {sent} won, {alone} alone"
            );
        }
    }

    #[test]
    fn the_first_that_hangs_has_one() {
        let (mut twins, mut roll) = (Twins::new(5), dice());
        assert_eq!(twins.late_from(), f64::INFINITY, "nothing is known yet");
        (0..500).for_each(|_| twins.ended(usual(&mut roll, 0.3)));
        assert!((1.5..4.0).contains(&twins.late_from()), "{}", twins.late_from());
    }

    #[test]
    fn a_store_that_is_slow_for_both_gets_fewer() {
        // What is late takes long for whoever asks: the twin loses.
        let (mut twins, mut sent) = (Twins::new(5), 0);
        (0..500).for_each(|_| twins.ended(1.0));
        for i in 0..10_000 {
            twins.earn();
            sent += u32::from(i % 10 == 0 && twins.spend());
            if sent > 0 && i % 10 == 0 {
                twins.lost();
            }
        }
        assert!(sent <= 10_000 * 5 / 100 / 4 + 2, "{sent}");
    }

    #[test]
    fn twins_stay_within_their_share() {
        let mut budget = Twins::new(5);
        let mut twins = 0;
        for _ in 0..1000 {
            budget.earn();
            twins += u32::from(budget.spend());
        }
        assert!((50..=53).contains(&twins), "{twins}");
        assert!(!Twins::new(0).spend());
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let (mut twins, mut roll) = (Twins::new(5), dice());
        (0..5_000).for_each(|i| twins.ended(if i % 3 == 0 { 20.0 } else { usual(&mut roll, 0.3) }));
        let then = twins.late_from();
        (0..200_000).for_each(|_| twins.ended(usual(&mut roll, 0.6)));
        assert!(then < 2.0 && twins.late_from() >= 4.0, "{then} {}", twins.late_from());
    }
}
