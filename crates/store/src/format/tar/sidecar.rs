//! `.idx` files beside shards, as NVIDIA DALI's `wds2idx` writes them.
//!
//! `v1.2 <samples>`, then one line per sample: `<extension> <offset> <size> <name>` for each member (version 1.1 without
//! the name). Offsets count to the data, not to the header.

use super::group::{Field, Sample, split};
use crate::{Error, Result};

/// Reads an index of a shard of `shard_size` bytes.
pub(crate) fn parse(bytes: &[u8], shard_size: u64) -> Result<Vec<Sample>> {
    let wrong = |line: usize, how: &str| {
        Error::corrupt(format!("line {line} of the .idx file {how}"))
            .with_remedy("delete it, or make it again with wds2idx")
    };
    let text = std::str::from_utf8(bytes).map_err(|_| wrong(1, "is not text"))?;
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let head: Vec<&str> = lines
        .next()
        .map(|(_, l)| l.split_whitespace().collect())
        .unwrap_or_default();
    let (per_member, announced) = match head.as_slice() {
        ["v1.2", count] => (4, count.parse::<usize>()),
        ["v1.1", count] => (3, count.parse::<usize>()),
        _ => return Err(wrong(1, "names no known version")),
    };
    let announced = announced.map_err(|_| wrong(1, "has no number of samples"))?;
    let mut samples = Vec::new();
    for (number, line) in lines.filter(|(_, l)| !l.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words.len().is_multiple_of(per_member) {
            return Err(wrong(number, "has another number of words"));
        }
        let mut sample = Sample::default();
        for member in words.chunks(per_member) {
            let (offset, length) = (member[1].parse::<u64>(), member[2].parse::<u64>());
            let (Ok(offset), Ok(length)) = (offset, length) else {
                return Err(wrong(number, "has no numbers"));
            };
            if offset.checked_add(length).is_none_or(|end| end > shard_size) {
                return Err(wrong(number, "points outside the shard"));
            }
            if let Some((base, _)) = member
                .get(3)
                .and_then(|path| split(path))
                .filter(|_| sample.base.is_empty())
            {
                sample.base = base.strip_prefix("./").unwrap_or(base).to_owned();
            }
            sample.fields.push(Field {
                name: member[0].to_ascii_lowercase(),
                offset,
                length,
            });
        }
        sample.offset = sample.fields.iter().map(|f| f.offset).min().unwrap_or(0);
        sample.length = sample.fields.iter().map(|f| f.offset + f.length).max().unwrap_or(0) - sample.offset;
        samples.push(sample);
    }
    if samples.len() != announced {
        return Err(wrong(
            1,
            &format!("announces {announced} samples, there are {}", samples.len()),
        ));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_index_is_read_and_bounded() {
        let text = b"v1.2 2\njpg 512 100 a.jpg json 1536 5 a.json\njpg 2560 7 b.jpg\n";
        let samples = parse(text, 4096).unwrap();
        assert_eq!(
            (samples[0].offset, samples[0].length, samples[0].fields.len()),
            (512, 1029, 2)
        );
        assert_eq!(parse(b"v1.1 1\njpg 512 100\n", 4096).unwrap().len(), 1);
        assert!(parse(text, 2000).is_err());
        assert!(parse(b"v1.2 3\njpg 1 1 a\n", 4096).is_err());
    }

    proptest! {
        #[test]
        fn proptest_no_text_panics(text in "v1.[12] [0-9]\n[a-z0-9 \n]{0,60}", size in any::<u64>()) {
            let _ = parse(text.as_bytes(), size);
        }
    }
}
