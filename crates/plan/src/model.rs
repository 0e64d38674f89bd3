//! The performance model: how long a source takes for so many bytes, learned from what it did.
//!
//! Paper 001 (HDMLP) sec. 4 ranks sources by configured throughput: file system t(gamma)/gamma, remote min(b_c, r_j(p)/p_j), local
//! r_j(p_j)/p_j. Here the same quantities are estimated from completions, and a latency term is added because an object store's first byte
//! costs more than a small sample's body. A scenario or an experiment pins them instead ([`Pinned`]).

use serde::{Deserialize, Serialize};

/// Weight of a new observation: about the last 32 completions count.
const ALPHA: f64 = 1.0 / 16.0;

/// Speeds given instead of measured, per request stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    /// Time to first byte, in seconds.
    pub latency_s: f64,
    /// Bytes per second of one request's body.
    pub bytes_per_s: f64,
}

/// What one source has shown so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    latency_s: f64,
    bytes_per_s: f64,
    observations: u64,
    pinned: bool,
    /// Times of bodies are averaged, and not rates.
    by_time: bool,
}

impl Estimate {
    /// Starts from a prior that the first completions replace quickly.
    #[must_use]
    pub fn new(prior: Pinned, pinned: bool) -> Self {
        Estimate {
            latency_s: prior.latency_s,
            bytes_per_s: prior.bytes_per_s,
            observations: 0,
            pinned,
            by_time: false,
        }
    }

    /// The same for a source of which some bodies may be far slower than others, as over a network that loses packets: a few fast ones would hide that in the mean of their rates.
    #[must_use]
    pub fn by_time(self) -> Self {
        Estimate { by_time: true, ..self }
    }

    /// Learns from one completed request: first byte after `latency_s`, all `bytes` after `total_s`.
    pub fn observe(&mut self, bytes: u64, latency_s: f64, total_s: f64) {
        self.observations += 1;
        if self.pinned {
            return;
        }
        // The first observations average arithmetically, so that the prior doesn't linger.
        let alpha = ALPHA.max(1.0 / self.observations as f64);
        self.latency_s += alpha * (latency_s - self.latency_s);
        let body_s = total_s - latency_s;
        if bytes > 0 && self.by_time {
            let (known, seen) = (1.0 / self.bytes_per_s.max(1.0), body_s.max(0.0) / bytes as f64);
            self.bytes_per_s = 1.0 / (known + alpha * (seen - known)).max(1e-12);
        } else if bytes > 0 && body_s > 1e-6 {
            self.bytes_per_s += alpha * (bytes as f64 / body_s - self.bytes_per_s);
        }
    }

    /// Mean seconds for a request of `bytes`.
    #[must_use]
    pub fn expected_s(&self, bytes: u64) -> f64 {
        self.latency_s + bytes as f64 / self.bytes_per_s.max(1.0)
    }

    /// Completions seen.
    #[must_use]
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// Mean time to first byte, in seconds.
    #[must_use]
    pub fn latency_s(&self) -> f64 {
        self.latency_s
    }

    /// Bytes per second of one request's body.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_finds_latency_and_rate() {
        let mut e = Estimate::new(
            Pinned {
                latency_s: 1.0,
                bytes_per_s: 1.0,
            },
            false,
        );
        for i in 0..200u64 {
            let bytes = 50_000 + i * 1000;
            e.observe(bytes, 0.03, 0.03 + bytes as f64 / 35e6);
        }
        assert!((e.latency_s() - 0.03).abs() < 1e-3 && (e.bytes_per_s() / 35e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_few_fast_bodies_hide_slow_ones_from_the_mean_of_rates_and_not_from_that_of_times() {
        let prior = Pinned {
            latency_s: 0.0,
            bytes_per_s: 1e9,
        };
        let expected_s = |mut estimate: Estimate| {
            (0..400u32).for_each(|i| estimate.observe(30_000, 0.0, if i % 2 == 0 { 1e-4 } else { 0.2 }));
            estimate.expected_s(30_000)
        };
        assert!(expected_s(Estimate::new(prior, false)) < 1e-3);
        assert!((0.08..0.12).contains(&expected_s(Estimate::new(prior, false).by_time())));
    }

    #[test]
    fn a_pinned_estimate_keeps_its_speeds() {
        let mut e = Estimate::new(
            Pinned {
                latency_s: 0.5,
                bytes_per_s: 1e6,
            },
            true,
        );
        e.observe(1_000_000, 0.001, 0.002);
        assert!((e.expected_s(1_000_000) - 1.5).abs() < 1e-9);
    }
}
