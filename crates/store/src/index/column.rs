//! One fixed-width column of unsigned integers over borrowed bytes, and its encoder.
//!
//! A column stores `value - base` in 0 to 8 little-endian bytes per entry; the width is the smallest that fits the
//! largest entry, so a constant column takes no bytes at all. Reading is O(1), never allocates, and never panics:
//! what lies outside the bytes reads as `None`, whatever a damaged header claims.

/// Where a column lies in the file and how its entries are coded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Column {
    /// First byte, from the start of the file.
    pub start: usize,
    /// Entries.
    pub count: u64,
    /// Bytes per entry, 0 to 8.
    pub width: u8,
    /// Added (wrapping) to each stored entry.
    pub base: u64,
}

impl Column {
    /// Entry `i`, or `None` beyond the column or the bytes.
    #[inline]
    pub fn get(&self, file: &[u8], i: u64) -> Option<u64> {
        if i >= self.count {
            return None;
        }
        let width = usize::from(self.width.min(8));
        let at = usize::try_from(i).ok()?.checked_mul(width)?.checked_add(self.start)?;
        // Eight bytes at once, unless the file ends before: a copy of unknown width would be a call.
        if let Some(word) = file.get(at..).and_then(<[u8]>::first_chunk) {
            let stored =
                u64::from_le_bytes(*word) & u64::MAX.checked_shr(64 - 8 * u32::from(self.width.min(8))).unwrap_or(0);
            return Some(stored.wrapping_add(self.base));
        }
        let bytes = file.get(at..at.checked_add(width)?)?;
        let mut word = [0_u8; 8];
        word[..width].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word).wrapping_add(self.base))
    }

    /// Entries `i` and `i + 1`, as the range they bound.
    #[inline]
    pub fn span(&self, file: &[u8], i: u64) -> Option<std::ops::Range<u64>> {
        let (from, to) = (self.get(file, i)?, self.get(file, i.checked_add(1)?)?);
        (from <= to).then_some(from..to)
    }
}

/// The values of a column while it grows: narrow entries are kept narrow.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    /// `count` times the same value: nothing stored.
    Constant { value: u64, count: u64 },
    /// All values below 2^32.
    Narrow(Vec<u32>),
    /// Anything.
    Wide(Vec<u64>),
}

impl Default for Values {
    fn default() -> Self {
        Self::Constant { value: 0, count: 0 }
    }
}

impl Values {
    pub fn len(&self) -> u64 {
        match self {
            Self::Constant { count, .. } => *count,
            Self::Narrow(values) => values.len() as u64,
            Self::Wide(values) => values.len() as u64,
        }
    }

    #[inline]
    pub fn push(&mut self, new: u64) {
        match self {
            Self::Constant { value, count } if *count == 0 || *value == new => {
                *value = new;
                *count += 1;
            }
            Self::Constant { value, count } => {
                let count = usize::try_from(*count).unwrap_or(usize::MAX);
                *self = match u32::try_from(*value) {
                    Ok(value) => Self::Narrow(vec![value; count]),
                    Err(_) => Self::Wide(vec![*value; count]),
                };
                self.push(new);
            }
            Self::Narrow(values) => match u32::try_from(new) {
                Ok(new) => values.push(new),
                Err(_) => {
                    let mut wide: Vec<u64> = values.iter().map(|&v| u64::from(v)).collect();
                    wide.push(new);
                    *self = Self::Wide(wide);
                }
            },
            Self::Wide(values) => values.push(new),
        }
    }

    pub fn get(&self, i: u64) -> Option<u64> {
        let at = usize::try_from(i).ok()?;
        match self {
            Self::Constant { value, count } => (i < *count).then_some(*value),
            Self::Narrow(values) => values.get(at).map(|&v| u64::from(v)),
            Self::Wide(values) => values.get(at).copied(),
        }
    }

    /// Whether entry `i` is `i`, for all entries.
    pub fn is_identity(&self) -> bool {
        fn is_it<T: Copy + Into<u64>>(values: &[T]) -> bool {
            values.iter().zip(0..).all(|(&value, i)| value.into() == i)
        }
        match self {
            Self::Constant { value, count } => *count == 0 || (*count == 1 && *value == 0),
            Self::Narrow(values) => is_it(values),
            Self::Wide(values) => is_it(values),
        }
    }

    /// Appends the entries to `out` in the narrowest form and returns their description (its `start` is 0).
    pub fn encode(&self, out: &mut Vec<u8>) -> Column {
        match self {
            &Self::Constant { value, count } => Column {
                start: 0,
                count,
                width: 0,
                base: value,
            },
            Self::Narrow(values) => pack(values, out),
            Self::Wide(values) => pack(values, out),
        }
    }
}

fn pack<T: Copy + Ord + Into<u64>>(values: &[T], out: &mut Vec<u8>) -> Column {
    let base = values.iter().min().map_or(0, |&v| v.into());
    let top = values.iter().max().map_or(0, |&v| v.into()) - base;
    let width = (8 - top.leading_zeros() / 8) as u8;
    // A width that the compiler knows makes ten million entries take milliseconds.
    match width {
        1 => put::<1, T>(values, base, out),
        2 => put::<2, T>(values, base, out),
        3 => put::<3, T>(values, base, out),
        4 => put::<4, T>(values, base, out),
        5 => put::<5, T>(values, base, out),
        6 => put::<6, T>(values, base, out),
        7 => put::<7, T>(values, base, out),
        8 => put::<8, T>(values, base, out),
        _ => {}
    }
    Column {
        start: 0,
        count: values.len() as u64,
        width,
        base,
    }
}

fn put<const WIDTH: usize, T: Copy + Into<u64>>(values: &[T], base: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + values.len() * WIDTH, 0);
    for (entry, &value) in out[start..].chunks_exact_mut(WIDTH).zip(values) {
        entry.copy_from_slice(&(value.into() - base).to_le_bytes()[..WIDTH]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn proptest_a_column_returns_what_was_pushed(values in prop::collection::vec(
            prop_oneof![0_u64..5, any::<u32>().prop_map(u64::from), any::<u64>()], 0..200)) {
            let mut column = Values::default();
            for &value in &values {
                column.push(value);
            }
            let mut bytes = Vec::new();
            let described = column.encode(&mut bytes);
            prop_assert_eq!(described.count, values.len() as u64);
            for (i, &value) in values.iter().enumerate() {
                prop_assert_eq!(column.get(i as u64), Some(value));
                prop_assert_eq!(described.get(&bytes, i as u64), Some(value));
            }
            prop_assert_eq!(described.get(&bytes, values.len() as u64), None);
        }
    }

    #[test]
    fn a_constant_column_takes_no_bytes() {
        let mut values = Values::default();
        (0..1000).for_each(|_| values.push(7));
        let mut bytes = Vec::new();
        assert_eq!(values.encode(&mut bytes).width, 0);
        assert!(bytes.is_empty());
    }
}
