//! Orders that are arithmetic: a matrix written by rows and read by columns.
//!
//! Deal F positions out to C columns like cards; each column is then a contiguous range of samples. That is the *contiguous* order:
//! position p is the (p / C)-th card of column p mod C. Read the other way round it is the *strided* order, a reader that
//! takes every C-th sample and starts over at the next one. When C doesn't divide F, the first F mod C columns are one longer.

/// The two-way map between dealing order and column order.
#[derive(Clone, Debug)]
pub(super) struct Transpose {
    columns: u64,
    /// Length of the short columns, and how many are one longer.
    short: u64,
    long_columns: u64,
}

impl Transpose {
    pub(super) fn new(count: u64, columns: u64) -> Self {
        Self {
            columns,
            short: count / columns,
            long_columns: count % columns,
        }
    }

    /// Dealing order to column order.
    pub(super) fn forward(&self, at: u64) -> u64 {
        let (row, column) = (at / self.columns, at % self.columns);
        column * self.short + column.min(self.long_columns) + row
    }

    /// Column order to dealing order.
    pub(super) fn backward(&self, at: u64) -> u64 {
        let in_long = self.long_columns * (self.short + 1);
        let (column, row) = if at < in_long {
            (at / (self.short + 1), at % (self.short + 1))
        } else {
            // Only reached with columns of length `short`, which is then at least 1.
            let rest = at - in_long;
            (self.long_columns + rest / self.short, rest % self.short)
        };
        row * self.columns + column
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(count: u64, map: impl Fn(u64) -> u64) -> Vec<u64> {
        (0..count).map(map).collect()
    }

    #[test]
    fn columns_are_contiguous_ranges() {
        let three = Transpose::new(8, 3);
        assert_eq!(reads(8, |p| three.forward(p)), [0, 3, 6, 1, 4, 7, 2, 5]);
    }

    #[test]
    fn the_way_back_is_a_walk_with_a_stride() {
        let three = Transpose::new(8, 3);
        assert_eq!(reads(8, |p| three.backward(p)), [0, 3, 6, 1, 4, 7, 2, 5]);
        let seven = Transpose::new(10, 7);
        assert_eq!(reads(10, |p| seven.backward(p)), [0, 7, 1, 8, 2, 9, 3, 4, 5, 6]);
    }

    #[test]
    fn both_ways_cancel_for_every_small_shape() {
        for count in 1..40 {
            for columns in 1..50 {
                let map = Transpose::new(count, columns);
                for at in 0..count {
                    assert_eq!(map.backward(map.forward(at)), at, "{count} over {columns}");
                    assert!(map.backward(at) < count);
                }
            }
        }
    }
}
