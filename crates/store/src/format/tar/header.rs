//! One 512-byte header block of a tar archive: ustar, GNU and PAX.

use crate::{Error, Result};

/// Size of a block.
pub(crate) const BLOCK: u64 = 512;
/// Longest name accepted, from whatever header.
pub(crate) const MAX_NAME_BYTES: u64 = 8192;
/// Longest PAX header accepted.
pub(crate) const MAX_PAX_BYTES: u64 = 1 << 20;

/// What a header announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file of this name and size, unless what came before gives it others. One whose name ends in a slash is a directory; one that is not UTF-8 may
    /// have been cut off within a character.
    File { name: Option<String>, size: u64 },
    /// The name of the next entry, in the data that follows.
    LongName { size: u64 },
    /// PAX records for the next entry, in the data that follows.
    Pax { size: u64 },
    /// Directories, links, devices: of no concern, and so is what came before for them.
    Other { size: u64 },
    /// Says something of no concern about the next entry, or about all.
    Aside { size: u64 },
    /// A block of zeros: the end.
    End,
}

/// Reads a header block.
pub(crate) fn parse(block: &[u8; 512]) -> Result<Entry> {
    if block.iter().all(|&b| b == 0) {
        return Ok(Entry::End);
    }
    let wrong = |how: &str| Error::corrupt(format!("the tar archive is damaged: {how}"));
    let announced = number(&block[148..156]).ok_or_else(|| wrong("a header has no checksum"))?;
    // The checksum counts its own field as spaces; some old programs summed signed bytes.
    let outside = block
        .iter()
        .enumerate()
        .filter(|(i, _)| !(148..156).contains(i))
        .map(|(_, b)| *b);
    let unsigned: u64 = outside.clone().map(u64::from).sum::<u64>() + 8 * 32;
    let signed: i64 = outside.map(|b| i64::from(b as i8)).sum::<i64>() + 8 * 32;
    if announced != unsigned && i64::try_from(announced) != Ok(signed) {
        return Err(wrong("the checksum of a header does not match"));
    }
    let size = number(&block[124..136]).ok_or_else(|| wrong("a header has no size"))?;
    Ok(match block[156] {
        b'0' | 0 | b'7' => {
            let has_prefix = &block[257..262] == b"ustar" && block[262] == 0;
            let prefix = if has_prefix { text(&block[345..500]) } else { Some("") };
            let name = text(&block[..100]).zip(prefix).map(|(name, prefix)| match prefix {
                "" => name.to_owned(),
                _ => format!("{prefix}/{name}"),
            });
            Entry::File { name, size }
        }
        b'L' => Entry::LongName { size },
        b'x' | b'X' => Entry::Pax { size },
        b'K' | b'g' => Entry::Aside { size },
        b'S' => {
            return Err(wrong("it has a sparse file").with_remedy("make it again with tar --format=pax, no --sparse"));
        }
        // Links, directories and devices have no data even where a size is written.
        b'1'..=b'6' => Entry::Other { size: 0 },
        _ => Entry::Other { size },
    })
}

/// `path` and `size` of PAX records: `<length> <key>=<value>\n`.
pub(crate) fn pax(mut records: &[u8]) -> Result<(Option<String>, Option<u64>)> {
    let wrong = || Error::corrupt("the tar archive is damaged: a PAX header is malformed");
    let (mut path, mut size) = (None, None);
    while records.first().is_some_and(|&b| b != 0) {
        let space = records.iter().take(20).position(|&b| b == b' ').ok_or_else(wrong)?;
        let length: usize = text(&records[..space]).and_then(|t| t.parse().ok()).ok_or_else(wrong)?;
        let record = records
            .get(space + 1..length)
            .and_then(|r| r.strip_suffix(b"\n"))
            .ok_or_else(wrong)?;
        let equals = record.iter().position(|&b| b == b'=').ok_or_else(wrong)?;
        let value = &record[equals + 1..];
        match &record[..equals] {
            b"path" => path = Some(std::str::from_utf8(value).map_err(|_| wrong())?.to_owned()),
            b"size" => size = Some(text(value).and_then(|t| t.parse().ok()).ok_or_else(wrong)?),
            key if key.starts_with(b"GNU.sparse") => {
                return Err(wrong().with_remedy("sparse files are not supported: make it again without --sparse"));
            }
            _ => {}
        }
        records = &records[length..];
    }
    Ok((path, size))
}

/// Text up to the first zero.
pub(crate) fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok()
}

/// An octal number, or GNU's binary form for large ones.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at_checked(field.len().checked_sub(8)?)?;
        let is_small = high
            .split_first()
            .is_some_and(|(mark, rest)| *mark == 0x80 && rest.iter().all(|&b| b == 0));
        return low.try_into().ok().filter(|_| is_small).map(u64::from_be_bytes);
    }
    let digits = field
        .iter()
        .skip_while(|&&b| b == b' ')
        .take_while(|&&b| b != 0 && b != b' ');
    let mut value = 0_u64;
    for &digit in digits {
        if !(b'0'..=b'7').contains(&digit) {
            return None;
        }
        value = value.checked_mul(8)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some(value)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A header as GNU tar writes it.
    pub(crate) fn block(name: &str, size: u64, kind: u8) -> [u8; 512] {
        let mut block = [0; 512];
        block[..name.len().min(100)].copy_from_slice(&name.as_bytes()[..name.len().min(100)]);
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[156] = kind;
        block[257..263].copy_from_slice(b"ustar\0");
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|&b| u64::from(b)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }

    #[test]
    fn headers_are_read_and_damage_is_noticed() {
        assert_eq!(
            parse(&block("a/b.jpg", 123, b'0')).unwrap(),
            Entry::File {
                name: Some("a/b.jpg".into()),
                size: 123
            }
        );
        assert_eq!(parse(&[0; 512]).unwrap(), Entry::End);
        let mut damaged = block("a", 1, b'0');
        damaged[3] ^= 1;
        assert!(parse(&damaged).is_err());
        assert_eq!(parse(&block("dir/", 0, b'5')).unwrap(), Entry::Other { size: 0 });
        assert_eq!(parse(&block("name", 9, b'K')).unwrap(), Entry::Aside { size: 9 });
    }

    #[test]
    fn large_sizes_and_pax_records_are_read() {
        let mut field = [0; 12];
        field[0] = 0x80;
        field[4..].copy_from_slice(&(1_u64 << 40).to_be_bytes());
        assert_eq!(number(&field), Some(1 << 40));
        assert_eq!(pax(b"15 path=a/b.jpg\n11 size=12\n").ok(), None);
        assert_eq!(
            pax(b"16 path=a/b.jpg\n11 size=12\n").unwrap(),
            (Some("a/b.jpg".into()), Some(12))
        );
    }

    proptest! {
        #[test]
        fn proptest_no_block_panics(bytes in prop::collection::vec(any::<u8>(), 512), records in "[0-9 a-z=\n]{0,60}") {
            let mut raw: [u8; 512] = bytes.try_into().unwrap();
            let _ = parse(&raw);
            raw[148..156].fill(b' ');
            let sum: u64 = raw.iter().map(|&b| u64::from(b)).sum();
            raw[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            let _ = (parse(&raw), pax(records.as_bytes()));
        }
    }
}
