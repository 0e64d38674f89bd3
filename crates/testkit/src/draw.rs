//! Random draws that are functions of what they are about, not of when they happen.
//!
//! A draw is keyed by (seed, object, attempt), so two runs that send the same requests meet the
//! same delays and the same faults, whatever the order in which the requests arrive.

/// Mixes a word so that each bit of the result depends on each bit of the input (SplitMix64's
/// finaliser).
#[must_use]
pub fn mix(word: u64) -> u64 {
    let mut x = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes a name under a seed (FNV-1a, then [`mix`]).
#[must_use]
pub fn name(seed: u64, name: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mix(hash ^ mix(seed))
}

/// Derives the draw number `attempt` from a hash.
#[must_use]
pub fn attempt(hash: u64, attempt: u64) -> u64 {
    mix(hash ^ mix(attempt.wrapping_add(1)))
}

/// Turns a word into a number in `[0, 1)`.
#[must_use]
pub fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// Turns a word into a draw from the standard normal distribution (Box-Muller).
#[must_use]
pub fn normal(word: u64) -> f64 {
    let radius = (-2.0 * (1.0 - unit(word)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(mix(word))).cos()
}

/// Fills a buffer with bytes that depend on nothing but the seed.
pub fn fill(seed: u64, buffer: &mut [u8]) {
    let mut counter = mix(seed);
    for chunk in buffer.chunks_mut(8) {
        counter = counter.wrapping_add(1);
        chunk.copy_from_slice(&mix(counter).to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_draws_have_mean_zero_and_variance_one() {
        let draws: Vec<f64> = (0..20_000).map(|i| normal(mix(i))).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.03, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.05, "variance {variance}");
    }

    #[test]
    fn a_draw_repeats_for_the_same_seed_name_and_attempt() {
        let one = attempt(name(7, "a/b"), 3);
        assert_eq!(one, attempt(name(7, "a/b"), 3));
        assert_ne!(one, attempt(name(8, "a/b"), 3));
        assert_ne!(one, attempt(name(7, "a/c"), 3));
        assert_ne!(one, attempt(name(7, "a/b"), 4));
    }
}
