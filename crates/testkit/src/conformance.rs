//! What every carrier of bytes promises, as one suite: a bucket, a web server, a directory, a disk tier, later a peer.
//!
//! A *carrier* brings a range of something that has a name to where it is wanted. Whoever writes one implements [`Carrier`] beside its
//! tests and calls [`obeys`]:
//!
//! | promise | what is tried |
//! | --- | --- |
//! | the bytes of the range, all of them, no others | ranges at both ends, across 1 MiB, of one byte, of none, of all |
//! | each read has its own | many at once, of things that lie beside each other |
//! | what is not there is an error | an unknown name, ranges that end behind the end |
//! | whoever gives up leaves nothing behind | a read that ends after its first bytes, and the same once more |
//! | what is no longer what was put is an error | gone, exchanged, cut, altered; what lies beside it is still read |
//!
//! The suite can fail: each line has a carrier that breaks it in the tests of this module.

use std::future::Future;
use std::ops::Range;

/// What happens to something that a carrier holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// It is removed.
    Gone,
    /// Others of equal length take its place, properly named: an upload, a file written again.
    Exchanged,
    /// Its second half is missing.
    Cut,
    /// A byte in its middle is another one; nothing else says so.
    Altered,
}

/// All of them.
pub const SPOILS: [Spoil; 4] = [Spoil::Gone, Spoil::Exchanged, Spoil::Cut, Spoil::Altered];

/// Brings bytes, as a suite sees it.
pub trait Carrier {
    /// Takes `bytes` under a name, in place of what it had.
    fn put(&mut self, name: &str, bytes: &[u8]) -> impl Future<Output = ()>;

    /// Reads a range of what was put last under `name`.
    ///
    /// # Errors
    /// Why it can't: any text.
    fn read(&self, name: &str, range: Range<u64>) -> impl Future<Output = Result<Vec<u8>, String>>;

    /// Begins to read all of it, and gives up after the first bytes.
    fn give_up(&self, name: &str) -> impl Future<Output = ()>;

    /// Spoils what was put; `false` for what this carrier can't notice, or what can't happen to it.
    fn spoil(&mut self, name: &str, how: Spoil) -> impl Future<Output = bool>;
}

/// Bytes that belong to `name`, and to no other.
fn bytes_of(name: &str, len: u64) -> Vec<u8> {
    let mut state = name.bytes().fold(len | 1, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while (bytes.len() as u64) < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

const MIB: u64 = 1 << 20;
/// In bytes: one, odd, a page, behind a megabyte, a block and more.
const SIZES: [u64; 6] = [1, 777, 4096, MIB + 7, 4 * MIB, 4 * MIB + 12_345];

/// Tries everything on a carrier that holds nothing yet.
///
/// # Panics
/// Where a promise is broken, with what was asked. `notices` are what [`Carrier::spoil`] must be able to do: a carrier that forgets one
/// breaks a promise, too.
pub async fn obeys(carrier: &mut impl Carrier, notices: &[Spoil]) {
    for len in SIZES {
        carrier
            .put(&format!("of {len}"), &bytes_of(&format!("of {len}"), len))
            .await;
    }
    ranges(carrier).await;
    many_at_once(carrier).await;
    what_is_not_there(carrier).await;
    gives_up(carrier).await;
    for how in SPOILS {
        spoilt(carrier, how, notices.contains(&how)).await;
    }
}

/// Reads a range and compares it with what was put.
async fn reads(carrier: &impl Carrier, len: u64, range: Range<u64>) {
    let name = format!("of {len}");
    let read = carrier.read(&name, range.clone()).await;
    let bytes = read.unwrap_or_else(|error| panic!("{range:?} of {len} bytes: {error}"));
    let expected = &bytes_of(&name, len)[range.start as usize..range.end as usize];
    assert!(bytes == expected, "{range:?} of {len} bytes: other bytes");
}

async fn ranges(carrier: &impl Carrier) {
    for len in SIZES {
        let (middle, end) = (len / 2, len);
        for range in [0..end, 0..1, end - 1..end, middle..middle, 0..middle, middle..end] {
            reads(carrier, len, range).await;
        }
        if len > MIB {
            reads(carrier, len, MIB - 1..MIB + 1).await;
        }
    }
}

async fn many_at_once(carrier: &impl Carrier) {
    let all = (0..48_u64).map(|n| {
        let len = SIZES[n as usize % SIZES.len()];
        let start = len * (n % 7) / 8;
        reads(carrier, len, start..len.min(start + 100_000))
    });
    futures::future::join_all(all).await;
}

async fn what_is_not_there(carrier: &impl Carrier) {
    let unknown = carrier.read("nobody put this", 0..1).await;
    assert!(unknown.is_err(), "an unknown name was read");
    for range in [0..778, 776..778, 777..778, 5000..5001] {
        let read = carrier.read("of 777", range.clone()).await;
        assert!(read.is_err(), "{range:?} of 777 bytes was read");
    }
}

async fn gives_up(carrier: &impl Carrier) {
    let large = SIZES[SIZES.len() - 1];
    for _ in 0..3 {
        carrier.give_up(&format!("of {large}")).await;
        reads(carrier, large, 0..large).await;
    }
}

async fn spoilt(carrier: &mut impl Carrier, how: Spoil, must: bool) {
    let (name, len) = (format!("to be {how:?}"), MIB + 999);
    let bytes = bytes_of(&name, len);
    carrier.put(&name, &bytes).await;
    let read = carrier.read(&name, 0..len).await;
    assert!(read.as_ref() == Ok(&bytes), "{name}: not read before it was");
    let can = carrier.spoil(&name, how).await;
    assert!(can == must, "{how:?}: the carrier says {can}, its test {must}");
    if can {
        let read = carrier.read(&name, 0..len).await;
        assert!(read.is_err(), "{how:?}: all of it was read");
        for range in [0..10, len / 2 - 1..len / 2 + 1, len - 10..len] {
            let read = carrier.read(&name, range.clone()).await;
            let expected = &bytes[range.start as usize..range.end as usize];
            assert!(
                read.is_err() || read.as_deref() == Ok(expected),
                "{how:?}: {range:?} has other bytes"
            );
        }
        reads(carrier, 4096, 0..4096).await;
        carrier.put(&name, &bytes).await;
        let read = carrier.read(&name, 0..len).await;
        assert!(read.as_ref() == Ok(&bytes), "{how:?}: not read when it was put again");
    }
}

#[cfg(test)]
mod tests;
