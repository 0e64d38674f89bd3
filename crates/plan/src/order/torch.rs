//! Torch's orders, bit for bit.
//!
//! `torch.randperm(n, generator=g)` on the CPU is a Fisher-Yates shuffle: for i in 0..n-1, swap i with i + r mod (n-i), where r is one
//! word of the generator, or a double word from n = [`DOUBLE_WORDS_FROM`] on. `DistributedSampler` seeds a generator with seed + epoch
//! and takes one permutation. `RandomSampler` with a generator of its own goes on drawing from it epoch after epoch, so epoch e
//! follows only from the state that the epochs before left; [`Replay`] keeps some of those states (2.5 KB each) and skips over the draws in
//! between. What is drawn besides the permutation that is used, see [`TorchDraws`].
//!
//! Checked against torch 2.15 through `tests/golden/torch_order.json` (made by `tools/golden_torch.py`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::mt19937::Mt19937;
use super::table::Table;
use crate::spec::TorchDraws;

/// From this many on, `randperm` draws double words, because the remainder of one word would no longer be uniform enough: (2^32 - 1) / 20.
const DOUBLE_WORDS_FROM: u64 = u32::MAX as u64 / 20;

/// States kept by a [`Replay`]: 160 KB. Runs go forward or resume at one epoch, so the latest are the useful ones.
const KEPT_STATES: usize = 64;

/// `torch.randperm(n, generator=g)`; n is at most `u32::MAX`.
fn randperm(samples: u64, generator: &mut Mt19937) -> Vec<u32> {
    let mut list: Vec<u32> = (0..samples as u32).collect();
    let double = samples >= DOUBLE_WORDS_FROM;
    for at in 0..list.len().saturating_sub(1) {
        let left = samples - at as u64;
        let step = if double { generator.double_word() % left } else { u64::from(generator.word() % left as u32) };
        list.swap(at, at + step as usize);
    }
    list
}

/// Words that a permutation takes from the generator.
fn randperm_words(samples: u64) -> u64 {
    (samples - 1) * if samples >= DOUBLE_WORDS_FROM { 2 } else { 1 }
}

/// What `DistributedSampler` reads in an epoch, before padding and over all ranks.
pub(super) fn distributed(samples: u64, seed: u64, epoch: u32) -> Table {
    Table::permutation(randperm(samples, &mut Mt19937::new(seed.wrapping_add(u64::from(epoch)))))
}

/// A generator that is seeded once and drawn from in every epoch.
#[derive(Debug)]
pub(super) struct Replay {
    samples: u64,
    draws: TorchDraws,
    /// The generator's state before an epoch. What is kept changes how long [`epoch`](Self::epoch) takes, never what it returns.
    states: Mutex<BTreeMap<u32, Mt19937>>,
}

impl Replay {
    pub(super) fn new(samples: u64, seed: u64, draws: TorchDraws) -> Self {
        let mut generator = Mt19937::new(seed);
        if draws == TorchDraws::LoaderOnce {
            generator.skip(BASE_SEED_WORDS);
        }
        Self { samples, draws, states: Mutex::new(BTreeMap::from([(0, generator)])) }
    }

    pub(super) fn epoch(&self, epoch: u32) -> Table {
        let mut generator = self.state_before(epoch);
        generator.skip(self.words_before());
        Table::permutation(randperm(self.samples, &mut generator))
    }

    fn state_before(&self, epoch: u32) -> Mt19937 {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let (&from, state) = states.range(..=epoch).next_back().expect("the state before epoch 0 is never dropped");
        let mut generator = state.clone();
        // The permutation used, and the one of which nothing is.
        let per_epoch = self.words_before() + 2 * randperm_words(self.samples);
        for at in from..epoch {
            generator.skip(per_epoch);
            states.insert(at + 1, generator.clone());
            if states.len() > KEPT_STATES {
                let oldest = *states.range(1..).next().expect("more than one is kept").0;
                states.remove(&oldest);
            }
        }
        generator
    }

    /// Words drawn in each epoch before its permutation.
    fn words_before(&self) -> u64 {
        if self.draws == TorchDraws::LoaderEachEpoch { BASE_SEED_WORDS } else { 0 }
    }
}

/// The loader's base seed is one `random_()` of an int64 tensor: a double word.
const BASE_SEED_WORDS: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_the_same_whichever_epochs_were_asked_for_before() {
        let list = |replay: &Replay, epoch| (0..50).map(|at| replay.epoch(epoch).sample_at(at)).collect::<Vec<_>>();
        for draws in [TorchDraws::LoaderEachEpoch, TorchDraws::LoaderOnce, TorchDraws::SamplerOnly] {
            let in_turn = Replay::new(50, 3, draws);
            let expected: Vec<_> = (0..200).map(|epoch| list(&in_turn, epoch)).collect();
            let jumping = Replay::new(50, 3, draws);
            for epoch in [150, 3, 199, 0, 150, 149] {
                assert_eq!(list(&jumping, epoch), expected[epoch as usize], "{draws:?}, epoch {epoch}");
            }
            assert!(jumping.states.lock().expect("not poisoned").len() <= KEPT_STATES);
        }
    }
}
