//! The agent's log: its standard error, which is `agent.log` in the cache directory.
//!
//! `eprintln!` panics where a line can't be written, and a panic ends the agent with all that it holds. A full disk is no reason for that: the line is lost.

use std::fmt;
use std::io::{self, Write};

/// Writes a line to the log.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::log::line(format_args!($($words)*))
    };
}
pub(crate) use say;

/// Writes a line to the log, in one piece, as other processes write there too.
pub fn line(words: fmt::Arguments<'_>) {
    let line = format!("foreload-agent: {words}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}
