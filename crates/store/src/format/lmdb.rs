//! LMDB files, indexed without touching their values.
//!
//! A file is pages in a B+tree ([`page`] understands one of them). [`scan`] walks the tree level by level: the pages of a level are read side by side,
//! those that lie together in one request. It says where each value lies, in the order of the keys; a large value lies in pages of its own, which are
//! not read. Formats 1 and 3 are read, of LMDB 0.9 and 1.0; sizes and page numbers come from a file that may be damaged, so everything is held against its size.
//!
//! A writer copies pages and changes none that its last transaction uses, but reuses those of the one before that. So the newest transaction is looked up
//! again at the end: where it is another one, what was read may be of both, and the walk begins anew.

mod page;

use crate::source::{ObjectMeta, Source, hex};
use crate::{Error, Index, Result};
use futures::{StreamExt, TryStreamExt, stream};
use page::{Meta, Page, Value};
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Requests under way at a time.
const AT_ONCE: usize = 64;
/// Pages that lie no farther apart come with one request: what lies between costs less than another round trip.
const GAP_BYTES: u64 = 64 << 10;
/// What one request asks for at most.
const MOST_BYTES: u64 = 4 << 20;
/// Walks over a file that is being written.
const WALKS: u32 = 3;
/// A deeper tree has more keys than there are bytes.
const MOST_LEVELS: u32 = 32;

/// Where the values of a database lie, in the order of its keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// First byte in the file, and length.
    values: Vec<(u64, u64)>,
}

impl Entries {
    fn push(&mut self, key: &[u8], offset: u64, len: u64) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.values.push((offset, len));
    }

    /// Key, first byte and length of each.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], u64, u64)> {
        self.values.iter().enumerate().map(|(at, &(offset, len))| {
            let from = if at == 0 { 0 } else { self.ends[at - 1] };
            (&self.keys[from..self.ends[at]], offset, len)
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }
}

/// A key as the name of a sample: itself where it is text, else `0x` and its bytes in hexadecimal digits.
#[must_use]
pub(crate) fn name_of(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.starts_with("0x") && !text.chars().any(char::is_control) => text.to_owned(),
        _ => {
            let mut name = "0x".to_owned();
            hex(key, &mut name);
            name
        }
    }
}

/// The key that has a name, if any has.
#[must_use]
fn key_of(name: &str) -> Option<Vec<u8>> {
    let Some(digits) = name.strip_prefix("0x") else {
        return Some(name.as_bytes().to_vec());
    };
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
            _ => None,
        })
        .collect()
}

/// The number of the first value with a key, where the values are in the order of their keys, as LMDB has them unless a program orders them its own way.
#[must_use]
pub fn find(index: &Index, key: &[u8]) -> Option<u64> {
    let key_at = |at: u64| index.name(at).and_then(|name| key_of(&name)).unwrap_or_default();
    let (mut from, mut to) = (0, index.len());
    while from < to {
        let middle = from + (to - from) / 2;
        match key_at(middle).as_slice() < key {
            true => from = middle + 1,
            false => to = middle,
        }
    }
    (from < index.len() && key_at(from) == key).then_some(from)
}

/// The name of a database: LMDB 1.0 writes it as C does, with a zero at its end.
fn title(key: &[u8]) -> &[u8] {
    key.strip_suffix(b"\0").unwrap_or(key)
}

/// Whether an object is what LMDB writes beside them, for those who have them open.
pub(crate) fn is_lock(key: &str) -> bool {
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    name == "lock.mdb" || name.ends_with("-lock")
}

/// Finds the values of a file's database with this name, or of the one without.
///
/// # Errors
/// `Invalid`: no LMDB file of a known format, one that is being written all the time, or one without such a database. `Corrupt`: its pages
/// contradict each other. The source's errors.
pub(crate) async fn scan(source: &Source, object: &ObjectMeta, database: &str) -> Result<Entries> {
    let file = File { source, object };
    let with_object = |error: Error| error.with_object(source.url_of(&object.key));
    for _ in 0..WALKS {
        let meta = file.meta().await.map_err(with_object)?;
        let entries = file.values(&meta, database).await;
        // What was read may be of two transactions; then it may contradict itself, too.
        if file.meta().await.map_err(with_object)?.transaction == meta.transaction {
            return entries.map_err(with_object);
        }
    }
    let error = Error::invalid("it is being written: each time that its tree was read, there was another transaction");
    Err(with_object(
        error.with_remedy("wait for its writer, or copy it (mdb_copy)"),
    ))
}

struct File<'a> {
    source: &'a Source,
    object: &'a ObjectMeta,
}

impl File<'_> {
    /// The newest transaction.
    async fn meta(&self) -> Result<Meta> {
        let most = self.object.size.min(page::MOST_PAGE_BYTES + page::META_BYTES);
        Meta::newest(&self.read(0..most).await?)
    }

    async fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.end > self.object.size {
            return Err(Error::corrupt(format!(
                "its pages reach to byte {}, and it has {}",
                range.end, self.object.size
            )));
        }
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        // A local file that is written has another ETag each time; what matters is its transaction.
        let etag = self.object.etag.as_deref().filter(|_| !self.source.is_local());
        let fetched = self
            .source
            .fetch(&self.object.key, range, etag, Instant::now() + TIMEOUT, &mut bytes);
        fetched.await?;
        Ok(bytes)
    }

    /// All values of a database in a transaction.
    async fn values(&self, meta: &Meta, database: &str) -> Result<Entries> {
        let mut found = self.walk(meta, meta.root, false).await?;
        if !database.is_empty() {
            let named = found.iter().find_map(|(key, value)| match value {
                Value::Database(root) if title(key) == database.as_bytes() => Some(*root),
                _ => None,
            });
            let root = named.ok_or_else(|| Error::invalid(format!("it has no database {database:?}")))?;
            found = self.walk(meta, root, false).await?;
        }
        let mut entries = Entries::default();
        let mut databases = Vec::new();
        for (key, value) in found {
            match value {
                Value::Here { offset, len } => entries.push(&key, offset, len),
                Value::Values(root) => {
                    for (_, value) in self.walk(meta, Some(root), true).await? {
                        if let Value::Here { offset, len } = value {
                            entries.push(&key, offset, len);
                        }
                    }
                }
                Value::Database(_) => databases.push(name_of(title(&key))),
            }
        }
        if entries.len() == 0 && !databases.is_empty() {
            let error = Error::invalid(format!(
                "all its values are in databases with names: {}",
                databases.join(", ")
            ));
            return Err(error.with_remedy("give the name of one: database='...'"));
        }
        Ok(entries)
    }

    /// What the leaves of a tree have, in the order of their keys.
    async fn walk(&self, meta: &Meta, root: Option<u64>, are_values: bool) -> Result<Vec<(Vec<u8>, Value)>> {
        let mut found = Vec::new();
        let (mut level, mut seen): (Vec<u64>, u64) = (root.into_iter().collect(), 0);
        for _ in 0..MOST_LEVELS {
            if level.is_empty() {
                return Ok(found);
            }
            // A tree in which pages come twice has no end.
            seen += level.len() as u64;
            if seen > meta.pages {
                return Err(Error::corrupt("it is damaged: its pages form no tree"));
            }
            let mut below = Vec::new();
            let groups = together(&level, meta.page_bytes);
            let mut read = stream::iter(groups)
                .map(|group| self.pages(meta, group))
                .buffered(AT_ONCE);
            while let Some(pages) = read.try_next().await? {
                for (number, bytes) in pages {
                    match page::read(&bytes, number, meta, are_values)? {
                        Page::Branch(pages) => below.extend(pages),
                        Page::Leaf(mut values) => found.append(&mut values),
                    }
                }
            }
            drop(read);
            level = below;
        }
        Err(Error::corrupt("it is damaged: its tree is too deep"))
    }

    /// Pages that lie near each other, with one request, as they were asked for.
    async fn pages(&self, meta: &Meta, numbers: Vec<u64>) -> Result<Vec<(u64, Vec<u8>)>> {
        let (Some(first), Some(last)) = (numbers.iter().min(), numbers.iter().max()) else {
            return Ok(Vec::new());
        };
        let start = meta.offset_of(*first)?;
        let bytes = self.read(start..meta.offset_of(*last)? + meta.page_bytes).await?;
        let page = |number: u64| {
            let at = (meta.offset_of(number)? - start) as usize;
            Ok((number, bytes[at..at + meta.page_bytes as usize].to_vec()))
        };
        numbers.into_iter().map(page).collect()
    }
}

/// Pages in the order given, those together that come with one request: neighbours in the order that lie near each other in the file.
fn together(pages: &[u64], page_bytes: u64) -> Vec<Vec<u64>> {
    let mut groups: Vec<Vec<u64>> = Vec::new();
    let (mut least, mut most) = (0, 0);
    for &page in pages {
        let (low, high) = (page.min(least), page.max(most));
        let is_near = page.abs_diff(least).min(page.abs_diff(most)).saturating_mul(page_bytes) <= GAP_BYTES;
        match groups.last_mut() {
            Some(group) if is_near && (high - low + 1).saturating_mul(page_bytes) <= MOST_BYTES => {
                group.push(page);
                (least, most) = (low, high);
            }
            _ => {
                groups.push(vec![page]);
                (least, most) = (page, page);
            }
        }
    }
    groups
}
