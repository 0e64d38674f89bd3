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

/// Tells the draw of a response's tail from that of its usual delay.
const TAIL: u64 = 0x7461_696c;
/// What a connection sends before it has heard of the other side: ten segments of 1,460 bytes (RFC 6928).
const WINDOW: u64 = 14_600;
/// After so long without use it begins anew with that (RFC 5681, 4.1: after a retransmission time-out, which is at least this).
const IDLE: Duration = Duration::from_secs(1);

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
    /// The share of responses that take `tail_ms` longer (default 0).
    pub tail_share: f64,
    /// How much longer they take in milliseconds (default 0).
    pub tail_ms: f64,
    /// Whether a connection starts slowly, as TCP does: with ten segments, twice as much after each round trip of `connect_ms`, and anew after a
    /// second without use (default no).
    pub slow_start: bool,
    /// Requests after which a connection is closed (default 0: never).
    pub requests_per_connection: u64,
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
            tail_share: 0.0,
            tail_ms: 0.0,
            slow_start: false,
            requests_per_connection: 0,
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

    /// The same as a sceptic would have it: connections that start slowly and are closed after 100 requests, and one response of a thousand that
    /// takes a second. What it refuses above a rate is a fault (`rate_limit`), and TLS a setting of its own.
    #[must_use]
    pub fn cloud_hard() -> Self {
        Self {
            tail_share: 0.001,
            tail_ms: 1000.0,
            slow_start: true,
            requests_per_connection: 100,
            ..Self::cloud()
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
            "cloud-hard" => Ok(Self::cloud_hard()),
            "fast" => Ok(Self::fast()),
            _ => Err(format!(
                "no profile is called {name:?}: there are cloud, cloud-hard and fast"
            )),
        }
    }

    /// Checks that all numbers make sense.
    ///
    /// # Errors
    ///
    /// A sentence naming the number that does not.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.tail_share) {
            return Err("tail_share must be between 0 and 1".into());
        }
        let delays = [self.first_byte_ms, self.connect_ms, self.first_byte_sigma, self.tail_ms];
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
        let tail = match self.tail_share > 0.0 && draw::unit(draw::mix(draw ^ TAIL)) < self.tail_share {
            true => self.tail_ms,
            false => 0.0,
        };
        let usual = match self.first_byte_ms {
            0.0 => 0.0,
            median => median * (self.first_byte_sigma * draw::normal(draw)).exp(),
        };
        Duration::from_secs_f64((usual + tail) / 1000.0)
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

/// How much a connection that starts slowly may send in a round trip.
#[derive(Debug)]
pub struct SlowStart {
    state: Mutex<(u64, Instant)>,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            state: Mutex::new((WINDOW, Instant::now())),
        }
    }
}

impl SlowStart {
    /// Round trips that so many bytes take beyond the one that all do.
    pub fn rounds(&self, now: Instant, bytes: u64) -> u32 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (window, used) = &mut *state;
        if now.saturating_duration_since(*used) > IDLE {
            *window = WINDOW;
        }
        *used = now;
        let (mut rounds, mut sent) = (0, *window);
        while sent < bytes {
            *window = window.saturating_mul(2);
            sent = sent.saturating_add(*window);
            rounds += 1;
        }
        rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_starts_slowly_needs_fewer_round_trips_from_response_to_response() {
        let (window, now) = (SlowStart::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs_f64(seconds);
        assert_eq!(window.rounds(now, 14_600), 0);
        // 14,600 and 29,200 and 58,400 and 116,800 bytes.
        assert_eq!(window.rounds(later(0.1), 110_000), 3);
        assert_eq!(window.rounds(later(0.2), 110_000), 0);
        assert_eq!(window.rounds(later(0.3), 400_000), 2);
        assert_eq!(window.rounds(later(2.0), 110_000), 3, "it was idle");
    }

    #[test]
    fn a_thousandth_of_the_responses_of_the_hard_profile_takes_a_second_longer() {
        let hard = Profile::cloud_hard();
        let late = (0..100_000)
            .filter(|&at| hard.first_byte(crate::draw::mix(at)) > Duration::from_millis(900))
            .count();
        assert!((60..140).contains(&late), "{late}");
        assert_eq!(hard.check(), Ok(()));
    }

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
