//! Objects that exist only as a rule: `w1:10000x110000` is ten thousand of them.
//!
//! The keys of a set are in lexicographic order of their number, so looking one up, counting
//! them and listing from the middle need no table. Sets are read-only; `touch` gives an object a
//! new version (other bytes, other ETag).

use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::content::{Blob, Content, PERIOD, Rope};
use super::storage::{Entry, Object};
use crate::{draw, human};

/// When synthetic objects were "written": 2024-01-01, and a second later per version.
const WRITTEN: Duration = Duration::from_secs(1_704_067_200);

/// A rule for objects, as given by `--synthetic`.
///
/// `[BUCKET/]PREFIX:COUNTxSIZE[-SIZE][,classes=N][,ext=E]` makes `PREFIX/00000000.bin`, or with
/// classes `PREFIX/c0000/00000000.bin`. `[BUCKET/]PREFIX:COUNTxMEMBERSxSIZE[-SIZE],tar` makes tar
/// shards in the WebDataset convention (`00000000.bin`, `00000000.cls` per sample). The bucket
/// is `bench` unless given with a leading `//`: `//mine/prefix:10x1KB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The bucket that holds the set.
    pub bucket: String,
    /// What all keys begin with, without the slash that follows.
    pub prefix: String,
    /// How many objects.
    pub count: u64,
    /// The smallest and largest size in bytes of an object (of a member for shards); sizes are
    /// drawn uniformly by the seed.
    pub size: (u64, u64),
    /// How many directories (`c0000`, ...) to spread the objects over; 0: none.
    pub classes: u64,
    /// The keys' extension, `bin` unless given (`tar` for shards; then it is the members').
    pub extension: String,
    /// Samples per tar shard; 0: plain objects.
    pub members: u64,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || {
            format!(
                "{text:?}: a synthetic set is [//BUCKET/]PREFIX:COUNTxSIZE[-SIZE][,classes=N][,ext=E] \
                 or PREFIX:COUNTxMEMBERSxSIZE[-SIZE],tar"
            )
        };
        let (name, rest) = text.split_once(':').ok_or_else(usage)?;
        let (bucket, prefix) = match name.strip_prefix("//") {
            Some(name) => name.split_once('/').ok_or_else(usage)?,
            None => ("bench", name),
        };
        let mut options = rest.split(',');
        let shape: Vec<&str> = options.next().ok_or_else(usage)?.split('x').collect();
        let mut rule = Self {
            bucket: bucket.into(),
            prefix: prefix.trim_matches('/').into(),
            count: shape[0].parse().map_err(|_| usage())?,
            size: (0, 0),
            classes: 0,
            extension: "bin".into(),
            members: 0,
        };
        let mut tar = false;
        for option in options {
            match option.split_once('=') {
                Some(("classes", n)) => rule.classes = n.parse().map_err(|_| usage())?,
                Some(("ext", e)) => rule.extension = e.into(),
                None if option == "tar" => tar = true,
                _ => return Err(usage()),
            }
        }
        let size = match (shape.as_slice(), tar) {
            ([_, size], false) => size,
            ([_, members, size], true) => {
                rule.members = members.parse().map_err(|_| usage())?;
                size
            }
            _ => return Err(usage()),
        };
        let (low, high) = size.split_once('-').unwrap_or((size, size));
        rule.size = (human::bytes(low)?, human::bytes(high)?);
        let sound = !rule.prefix.is_empty()
            && rule.count > 0
            && rule.count < 100_000_000
            && rule.classes <= rule.count.min(10_000)
            && rule.size.0 <= rule.size.1
            && (!tar || rule.members > 0);
        if sound { Ok(rule) } else { Err(usage()) }
    }
}

/// A rule with what it needs to make objects.
#[derive(Debug)]
pub struct Set {
    rule: Rule,
    blob: Blob,
    seed: u64,
    shards: Vec<OnceLock<Arc<Rope>>>,
}

impl Set {
    /// Prepares a rule.
    #[must_use]
    pub fn new(rule: Rule, blob: Blob, seed: u64) -> Self {
        let shards = if rule.members > 0 { rule.count } else { 0 };
        let seed = draw::name(seed, &rule.prefix);
        Self {
            rule,
            blob,
            seed,
            shards: (0..shards).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The bucket that holds the set.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.rule.bucket
    }

    /// The key of object `index`.
    #[must_use]
    pub fn key(&self, index: u64) -> String {
        let Rule {
            prefix,
            count,
            classes,
            extension,
            members,
            ..
        } = &self.rule;
        match (*members, *classes) {
            (0, 0) => format!("{prefix}/{index:08}.{extension}"),
            (0, classes) => {
                let class = index * classes / count;
                format!("{prefix}/c{class:04}/{index:08}.{extension}")
            }
            _ => format!("{prefix}/{index:08}.tar"),
        }
    }

    /// The number of the object with this key.
    #[must_use]
    pub fn index(&self, key: &str) -> Option<u64> {
        let name = key.strip_prefix(self.rule.prefix.as_str())?.rsplit('/').next()?;
        let index = name.split('.').next()?.parse().ok()?;
        (index < self.rule.count && self.key(index) == key).then_some(index)
    }

    /// How many keys are not above `key`.
    fn rank(&self, key: &str) -> u64 {
        let (mut low, mut high) = (0, self.rule.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle).as_str() <= key {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    /// The object with this key, in its given version.
    #[must_use]
    pub fn object(&self, key: &str, version: u64) -> Option<Object> {
        let index = self.index(key)?;
        Some(Object {
            content: self.content(index, version),
            etag: self.etag(index, version),
            modified: written(version),
            content_type: None,
            metadata: Vec::new(),
            checksum: None,
        })
    }

    /// Up to `limit` entries after `after`, with the prefix.
    #[must_use]
    pub fn page(&self, prefix: &str, after: &str, limit: usize, version: impl Fn(&str) -> u64) -> Vec<Entry> {
        let mut index = self.rank(after);
        if prefix > after {
            index = index.max(self.rank(prefix).saturating_sub(1));
        }
        let mut entries = Vec::new();
        while index < self.rule.count && entries.len() < limit {
            let key = self.key(index);
            if key.starts_with(prefix) && key.as_str() > after {
                let version = version(&key);
                entries.push(Entry {
                    size: self.size(index),
                    etag: self.etag(index, version),
                    modified: written(version),
                    key,
                });
            } else if key.as_str() > prefix && !key.starts_with(prefix) {
                break;
            }
            index += 1;
        }
        entries
    }

    /// The samples in order: key, offset and size (of the members' bodies for tar shards).
    pub fn samples(&self) -> impl Iterator<Item = (String, u64, u64)> {
        let per_object = self.rule.members.max(1);
        (0..self.rule.count).flat_map(move |index| {
            let key = self.key(index);
            let mut offset = 0;
            (0..per_object).map(move |member| {
                let size = self.draw_size(index * per_object + member);
                if self.rule.members == 0 {
                    return (key.clone(), 0, size);
                }
                let at = offset + 512;
                // Behind the body: its padding, and the label's header and block.
                offset = at + size.next_multiple_of(512) + 1024;
                (key.clone(), at, size)
            })
        })
    }

    fn draw_size(&self, number: u64) -> u64 {
        let (low, high) = self.rule.size;
        low + draw::attempt(self.seed, number) % (high - low + 1)
    }

    fn size(&self, index: u64) -> u64 {
        if self.rule.members > 0 {
            self.content(index, 0).size()
        } else {
            self.draw_size(index)
        }
    }

    /// Distinct numbers start at distinct places: the step is odd, the period prime.
    fn window(&self, number: u64, version: u64) -> Content {
        let step = 2_654_435_761;
        let start = self.seed % PERIOD + (number + 1) % PERIOD * (step % PERIOD) + version * 7919;
        Content::Window(self.blob.clone(), start, self.draw_size(number))
    }

    fn content(&self, index: u64, version: u64) -> Content {
        if self.rule.members == 0 {
            return self.window(index, version);
        }
        if version > 0 {
            return Content::Rope(Arc::new(self.shard(index, version)));
        }
        let shard = self.shards[index as usize].get_or_init(|| Arc::new(self.shard(index, 0)));
        Content::Rope(Arc::clone(shard))
    }

    fn shard(&self, index: u64, version: u64) -> Rope {
        let mut rope = Rope::default();
        for member in 0..self.rule.members {
            let number = index * self.rule.members + member;
            let label = (draw::attempt(self.seed, number) % 1000).to_string();
            let body = self.window(number, version);
            let name = format!("{number:08}.{}", self.rule.extension);
            append_member(&mut rope, &name, body);
            append_member(&mut rope, &format!("{number:08}.cls"), Content::Memory(label.into()));
        }
        rope.push(Content::Memory(Bytes::from_static(&[0; 1024])));
        rope
    }

    fn etag(&self, index: u64, version: u64) -> String {
        let hash = draw::attempt(self.seed ^ draw::mix(version), index);
        format!("{hash:016x}{:016x}", draw::mix(hash))
    }
}

fn written(version: u64) -> SystemTime {
    UNIX_EPOCH + WRITTEN + Duration::from_secs(version)
}

/// Adds a ustar header, the body and the padding to whole blocks.
fn append_member(rope: &mut Rope, name: &str, body: Content) {
    let size = body.size();
    rope.push(Content::Memory(Bytes::copy_from_slice(&tar_header(name, size))));
    rope.push(body);
    let padding = (512 - size % 512) % 512;
    rope.push(Content::Memory(Bytes::from_static(&[0; 512]).slice(..padding as usize)));
}

fn tar_header(name: &str, size: u64) -> [u8; 512] {
    let mut header = [0_u8; 512];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    let mut octal = String::new();
    let _ = write!(octal, "{size:011o}");
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &octal);
    put(136, "14544400000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rule: &str) -> Set {
        Set::new(rule.parse().unwrap(), Blob::new(0), 0)
    }

    #[test]
    fn keys_and_numbers_are_inverse() {
        for rule in ["w1:1000x1-9", "a/b:1000x5,classes=7,ext=jpg", "//other/s:20x3x100,tar"] {
            let set = set(rule);
            for index in [0, 1, 7, set.rule.count - 1] {
                assert_eq!(set.index(&set.key(index)), Some(index), "{rule}");
            }
            assert_eq!(set.index(&set.key(set.rule.count)), None);
            assert_eq!(set.index("w1/x"), None);
        }
    }

    #[test]
    fn a_page_is_the_sorted_keys_after_a_key() {
        let set = set("a/b:100x5,classes=7");
        let all: Vec<String> = (0..100).map(|i| set.key(i)).collect();
        assert!(all.is_sorted());
        let page = |prefix: &str, after: &str, limit| -> Vec<String> {
            set.page(prefix, after, limit, |_| 0)
                .into_iter()
                .map(|e| e.key)
                .collect()
        };
        assert_eq!(page("", "", 1000), all);
        assert_eq!(page("a/b/", "", 3), all[..3]);
        assert_eq!(page("a/b/", &all[41], 3), all[42..45]);
        assert_eq!(page("a/b/c0003/", "", 1), [all[43].clone()]);
        assert_eq!(page("a/b/c0003/", &all[20], 1), [all[43].clone()]);
        assert!(page("a/c", "", 9).is_empty());
        assert!(page("A", "", 9).is_empty());
        assert!(page("a/b/", "b", 9).is_empty());
    }

    #[test]
    fn objects_differ_and_versions_change_them() {
        let set = set("w1:1000x2000-3000");
        let get = |key: &str, version| set.object(key, version).unwrap();
        let one = get("w1/00000001.bin", 0);
        let two = get("w1/00000002.bin", 0);
        let new = get("w1/00000001.bin", 1);
        assert_ne!(
            one.content.to_bytes().unwrap()[..99],
            two.content.to_bytes().unwrap()[..99]
        );
        assert_ne!(one.content.to_bytes().unwrap(), new.content.to_bytes().unwrap());
        assert_ne!(one.etag, two.etag);
        assert_ne!(one.etag, new.etag);
        assert_eq!(one.etag, get("w1/00000001.bin", 0).etag);
    }

    #[test]
    fn samples_say_where_their_bytes_are() {
        for rule in ["w1:9x1-900", "s:3x4x1-2000,tar"] {
            let set = set(rule);
            for (number, (key, offset, size)) in set.samples().enumerate() {
                let object = set.object(&key, 0).unwrap().content.to_bytes().unwrap();
                let sample = &object[offset as usize..(offset + size) as usize];
                let window = set.window(number as u64, 0).to_bytes().unwrap();
                assert_eq!(sample, window, "{rule} {number}");
            }
        }
    }

    #[test]
    fn bad_rules_are_refused_with_the_usage() {
        for rule in [
            "",
            "w1",
            "w1:",
            "w1:0x5",
            "w1:5x9-3",
            "w1:5x5,tar",
            "w1:5x5x5",
            "w1:5x5,a=b",
        ] {
            assert!(rule.parse::<Rule>().is_err(), "{rule}");
        }
    }
}
