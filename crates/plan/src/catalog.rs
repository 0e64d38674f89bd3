//! What the policy must know of the samples: how many bytes, and where they lie.

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
