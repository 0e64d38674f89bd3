//! What went wrong, as a system call says it.

use crate::log;
use foreload_engine::client::ClientError;
use foreload_store::ErrorKind;
use fuser::Errno;

/// The number of a failure of the store, and a line in the log unless it only says that something isn't there.
pub fn of_store(error: &foreload_store::Error) -> Errno {
    let number = match error.kind() {
        ErrorKind::NotFound => return Errno::ENOENT,
        ErrorKind::Denied => Errno::EACCES,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::Changed => Errno::ESTALE,
        _ => Errno::EIO,
    };
    log::line(format_args!("{error}"));
    number
}

/// The same of what was to be written, deleted or renamed: nobody expects that it isn't there.
pub fn of_writing(error: &foreload_store::Error) -> Errno {
    let number = of_store(error);
    if number.code() == Errno::ENOENT.code() {
        log::line(format_args!("{error}"));
    }
    number
}

/// The same of the agent's, which is about this object.
pub fn of_client(error: &ClientError, object: &str) -> Errno {
    let number = match error {
        // The mount ends. Whoever is told of a signal would try again.
        ClientError::Interrupted => return Errno::EIO,
        ClientError::Trouble(trouble) => match trouble.kind.as_str() {
            "not-found" => Errno::ENOENT,
            "denied" => Errno::EACCES,
            "changed" => Errno::ESTALE,
            _ => Errno::EIO,
        },
        _ => Errno::EIO,
    };
    log::line(format_args!("reading {object}: {error}"));
    number
}
