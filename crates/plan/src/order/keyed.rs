//! `keyed/1`: a pseudo-random bijection of `0..F` that is computed, not stored.
//!
//! Position p is written as a pair (left, right) with right in `0..2^k`, 2^k near the square root of F, and left in `0..ceil(F/2^k)`. Each of
//! [`ROUNDS`] rounds adds a keyed hash of one half to the other, modulo that half's size: an alternating unbalanced Feistel network, a
//! bijection whatever the hash is, undone by subtracting in reverse. (J. Black and P. Rogaway, "Ciphers with arbitrary finite domains",
//! CT-RSA 2002; M. Luby and C. Rackoff, 1988, on why few rounds suffice.) The pairs number F or a little more; a result past the end is
//! sent through again until it falls inside (*cycle walking*), which keeps the bijection and happens less than once in sqrt(F)/2 calls,
//! because the left half needn't be a power of two.
//!
//! The round keys come from (seed, epoch, F), so each epoch has its own bijection and 10^9 samples cost as much to set up
//! as ten. A small F has too few hash values in play for such a network to look random; up to [`SMALL`] samples an unbiased
//! Fisher-Yates shuffle is made instead, 4 bytes each. The tests in `keyed/statistics.rs` hold both to the same standard, and show that
//! fewer rounds fail it.

use super::mix::{Counter, key, mix, scale};
use super::table::Table;

#[cfg(test)]
mod statistics;

/// Largest F that is shuffled in a table: 256 KB per epoch, made in a quarter of a millisecond. The network passes from 1/256 of it on.
const SMALL: u64 = 1 << 16;

/// Rounds of the network. Four fail the tests at every size, six up to about a thousand samples, eight below 256 only.
const ROUNDS: usize = 8;

/// An epoch's bijection.
#[derive(Clone, Debug)]
pub(super) enum Keyed {
    Small(Table),
    Feistel(Feistel),
}

impl Keyed {
    /// The bijection of a pass over the samples: of an epoch, or of a stream that comes round by itself.
    pub(super) fn new(seed: u64, pass: u64, samples: u64) -> Self {
        let key = key(&[seed, pass, samples]);
        if samples <= SMALL {
            Self::Small(shuffle(samples, key))
        } else {
            Self::Feistel(Feistel::new(samples, key))
        }
    }

    /// Position to sample.
    pub(super) fn sample_at(&self, position: u64) -> u64 {
        match self {
            Self::Small(table) => table.sample_at(position),
            Self::Feistel(network) => network.forward(position),
        }
    }

    /// Sample to position.
    pub(super) fn position_of(&self, sample: u64) -> u64 {
        match self {
            Self::Small(table) => table.position_of(sample).expect("a permutation has every sample"),
            Self::Feistel(network) => network.backward(sample),
        }
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        match self {
            Self::Small(table) => table.heap_bytes(),
            Self::Feistel(_) => 0,
        }
    }
}

/// Fisher-Yates with a generator that counts.
fn shuffle(samples: u64, key: u64) -> Table {
    let mut counter = Counter::new(key);
    let mut list: Vec<u32> = (0..samples as u32).collect();
    for at in (1..list.len()).rev() {
        list.swap(at, counter.below(at as u64 + 1) as usize);
    }
    Table::permutation(list)
}

/// The network of one epoch.
#[derive(Clone, Debug)]
pub(super) struct Feistel<const N: usize = ROUNDS> {
    samples: u64,
    /// The left half's size; the right one's is 2^bits.
    left: u64,
    bits: u32,
    keys: [u64; N],
}

impl<const N: usize> Feistel<N> {
    pub(super) fn new(samples: u64, key: u64) -> Self {
        // Half of the bits that the largest position has, at least one so that both halves matter.
        let bits = ((64 - (samples - 1).leading_zeros()) / 2).max(1);
        let mut counter = Counter::new(key);
        Self {
            samples,
            left: samples.div_ceil(1 << bits),
            bits,
            keys: std::array::from_fn(|_| counter.word()),
        }
    }

    /// Position to sample.
    #[inline]
    pub(super) fn forward(&self, position: u64) -> u64 {
        let mut at = position;
        loop {
            at = self.encrypt(at);
            if at < self.samples {
                return at;
            }
        }
    }

    /// Sample to position.
    #[inline]
    pub(super) fn backward(&self, sample: u64) -> u64 {
        let mut at = sample;
        loop {
            at = self.decrypt(at);
            if at < self.samples {
                return at;
            }
        }
    }

    #[inline]
    fn encrypt(&self, at: u64) -> u64 {
        let (mut left, mut right) = self.halves(at);
        for pair in self.keys.chunks_exact(2) {
            left += scale(mix(right ^ pair[0]), self.left);
            left -= if left >= self.left { self.left } else { 0 };
            right ^= mix(left ^ pair[1]) >> (64 - self.bits);
        }
        left << self.bits | right
    }

    #[inline]
    fn decrypt(&self, at: u64) -> u64 {
        let (mut left, mut right) = self.halves(at);
        for pair in self.keys.chunks_exact(2).rev() {
            right ^= mix(left ^ pair[1]) >> (64 - self.bits);
            left += self.left - scale(mix(right ^ pair[0]), self.left);
            left -= if left >= self.left { self.left } else { 0 };
        }
        left << self.bits | right
    }

    #[inline]
    fn halves(&self, at: u64) -> (u64, u64) {
        (at >> self.bits, at & ((1 << self.bits) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_network_is_a_bijection_with_its_inverse() {
        for samples in 1..400 {
            let network = Feistel::<4>::new(samples, samples);
            let mut seen = vec![false; samples as usize];
            for position in 0..samples {
                let sample = network.forward(position);
                assert!(
                    !std::mem::replace(&mut seen[sample as usize], true),
                    "{samples}: {sample} twice"
                );
                assert_eq!(network.backward(sample), position);
            }
        }
    }

    #[test]
    fn walking_is_rare() {
        for samples in [SMALL + 1, 100_003, 1_281_167, 1 << 20, (1 << 20) + 1, 1_000_000_007] {
            let network = Feistel::<ROUNDS>::new(samples, 0);
            let outside = (network.left << network.bits) - samples;
            assert!(
                (outside as f64) < 2.0 * (samples as f64).sqrt(),
                "{samples}: {outside} outside"
            );
        }
    }
}
