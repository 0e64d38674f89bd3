//! Torch's orders, bit for bit.
//!
//! `torch.randperm(n, generator=g)` on the CPU is a Fisher-Yates shuffle: for i in 0..n-1, swap i with i + r mod (n-i), where r is one
//! word of the generator. From n = [`INSIDE_OUT_FROM`] on it is the inside-out variant with double words. `DistributedSampler` seeds a generator with seed + epoch
//! and takes one permutation. `RandomSampler` with a generator of its own goes on drawing from it epoch after epoch, so epoch e
//! follows only from the state that the epochs before left; [`Replay`] counts their draws and jumps over them. What is drawn besides the permutation
//! that is used, see [`TorchDraws`].
//!
//! Checked against torch 2.15 through `tests/golden/torch_order.json` (made by `tools/golden_torch.py`).

use super::mt19937::Mt19937;
use super::table::Table;
use crate::spec::TorchDraws;

/// From this many on, `randperm` takes the other algorithm, because the remainder of one word would no longer be uniform enough: (2^32 - 1) / 20.
const INSIDE_OUT_FROM: u64 = u32::MAX as u64 / 20;

/// `torch.randperm(n, generator=g)`; n is at most `u32::MAX`.
fn randperm(samples: u64, generator: &mut Mt19937) -> Vec<u32> {
    if samples >= INSIDE_OUT_FROM {
        return inside_out(samples, generator);
    }
    let mut list: Vec<u32> = (0..samples as u32).collect();
    for at in 0..list.len().saturating_sub(1) {
        let step = generator.word() % (samples as u32 - at as u32);
        list.swap(at, at + step as usize);
    }
    list
}

/// The variant for large n: each number in turn takes a random earlier place, whose number moves to the end.
fn inside_out(samples: u64, generator: &mut Mt19937) -> Vec<u32> {
    let mut list: Vec<u32> = Vec::with_capacity(samples as usize);
    for at in 0..samples {
        let place = (generator.double_word() % (at + 1)) as usize;
        list.push(at as u32);
        list.swap(at as usize, place);
    }
    list
}

/// Words that a permutation takes from the generator.
fn randperm_words(samples: u64) -> u128 {
    u128::from(if samples >= INSIDE_OUT_FROM {
        2 * samples
    } else {
        samples - 1
    })
}

/// What `DistributedSampler` reads in an epoch, before padding and over all ranks.
pub(super) fn distributed(samples: u64, seed: u64, epoch: u32) -> Table {
    Table::permutation(randperm(
        samples,
        &mut Mt19937::new(seed.wrapping_add(u64::from(epoch))),
    ))
}

/// A generator that is seeded once and drawn from in every epoch.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    samples: u64,
    draws: TorchDraws,
    /// The generator before epoch 0.
    first: Mt19937,
}

impl Replay {
    pub(super) fn new(samples: u64, seed: u64, draws: TorchDraws) -> Self {
        let mut first = Mt19937::new(seed);
        if draws == TorchDraws::LoaderOnce {
            first.skip(BASE_SEED_WORDS);
        }
        Self { samples, draws, first }
    }

    pub(super) fn epoch(&self, epoch: u32) -> Table {
        // The permutation used, and the one of which nothing is.
        let per_epoch = self.words_before() + 2 * randperm_words(self.samples);
        let mut generator = self.first.clone();
        generator.skip(u128::from(epoch) * per_epoch + self.words_before());
        Table::permutation(randperm(self.samples, &mut generator))
    }

    /// Words drawn in each epoch before its permutation.
    fn words_before(&self) -> u128 {
        if self.draws == TorchDraws::LoaderEachEpoch {
            BASE_SEED_WORDS
        } else {
            0
        }
    }
}

/// The loader's base seed is one `random_()` of an int64 tensor: a double word.
const BASE_SEED_WORDS: u128 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Torch 2.15 gave these for seed 9: first and last numbers, the sum of (position + 1) * number, and the next `random_()`.
    #[test]
    #[ignore = "takes 900 MB and half a minute"]
    fn torch_changes_its_algorithm_at_this_size() {
        type Case = (u64, [u32; 4], [u32; 4], u64, u64);
        let cases: [Case; 2] = [
            (
                214_748_363,
                [44_556_670, 62_109_655, 8_051_366, 211_013_360],
                [132_765_600, 121_191_309, 176_744_990, 45_811_444],
                3_149_963_343_791_239_042,
                7_427_801_224_319_138_773,
            ),
            (
                214_748_364,
                [42_849_823, 142_754_008, 144_913_577, 165_648_139],
                [179_263_708, 142_654_550, 210_425_591, 142_033_056],
                15_108_579_449_589_507_951,
                3_827_028_636_502_490_750,
            ),
        ];
        for (samples, first, last, sum, next) in cases {
            let mut generator = Mt19937::new(9);
            let list = randperm(samples, &mut generator);
            assert_eq!(
                (&list[..4], &list[list.len() - 4..]),
                (&first[..], &last[..]),
                "{samples}"
            );
            let weighted = |(at, &number): (usize, &u32)| (at as u64 + 1).wrapping_mul(u64::from(number));
            assert_eq!(
                list.iter().enumerate().map(weighted).fold(0, u64::wrapping_add),
                sum,
                "{samples}"
            );
            assert_eq!(
                generator.double_word() & (u64::MAX >> 1),
                next,
                "{samples}: what is drawn next"
            );
        }
    }

    #[test]
    fn the_words_counted_are_the_words_drawn() {
        for samples in [1, 2, 1000] {
            let (mut drawn, mut skipped) = (Mt19937::new(4), Mt19937::new(4));
            randperm(samples, &mut drawn);
            skipped.skip(randperm_words(samples));
            assert_eq!(drawn, skipped);
        }
        let mut list = inside_out(1000, &mut Mt19937::new(4));
        list.sort_unstable();
        assert!(list.into_iter().eq(0..1000));
    }

    #[test]
    fn an_epoch_follows_from_the_draws_of_those_before_it() {
        for draws in [
            TorchDraws::LoaderEachEpoch,
            TorchDraws::LoaderOnce,
            TorchDraws::SamplerOnly,
        ] {
            let (replay, mut generator) = (Replay::new(50, 3, draws), Mt19937::new(3));
            for epoch in 0..200 {
                if draws == TorchDraws::LoaderEachEpoch || (draws == TorchDraws::LoaderOnce && epoch == 0) {
                    generator.double_word();
                }
                let (table, list) = (replay.epoch(epoch), randperm(50, &mut generator));
                randperm(50, &mut generator);
                assert!(
                    (0..50)
                        .map(|at| table.sample_at(at))
                        .eq(list.into_iter().map(u64::from)),
                    "{draws:?}, epoch {epoch}"
                );
            }
        }
    }

    /// Epoch 10^9 of ImageNet, which replaying would reach in a month.
    #[test]
    fn any_epoch_is_reached_at_once() {
        let replay = Replay::new(1_281_167, 0, TorchDraws::LoaderEachEpoch);
        let (one, next) = (replay.epoch(1_000_000_000), replay.epoch(1_000_000_001));
        assert_eq!(one.len(), 1_281_167);
        // Whoever draws on from there comes to the epoch after it.
        let mut generator = replay.first.clone();
        generator.skip(1_000_000_000 * (2 + 2 * 1_281_166) + 2);
        let drawn = randperm(1_281_167, &mut generator);
        assert!((0..1000).all(|at| one.sample_at(at) == u64::from(drawn[at as usize])));
        generator.skip(1_281_166 + 2);
        let drawn = randperm(1_281_167, &mut generator);
        assert!((0..1000).all(|at| next.sample_at(at) == u64::from(drawn[at as usize])));
    }
}
