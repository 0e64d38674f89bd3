//! How often to look, and for how long.
//!
//! Where a stream is expected, a look costs next to nothing, so it is looked there each time: each 5 ms while something is on its way, each 10 ms while something is read, and ever more seldom while nothing is. Elsewhere it is searched
//! for as long as a quarter of a percent of a core allows.

use core::time::Duration;

/// Between two looks: while something is on its way, twice that while something is read, and at most.
const LOOK: Duration = Duration::from_millis(5);
const MOST_LOOK: Duration = Duration::from_millis(100);
/// Looks without a touch before they become rarer.
const PATIENCE: u32 = 100;
/// And before there is no news.
const QUIET: u32 = 4;
/// One nanosecond of searching in so many, and how much of it may be saved up.
const SEARCH_SHARE: i64 = 400;
const MOST_SAVED_NS: i64 = 5_000_000;
/// Where pages were taken back there is so much at least, so often: enough for 1.6 GB.
const GRANT_NS: i64 = 2_500_000;
const GRANT_EVERY: Duration = Duration::from_secs(1);

/// When to look next.
#[derive(Clone, Debug)]
pub struct Pace {
    /// What may be searched, in nanoseconds; less than 0: it was too much.
    search_ns: i64,
    /// Bytes that had been touched at the last look, and looks since then.
    touched_bytes: u64,
    quiet: u32,
    /// Whether pages were taken back that nobody has looked for yet, and how long ago there was time for that.
    is_unsure: bool,
    granted: Duration,
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl Pace {
    /// Begins with some searching saved up.
    #[must_use]
    pub const fn new() -> Self {
        Pace {
            search_ns: MOST_SAVED_NS,
            touched_bytes: 0,
            quiet: 0,
            is_unsure: false,
            granted: GRANT_EVERY,
        }
    }

    /// Whether it may be searched.
    #[must_use]
    pub const fn may_search(&self) -> bool {
        self.search_ns > 0
    }

    /// So much was spent on it.
    pub fn searched(&mut self, time: Duration) {
        self.search_ns = self.search_ns.saturating_sub(nanoseconds(time));
    }

    /// All were looked at, so long after the time before; so much was touched of all of them since the beginning.
    pub fn looked(&mut self, elapsed: Duration, touched_bytes: u64) {
        let earned = nanoseconds(elapsed) / SEARCH_SHARE;
        self.granted = self.granted.saturating_add(elapsed);
        self.search_ns = self.search_ns.saturating_add(earned).min(MOST_SAVED_NS);
        self.quiet = if touched_bytes == self.touched_bytes {
            self.quiet.saturating_add(1)
        } else {
            0
        };
        self.touched_bytes = touched_bytes;
    }

    /// Whether nothing was touched in the last few looks.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.quiet >= QUIET
    }

    /// Whether pages were taken back since the last look. Once they are no more, there is time to look which.
    pub fn taken_back(&mut self, are_taken_back: bool) {
        if are_taken_back {
            self.is_unsure = true;
        } else if self.is_unsure && self.granted >= GRANT_EVERY {
            (self.is_unsure, self.granted) = (false, Duration::ZERO);
            self.search_ns = self.search_ns.max(GRANT_NS);
        }
    }

    /// Something new was mapped: it is looked at soon, and searched.
    pub fn renew(&mut self) {
        self.quiet = 0;
        self.search_ns = self.search_ns.max(MOST_SAVED_NS / 5);
    }

    /// Until the next look.
    #[must_use]
    pub fn wait(&self, is_ahead: bool) -> Duration {
        let least = if is_ahead { LOOK } else { 2 * LOOK };
        let more = (LOOK / 20).saturating_mul(self.quiet.saturating_sub(PATIENCE));
        least.saturating_add(more).min(MOST_LOOK)
    }
}

/// Notices that the kernel has taken pages of files from a process, by how many it has of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    most: u64,
}

impl Resident {
    /// Fewer are no news: processors count for a while each for itself. In pages.
    const SLACK: u64 = 512;

    /// Begins with none.
    #[must_use]
    pub const fn new() -> Self {
        Resident { most: 0 }
    }

    /// The process has so many by what `/proc/PID/statm` says: whether they have become fewer since the last time that this was so. The process may have let go of them itself.
    pub fn has_lost(&mut self, statm: &[u8]) -> bool {
        let Some(pages) = Self::pages(statm) else { return false };
        let has_lost = pages.saturating_add(Self::SLACK) < self.most;
        self.most = if has_lost { pages } else { self.most.max(pages) };
        has_lost
    }

    /// The third number: what is shared with files or others.
    fn pages(statm: &[u8]) -> Option<u64> {
        let field = statm.split(|&byte| byte == b' ').nth(2)?;
        core::str::from_utf8(field).ok()?.trim().parse().ok()
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_while_nothing_is_touched() {
        let mut pace = Pace::new();
        assert_eq!((pace.wait(true), pace.wait(false)), (LOOK, 2 * LOOK));
        for _ in 0..PATIENCE {
            pace.looked(LOOK, 7);
        }
        assert!(pace.is_quiet());
        assert_eq!(pace.wait(false), 2 * LOOK);
        for _ in 0..10_000 {
            pace.looked(LOOK, 7);
        }
        assert_eq!(pace.wait(true), MOST_LOOK);
        pace.looked(LOOK, 8);
        assert!(!pace.is_quiet());
        assert_eq!(pace.wait(true), LOOK);
    }

    #[test]
    fn searching_takes_a_quarter_of_a_percent() {
        let mut pace = Pace::new();
        let (mut spent, mut all) = (Duration::ZERO, Duration::ZERO);
        let look = Duration::from_millis(10);
        for _ in 0..100_000 {
            if pace.may_search() {
                pace.searched(Duration::from_millis(3));
                spent += Duration::from_millis(3);
            }
            pace.looked(look, 0);
            all += look;
        }
        let share = spent.as_secs_f64() / all.as_secs_f64();
        assert!((0.0024..0.0026).contains(&share), "{share}");
    }

    #[test]
    fn what_was_taken_back_is_looked_for_once_it_is_no_more_and_once_a_second() {
        let mut pace = Pace::new();
        let mut grants = 0;
        for look in 0..1000 {
            pace.searched(Duration::from_secs(100));
            // In pauses, of a tenth of the time.
            pace.taken_back(look % 10 < 9);
            grants += u32::from(pace.may_search());
            assert!(!pace.may_search() || look % 10 == 9);
            pace.looked(Duration::from_millis(10), 0);
        }
        assert_eq!(grants, 10);
    }

    #[test]
    fn pages_that_a_process_has_no_more_are_noticed_once() {
        let mut resident = Resident::new();
        let mut says = |pages: u64| resident.has_lost(format!("90000 {pages} {pages} 3 0 5 0\n").as_bytes());
        assert!(!says(10_000) && !says(20_000) && !says(19_500));
        assert!(says(19_000) && !says(19_000) && !says(18_600));
        assert!(says(18_000) && says(0) && !says(0));
        for other in [
            &b""[..],
            b"1 2",
            b"1 2 x 3",
            b"1 2 99999999999999999999999 3",
            b"1 2 18446744073709551615 3",
            b"\xff \xff \xff",
        ] {
            assert!(!resident.has_lost(other));
        }
    }

    #[test]
    fn what_is_new_is_searched_at_once() {
        let mut pace = Pace::new();
        pace.searched(Duration::from_secs(1));
        assert!(!pace.may_search());
        pace.renew();
        assert!(pace.may_search());
    }
}
