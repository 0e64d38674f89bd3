//! One answer that has several objects, as a peer gives it to one request.
//!
//! Its body is a row of tables with what they tell of. A table says of some of the objects whether they are here, how long each is and its CRC-32C, and is sealed over the request's
//! seal; behind it lie the bytes of those that are here, in its order. So whoever answers sends what it has at once, and the rest when it is there.
//!
//! ```text
//! answer = *table
//! table  = count:u8  count*(at:u8 verdict:u8 len:u32 crc:u32)  seal:32 bytes  bytes of those that are here
//! ```
//!
//! A table may tell of none: whoever answers is there, and has nothing new. Numbers are little-endian; `at` is the object's place in the request, and `verdict` a [`Verdict`]. What is wrong with one object is no matter of the others; an answer in which one is told of twice, or that nobody
//! has sealed, counts for nothing from there on. [`Reader`] reads it in whatever pieces it comes, and keeps none of its bytes.

use super::http::Response;
use super::seal::{Gate, Seal, Sealed};
use crate::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::time::Duration;

/// Objects of one answer at most.
pub const MOST_PARTS: usize = 64;
/// Bytes of each at most.
pub const MOST_PART_BYTES: u64 = 64 << 10;
const ENTRY_BYTES: usize = 10;
const SEAL_BYTES: usize = 32;

/// What is said of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It isn't here, and isn't to be.
    Missing,
    /// Here it is.
    Here {
        /// Its bytes.
        len: u32,
        /// Their CRC-32C.
        crc: u32,
        /// Whoever answers had to fetch it first.
        was_fetched: bool,
    },
}

/// Receives the objects of an answer, by their places in the request.
pub trait Parts {
    /// What is said of one. False: that isn't it, and its bytes are dropped.
    fn told(&mut self, at: usize, verdict: Verdict) -> bool;

    /// Bytes of one, which lie `from` behind its first, in order.
    ///
    /// # Errors
    /// An error ends the answer.
    fn write(&mut self, at: usize, from: u64, frame: &[u8]) -> Result<()>;

    /// All bytes of one have come.
    fn ended(&mut self, at: usize);
}

/// Writes a table of an answer to a request that was let in.
pub fn write_table(gate: &Gate, request: &Seal, entries: &[(usize, Verdict)], out: &mut Vec<u8>) {
    let first = out.len();
    out.push(entries.len() as u8);
    for &(at, verdict) in entries {
        let (kind, len, crc) = match verdict {
            Verdict::Missing => (0, 0, 0),
            Verdict::Here { len, crc, was_fetched } => (1 + u8::from(was_fetched), len, crc),
        };
        out.extend([at as u8, kind]);
        out.extend(len.to_le_bytes());
        out.extend(crc.to_le_bytes());
    }
    let seal = gate.table(request, &out[first..]);
    out.extend(seal);
}

/// Entries of a table, without its seal. `None`: it is none.
fn entries(table: &[u8]) -> Option<Vec<(usize, Verdict)>> {
    let (_, rows) = table.split_first()?;
    let entry = |row: &[u8]| {
        let number = |at: usize| Some(u32::from_le_bytes(row.get(at..at + 4)?.try_into().ok()?));
        let (len, crc) = (number(2)?, number(6)?);
        let verdict = match row[1] {
            0 if (len, crc) == (0, 0) => Verdict::Missing,
            kind @ (1 | 2) if u64::from(len) <= MOST_PART_BYTES => Verdict::Here {
                len,
                crc,
                was_fetched: kind == 2,
            },
            _ => return None,
        };
        Some((usize::from(row[0]), verdict))
    };
    rows.chunks(ENTRY_BYTES).map(entry).collect()
}

/// Bytes of an object that are still to come.
struct Body {
    at: usize,
    done: u64,
    len: u64,
    is_taken: bool,
}

/// Reads an answer.
struct Reader {
    sealed: Sealed,
    /// Objects that nothing was said of yet.
    open: Vec<bool>,
    /// What has come of the next table.
    table: Vec<u8>,
    bodies: VecDeque<Body>,
}

impl Reader {
    fn new(sealed: Sealed, count: usize) -> Self {
        Reader {
            sealed,
            open: vec![true; count],
            table: Vec::new(),
            bodies: VecDeque::new(),
        }
    }

    /// Takes what comes next.
    fn take(&mut self, mut piece: &[u8], parts: &mut impl Parts) -> Result<()> {
        while !piece.is_empty() {
            piece = match self.bodies.front_mut() {
                Some(body) => {
                    let more = usize::try_from(body.len - body.done).unwrap_or(usize::MAX);
                    let (frame, rest) = piece.split_at(more.min(piece.len()));
                    if body.is_taken {
                        parts.write(body.at, body.done, frame)?;
                    }
                    body.done += frame.len() as u64;
                    self.end_bodies(parts);
                    rest
                }
                None => self.take_table(piece, parts)?,
            };
        }
        Ok(())
    }

    /// Of those that are all there, empty ones among them.
    fn end_bodies(&mut self, parts: &mut impl Parts) {
        while let Some(body) = self.bodies.front().filter(|body| body.done == body.len) {
            if body.is_taken {
                parts.ended(body.at);
            }
            self.bodies.pop_front();
        }
    }

    /// Takes what of a piece is of the next table, and answers with the rest.
    fn take_table<'a>(&mut self, piece: &'a [u8], parts: &mut impl Parts) -> Result<&'a [u8]> {
        let count = usize::from(*self.table.first().unwrap_or(&piece[0]));
        let left = self.open.iter().filter(|is_open| **is_open).count();
        if count > left {
            let message = format!("the answer tells of {count} objects, {left} were left");
            return Err(Error::corrupt(message));
        }
        let all = 1 + count * ENTRY_BYTES + SEAL_BYTES;
        let (more, rest) = piece.split_at((all - self.table.len()).min(piece.len()));
        self.table.extend_from_slice(more);
        if self.table.len() == all {
            let table = std::mem::take(&mut self.table);
            self.hear(&table, parts)?;
        }
        Ok(rest)
    }

    /// A table is there.
    fn hear(&mut self, table: &[u8], parts: &mut impl Parts) -> Result<()> {
        let (table, seal) = table.split_at(table.len() - SEAL_BYTES);
        if !self.sealed.has_table(table, seal) {
            return Err(Error::corrupt(
                "what the answer tells isn't sealed with the secret that both sides know",
            ));
        }
        let entries = entries(table).ok_or_else(|| Error::corrupt("the answer tells what nobody understands"))?;
        for (at, verdict) in entries {
            let is_new = self.open.get_mut(at).is_some_and(std::mem::take);
            if !is_new {
                let message = format!("the answer tells of object {at} twice, or of one that there isn't");
                return Err(Error::corrupt(message));
            }
            let is_taken = parts.told(at, verdict);
            if let Verdict::Here { len, .. } = verdict {
                self.bodies.push_back(Body {
                    at,
                    done: 0,
                    len: len.into(),
                    is_taken,
                });
            }
        }
        self.end_bodies(parts);
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.bodies.is_empty() && !self.open.contains(&true)
    }
}

/// An answer that comes.
pub struct PartsAnswer {
    response: Response,
    reader: Reader,
}

impl PartsAnswer {
    pub(crate) fn new(response: Response, sealed: Sealed, count: usize) -> Self {
        PartsAnswer {
            response,
            reader: Reader::new(sealed, count),
        }
    }

    /// What the request waited for a connection before it was sent.
    #[must_use]
    pub fn connecting(&self) -> Duration {
        self.response.connecting
    }

    /// Hands on what comes next. False: all has come.
    ///
    /// # Errors
    /// The answer isn't one to the request, or broke off. What has ended before is as good as it was.
    pub async fn next(&mut self, parts: &mut impl Parts) -> Result<bool> {
        let PartsAnswer { response, reader } = self;
        let goes_on = response.next(|piece| reader.take(piece, parts)).await?;
        if !goes_on && !reader.is_whole() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the answer ended before all was told",
            ));
        }
        Ok(goes_on)
    }
}

#[cfg(test)]
mod tests;
