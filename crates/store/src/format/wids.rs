//! Shard lists of WebDataset's indexed form (wids): a JSON file that names shards in the order in which their samples are numbered.

use crate::{Error, Result};
use serde::Deserialize;

/// Largest list read: a million shards of 256 bytes.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

#[derive(Deserialize)]
struct List {
    shardlist: Option<Vec<Shard>>,
    /// Some lists are kept by name, for several data sets.
    datasets: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Shard {
    url: String,
}

/// The shards' keys, relative to `root`, the URL of the directory in which the list lies.
///
/// # Errors
/// `Invalid` when it is no such list, or a shard lies elsewhere.
pub(crate) fn shards(bytes: &[u8], root: &str) -> Result<Vec<String>> {
    let wrong =
        |what: String| Error::invalid(what).with_remedy("a wids index has a `shardlist` of objects with a `url`");
    let list: List =
        serde_json::from_slice(bytes).map_err(|e| wrong(format!("it is no list of shards: {e}")).with_source(e))?;
    if list.datasets.is_some() && list.shardlist.is_none() {
        return Err(Error::invalid("it lists several data sets").with_remedy("write one list for each"));
    }
    let listed = list.shardlist.ok_or_else(|| wrong("it names no shards".into()))?;
    let below = format!("{root}/");
    let key = |shard: Shard| match shard.url.strip_prefix(&below) {
        Some(key) => Ok(key.to_owned()),
        None if !shard.url.contains("://") && !shard.url.starts_with('/') => {
            Ok(shard.url.trim_start_matches("./").to_owned())
        }
        None => Err(Error::invalid(format!("the shard {} lies outside {below}", shard.url))
            .with_remedy("keep the list in the directory of its shards, or above it")),
    };
    listed.into_iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shards_are_named_by_key_or_url_in_the_list_s_order() {
        let list = br#"{"wids_version": 1, "name": "x", "shardlist": [
            {"url": "b.tar", "nsamples": 3}, {"url": "s3://bucket/data/a.tar"}, {"url": "./c/d.tar"}]}"#;
        assert_eq!(shards(list, "s3://bucket/data").unwrap(), ["b.tar", "a.tar", "c/d.tar"]);
        for bad in [
            &br#"{"shardlist": [{"url": "s3://other/a.tar"}]}"#[..],
            br#"{"shardlist": [{"nsamples": 3}]}"#,
            br#"{"label": 3}"#,
            br#"{"datasets": []}"#,
            b"[1]",
        ] {
            assert!(shards(bad, "s3://bucket/data").is_err());
        }
    }

    proptest! {
        #[test]
        fn proptest_no_list_panics(text in "[{}\\[\\]\":a-z0-9,. /]{0,80}") {
            let _ = shards(text.as_bytes(), "root");
        }
    }
}
