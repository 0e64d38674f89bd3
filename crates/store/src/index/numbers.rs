//! Numbers of samples, packed: 4 bytes each where all fit, else 8.
//!
//! They are as long as data sets are, and lie in memory that another process may have made. Anything may stand there: a
//! number is only what somebody says, and whoever reads it looks whether there is such a sample.

use bytes::Bytes;

/// An immutable list of numbers; clones share the bytes. Equal ones have equal numbers in equal widths.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Numbers {
    bytes: Bytes,
    /// Bytes a number.
    width: usize,
}

impl Numbers {
    /// `count` numbers as they lie in memory: little-endian, of 4 or of 8 bytes each, as the length says. `None`: of neither.
    #[must_use]
    pub fn from_bytes(bytes: Bytes, count: u64) -> Option<Self> {
        let is = |width: usize| count.checked_mul(width as u64) == Some(bytes.len() as u64);
        let width = [4, 8].into_iter().find(|width| is(*width))?;
        Some(Self { bytes, width })
    }

    /// The bytes, as [`Numbers::from_bytes`] takes them.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How many there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.bytes.len() / self.width.max(1)) as u64
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Number `i` of the list.
    #[inline]
    #[must_use]
    pub fn get(&self, i: u64) -> Option<u64> {
        let rest = self.bytes.get(usize::try_from(i).ok()?.checked_mul(self.width)?..)?;
        match self.width {
            4 => rest.first_chunk().map(|word| u64::from(u32::from_le_bytes(*word))),
            _ => rest.first_chunk().map(|word| u64::from_le_bytes(*word)),
        }
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).map_while(|i| self.get(i))
    }
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Numbers({})", self.len())
    }
}

impl FromIterator<u64> for Numbers {
    fn from_iter<T: IntoIterator<Item = u64>>(numbers: T) -> Self {
        let mut numbers = numbers.into_iter();
        let mut bytes = Vec::with_capacity(4 * numbers.size_hint().0);
        for number in numbers.by_ref() {
            let Ok(narrow) = u32::try_from(number) else {
                let (words, _) = bytes.as_chunks();
                let before = words.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
                let all = before.chain(std::iter::once(number)).chain(numbers);
                let bytes: Vec<u8> = all.flat_map(u64::to_le_bytes).collect();
                return Self {
                    bytes: bytes.into(),
                    width: 8,
                };
            };
            bytes.extend_from_slice(&narrow.to_le_bytes());
        }
        Self {
            bytes: bytes.into(),
            width: 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn proptest_numbers_come_back(numbers in prop::collection::vec(prop_oneof![
            any::<u32>().prop_map(u64::from), any::<u64>()], 0..50), some in any::<bool>()) {
            let numbers: Vec<u64> = if some { numbers.iter().map(|n| n % (1 << 32)).collect() } else { numbers };
            let packed: Numbers = numbers.iter().copied().collect();
            let width = if numbers.iter().all(|&n| n <= u64::from(u32::MAX)) { 4 } else { 8 };
            let count = numbers.len() as u64;
            prop_assert_eq!((packed.len(), packed.as_bytes().len()), (count, width * numbers.len()));
            let again = Numbers::from_bytes(packed.as_bytes().clone(), count).unwrap();
            for list in [&packed, &again] {
                prop_assert_eq!(&list.iter().collect::<Vec<_>>(), &numbers);
                prop_assert_eq!((list.get(count), list.get(u64::MAX)), (None, None));
            }
        }
    }

    #[test]
    fn equal_bytes_of_other_widths_are_other_lists() {
        let of = |count| Numbers::from_bytes([5, 0, 0, 0, 0, 0, 0, 0].to_vec().into(), count);
        assert_ne!(of(1), of(2));
        assert_eq!(of(2), Some([5, 0].into_iter().collect()));
    }

    #[test]
    fn a_length_that_is_of_no_width_is_refused() {
        let of = |bytes: usize, count| Numbers::from_bytes(vec![0; bytes].into(), count).map(|list| list.len());
        assert_eq!(
            [of(0, 0), of(4, 1), of(8, 1), of(8, 2)],
            [Some(0), Some(1), Some(1), Some(2)]
        );
        assert_eq!([of(4, 0), of(0, 1), of(12, 2), of(9, 1), of(0, 1 << 62)], [None; 5]);
    }
}
