//! The error of this crate: what failed, at which object and range, and what the reader can do about it.
//!
//! One type for all modules. [`Error::kind`] is for programs (retry? report? re-index?); the message is for people and
//! names the step, the object, the range and a remedy.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call or a setting is wrong: fix it.
    Invalid,
    /// The object or bucket does not exist.
    NotFound,
    /// Credentials are missing, wrong, expired or not sufficient.
    Denied,
    /// The store cannot answer now (connection, 5xx): retry later.
    Unavailable,
    /// The store asks for fewer requests (429, 503 SlowDown): retry later and slower.
    Throttled,
    /// The data is damaged or the answer does not match the question: never delivered.
    Corrupt,
    /// The object is no longer the one that was indexed.
    Changed,
    /// The deadline passed, or a connection stayed silent for too long.
    Timeout,
    /// The component was closed while the call ran.
    Closed,
    /// An invariant of ours is broken: report it.
    Bug,
}

impl ErrorKind {
    /// Whether the same call can succeed later without anybody changing anything.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::Throttled | Self::Timeout)
    }
}

/// A failure with its context.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub struct Error {
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    context: Box<Context>,
}

#[derive(Debug)]
struct Context {
    kind: ErrorKind,
    detail: String,
    object: Option<String>,
    range: Option<Range<u64>>,
    remedy: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
}

impl Error {
    /// An error of `kind`; `detail` says which step failed and how.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            source: None,
            context: Box::new(Context {
                kind,
                detail: detail.into(),
                object: None,
                range: None,
                remedy: None,
                retry_after: None,
            }),
        }
    }

    /// Short for `Error::new(ErrorKind::Invalid, detail)`.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, detail)
    }

    /// Short for `Error::new(ErrorKind::Corrupt, detail)`.
    pub fn corrupt(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, detail)
    }

    /// An I/O error met while doing `step`, with the kind that fits it.
    pub fn io(step: impl fmt::Display, error: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::PermissionDenied => ErrorKind::Denied,
            Io::InvalidInput | Io::IsADirectory | Io::NotADirectory => ErrorKind::Invalid,
            Io::InvalidData | Io::UnexpectedEof => ErrorKind::Corrupt,
            Io::TimedOut => ErrorKind::Timeout,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("{step}: {error}")).with_source(error)
    }

    /// Names the object, as a URL or a key.
    #[must_use]
    pub fn with_object(mut self, object: impl Into<String>) -> Self {
        self.context.object.get_or_insert(object.into());
        self
    }

    /// Names the byte range asked for.
    #[must_use]
    pub fn with_range(mut self, range: Range<u64>) -> Self {
        self.context.range.get_or_insert(range);
        self
    }

    /// Says what the reader of the message can do.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.context.remedy.get_or_insert(remedy.into());
        self
    }

    /// Adds to what happened where it did.
    #[must_use]
    pub(crate) fn with_place(mut self, place: impl fmt::Display) -> Self {
        self.context.detail = format!("{}: {place}", self.context.detail);
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Keeps how long the store asked to wait.
    #[must_use]
    pub fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.context.retry_after = after;
        self
    }

    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.context.kind
    }

    /// How long the store asked to wait before the next attempt, when it said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.context.retry_after
    }

    /// The object concerned, when there is one.
    #[must_use]
    pub fn object(&self) -> Option<&str> {
        self.context.object.as_deref()
    }

    /// The byte range concerned, when there is one.
    #[must_use]
    pub fn range(&self) -> Option<Range<u64>> {
        self.context.range.clone()
    }

    /// What went wrong, without its object and a remedy.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.context.detail
    }

    /// What the reader can do, when we know.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.context.remedy.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let context = &*self.context;
        if let Some(object) = &context.object {
            write!(f, "{object}")?;
            if let Some(range) = &context.range {
                write!(f, " [bytes {}..{}]", range.start, range.end)?;
            }
            write!(f, ": ")?;
        }
        f.write_str(&context.detail)?;
        if let Some(remedy) = &context.remedy {
            write!(f, " ({remedy})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_object_range_step_and_remedy() {
        let error = Error::new(ErrorKind::Changed, "the object is not the one that was indexed")
            .with_object("s3://b/k")
            .with_range(5..9)
            .with_remedy("run `foreload index --update`");
        assert_eq!(
            error.to_string(),
            "s3://b/k [bytes 5..9]: the object is not the one that was indexed (run `foreload index --update`)"
        );
        assert!(!error.kind().is_transient());
    }
}
