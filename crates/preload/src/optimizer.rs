//! What the thread does under the detectors that trap: it waits for checkpoints to be hit, and fetches.
//!
//! Paper 003 calls it the optimizer. There it is a process of its own, which reads the file; all processes share the page cache, so a thread of the program's does as well, needs nothing passed between two processes, and ends with it.
//! [`foreload_plan::window::checkpoint`] says what is fetched; it is asked for as `poll` asks.

use core::sync::atomic::Ordering;
use core::time::Duration;

use foreload_plan::window::checkpoint::{Checkpoints, Front};

use crate::follow::{self, NEWS, clock};
use crate::table::{PLACES, TABLE};
use crate::trap::{self, Hit};
use crate::{advice, env, memory, pages, stats};

/// Between two writes of the line of statistics.
const WRITE: Duration = Duration::from_millis(50);

/// How far the reader of one place's mapping is.
#[derive(Clone, Copy)]
struct Reader {
    /// Which of the place's mappings it is; 0: none yet.
    turn: u64,
    front: Front,
    /// What one call fetches.
    step: u64,
}

/// Serves until the process ends.
pub fn run() {
    let Some(checkpoints) = env::checkpoints() else { return };
    let none = Reader {
        turn: 0,
        front: Front::new(checkpoints, 0),
        step: 0,
    };
    let mut readers = [none; PLACES];
    stats::begin();
    let (mut is_written, mut written_at) = (true, clock(libc::CLOCK_MONOTONIC));
    loop {
        let news = NEWS.load(Ordering::Acquire);
        if follow::has_left() {
            return;
        }
        while let Some(hit) = trap::next_hit() {
            serve(&mut readers, checkpoints, hit);
            is_written = false;
        }
        let now = clock(libc::CLOCK_MONOTONIC);
        if !is_written && now.saturating_sub(written_at) >= WRITE.as_nanos() as u64 {
            stats::took(clock(libc::CLOCK_THREAD_CPUTIME_ID));
            stats::write();
            (is_written, written_at) = (true, now);
        }
        follow::sleep(news, (!is_written).then_some(WRITE));
    }
}

/// Fetches what a hit calls for, if its mapping is still there.
fn serve(readers: &mut [Reader; PLACES], checkpoints: Checkpoints, hit: Hit) {
    let (Some(reader), Some(place)) = (readers.get_mut(hit.place), TABLE.places.get(hit.place)) else {
        return;
    };
    let Some((turn, mapping)) = place.live().filter(|&(turn, _)| hit.is_of(turn)) else {
        return;
    };
    let page = pages::size() as u64;
    if reader.turn != turn {
        *reader = Reader {
            turn,
            front: Front::new(checkpoints, mapping.len as u64),
            step: memory::step(mapping.major, mapping.minor).max(page),
        };
    }
    if let Some(span) = reader.front.hit(hit.page * page) {
        stats::triggered();
        advice::ask(place, turn, &mapping, span, reader.step, page);
    }
    if reader.front.is_on_its_way() {
        trap::put(hit.place, place, turn, reader.front.start().unwrap_or(0));
    }
}
