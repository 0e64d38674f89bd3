//! An epoch's order as a table: 4 bytes per position, and 4 per sample once somebody asks for positions.
//!
//! For the orders that can't be computed per position: torch's, explicit lists and small keyed ones. Samples beyond 2^32 take 8
//! bytes. The inverse holds each sample's *first* position and is built on first use, because a run that never looks ahead
//! (or a tool that only lists an epoch) needs none.

use std::sync::OnceLock;

use crate::error::Error;

/// Samples by position, with a lazily built inverse.
#[derive(Clone, Debug)]
pub(super) struct Table {
    samples: u64,
    list: List,
    inverse: OnceLock<List>,
}

#[derive(Clone, Debug, PartialEq)]
enum List {
    Narrow(Box<[u32]>),
    Wide(Box<[u64]>),
}

impl List {
    fn len(&self) -> u64 {
        match self {
            Self::Narrow(values) => values.len() as u64,
            Self::Wide(values) => values.len() as u64,
        }
    }

    #[inline]
    fn get(&self, at: u64) -> u64 {
        match self {
            Self::Narrow(values) => u64::from(values[at as usize]),
            Self::Wide(values) => values[at as usize],
        }
    }

    /// The largest value of the width: "never", in an inverse. Positions stay below it.
    fn never(&self) -> u64 {
        match self {
            Self::Narrow(_) => u64::from(u32::MAX),
            Self::Wide(_) => u64::MAX,
        }
    }
}

impl Table {
    /// A permutation of `0..list.len()`.
    pub(super) fn permutation(list: Vec<u32>) -> Self {
        Self {
            samples: list.len() as u64,
            list: List::Narrow(list.into()),
            inverse: OnceLock::new(),
        }
    }

    /// Any list of samples below `samples`.
    pub(super) fn from_list(list: &[u64], samples: u64) -> Result<Self, Error> {
        if let Some(at) = list.iter().position(|&sample| sample >= samples) {
            return Err(Error::NoSuchSample {
                position: at as u64,
                sample: list[at],
                samples,
            });
        }
        let list = if samples <= u64::from(u32::MAX) {
            List::Narrow(list.iter().map(|&sample| sample as u32).collect())
        } else {
            List::Wide(list.into())
        };
        Ok(Self {
            samples,
            list,
            inverse: OnceLock::new(),
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.list.len()
    }

    #[inline]
    pub(super) fn sample_at(&self, position: u64) -> u64 {
        self.list.get(position)
    }

    /// The first position of a sample.
    pub(super) fn position_of(&self, sample: u64) -> Option<u64> {
        let inverse = self.inverse.get_or_init(|| self.invert());
        Some(inverse.get(sample)).filter(|&position| position != inverse.never())
    }

    /// Builds the inverse now.
    pub(super) fn look_up(&self) {
        self.inverse.get_or_init(|| self.invert());
    }

    /// Whether a sample is listed more than once.
    pub(super) fn repeats(&self) -> bool {
        (0..self.len()).any(|position| self.position_of(self.sample_at(position)) != Some(position))
    }

    pub(super) fn same_list(&self, other: &Self) -> bool {
        self.list == other.list
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        let bytes = |list: &List| match list {
            List::Narrow(values) => size_of_val::<[u32]>(values) as u64,
            List::Wide(values) => size_of_val::<[u64]>(values) as u64,
        };
        bytes(&self.list) + self.inverse.get().map_or(0, bytes)
    }

    fn invert(&self) -> List {
        let size = self.samples as usize;
        // From the end, so that the first position is what remains.
        if self.len() < u64::from(u32::MAX) {
            let mut inverse = vec![u32::MAX; size];
            (0..self.len())
                .rev()
                .for_each(|position| inverse[self.sample_at(position) as usize] = position as u32);
            List::Narrow(inverse.into())
        } else {
            let mut inverse = vec![u64::MAX; size];
            (0..self.len())
                .rev()
                .for_each(|position| inverse[self.sample_at(position) as usize] = position);
            List::Wide(inverse.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_names_the_first_position_and_knows_what_is_missing() {
        let table = Table::from_list(&[4, 1, 4, 0], 6).expect("all below 6");
        let positions: Vec<_> = (0..6).map(|sample| table.position_of(sample)).collect();
        assert_eq!(positions, [Some(3), Some(1), None, None, Some(0), None]);
        assert!(table.repeats());
        assert!(!Table::permutation(vec![2, 0, 1]).repeats());
    }

    #[test]
    fn a_list_costs_four_bytes_a_position_until_positions_are_asked_for() {
        let table = Table::permutation((0..1000).rev().collect());
        assert_eq!(table.heap_bytes(), 4000);
        assert_eq!(table.position_of(0), Some(999));
        assert_eq!(table.heap_bytes(), 8000);
    }

    #[test]
    fn a_sample_that_does_not_exist_is_refused_by_name() {
        let error = Table::from_list(&[0, 1, 7], 3).expect_err("7 of 3");
        assert_eq!(
            error,
            Error::NoSuchSample {
                position: 2,
                sample: 7,
                samples: 3
            }
        );
    }

    #[test]
    fn wide_samples_keep_all_their_bits() {
        let table = Table {
            samples: 3,
            list: List::Wide([1 << 40, 5].into()),
            inverse: OnceLock::new(),
        };
        assert_eq!(table.sample_at(0), 1 << 40);
    }
}
