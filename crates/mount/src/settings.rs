//! What a mount is to be: plain values, which the command line writes down as JSON.

use crate::layout::Chunking;
use foreload_engine::calls::DiskShare;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What is shown: `s3://bucket/prefix` and so on.
    pub url: String,
    /// Endpoint, region, credentials and other options of the store.
    #[serde(default)]
    pub storage_options: BTreeMap<String, String>,
    /// The agent's program, and its cache directory.
    pub agent: PathBuf,
    /// See [`Settings::agent`].
    pub cache_dir: PathBuf,
    /// How objects are cut into requests.
    #[serde(default)]
    pub chunking: Chunking,
    /// Requests in flight; `None`: as many as the store is worth.
    #[serde(default)]
    pub connections: Option<u32>,
    /// Memory for chunks, in bytes.
    pub ram_bytes: u64,
    /// Disk tiers, fastest first.
    #[serde(default)]
    pub disks: Vec<DiskShare>,
    /// Where copies of whole files are, which the kernel reads by itself, and their bytes; `None`: there are none.
    #[serde(default)]
    pub copies: Option<DiskShare>,
    /// What may be asked for ahead of an open file, in bytes; `None`: half of the memory.
    #[serde(default)]
    pub ahead_bytes: Option<u64>,
    /// Entries of the tree of names.
    pub most_entries: usize,
    /// How long what is known of a name is believed, in seconds.
    pub ttl_s: f64,
    /// Longest time of a request, its repetitions included, in seconds.
    pub timeout_s: f64,
    /// Whom files belong to, by number; `None`: who mounts.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The same for the group.
    #[serde(default)]
    pub gid: Option<u32>,
    /// Permission bits of files.
    pub file_mode: u16,
    /// Permission bits of directories.
    pub dir_mode: u16,
    /// Whether other users may look at it.
    #[serde(default)]
    pub allow_other: bool,
    /// How files are written; `None`: nothing can be.
    #[serde(default)]
    pub write: Option<Writes>,
    /// The process that has started it, if it is to end with that.
    #[serde(default)]
    pub parent: Option<i32>,
}

/// How files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writes {
    /// Bytes of a part.
    pub part_bytes: u64,
    /// Parts under way, of all files together.
    pub most_parts: u32,
}

impl Settings {
    /// How long what is known of a name is believed.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        seconds(self.ttl_s)
    }

    /// Longest time of a request.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_s).max(Duration::from_millis(100))
    }

    /// What may be asked for ahead of all open files together.
    #[must_use]
    pub fn most_ahead(&self) -> u64 {
        self.ahead_bytes.unwrap_or(self.ram_bytes / 2)
    }
}

/// So many seconds; ten years at most, and none where there is no number.
fn seconds(number: f64) -> Duration {
    const MOST_S: f64 = 10.0 * 365.0 * 86_400.0;
    Duration::try_from_secs_f64(number.min(MOST_S)).unwrap_or_default()
}
