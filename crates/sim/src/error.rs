//! What can be wrong with a scenario, and how to fix it.

use crate::{POLICIES, Policy, scenario::keys::not_one_of};

/// Why a scenario can't be read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not TOML.
    #[error("the scenario is not valid TOML: {0}")]
    Syntax(String),
    /// A key is missing, or a value is of another kind than its key's.
    #[error("the scenario is not complete: {0}")]
    Incomplete(String),
    /// A key that no section has.
    #[error("unknown key {key:?} in {section}{}", suggestion(.nearest))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// Where it stands.
        section: String,
        /// The closest known key.
        nearest: Option<String>,
    },
    /// A value that doesn't fit its key.
    #[error("{key}: {problem}")]
    Invalid {
        /// The key, with its section.
        key: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A policy that doesn't exist.
    #[error("policy: {}", not_one_of(.name, &POLICIES.map(Policy::name)))]
    UnknownPolicy {
        /// The name as written.
        name: String,
    },
    /// A price sheet that doesn't ship.
    #[error("unknown price sheet {name:?}; name a shipped one (gcs, s3, azure) or give the path of your own{}", suggestion(.nearest))]
    UnknownSheet {
        /// The name as written.
        name: String,
        /// The closest known name.
        nearest: Option<String>,
    },
    /// A price sheet that doesn't read.
    #[error("the price sheet is not valid: {0}")]
    Sheet(String),
    /// A request that doesn't read.
    #[error("the cost request is not valid: {0}")]
    Request(String),
    /// The list of sizes can't be read.
    #[error("dataset.sizes_file {path:?}: {problem}")]
    Sizes {
        /// The file.
        path: String,
        /// What is wrong, with its line.
        problem: String,
    },
    /// It would take more than there is.
    #[error("{0}")]
    TooLarge(String),
    /// Numbers that are each possible, and together lead to one that isn't.
    #[error(
        "{policy} comes to a number that is not finite: a size, a speed or a time in the scenario is far from any real one"
    )]
    NotFinite {
        /// The policy, or `lower bound`.
        policy: String,
    },
    /// The caller ended it.
    #[error("interrupted")]
    Interrupted,
    /// The order can't be made.
    #[error("training: {0}")]
    Order(#[from] foreload_plan::Error),
}

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Fix the scenario or the call.
    Invalid,
    /// Supply the file.
    NotFound,
    /// Nothing: he ended it.
    Interrupted,
}

impl Error {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Sizes { .. } => ErrorKind::NotFound,
            Self::Interrupted => ErrorKind::Interrupted,
            _ => ErrorKind::Invalid,
        }
    }

    pub(crate) fn invalid(key: &str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.to_owned(),
            problem: problem.into(),
        }
    }
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map(|n| format!("; did you mean {n:?}?"))
        .unwrap_or_default()
}
