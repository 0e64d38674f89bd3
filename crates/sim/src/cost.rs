//! What a run costs: the equations of paper 000 (DELI), and one price model for real and simulated runs.
//!
//! [`deli`] holds equations (1)-(5) of the paper with named parameters, literally, so that its Table II can be checked cell by
//! cell. [`Usage`] says what a run did (requests by class, bytes stored and moved, machine and disk hours), whoever counted it, and
//! [`PriceSheet::price`] turns it into dollars. [`breakeven`] compares reading from the bucket with copying the data set to every
//! node's disk first. [`crate::pricing`] is the door: it takes requests as JSON.
//!
//! Prices are data, not code: the sheets in `cost/prices/*.toml` are dated list prices with their source, to be verified and
//! edited by the user. Nothing here reads a file or knows today's date; a caller parses a sheet and passes it in.

pub mod breakeven;
pub mod deli;
mod prices;
mod usage;

pub use prices::{Bill, PriceSheet, RequestPrices};
pub use usage::Usage;

/// Hours in a month, as cloud price lists count them.
pub const HOURS_PER_MONTH: f64 = 730.0;
