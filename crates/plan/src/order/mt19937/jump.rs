//! Jumping ahead: the words after any number of steps, in milliseconds.
//!
//! A step, which makes one word, is linear in the bits of the words before it. So j steps are the polynomial x^j in the step, and what that leaves
//! modulo the step's characteristic polynomial does the same: x^j comes from squarings, and Horner's rule applies it to the state (H. Haramoto
//! et al., "Efficient Jump Ahead for F2-Linear Random Number Generators", INFORMS Journal on Computing 2008).

use super::{SHIFT, State, WORDS, twist};

/// Bits of the state, and degree of its polynomial: of the oldest word only the highest counts.
const DEGREE: usize = 19_937;

/// Exponents of the characteristic polynomial, but for the highest. Expanded from the formula in the appendix of Matsumoto and Nishimura's paper.
#[rustfmt::skip]
const TERMS: [usize; 134] = [
    0, 1189, 1416, 1585, 1643, 1870, 2493, 2773, 3000, 3227, 3454, 3681, 3908, 4135, 4362, 4753, 5661, 6337,
    6569, 7129, 7477, 7525, 7583, 7752, 7979, 8206, 9505, 9901, 9969, 10_128, 10_693, 10_761, 10_920, 11_089,
    11_147, 11_157, 11_215, 11_321, 11_374, 11_384, 11_485, 11_611, 11_712, 11_717, 11_838, 11_881, 11_944,
    11_997, 12_277, 12_335, 12_393, 12_504, 12_509, 12_620, 12_673, 12_731, 12_736, 12_789, 12_905, 12_958,
    12_963, 13_137, 13_185, 13_190, 13_243, 13_301, 13_412, 13_528, 13_533, 13_639, 13_697, 13_760, 13_813,
    13_866, 14_093, 14_151, 14_209, 14_320, 14_325, 14_436, 14_547, 14_552, 14_605, 14_721, 14_774, 14_779,
    14_953, 15_001, 15_006, 15_059, 15_117, 15_228, 15_344, 15_349, 15_455, 15_513, 15_576, 15_629, 15_682,
    15_909, 15_967, 16_025, 16_136, 16_141, 16_252, 16_363, 16_368, 16_421, 16_537, 16_590, 16_595, 16_817,
    16_822, 16_875, 16_933, 17_044, 17_160, 17_271, 17_329, 17_445, 17_498, 17_725, 17_783, 17_841, 17_952,
    18_068, 18_179, 18_237, 18_406, 18_633, 18_691, 18_860, 19_087, 19_314,
];

const LIMBS: usize = DEGREE.div_ceil(64);

/// A polynomial with coefficients in GF(2), as bits; its degree is below [`DEGREE`].
type Polynomial = [u64; LIMBS];

/// The state after `steps` steps. Of its first word only the highest bit is what drawing would have left; nothing later depends on the others.
pub(super) fn ahead(state: &State, steps: u128) -> State {
    let jump = power_of_x(steps);
    let (mut sum, mut first) = ([0; WORDS], 0);
    for power in (0..DEGREE).rev() {
        // The state is a ring that begins at `first`.
        let [next, far] = [1, SHIFT].map(|after| sum[(first + after) % WORDS]);
        sum[first] = twist(sum[first], next, far);
        first = (first + 1) % WORDS;
        if jump[power / 64] >> (power % 64) & 1 == 1 {
            let (before, after) = sum.split_at_mut(first);
            let ring = after.iter_mut().chain(before);
            ring.zip(state).for_each(|(word, own)| *word ^= own);
        }
    }
    sum.rotate_left(first);
    sum
}

/// x^exponent modulo the characteristic polynomial.
fn power_of_x(exponent: u128) -> Polynomial {
    let mut power = [0; LIMBS];
    power[0] = 1;
    for bit in (0..u128::BITS - exponent.leading_zeros()).rev() {
        power = square(&power);
        if exponent >> bit & 1 == 1 {
            power = times_x(&power);
        }
    }
    power
}

fn times_x(polynomial: &Polynomial) -> Polynomial {
    let mut product = [0; 2 * LIMBS];
    let mut carry = 0;
    for (to, from) in product.iter_mut().zip(polynomial) {
        *to = from << 1 | carry;
        carry = from >> 63;
    }
    reduced(product)
}

fn square(polynomial: &Polynomial) -> Polynomial {
    let mut product = [0; 2 * LIMBS];
    for (at, &limb) in polynomial.iter().enumerate() {
        product[2 * at] = spread(limb as u32);
        product[2 * at + 1] = spread((limb >> 32) as u32);
    }
    reduced(product)
}

/// A zero after each bit: the square of 32 coefficients.
fn spread(bits: u32) -> u64 {
    let masks = [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ];
    masks
        .into_iter()
        .fold(u64::from(bits), |spread, (by, mask)| (spread | spread << by) & mask)
}

/// Takes multiples of the characteristic polynomial away, 64 coefficients at a time: its two highest terms are further apart than that.
fn reduced(mut polynomial: [u64; 2 * LIMBS]) -> Polynomial {
    for limb in (LIMBS..2 * LIMBS).rev() {
        let high = std::mem::take(&mut polynomial[limb]);
        add_terms(&mut polynomial, 64 * limb - DEGREE, high);
    }
    let high = polynomial[LIMBS - 1] >> (DEGREE % 64);
    polynomial[LIMBS - 1] ^= high << (DEGREE % 64);
    add_terms(&mut polynomial, 0, high);
    std::array::from_fn(|limb| polynomial[limb])
}

fn add_terms(polynomial: &mut [u64; 2 * LIMBS], at: usize, bits: u64) {
    for term in TERMS {
        let (limb, shift) = ((at + term) / 64, (at + term) % 64);
        polynomial[limb] ^= bits << shift;
        if shift > 0 {
            polynomial[limb + 1] ^= bits >> (64 - shift);
        }
    }
}
