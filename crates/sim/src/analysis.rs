//! Paper 001 sec. 3.2: how unevenly one worker reads the samples, and what that implies for the others.

use crate::Random;
use foreload_plan::placement::binomial;

/// P(X >= k).
#[must_use]
pub fn at_least(n: u32, k: u32, p: f64) -> f64 {
    (k..=n).map(|i| binomial(n, i, p)).sum()
}

/// How many of the samples one worker reads more than (1+delta) times as often as the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessCounts {
    /// N.
    pub workers: u32,
    /// E.
    pub epochs: u32,
    /// F.
    pub samples: u32,
    /// delta.
    pub delta: f64,
}

/// The example of sec. 3.2.
pub const PAPER_EXAMPLE: AccessCounts = AccessCounts {
    workers: 4,
    epochs: 1000,
    samples: 10_000,
    delta: 0.1,
};

impl AccessCounts {
    /// (1+delta) E/N, which a count has to exceed.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        (1.0 + self.delta) * f64::from(self.epochs) / f64::from(self.workers)
    }

    /// F P(X > threshold): the event in words, "accessed more than 275 times". 322.94 in the example.
    #[must_use]
    pub fn expected(&self) -> f64 {
        let first = (self.threshold() * (1.0 + 1e-12)).floor() as u32 + 1;
        f64::from(self.samples) * at_least(self.epochs, first, 1.0 / f64::from(self.workers))
    }

    /// The sum as printed, which starts at ceil(threshold) and so counts 275 itself: 378.18 in the example.
    #[must_use]
    pub fn expected_as_printed(&self) -> f64 {
        let first = (self.threshold() * (1.0 - 1e-12)).ceil() as u32;
        f64::from(self.samples) * at_least(self.epochs, first, 1.0 / f64::from(self.workers))
    }

    /// The same count from simulated epochs: each sample goes to a random worker in each epoch. One number per worker.
    #[must_use]
    pub fn monte_carlo(&self, seed: u64) -> Vec<u32> {
        let counts = self.simulate(seed);
        let workers = self.workers as usize;
        let above = |w: usize| {
            counts
                .iter()
                .skip(w)
                .step_by(workers)
                .filter(|c| f64::from(**c) > self.threshold())
                .count()
        };
        (0..workers).map(|w| above(w) as u32).collect()
    }

    /// Reads by sample and worker, worker fastest, with the exact partition of each epoch: position p goes to worker p mod N.
    fn simulate(&self, seed: u64) -> Vec<u32> {
        let workers = self.workers as usize;
        let mut counts = vec![0u32; self.samples as usize * workers];
        let mut random = Random::new(seed);
        let mut order: Vec<u32> = (0..self.samples).collect();
        for _ in 0..self.epochs {
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
            for (position, sample) in order.iter().enumerate() {
                counts[*sample as usize * workers + position % workers] += 1;
            }
        }
        counts
    }

    /// Checks Lemma 1 on simulated epochs; returns how many (sample, worker) pairs it spoke about.
    ///
    /// If a worker reads a sample ceil((1+d) E/N) times, some other worker reads it at most ceil((N-1-d)/(N-1) E/N) times; and if one reads it
    /// floor((1-d) E/N) times, some other reads it at least floor((N-1+d)/(N-1) E/N) times.
    ///
    /// # Errors
    /// The first pair that contradicts it: (sample, worker).
    pub fn check_lemma_1(&self, seed: u64) -> Result<u64, (u32, u32)> {
        let counts = self.simulate(seed);
        let mut spoken = 0;
        for (sample, reads) in counts.chunks(self.workers as usize).enumerate() {
            for (worker, own) in reads.iter().enumerate() {
                let others = || reads.iter().enumerate().filter(|(w, _)| *w != worker).map(|(_, c)| *c);
                let (least, most) = (others().min().unwrap_or(0), others().max().unwrap_or(0));
                if !self.lemma_1_holds(*own, least, most) {
                    return Err((sample as u32, worker as u32));
                }
                spoken += 1;
            }
        }
        Ok(spoken)
    }

    /// Lemma 1 for a worker that reads a sample `own` times, given the least and the most that any other does.
    #[must_use]
    pub fn lemma_1_holds(&self, own: u32, least: u32, most: u32) -> bool {
        let (n, mean) = (
            f64::from(self.workers),
            f64::from(self.epochs) / f64::from(self.workers),
        );
        let d = (f64::from(own) / mean - 1.0).abs();
        // The smallest and largest delta that round to this count are within one read of d; take d itself, which the proof covers.
        match f64::from(own) >= mean {
            true => f64::from(least) <= ((n - 1.0 - d) / (n - 1.0) * mean - 1e-9).ceil(),
            false => f64::from(most) >= ((n - 1.0 + d) / (n - 1.0) * mean + 1e-9).floor(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_expected_count_is_the_event_not_the_printed_sum() {
        assert!(
            (PAPER_EXAMPLE.expected() - 322.94).abs() < 0.01,
            "{}",
            PAPER_EXAMPLE.expected()
        );
        assert!((PAPER_EXAMPLE.expected_as_printed() - 378.18).abs() < 0.01);
    }

    #[test]
    fn simulated_counts_agree_with_the_expectation() {
        let small = AccessCounts {
            epochs: 100,
            samples: 4000,
            ..PAPER_EXAMPLE
        };
        let counts = small.monte_carlo(1);
        let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        assert!(
            (mean / small.expected() - 1.0).abs() < 0.05,
            "{counts:?} against {}",
            small.expected()
        );
    }

    #[test]
    fn lemma_1_holds_for_every_simulated_sample() {
        for workers in [2, 4, 8] {
            let counts = AccessCounts {
                workers,
                epochs: 64,
                samples: 800,
                delta: 0.1,
            };
            assert_eq!(counts.check_lemma_1(7), Ok(u64::from(800 * workers)));
        }
    }

    #[test]
    fn the_lemma_s_check_can_fail() {
        assert!(!PAPER_EXAMPLE.lemma_1_holds(300, 250, 250) && PAPER_EXAMPLE.lemma_1_holds(300, 233, 234));
    }
}
