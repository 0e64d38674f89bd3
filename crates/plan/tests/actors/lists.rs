//! A data set some samples of which are several ranges: of one object or of others, near each other and far, one twice, some empty.

use foreload_plan::catalog::{Lists, Place, Shards};

const OBJECT_BYTES: u64 = 50_000;

/// Samples of these lengths. One in two is a range of a shard, between its neighbours; the others are ranges all over the objects behind those.
pub fn lists(lengths: &[u64], mut below: impl FnMut(u64) -> u64) -> Lists {
    let shards = Shards::pack(lengths, 64, 20_000).0;
    let first = shards.last().map_or(0, |place| place.object + 1);
    let mut several = |len: u64| {
        let mut at = Place {
            object: first + below(5),
            offset: below(OBJECT_BYTES),
            len: 0,
        };
        let (count, mut rest, mut ranges) = (2 + below(6), len, Vec::new());
        for left in (0..count).rev() {
            let len = if left == 0 { rest } else { below(rest + 1) };
            let offset = at.offset + at.len;
            at = match below(4) {
                0 => Place { offset, len, ..at },
                1 => Place {
                    offset: offset + below(700),
                    len,
                    ..at
                },
                2 => Place { len, ..at },
                _ => Place {
                    object: first + below(5),
                    offset: below(OBJECT_BYTES),
                    len,
                },
            };
            rest -= len;
            ranges.push(at);
        }
        ranges
    };
    let ranges = shards.into_iter().enumerate().map(|(sample, place)| match sample % 2 {
        0 => several(place.len),
        _ => vec![place],
    });
    Lists(ranges.collect())
}
