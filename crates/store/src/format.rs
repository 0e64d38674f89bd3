//! From what a source holds to an [`Index`](crate::Index).
//!
//! [`build`] takes a URL, opens its source, finds out how samples lie in objects (or is told) and collects them:
//! - a *folder* is listed; class directories become labels ([`Format::Folder`]), or there are none ([`Format::Flat`]);
//! - *tar* shards are walked from header to header, many at a time, or read from the `.idx` file beside them;
//! - an *LMDB* file's tree is walked, and its values are not read;
//! - a *manifest* is read, and the objects it names are looked up.
//!
//! [`update`] does the same for a data set that has grown and keeps the order of what is unchanged; [`checksum`] reads
//! everything once and adds CRC-32Cs. The command line calls these; nothing here writes an index anywhere.

mod build;
mod checksum;
mod folder;
mod listed;
mod lmdb;
mod manifest;
mod named;
mod notes;
mod pattern;
mod tar;
mod update;
mod wids;

pub use build::build;
pub use checksum::{checksum, with_checksums_of};
pub use lmdb::find as find_key;
pub use manifest::Columns;
pub use notes::Note;
pub use pattern::{split, split_file, stands_for};
pub use update::{Changes, update};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How samples lie in objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// One object per sample; the first directory below the root is the class (ImageFolder's convention).
    Folder,
    /// One object per sample, no labels.
    Flat,
    /// Tar shards in WebDataset's convention: members with one basename form a sample.
    Tar,
    /// A table (CSV, JSON lines, Parquet) that names objects and optionally ranges, labels and checksums.
    Manifest,
    /// LMDB files: each value is a sample, named by its key.
    Lmdb,
}

impl Format {
    /// The number that stands for it in index files.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Folder => 1,
            Self::Flat => 2,
            Self::Tar => 3,
            Self::Manifest => 4,
            Self::Lmdb => 5,
        }
    }

    /// The format with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Folder, Self::Flat, Self::Tar, Self::Manifest, Self::Lmdb]
            .into_iter()
            .find(|format| format.code() == code)
    }
}

/// How to build an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BuildOptions {
    /// The format; found out when `None`.
    pub format: Option<Format>,
    /// Folder, flat: only objects with these extensions (any case, with or without dot). Default: all but hidden ones.
    pub extensions: Vec<String>,
    /// LMDB: the database with this name. Default: the one without.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub database: String,
    /// Manifest: names of the columns. Default: the usual names.
    pub columns: Columns,
    /// Shards, prefixes or objects worked on at the same time. Default 32: hides 30 ms of latency at about 1 GB/s.
    pub concurrency: usize,
    /// File that lets an interrupted listing go on. Default: none.
    #[serde(skip)]
    pub checkpoint: Option<PathBuf>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            format: None,
            extensions: Vec::new(),
            database: String::new(),
            columns: Columns::default(),
            concurrency: 32,
            checkpoint: None,
        }
    }
}

/// What [`build`], [`update`] and [`checksum`] have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// What is being done, for a progress bar.
    pub stage: &'static str,
    /// Objects (or shards) done.
    pub done: u64,
    /// Objects (or shards) in all, when known.
    pub total: Option<u64>,
    /// Samples found.
    pub samples: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// Hands steps to the caller's callback.
pub(crate) struct Progress<'a> {
    step: Step,
    report: &'a mut (dyn FnMut(&Step) + Send),
}

impl<'a> Progress<'a> {
    fn new(report: &'a mut (dyn FnMut(&Step) + Send)) -> Self {
        Self {
            step: Step::default(),
            report,
        }
    }

    fn listed(&mut self, objects: u64) {
        self.step = Step {
            stage: "listing",
            done: objects,
            ..self.step
        };
        (self.report)(&self.step);
    }

    fn stage(&mut self, stage: &'static str, total: u64) {
        self.step = Step {
            stage,
            done: 0,
            total: Some(total),
            ..self.step
        };
        (self.report)(&self.step);
    }

    fn advance(&mut self, samples: u64, bytes: u64) {
        self.step.done += 1;
        self.step.samples += samples;
        self.step.bytes += bytes;
        (self.report)(&self.step);
    }
}
