//! The one source of pseudo-randomness: a 64-bit mixer, and a generator that counts with it.
//!
//! Everything random in a plan is a function of named numbers (seed, epoch, round, counter), so that it can be computed again
//! anywhere, in any order. The mixer is *moremur* (P. Evensen, 2019), a bijection of the 64-bit words with stronger avalanche on
//! counters than the finalisers of MurmurHash3 and SplitMix64; the generator is SplitMix64's (Steele, Lea and Flood, OOPSLA
//! 2014) with that mixer. `tools/golden_order.py` implements both independently.

/// 2^64 / golden ratio, odd: consecutive multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of the 64-bit words in which each input bit flips each output bit half of the time.
#[inline]
pub(super) const fn mix(mut x: u64) -> u64 {
    x ^= x >> 27;
    x = x.wrapping_mul(0x3c79_ac49_2ba7_b653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1c69_b3f7_4ac4_ae35);
    x ^ (x >> 27)
}

/// A key from numbers that each may be small: absorbed one after the other, so that no two lists of the same length meet
/// more often than chance has it.
pub(crate) fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(GOLDEN, |key, &part| absorb(key, spread(part)))
}

/// What of absorbing a number doesn't depend on the key: for numbers that are absorbed into many.
#[inline]
pub(crate) const fn spread(part: u64) -> u64 {
    mix(part.wrapping_add(GOLDEN))
}

/// The key of one number more, which is spread.
#[inline]
pub(crate) const fn absorb(key: u64, spread: u64) -> u64 {
    mix(key.wrapping_add(GOLDEN) ^ spread)
}

/// `word`, uniform over the 64-bit words, scaled down to `0..bound` by its high bits.
#[inline]
pub(super) const fn scale(word: u64, bound: u64) -> u64 {
    ((word as u128 * bound as u128) >> 64) as u64
}

/// A generator: word i is a function of the key and i.
#[derive(Clone, Debug)]
pub(super) struct Counter(u64);

impl Counter {
    pub(super) const fn new(key: u64) -> Self {
        Self(key)
    }

    pub(super) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Uniform over `0..bound`, exactly (D. Lemire, "Fast random integer generation in an interval", 2019).
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.word()) * u128::from(bound);
            // The low half tells whether this word belongs to the overhang that would favour some results.
            if product as u64 >= bound || product as u64 >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flipping_an_input_bit_flips_each_output_bit_half_of_the_time() {
        const TRIES: u32 = 4096;
        let mut counter = Counter::new(1);
        for bit in 0..64 {
            let mut flips = [0u32; 64];
            for _ in 0..TRIES {
                let x = counter.word() >> 40; // Small inputs, as positions are.
                let difference = mix(x) ^ mix(x ^ (1 << bit));
                flips
                    .iter_mut()
                    .enumerate()
                    .for_each(|(out, count)| *count += (difference >> out & 1) as u32);
            }
            // 4096 tries: standard deviation 32, so 6 of them.
            assert!(
                flips.iter().all(|count| count.abs_diff(TRIES / 2) < 192),
                "input bit {bit}: {flips:?}"
            );
        }
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut counter = Counter::new(2);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[counter.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 600), "{counts:?}");
        assert_eq!(counter.below(1), 0);
    }
}
