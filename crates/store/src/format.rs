//! From what a source holds to an [`Index`](crate::Index).

use serde::{Deserialize, Serialize};

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
        }
    }

    /// The format with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Folder, Self::Flat, Self::Tar, Self::Manifest]
            .into_iter()
            .find(|format| format.code() == code)
    }
}
