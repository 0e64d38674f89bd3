//! The mount's log: its standard error, which `foreload mount` leads to a file.

use std::fmt;
use std::io::{self, Write};

/// Writes a line in one piece. One that can't be written is lost, and nothing else with it.
pub fn line(words: fmt::Arguments<'_>) {
    let line = format!("foreload-mount: {words}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}
