//! What Foreload's tests, demo and benchmarks stand on; never shipped.
//!
//! - [`bucket`]: an S3-compatible server on loopback with the timing of a cloud bucket, injected
//!   faults and request counters. Binary: `testbucket`.
//! - [`bare`]: the yardstick, a client that does nothing but concurrent ranged GETs (or local
//!   reads) into memory it already owns. Binary: `bare`. Every ratio in `bench/` has its rate
//!   below the line.
//! - [`slowfs`]: a read-only pass-through file system with a delay and a bandwidth
//!   cap. Binary: `slowfs`.
//! - [`conformance`]: what every carrier of bytes promises, as one suite.
//!
//! [`sigv4`], [`stamp`], [`draw`] and [`tls`] are the parts the server and the bare client share.
//! Because a mistake in a shared part could cancel out, `tests/python/test_testbucket.py` checks
//! the server with boto3 as well.

pub mod bare;
pub mod bucket;
pub mod conformance;
pub mod draw;
pub mod ending;
pub mod human;
pub mod sigv4;
pub mod slowfs;
pub mod stamp;
pub mod tls;

pub use bucket::{Bucket, Error, Profile, Settings};
