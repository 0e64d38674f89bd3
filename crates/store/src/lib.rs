//! Bytes at rest: sources (object stores, files) and formats, brought to one index.
//!
//! Data flows through three modules. [`source`] reads a bucket or a directory: it lists objects and fetches byte
//! ranges into a caller's [`Sink`]. [`mod@format`] turns what a source holds (class folders, tar shards, a manifest)
//! into an [`Index`]. [`index`] is that result: one flat, versioned block of bytes that says for each *sample* which
//! *range* of which *object* it is, and that serves as file, as memory and as shared memory alike.
//!
//! The engine calls [`Source::fetch`] for what the plan orders; the command line calls [`format::build`]. Nothing here
//! decides *what* to fetch or when, keeps a cache, or starts a runtime: every future runs on the caller's tokio
//! runtime (a current-thread one suffices) and file I/O goes to tokio's blocking pool. What a scan had to read anyway is
//! handed on in a [`spool`].

mod env;
pub mod error;
pub mod format;
pub mod index;
pub mod source;
pub mod spool;

pub use error::{Error, ErrorKind, Result};
pub use format::{BuildOptions, Format};
pub use index::{Index, IndexBuilder, ObjectRange, ObjectRef, SampleRef};
pub use source::{Credentials, Entries, Fetched, Gate, ObjectMeta, Retry, SEAL, Seal, Sink, Source, SourceOptions};
pub use spool::Spool;
