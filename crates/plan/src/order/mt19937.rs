//! The Mersenne Twister MT19937, as torch's CPU generator seeds and reads it.
//!
//! Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 1998, with the 2002 initialisation. Torch takes any 64-bit seed and keeps its low 32
//! bits; `random()` is one word, `random64()` two with the first in the high half.

const WORDS: usize = 624;
const SHIFT: usize = 397;

/// The generator; 2.5 KB, so cloning it is how a state is kept.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Mt19937 {
    state: Box<[u32; WORDS]>,
    next: usize,
}

impl std::fmt::Debug for Mt19937 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mt19937({} of {WORDS})", self.next)
    }
}

impl Mt19937 {
    /// `torch.Generator().manual_seed(seed)`.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = Box::new([0; WORDS]);
        state[0] = seed as u32;
        for at in 1..WORDS {
            let before = state[at - 1];
            state[at] = 1_812_433_253u32
                .wrapping_mul(before ^ (before >> 30))
                .wrapping_add(at as u32);
        }
        Self { state, next: WORDS }
    }

    /// Torch's `random()`.
    #[inline]
    pub(super) fn word(&mut self) -> u32 {
        if self.next == WORDS {
            self.refill();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// Torch's `random64()`.
    #[inline]
    pub(super) fn double_word(&mut self) -> u64 {
        let high = u64::from(self.word());
        high << 32 | u64::from(self.word())
    }

    /// Passes over `words` words, a refill at a time.
    pub(super) fn skip(&mut self, mut words: u64) {
        while words > 0 {
            if self.next == WORDS {
                self.refill();
            }
            let step = words.min((WORDS - self.next) as u64);
            self.next += step as usize;
            words -= step;
        }
    }

    fn refill(&mut self) {
        let state = &mut self.state;
        let twist = |high: u32, low: u32, far: u32| {
            let joined = (high & 0x8000_0000) | (low & 0x7fff_ffff);
            far ^ (joined >> 1) ^ (0x9908_b0df & (joined & 1).wrapping_neg())
        };
        // Three runs, so that no index needs a modulo and the compiler can vectorise.
        for at in 0..WORDS - SHIFT {
            state[at] = twist(state[at], state[at + 1], state[at + SHIFT]);
        }
        for at in WORDS - SHIFT..WORDS - 1 {
            state[at] = twist(state[at], state[at + 1], state[at + SHIFT - WORDS]);
        }
        state[WORDS - 1] = twist(state[WORDS - 1], state[0], state[SHIFT - 1]);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C++ standard fixes this one ([rand.predef]): the 10000th word of `mt19937` with its default seed 5489.
    #[test]
    fn the_ten_thousandth_word_is_the_standards() {
        let mut generator = Mt19937::new(5489);
        generator.skip(9999);
        assert_eq!(generator.word(), 4_123_659_995);
    }

    #[test]
    fn skipping_is_drawing() {
        for words in [0, 1, 623, 624, 625, 5000] {
            let (mut skipped, mut drawn) = (Mt19937::new(1), Mt19937::new(1));
            skipped.skip(words);
            (0..words).for_each(|_| _ = drawn.word());
            assert_eq!(skipped.double_word(), drawn.double_word(), "{words}");
        }
    }
}
