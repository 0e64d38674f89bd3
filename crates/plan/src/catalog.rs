//! What the policy must know of the samples: how many bytes, and where they lie.
//!
//! A sample is a range of an object. It may also be several, of one object or of different ones: then its bytes are those of its ranges, one after the
//! other.

/// Ranges of a sample at most: its loads are counted in 16 bits, and large ranges take several.
pub const MOST_RANGES: usize = 1 << 14;

/// The bytes of a sample: a range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The object's number.
    pub object: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Sizes and places of all samples. Neighbouring numbers are expected to be neighbours in their object, as in an index that was made
/// shard by shard; where they aren't, nothing breaks, but requests are not coalesced.
pub trait Catalog: Send + Sync {
    /// Samples in the data set.
    fn samples(&self) -> u64;
    /// Where a sample lies. Called once or twice per planned sample: keep it in the tens of nanoseconds.
    fn place(&self, sample: u64) -> Place;
    /// Whether several samples may lie in one object. Whoever knows that none do spares a look at each.
    fn shares_objects(&self) -> bool {
        true
    }
    /// Whether a sample is several ranges. Then its place says how long all of them are together, and nothing else that means anything. As quick as
    /// [`Catalog::place`].
    fn is_several(&self, _sample: u64) -> bool {
        false
    }
    /// The ranges of a sample in the order of its bytes, [`MOST_RANGES`] at most: together as long as its place says. Called when it is loaded.
    fn ranges(&self, sample: u64) -> Vec<Place> {
        vec![self.place(sample)]
    }
}

/// Numbers of several parts, one part after the other.
#[derive(Clone, Debug)]
pub struct Spans {
    /// Where each part begins, and where the last one ends.
    borders: Vec<u64>,
}

impl Spans {
    /// Parts of these lengths.
    #[must_use]
    pub fn new(lengths: impl IntoIterator<Item = u64>) -> Self {
        let mut borders = vec![0];
        for length in lengths {
            borders.push(borders[borders.len() - 1] + length);
        }
        Self { borders }
    }

    /// Numbers of all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.borders[self.borders.len() - 1]
    }

    /// The part of a number, and the number there; `None`: there is no such number.
    #[must_use]
    pub fn find(&self, number: u64) -> Option<(usize, u64)> {
        let part = self.borders.partition_point(|&border| border <= number) - 1;
        (number < self.total()).then(|| (part, number - self.borders[part]))
    }
}

/// A catalog from a list of lengths: sample i is object i.
#[derive(Clone, Debug, Default)]
pub struct Objects(
    /// Bytes of each.
    pub Vec<u64>,
);

impl Catalog for Objects {
    fn samples(&self) -> u64 {
        self.0.len() as u64
    }

    fn place(&self, sample: u64) -> Place {
        Place {
            object: sample,
            offset: 0,
            len: self.0[sample as usize],
        }
    }

    fn shares_objects(&self) -> bool {
        false
    }
}

/// A catalog of shards: from a list of places.
#[derive(Clone, Debug, Default)]
pub struct Shards(
    /// Where each sample lies.
    pub Vec<Place>,
);

impl Shards {
    /// Packs samples of these lengths one after the other, with a gap before each, into objects of at least `shard_bytes`.
    #[must_use]
    pub fn pack(lengths: &[u64], gap_bytes: u64, shard_bytes: u64) -> Self {
        let (mut object, mut offset) = (0, 0);
        let places = lengths.iter().map(|&len| {
            if offset >= shard_bytes {
                object += 1;
                offset = 0;
            }
            let place = Place {
                object,
                offset: offset + gap_bytes,
                len,
            };
            offset = place.offset + len;
            place
        });
        Shards(places.collect())
    }
}

impl Catalog for Shards {
    fn samples(&self) -> u64 {
        self.0.len() as u64
    }

    fn place(&self, sample: u64) -> Place {
        self.0[sample as usize]
    }
}

/// A catalog from lists of ranges, some of samples of several.
#[derive(Clone, Debug, Default)]
pub struct Lists(
    /// The ranges of each sample.
    pub Vec<Vec<Place>>,
);

impl Catalog for Lists {
    fn samples(&self) -> u64 {
        self.0.len() as u64
    }

    fn place(&self, sample: u64) -> Place {
        let ranges = &self.0[sample as usize];
        let nowhere = Place {
            object: 0,
            offset: 0,
            len: 0,
        };
        Place {
            len: ranges.iter().map(|range| range.len).sum(),
            ..ranges.first().copied().unwrap_or(nowhere)
        }
    }

    fn is_several(&self, sample: u64) -> bool {
        self.0[sample as usize].len() > 1
    }

    fn ranges(&self, sample: u64) -> Vec<Place> {
        self.0[sample as usize].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_in_its_part() {
        let spans = Spans::new([2, 0, 3]);
        let found: Vec<_> = (0..6).map(|number| spans.find(number)).collect();
        let expected = [
            Some((0, 0)),
            Some((0, 1)),
            Some((2, 0)),
            Some((2, 1)),
            Some((2, 2)),
            None,
        ];
        assert_eq!(found, expected);
        assert_eq!(spans.total(), 5);
    }
}
