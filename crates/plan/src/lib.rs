//! Foreload's policy: what to fetch, when, from where and where to keep it.
//!
//! Everything here is a pure function of what is passed in. There is no clock, no dice, no thread and no I/O; time and
//! measured speeds arrive inside events. The engine and the simulator both carry out what [`Scheduler::step`] orders, so a
//! run can be predicted before it starts and replayed after it ended.
//!
//! The flow: an [`order`] says which sample each position holds; the [`scheduler`] walks it ahead of the consumers and orders
//! fetches; [`flow`] says how many requests may be in flight; [`replay`] proves that a run obeyed. Apart from that,
//! [`window`] says what a program that maps a file will touch next.

#![deny(clippy::iter_over_hash_type)]

#[cfg(feature = "std")]
pub mod action;
#[cfg(feature = "std")]
pub mod arena;
#[cfg(feature = "std")]
pub mod blocks;
#[cfg(feature = "std")]
pub mod budget;
#[cfg(feature = "std")]
pub mod catalog;
#[cfg(feature = "std")]
pub mod deal;
#[cfg(feature = "std")]
pub mod digest;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
pub mod flow;
#[cfg(feature = "std")]
pub mod homes;
#[cfg(feature = "std")]
pub mod job;
#[cfg(feature = "std")]
pub mod library;
#[cfg(feature = "std")]
pub mod model;
#[cfg(feature = "std")]
pub mod order;
#[cfg(feature = "std")]
pub mod placement;
#[cfg(feature = "std")]
pub mod policy;
#[cfg(feature = "std")]
pub mod replay;
#[cfg(feature = "std")]
pub mod scheduler;
#[cfg(feature = "std")]
pub mod settings;
#[cfg(feature = "std")]
pub mod spec;
#[cfg(feature = "std")]
pub mod split;
pub mod window;

#[cfg(feature = "std")]
pub use digest::{Digest, DigestBuilder};
#[cfg(feature = "std")]
pub use error::{Error, ErrorKind};
#[cfg(feature = "std")]
pub use scheduler::Scheduler;
