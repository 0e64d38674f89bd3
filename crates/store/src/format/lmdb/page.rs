//! One page of an LMDB file, as LMDB 0.9 (format 1) and 1.0 (format 3) lay it out on machines of 64 bits that count from the small end.
//!
//! ```text
//! page   = head *place:u16 ... *node
//! head   = number:u64 [transaction:u64] pad:u16 flags:u16 lower:u16 upper:u16
//! node   = low:u16 high:u16 flags:u16 key_bytes:u16 key data
//! meta   = head magic:u32 version:u32 address:u64 map_bytes:u64 free:tree main:tree last:u64 transaction:u64
//! tree   = pad:u32 flags:u16 depth:u16 branches:u64 leaves:u64 overflows:u64 entries:u64 root:u64
//! ```
//!
//! Format 3 has the transaction in the head, counts places and `lower` from behind the head, and has a byte between odd keys and their data.
//! `low` and `high` are a value's bytes, or with `flags` the number of the page below. The `pad` of the free tree is the size of a page, that of a page of
//! equal keys (*leaf2*) the size of a key. All of it may be damaged: whatever is outside of its page is an error.

use crate::{Error, Result};

/// What a file's first pages tell is in so many bytes of them.
pub(super) const META_BYTES: u64 = 160;
pub(super) const MOST_PAGE_BYTES: u64 = 64 << 10;
const LEAST_PAGE_BYTES: u64 = 512;
const NODE_BYTES: usize = 8;
const MAGIC: u32 = 0xBEEF_C0DE;
const NO_PAGE: u64 = u64::MAX;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x08;
const LEAF2: u16 = 0x20;
const SUB_PAGE: u16 = 0x40;

/// Its value lies in pages of its own.
const BIG_DATA: u16 = 0x01;
/// Its value is a tree.
const SUB_DATA: u16 = 0x02;
/// It has several values.
const DUP_DATA: u16 = 0x04;

fn malformed(what: &str) -> Error {
    Error::corrupt(format!("it is damaged: {what}"))
}

/// Bytes at a place, where there are that many.
fn take<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let end = at.checked_add(N).filter(|&end| end <= bytes.len());
    let found = end.and_then(|end| bytes[at..end].try_into().ok());
    found.ok_or_else(|| malformed("something lies outside of its page"))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    take(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    take(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    take(bytes, at).map(u64::from_le_bytes)
}

/// The root of the tree that is described there; `None`: it is empty.
fn root_at(bytes: &[u8], at: usize) -> Result<Option<u64>> {
    Ok(Some(u64_at(bytes, at + 40)?).filter(|&root| root != NO_PAGE))
}

/// What tells formats apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    /// Of a page.
    head_bytes: usize,
    /// Where places are counted from.
    base: usize,
    /// What keys are a multiple of.
    key_unit: usize,
}

impl Form {
    const OLD: Form = Form {
        head_bytes: 16,
        base: 0,
        key_unit: 1,
    };
    const NEW: Form = Form {
        head_bytes: 24,
        base: 24,
        key_unit: 2,
    };

    /// What the last four numbers of a page's head say: pad, flags, lower, upper.
    fn head(self, bytes: &[u8], nth: usize) -> Result<u16> {
        u16_at(bytes, self.head_bytes - 8 + 2 * nth)
    }

    /// Where a page's nodes begin.
    fn places(self, bytes: &[u8]) -> Result<Vec<usize>> {
        let end = usize::from(self.head(bytes, 2)?) + self.base;
        if end < self.head_bytes || end > bytes.len() {
            return Err(malformed("a page has an impossible number of nodes"));
        }
        let place = |at| Ok(usize::from(u16_at(bytes, at)?) + self.base);
        (self.head_bytes..end - 1).step_by(2).map(place).collect()
    }

    /// The values of a page within a node, which begins at `start` of the file.
    fn several(self, bytes: &[u8], start: u64) -> Result<Vec<Value>> {
        let flags = self.head(bytes, 1)?;
        if flags & SUB_PAGE == 0 {
            return Err(malformed("several values are in no page"));
        }
        if flags & LEAF2 != 0 {
            return self.equal(bytes, start);
        }
        let value = |at: usize| {
            let len = usize::from(u16_at(bytes, at + 6)?);
            if at + NODE_BYTES + len > bytes.len() {
                return Err(malformed("a value lies outside of its page"));
            }
            Ok(Value::Here {
                offset: start + (at + NODE_BYTES) as u64,
                len: len as u64,
            })
        };
        self.places(bytes)?.into_iter().map(value).collect()
    }

    /// The keys of a page in which all are equally long.
    fn equal(self, bytes: &[u8], start: u64) -> Result<Vec<Value>> {
        let (len, count) = (usize::from(self.head(bytes, 0)?), self.places(bytes)?.len());
        if self.head_bytes + len * count > bytes.len() {
            return Err(malformed("a value lies outside of its page"));
        }
        let value = |nth: usize| Value::Here {
            offset: start + (self.head_bytes + nth * len) as u64,
            len: len as u64,
        };
        Ok((0..count).map(value).collect())
    }
}

/// What the newest transaction says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    form: Form,
    pub page_bytes: u64,
    /// Pages that there are.
    pub pages: u64,
    pub transaction: u64,
    /// Of the unnamed database; `None`: it is empty.
    pub root: Option<u64>,
}

impl Meta {
    /// Of the two that a file begins with.
    pub fn newest(bytes: &[u8]) -> Result<Self> {
        let first = Self::at(bytes, 0)?;
        let second = usize::try_from(first.page_bytes).map_err(|_| malformed("its pages are too large"))?;
        // One of the two may be half written: then the other one counts.
        Ok(match Self::at(bytes, second) {
            Ok(other)
                if (other.form, other.page_bytes) == (first.form, first.page_bytes)
                    && other.transaction > first.transaction =>
            {
                other
            }
            _ => first,
        })
    }

    fn at(bytes: &[u8], page: usize) -> Result<Self> {
        let is_meta = |form: &Form| {
            let place = page + form.head_bytes;
            u32_at(bytes, place).is_ok_and(|magic| magic == MAGIC)
                && u16_at(bytes, place - 6).is_ok_and(|flags| flags & META != 0)
        };
        let form = [Form::OLD, Form::NEW].into_iter().find(is_meta);
        let form = form.ok_or_else(|| Error::invalid("it is no LMDB file"))?;
        let at = page + form.head_bytes;
        let version = u32_at(bytes, at + 4)?;
        if version != if form == Form::OLD { 1 } else { 3 } {
            return Err(Error::invalid(format!(
                "it is an LMDB file of format {version}, and only 1 and 3 are read"
            )));
        }
        let page_bytes = u64::from(u32_at(bytes, at + 24)?);
        if !page_bytes.is_power_of_two() || !(LEAST_PAGE_BYTES..=MOST_PAGE_BYTES).contains(&page_bytes) {
            return Err(malformed("its pages have an impossible size"));
        }
        let last = u64_at(bytes, at + 120)?;
        Ok(Meta {
            form,
            page_bytes,
            pages: last.checked_add(1).ok_or_else(|| malformed("it has too many pages"))?,
            transaction: u64_at(bytes, at + 128)?,
            root: root_at(bytes, at + 72)?,
        })
    }

    /// Where a page begins.
    pub fn offset_of(&self, page: u64) -> Result<u64> {
        let offset = page.checked_mul(self.page_bytes).filter(|_| page < self.pages);
        offset.ok_or_else(|| malformed("a page lies behind the last one"))
    }
}

/// What a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Bytes of the file.
    Here { offset: u64, len: u64 },
    /// A tree of further values, whose keys they are, and its root.
    Values(u64),
    /// Another database, and its root; `None`: it is empty.
    Database(Option<u64>),
}

/// A page of a tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// The pages below it, in the order of their keys.
    Branch(Vec<u64>),
    /// Keys, and what they have. A key with several values comes several times.
    Leaf(Vec<(Vec<u8>, Value)>),
}

/// Reads the page with this number. `are_values`: it is of a tree whose keys are values.
pub(super) fn read(bytes: &[u8], number: u64, meta: &Meta, are_values: bool) -> Result<Page> {
    if u64_at(bytes, 0)? != number {
        return Err(malformed("a page has another number"));
    }
    let (flags, start) = (meta.form.head(bytes, 1)?, meta.offset_of(number)?);
    let is = |kind: u16| flags & kind != 0;
    if is(LEAF2) {
        let values = meta.form.equal(bytes, start)?;
        return Ok(Page::Leaf(
            values.into_iter().map(|value| (Vec::new(), value)).collect(),
        ));
    }
    let nodes = meta.form.places(bytes)?;
    match (is(BRANCH), is(LEAF)) {
        (true, false) => {
            let below = nodes.into_iter().map(|at| {
                let [low, high, top] =
                    [u16_at(bytes, at)?, u16_at(bytes, at + 2)?, u16_at(bytes, at + 4)?].map(u64::from);
                Ok(low | high << 16 | top << 32)
            });
            below.collect::<Result<_>>().map(Page::Branch)
        }
        (false, true) => {
            let mut found = Vec::with_capacity(nodes.len());
            for at in nodes {
                leaf(bytes, start, at, meta, are_values, &mut found)?;
            }
            Ok(Page::Leaf(found))
        }
        _ => Err(malformed("a page is neither branch nor leaf")),
    }
}

/// A node of a leaf, whose page begins at `start` of the file.
fn leaf(
    bytes: &[u8],
    start: u64,
    at: usize,
    meta: &Meta,
    are_values: bool,
    found: &mut Vec<(Vec<u8>, Value)>,
) -> Result<()> {
    let len = usize::from(u16_at(bytes, at)?) | usize::from(u16_at(bytes, at + 2)?) << 16;
    let (flags, key_bytes) = (u16_at(bytes, at + 4)?, usize::from(u16_at(bytes, at + 6)?));
    let data = at + NODE_BYTES + key_bytes.next_multiple_of(meta.form.key_unit);
    let key = bytes
        .get(at + NODE_BYTES..at + NODE_BYTES + key_bytes)
        .ok_or_else(|| malformed("a key lies outside of its page"))?;
    if are_values {
        let offset = start + (at + NODE_BYTES) as u64;
        found.push((
            Vec::new(),
            Value::Here {
                offset,
                len: key_bytes as u64,
            },
        ));
        return Ok(());
    }
    let value = match (flags & BIG_DATA != 0, flags & SUB_DATA != 0, flags & DUP_DATA != 0) {
        (true, false, false) => {
            let first = meta.offset_of(u64_at(bytes, data)?)?;
            let offset = first + meta.form.head_bytes as u64;
            if offset + len as u64 > meta.pages.saturating_mul(meta.page_bytes) {
                return Err(malformed("a value lies behind the last page"));
            }
            Value::Here {
                offset,
                len: len as u64,
            }
        }
        (false, true, true) => Value::Values(root_at(bytes, data)?.ok_or_else(|| malformed("a key has no value"))?),
        (false, true, false) => Value::Database(root_at(bytes, data)?),
        (false, false, is_several) => {
            let inside = bytes
                .get(data..data + len)
                .ok_or_else(|| malformed("a value lies outside of its page"))?;
            let offset = start + data as u64;
            if is_several {
                let values = meta.form.several(inside, offset)?;
                found.extend(values.into_iter().map(|value| (key.to_vec(), value)));
                return Ok(());
            }
            Value::Here {
                offset,
                len: len as u64,
            }
        }
        _ => return Err(malformed("a node contradicts itself")),
    };
    found.push((key.to_vec(), value));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first page of a file that has one leaf, in one of the formats.
    fn first(form: Form, page_bytes: u32, pages: u64) -> Vec<u8> {
        let mut bytes = vec![0; META_BYTES as usize + MOST_PAGE_BYTES as usize];
        let at = form.head_bytes;
        bytes[at - 6..at - 4].copy_from_slice(&META.to_le_bytes());
        bytes[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[at + 4] = if form == Form::OLD { 1 } else { 3 };
        bytes[at + 24..at + 28].copy_from_slice(&page_bytes.to_le_bytes());
        bytes[at + 72 + 40..at + 72 + 48].copy_from_slice(&1u64.to_le_bytes());
        bytes[at + 120..at + 128].copy_from_slice(&(pages - 1).to_le_bytes());
        bytes
    }

    #[test]
    fn sizes_that_can_not_be_are_refused() {
        for form in [Form::OLD, Form::NEW] {
            let meta = Meta::newest(&first(form, 4096, 3)).expect("a file");
            assert_eq!((meta.page_bytes, meta.pages, meta.root), (4096, 3, Some(1)));
            assert_eq!(meta.offset_of(2).expect("inside"), 8192);
            assert!(meta.offset_of(3).is_err());
            for page_bytes in [0, 100, 256, 5000, 1 << 17] {
                assert!(Meta::newest(&first(form, page_bytes, 3)).is_err(), "{page_bytes}");
            }
        }
        assert!(Meta::newest(b"no file at all").is_err());
    }

    proptest! {
        #[test]
        fn proptest_noise_in_a_page_is_an_error_or_lies_within_the_file(
            noise in prop::collection::vec(any::<u8>(), 512..513), kind in 0u16..0x80, new: bool, are_values: bool, lower in 0u16..520)
        {
            let form = if new { Form::NEW } else { Form::OLD };
            let meta = Meta::newest(&first(form, 512, 9)).expect("a file");
            let mut bytes = noise;
            bytes[..8].copy_from_slice(&5u64.to_le_bytes());
            bytes[form.head_bytes - 6..form.head_bytes - 4].copy_from_slice(&kind.to_le_bytes());
            bytes[form.head_bytes - 4..form.head_bytes - 2].copy_from_slice(&lower.to_le_bytes());
            if let Ok(Page::Leaf(found)) = read(&bytes, 5, &meta, are_values) {
                for (_, value) in found {
                    if let Value::Here { offset, len } = value {
                        prop_assert!(offset + len <= 9 * 512);
                    }
                }
            }
        }
    }
}
