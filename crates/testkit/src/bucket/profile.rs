//! How long the server takes: the time to the first byte, the rates and the connection delay.
//!
//! Rates are kept as ideal time: a piece of a body may leave when an ideal line of the given rate
//! would have finished sending it, so late timers don't add up. Each connection has its own line
//! ([`Line`]), all share another. A line that was idle, or whose client did not read, makes up at
//! most [`SLACK`] of what it missed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::draw;

/// How much of what it missed a line makes up for.
///
/// Two hyper-threads shared with a client delay a timer by up to some tens of milliseconds; what
/// was missed for longer than that is lost, as on a real line.
pub const SLACK: Duration = Duration::from_millis(50);

/// The server's timing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Median time to the first byte of a response in milliseconds (default 0).
    pub first_byte_ms: f64,
    /// Sigma of its lognormal distribution (default 0: always the median).
    pub first_byte_sigma: f64,
    /// Bytes per second on one connection (default 0: unlimited).
    pub connection_bytes_per_s: u64,
    /// Bytes per second on all connections together (default 0: unlimited).
    pub total_bytes_per_s: u64,
    /// Delay of a new connection in milliseconds, before its first request is read (default 0).
    pub connect_ms: f64,
    /// Most bytes of a body that leave at once (default 128 KiB: 3.7 ms at 35 MB/s; a W1 object
    /// is one piece, and each piece costs a timer and a system call).
    pub piece_bytes: u64,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            first_byte_ms: 0.0,
            first_byte_sigma: 0.0,
            connection_bytes_per_s: 0,
            total_bytes_per_s: 0,
            connect_ms: 0.0,
            piece_bytes: 128 << 10,
        }
    }
}

impl Profile {
    /// Nothing added: as fast as the machine is.
    #[must_use]
    pub fn fast() -> Self {
        Self {
            piece_bytes: 256 << 10,
            ..Self::default()
        }
    }

    /// A cloud bucket seen from one machine: 30 ms (sigma 0.3) to the first byte, 35 MB/s per
    /// connection, 1 GB/s in all, 30 ms to connect.
    #[must_use]
    pub fn cloud() -> Self {
        Self {
            first_byte_ms: 30.0,
            first_byte_sigma: 0.3,
            connection_bytes_per_s: 35_000_000,
            total_bytes_per_s: 1_000_000_000,
            connect_ms: 30.0,
            ..Self::default()
        }
    }

    /// The profile of that name.
    ///
    /// # Errors
    ///
    /// A sentence with the names there are.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "cloud" => Ok(Self::cloud()),
            "fast" => Ok(Self::fast()),
            _ => Err(format!("no profile is called {name:?}: there are cloud and fast")),
        }
    }

    /// Checks that all numbers make sense.
    ///
    /// # Errors
    ///
    /// A sentence naming the number that does not.
    pub fn check(&self) -> Result<(), String> {
        let delays = [self.first_byte_ms, self.connect_ms, self.first_byte_sigma];
        if delays.iter().any(|delay| !(0.0..=1e6).contains(delay)) {
            return Err("a delay must be between 0 and 1,000,000 ms".into());
        }
        if self.piece_bytes < 1024 {
            return Err("piece_bytes must be at least 1024".into());
        }
        Ok(())
    }

    /// The time to the first byte that a draw stands for.
    #[must_use]
    pub fn first_byte(&self, draw: u64) -> Duration {
        if self.first_byte_ms == 0.0 {
            return Duration::ZERO;
        }
        let factor = (self.first_byte_sigma * draw::normal(draw)).exp();
        Duration::from_secs_f64(self.first_byte_ms * factor / 1000.0)
    }

    /// The delay of a new connection.
    #[must_use]
    pub fn connect(&self) -> Duration {
        Duration::from_secs_f64(self.connect_ms / 1000.0)
    }
}

/// A line of limited rate, in ideal time.
#[derive(Debug)]
pub struct Line {
    free: Mutex<Instant>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            free: Mutex::new(Instant::now()),
        }
    }
}

impl Line {
    /// Books `bytes` at `bytes_per_s` (0: unlimited), not before `start`, and returns when the
    /// last of them leaves.
    pub fn book(&self, now: Instant, start: Instant, bytes: u64, bytes_per_s: u64) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(SLACK).unwrap_or(now);
        let mut end = (*free).max(start).max(earliest);
        if bytes_per_s > 0 {
            end += Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64);
        }
        *free = end;
        end
    }

    /// Says that the line was busy until then for another reason.
    pub fn busy_until(&self, time: Instant) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = (*free).max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_finishes_when_the_rate_says_so() {
        let line = Line::default();
        let now = Instant::now();
        let start = now + Duration::from_millis(30);
        let first = line.book(now, start, 35_000, 35_000_000);
        assert_eq!(first, start + Duration::from_millis(1));
        // Booked late, but the line was ready in time: no loss.
        let late = first + Duration::from_millis(10);
        let second = line.book(late, start, 35_000, 35_000_000);
        assert_eq!(second, start + Duration::from_millis(2));
        // After a long pause only the slack is made up for.
        let much_later = first + Duration::from_secs(1);
        let third = line.book(much_later, start, 35_000, 35_000_000);
        assert_eq!(third, much_later - SLACK + Duration::from_millis(1));
    }

    #[test]
    fn the_first_byte_has_the_median_and_spread_of_the_profile() {
        let profile = Profile::cloud();
        let mut draws: Vec<f64> = (0..9999)
            .map(|i| profile.first_byte(crate::draw::mix(i)).as_secs_f64())
            .collect();
        draws.sort_by(f64::total_cmp);
        assert!((draws[4999] - 0.030).abs() < 0.001, "median {}", draws[4999]);
        assert!((draws[8412] / draws[4999] - 0.3_f64.exp()).abs() < 0.03, "one sigma");
    }
}
