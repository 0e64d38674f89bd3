//! The Mersenne Twister MT19937, as torch's CPU generator seeds and reads it.
//!
//! Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 1998, with the 2002 initialisation. Torch takes any 64-bit seed and keeps its low 32
//! bits; `random()` is one word, `random64()` two with the first in the high half. Any number of words can be passed over in milliseconds ([`jump`]).

mod jump;

const WORDS: usize = 624;
const SHIFT: usize = 397;

/// From so many words on a jump is faster than making them: about 4 ms.
const JUMP_FROM: u128 = 1 << 22;

type State = [u32; WORDS];

/// The generator; 2.5 KB, so cloning it is how a state is kept.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Mt19937 {
    state: Box<State>,
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

    /// Passes over `words` words.
    pub(super) fn skip(&mut self, words: u128) {
        if words == 0 {
            return;
        }
        // All words of the last block may be over: the next one is made when it is needed.
        let all = self.next as u128 + words;
        let blocks = (all - 1) / WORDS as u128;
        if words < JUMP_FROM {
            (0..blocks).for_each(|_| self.refill());
        } else {
            // To the block before: what a jump leaves open of its first word isn't needed for the next block.
            *self.state = jump::ahead(&self.state, (blocks - 1) * WORDS as u128);
            self.refill();
        }
        self.next = (all - blocks * WORDS as u128) as usize;
    }

    fn refill(&mut self) {
        let state = &mut self.state;
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

/// A word from three that came before it: 624, 623 and 227 words ago.
#[inline]
fn twist(high: u32, low: u32, far: u32) -> u32 {
    let joined = (high & 0x8000_0000) | (low & 0x7fff_ffff);
    far ^ (joined >> 1) ^ (0x9908_b0df & (joined & 1).wrapping_neg())
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

    #[test]
    fn jumping_is_skipping() {
        for (drawn, words) in [
            (0, 1 << 22),
            (1, (1 << 22) + 1),
            (623, 5_000_000),
            (624, 624 * 7000),
            (700, 6_543_211),
        ] {
            let (mut jumped, mut skipped) = (Mt19937::new(7), Mt19937::new(7));
            [&mut jumped, &mut skipped]
                .into_iter()
                .for_each(|generator| generator.skip(drawn));
            jumped.skip(words);
            (0..words / 1000).for_each(|_| skipped.skip(1000));
            skipped.skip(words % 1000);
            // Blocks may be made early or late.
            (0..1300).for_each(|at| assert_eq!(jumped.word(), skipped.word(), "{words}: {at}"));
        }
    }

    #[test]
    fn two_jumps_are_one_however_far() {
        let far = 1_u128 << 66;
        let (mut once, mut twice) = (Mt19937::new(3), Mt19937::new(3));
        once.skip(3 * far + 12_345);
        [far, 2 * far, 12_345].into_iter().for_each(|words| twice.skip(words));
        (0..1300).for_each(|at| assert_eq!(once.word(), twice.word(), "{at}"));
    }
}
