//! Carries a plan out: fetches, tiers, slots, and the agent that does it for all processes of a node.
//!
//! [`agent`] is a process that serves clients over a Unix socket; each [`pool`] in it owns one scheduler of `foreload_plan`, serves the [`job`]s that read alike, and carries out what it orders:
//! fetches through `foreload_store` into the cache arena ([`carriers`], [`slots`], [`scatter`]), reads and writes of [`disk`] tiers, deliveries to the
//! [`connection`] that asked. Pools that read from one endpoint share its limit on requests ([`origin`]), and repetitions keep to it ([`turns`]). [`client`] is the other side of the [`protocol`]: it runs in the user's process, has no thread
//! and no runtime, and maps the arenas. Apart from the agent, [`pages`] and [`attach`] fetch pages of mapped files into the page cache. Nothing here decides what to fetch, when, or where to keep it.

// A line that can't be written would panic: see `log`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod agent;
pub mod attach;
pub mod batches;
pub mod calls;
pub mod carriers;
pub mod client;
pub mod connection;
mod cpus;
pub mod dataset;
pub mod disk;
pub mod env;
pub mod job;
pub mod knees;
pub mod list;
pub mod log;
pub mod memory;
pub mod origin;
pub mod pages;
pub mod peers;
pub mod pool;
pub mod protocol;
pub mod scatter;
pub mod slots;
pub mod streams;
mod sync;
mod turns;
