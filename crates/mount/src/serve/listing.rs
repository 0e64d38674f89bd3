//! Lists of objects, as S3 has them: in the order of keys, a page at a time.
//!
//! With the delimiter `/` a list is a directory's, which the tree has or asks for. Without one it is all that lies below a prefix: that is asked of the bucket, put in order, and kept
//! for the pages that follow.

use super::asked::{Asked, Refusal};
use crate::locked;
use crate::names::{Names, object_of};
use crate::tree::{Kind, Listed, Object, is_name};
use fuser::Errno;
use futures::StreamExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use quick_xml::escape::escape;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Keys of a page at most, and of all that is put in order.
const PAGE: usize = 1000;
const MOST: usize = 2_000_000;
/// Lists that are kept for their next pages.
const KEPT: usize = 4;
const KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// What tokens begin with.
const TOKEN: &str = "behind:";

/// An object, or what lies below a slash.
#[derive(Clone, Debug)]
struct Entry {
    key: String,
    object: Option<Object>,
}

struct Kept {
    prefix: String,
    at: Instant,
    entries: Arc<Vec<Entry>>,
}

/// Lists, and those that were made.
pub(super) struct Listings {
    ttl: Duration,
    bucket: String,
    root: String,
    kept: Mutex<Vec<Kept>>,
}

/// What the next page is asked for with, behind a key: text that any document can hold.
fn token(key: &str) -> String {
    format!("{TOKEN}{}", utf8_percent_encode(key, KEY))
}

/// The key that a token names.
fn behind(token: &str) -> Result<String, Refusal> {
    let key = token.strip_prefix(TOKEN).and_then(|key| {
        let key = percent_decode_str(key).decode_utf8().ok()?.into_owned();
        (self::token(&key) == token).then_some(key)
    });
    key.ok_or_else(|| Refusal::invalid("The continuation token is none that was given here."))
}

pub(super) fn buckets(bucket: &str) -> String {
    let bucket = escape(bucket);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Owner><ID>foreload</ID></Owner><Buckets><Bucket><Name>{bucket}</Name><CreationDate>1970-01-01T00:00:00.000Z</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>"
    )
}

pub(super) fn location() -> String {
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<LocationConstraint xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>".to_owned()
}

impl Listings {
    pub fn new(ttl: Duration, bucket: String, root: String) -> Self {
        Listings {
            ttl,
            bucket,
            root,
            kept: Mutex::default(),
        }
    }

    /// The page that is asked for.
    pub async fn page(&self, names: &Arc<Names>, asked: &Asked) -> Result<String, Refusal> {
        let prefix = asked.word("prefix");
        let entries = match asked.word("delimiter") {
            "" => self.below(names, prefix).await?,
            "/" => Arc::new(self.directory(names, prefix).await?),
            other => return Err(Refusal::unknown(&format!("delimiter={other}"))),
        };
        let most = match asked.word("max-keys") {
            "" => PAGE,
            text => text
                .parse::<usize>()
                .map_err(|_| Refusal::invalid("max-keys is no number."))?
                .min(PAGE),
        };
        let is_second = asked.word("list-type") == "2";
        let after = match (is_second, asked.word("continuation-token")) {
            (true, "") => asked.word("start-after").to_owned(),
            (true, token) => behind(token)?,
            (false, _) => asked.word("marker").to_owned(),
        };
        let after = after.as_str();
        // Where a list begins among what one entry stands for, that comes too.
        let is_before = |entry: &Entry| {
            let key = entry.key.as_str();
            key <= after && !(entry.object.is_none() && key.len() < after.len() && after.starts_with(key))
        };
        let from = entries.partition_point(is_before);
        let page = &entries[from..entries.len().min(from + most)];
        let is_cut = from + page.len() < entries.len() && most > 0;
        Ok(self.document(asked, page, most, is_cut, is_second))
    }

    /// The entries of a directory that begin with what is behind the prefix' last slash.
    async fn directory(&self, names: &Arc<Names>, prefix: &str) -> Result<Vec<Entry>, Refusal> {
        // What is above the root has one entry, which leads there.
        let Some(below) = prefix.strip_prefix(self.root.as_str()) else {
            let is_above = self.root.starts_with(prefix);
            let end = self.root[prefix.len().min(self.root.len())..].find('/');
            let key = end.map(|end| self.root[..prefix.len() + end + 1].to_owned());
            return Ok(key
                .filter(|_| is_above)
                .map(|key| Entry { key, object: None })
                .into_iter()
                .collect());
        };
        // No name begins with a slash.
        if below.starts_with('/') {
            return Ok(Vec::new());
        }
        let (directory, start) = below.rsplit_once('/').unwrap_or(("", below));
        let listed = match names.find(directory).await {
            Ok(ino) => names.list(ino).await,
            Err(error) => Err(error),
        };
        let listed = match listed {
            Err(Errno::ENOENT) => Vec::new(),
            listed => listed.map_err(Refusal::of)?,
        };
        let behind = if directory.is_empty() {
            String::new()
        } else {
            format!("{directory}/")
        };
        let entry = |Listed { name, kind }: Listed| {
            let key = format!("{}{behind}{name}", self.root);
            match kind {
                Kind::File(object) => Some(Entry {
                    key,
                    object: Some(object),
                }),
                Kind::Directory => Some(Entry {
                    key: format!("{key}/"),
                    object: None,
                }),
                Kind::Missing => None,
            }
        };
        let meant = listed.into_iter().filter(|listed| listed.name.starts_with(start));
        let mut entries: Vec<Entry> = meant.filter_map(entry).collect();
        // A slash comes in another place than the end of a name.
        entries.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        Ok(entries)
    }

    /// All objects below a prefix.
    async fn below(&self, names: &Names, prefix: &str) -> Result<Arc<Vec<Entry>>, Refusal> {
        if let Some(known) = self.known(prefix) {
            return Ok(known);
        }
        let below = match prefix.strip_prefix(self.root.as_str()) {
            Some(below) => below,
            None if self.root.starts_with(prefix) => "",
            None => return Ok(Arc::default()),
        };
        let mut pages = names.source().list(below);
        let mut entries = Vec::new();
        while let Some(page) = pages.next().await {
            let page = match page {
                Err(error) if error.kind() == foreload_store::ErrorKind::NotFound => break,
                page => page.map_err(|error| Refusal::of(crate::failure::of_store(&error)))?,
            };
            // What can't be found can't be listed either.
            let is_found = |key: &str| key.split('/').all(is_name);
            let meant = page
                .into_iter()
                .filter(|meta| meta.key.starts_with(below) && is_found(&meta.key));
            entries.extend(meant.map(|meta| Entry {
                key: format!("{}{}", self.root, meta.key),
                object: Some(object_of(&meta)),
            }));
            if entries.len() > MOST {
                return Err(Refusal::too_many(MOST));
            }
        }
        entries.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let entries = Arc::new(entries);
        let mut kept = locked(&self.kept);
        kept.retain(|each| each.prefix != prefix);
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push(Kept {
            prefix: prefix.to_owned(),
            at: Instant::now(),
            entries: Arc::clone(&entries),
        });
        Ok(entries)
    }

    fn known(&self, prefix: &str) -> Option<Arc<Vec<Entry>>> {
        let mut kept = locked(&self.kept);
        kept.retain(|each| each.at.elapsed() < self.ttl);
        let found = kept.iter().find(|each| each.prefix == prefix);
        found.map(|each| Arc::clone(&each.entries))
    }

    fn document(&self, asked: &Asked, page: &[Entry], most: usize, is_cut: bool, is_second: bool) -> String {
        let is_encoded = asked.word("encoding-type") == "url";
        let shown = |key: &str| match is_encoded {
            true => utf8_percent_encode(key, KEY).to_string(),
            false => escape(key).into_owned(),
        };
        let mut text = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
        );
        let mut tag = |name: &str, value: &str| {
            let _ = write!(text, "<{name}>{value}</{name}>");
        };
        tag("Name", &escape(&self.bucket));
        tag("Prefix", &shown(asked.word("prefix")));
        tag("MaxKeys", &most.to_string());
        tag("IsTruncated", if is_cut { "true" } else { "false" });
        if asked.has("delimiter") {
            tag("Delimiter", &escape(asked.word("delimiter")));
        }
        if is_encoded {
            tag("EncodingType", "url");
        }
        if is_second {
            tag("KeyCount", &page.len().to_string());
        }
        if let Some(last) = page.last().filter(|_| is_cut) {
            match is_second {
                true => tag("NextContinuationToken", &token(&last.key)),
                false => tag("NextMarker", &shown(&last.key)),
            }
        }
        for Entry { key, object } in page {
            let Some(object) = object else {
                tag("CommonPrefixes", &format!("<Prefix>{}</Prefix>", shown(key)));
                continue;
            };
            let modified = object.modified.unwrap_or(std::time::UNIX_EPOCH);
            let modified = chrono::DateTime::<chrono::Utc>::from(modified);
            let modified = modified.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            let etag = escape(super::etag(object)).into_owned();
            tag(
                "Contents",
                &format!(
                    "<Key>{}</Key><LastModified>{modified}</LastModified><ETag>{etag}</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass>",
                    shown(key),
                    object.size
                ),
            );
        }
        text.push_str("</ListBucketResult>");
        text
    }
}
