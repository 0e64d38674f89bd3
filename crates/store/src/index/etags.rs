//! ETags in 16 bytes where they have the usual form, verbatim otherwise.
//!
//! S3 sends `"<32 lower-case hex>"` for simple uploads and `"<32 hex>-<parts>"` for multipart ones: both are stored as
//! the binary MD5 and the number of parts. Every other form (weak, Azure's `0x8D..`, a pseudo-ETag of a file) goes to a
//! side table sorted by object. What is read back equals byte for byte what the store sent.

use super::Index;
use super::column::Values;
use super::layout::{Section, Writer};

/// ETags while they are collected.
#[derive(Debug, Default)]
pub(crate) struct EtagWriter {
    md5: Vec<u8>,
    parts: Values,
    other: Values,
    starts: Values,
    text: Vec<u8>,
    any_md5: bool,
    count: u64,
}

impl EtagWriter {
    pub fn push(&mut self, etag: Option<&str>) {
        let usual = etag.and_then(parse);
        if etag.is_some_and(|e| !e.is_empty()) && usual.is_none() {
            self.other.push(self.count);
            self.starts.push(self.text.len() as u64);
            self.text.extend_from_slice(etag.unwrap_or("").as_bytes());
        }
        if usual.is_some() && !self.any_md5 {
            self.any_md5 = true;
            self.md5 = vec![0; usize::try_from(self.count).unwrap_or(0) * 16];
        }
        // An object without MD5 has 0 in `md5` and a number of parts that no ETag has, so it cannot read as one.
        let (md5, parts) = usual.unwrap_or(([0; 16], NOT_MD5));
        if self.any_md5 {
            self.md5.extend_from_slice(&md5);
        }
        self.parts.push(parts);
        self.count += 1;
    }

    pub fn write(mut self, out: &mut Writer) {
        if self.any_md5 {
            out.blob(Section::EtagMd5, &self.md5, 16);
            out.column(Section::EtagParts, self.parts);
        }
        if !self.text.is_empty() {
            self.starts.push(self.text.len() as u64);
            out.column(Section::EtagOther, self.other);
            out.column(Section::EtagStarts, self.starts);
            out.blob(Section::EtagText, &self.text, 1);
        }
    }
}

/// An ETag without weakness mark and quotes: the same in a listing and in a header of every store.
#[must_use]
pub fn bare_etag(etag: &str) -> &str {
    etag.trim().trim_start_matches("W/").trim_matches('"')
}

/// S3 allows 10,000 parts.
const NOT_MD5: u64 = 0xffff;

/// ETag of object `o`, as it was pushed.
pub(crate) fn read(index: &Index, o: u64) -> Option<String> {
    let parts = index.at(Section::EtagParts, o).unwrap_or(NOT_MD5);
    if parts != NOT_MD5 {
        let column = index.inner.layout.column(Section::EtagMd5)?;
        let at = column.start.checked_add(usize::try_from(o).ok()?.checked_mul(16)?)?;
        let md5 = index.inner.file.get(at..at.checked_add(16)?)?;
        return Some(text(md5, parts));
    }
    let column = index.inner.layout.column(Section::EtagOther)?;
    let (mut low, mut high) = (0, column.count);
    while low < high {
        let middle = low + (high - low) / 2;
        if column.get(&index.inner.file, middle)? < o {
            low = middle + 1
        } else {
            high = middle
        }
    }
    if column.get(&index.inner.file, low)? != o {
        return None;
    }
    index
        .text(Section::EtagStarts, Section::EtagText, low)
        .map(str::to_owned)
}

/// MD5 and number of parts of an ETag of S3's two usual forms.
fn parse(etag: &str) -> Option<([u8; 16], u64)> {
    let inner = etag.strip_prefix('"')?.strip_suffix('"')?;
    let (hex, parts) = match inner.split_once('-') {
        None => (inner, 0),
        Some((hex, parts)) => (hex, parts.parse().ok().filter(|&n| n > 0 && n < NOT_MD5)?),
    };
    if hex.len() != 32 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut md5 = [0; 16];
    for (byte, pair) in md5.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    // "-07" would come back as "-7".
    (text(&md5, parts) == etag).then_some((md5, parts))
}

fn text(md5: &[u8], parts: u64) -> String {
    // Formatting each byte would take more time than hashing the text.
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(40);
    out.push('"');
    for byte in md5 {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    if parts > 0 {
        out.push('-');
        out.push_str(&parts.to_string());
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_compare_without_quotes() {
        assert_eq!(bare_etag("W/\"a\""), bare_etag("a"));
    }
}
