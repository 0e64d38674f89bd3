//! What earlier runs found out: at how many requests in flight an endpoint gives all it has.
//!
//! The search takes a second or two. The next run starts where the last one stood, and searches on from there. The file is a hint and never more: a
//! missing or damaged one knows nothing, and of two agents that write it at once one wins.

use crate::dataset::save;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Its name in the cache directory.
const NAME: &str = "knees.json";
/// Endpoints that are remembered, those that were used last.
const MOST: usize = 64;
/// A longer file isn't ours.
const MOST_BYTES: u64 = 1 << 16;

/// One endpoint, and the requests in flight that it was worth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Knee {
    endpoint: String,
    requests: u32,
}

/// The knees in a cache directory.
#[derive(Clone, Debug)]
pub struct Knees {
    path: PathBuf,
    writing: Arc<Mutex<()>>,
}

impl Knees {
    /// Those that agents with this cache directory found.
    #[must_use]
    pub fn new(cache_dir: &Path) -> Self {
        Knees {
            path: cache_dir.join(NAME),
            writing: Arc::default(),
        }
    }

    /// What an endpoint was worth when it was read from last. Blocks.
    #[must_use]
    pub fn find(&self, endpoint: &str) -> Option<u32> {
        let known = self.known();
        known
            .iter()
            .find(|knee| knee.endpoint == endpoint)
            .map(|knee| knee.requests)
    }

    /// Those known, the one used last at the end.
    fn known(&self) -> Vec<Knee> {
        let read = || -> io::Result<Vec<Knee>> {
            let mut text = String::new();
            File::open(&self.path)?.take(MOST_BYTES).read_to_string(&mut text)?;
            Ok(serde_json::from_str(&text)?)
        };
        read().unwrap_or_default()
    }

    /// Remembers what an endpoint is worth; where that can't be written, the next run searches from the start. Blocks.
    pub fn learn(&self, endpoint: &str, requests: u32) {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.known();
        known.retain(|knee| knee.endpoint != endpoint);
        known.push(Knee {
            endpoint: endpoint.to_owned(),
            requests,
        });
        known.drain(..known.len().saturating_sub(MOST));
        // A run that can't write it down is none the worse.
        let _ = serde_json::to_vec_pretty(&known).map(|text| save(&self.path, &text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learnt_last_is_found_by_the_next_and_few_endpoints_are_kept() {
        let dir = tempfile::tempdir().expect("directory");
        let knees = Knees::new(dir.path());
        assert_eq!(knees.find("http://a"), None);
        knees.learn("http://a", 96);
        knees.learn("http://b", 200);
        knees.learn("http://a", 120);
        let next = Knees::new(dir.path());
        assert_eq!(
            ["http://a", "http://b", "http://c"].map(|at| next.find(at)),
            [Some(120), Some(200), None]
        );
        for n in 0..MOST as u32 - 1 {
            knees.learn(&format!("http://{n}"), n);
        }
        assert_eq!(
            ["http://b", "http://a", "http://0"].map(|at| next.find(at)),
            [None, Some(120), Some(0)]
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).expect("directory").count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn a_damaged_file_knows_nothing_and_is_replaced() {
        let dir = tempfile::tempdir().expect("directory");
        let knees = Knees::new(dir.path());
        let long = "[".repeat(MOST_BYTES as usize + 1);
        for text in [
            "",
            "{}",
            "[{\"endpoint\": 3}]",
            "[{\"endpoint\": \"e\", \"requests\": -1}]",
            &long,
        ] {
            std::fs::write(dir.path().join(NAME), text).expect("written");
            assert_eq!(knees.find("e"), None, "{text:.40}");
            knees.learn("e", 7);
            assert_eq!(knees.find("e"), Some(7));
        }
        let nowhere = Knees::new(&dir.path().join(NAME).join("missing"));
        nowhere.learn("e", 7);
        assert_eq!(nowhere.find("e"), None);
    }
}
