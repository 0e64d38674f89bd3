//! What object_store says went wrong, as one of our errors.

use crate::{Error, ErrorKind};

/// An error of one step.
pub(crate) fn error(step: &str, error: object_store::Error) -> Error {
    Error::new(kind(&error), format!("{step} failed: {error}")).with_source(error)
}

/// Its kind.
pub(crate) fn kind(error: &object_store::Error) -> ErrorKind {
    use object_store::Error as Theirs;
    match error {
        Theirs::NotFound { .. } => ErrorKind::NotFound,
        Theirs::PermissionDenied { .. } | Theirs::Unauthenticated { .. } => ErrorKind::Denied,
        Theirs::NotSupported { .. } | Theirs::NotImplemented { .. } | Theirs::InvalidPath { .. } => ErrorKind::Invalid,
        _ => match refused_with(error) {
            Some(401 | 403) => ErrorKind::Denied,
            Some(404) => ErrorKind::NotFound,
            Some(405 | 501) => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        },
    }
}

/// The status that a request was refused with: object_store keeps it in a type of its own, and shows it in the words of the error alone.
pub(crate) fn refused_with(error: &object_store::Error) -> Option<u16> {
    let text = error.to_string();
    let (_, status) = text.split_once("status code: ")?;
    status.get(..3)?.parse().ok()
}
