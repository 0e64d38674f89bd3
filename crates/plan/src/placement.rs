//! How much of a data set lives where: by expectation how often a node reads a sample ([`binomial`]), by the order how often it does ([`frequency`]), and how many nodes
//! should share a cache ([`groups`]).
//!
//! Which node keeps a block is said by [`crate::homes`].

mod binomial;
pub mod frequency;
pub mod groups;

pub use binomial::binomial;
