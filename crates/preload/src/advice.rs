//! Asks for pages of a mapping, in steps of what one call fetches.
//!
//! `MADV_WILLNEED` is `posix_fadvise` with the mapping's own file. It returns at once, copies nothing, and does nothing to memory that isn't a file's; so an address that belongs to something else meanwhile is no harm.

use foreload_plan::window::Span;

use crate::stats;
use crate::table::{Mapping, Place};

/// Asks for these bytes, counted from where the mapping begins, while it is there.
pub fn ask(place: &Place, turn: u64, mapping: &Mapping, span: Span, step: u64, page: u64) {
    // The kernel cuts requests where the file has whole windows.
    let file = mapping.offset;
    let end = (span.to + file).next_multiple_of(page) - file;
    let mut from = (span.from + file) / page * page - file;
    let (mut calls, mut bytes) = (0, 0);
    while from < end && place.is_live(turn) {
        let len = (step - (from + file) % step).min(end - from);
        // SAFETY: advice to fetch changes no memory, whatever lies there.
        let failed = unsafe {
            libc::madvise(
                (mapping.at + from as usize) as *mut libc::c_void,
                len as usize,
                libc::MADV_WILLNEED,
            )
        };
        (calls, bytes) = (calls + 1, bytes + u64::from(failed == 0) * len);
        from += len;
    }
    stats::asked(calls, bytes);
}
