//! The consuming end of one node: the staging buffer and the trainer behind it.
//!
//! Paper 001 sec. 4: t_f = max(avail(f), t_{f-1} + s_{f-1}/c). A sample occupies the staging buffer from the start of its fetch until it is
//! consumed at t_f, and a fetch starts only when there is room for it; a sample that is larger than the buffer waits until it is
//! empty.

use std::collections::VecDeque;

/// Batches that a loader of the engine asks for beyond the one that it waits for (`_run/stream.py`), whatever drives.
pub(crate) const AHEAD: usize = 2;

/// Staging buffer and trainer.
#[derive(Clone, Debug)]
pub struct Consumer {
    capacity_mb: f64,
    staged_mb: f64,
    /// Size and time of consumption of what is staged, in order.
    staged: VecDeque<(f32, f64)>,
    /// t_f + s_f/c of the last sample.
    free_at: f64,
    computed_s: f64,
}

impl Consumer {
    /// An empty buffer of that capacity; nothing is consumed before `start`.
    #[must_use]
    pub fn new(capacity_mb: f64, start: f64) -> Self {
        Self {
            capacity_mb,
            staged_mb: 0.0,
            staged: VecDeque::new(),
            free_at: start,
            computed_s: 0.0,
        }
    }

    /// The earliest time, not before `earliest`, at which `mb` more fit. Idempotent until [`deliver`](Self::deliver).
    pub fn room_at(&mut self, mb: f64, earliest: f64) -> f64 {
        let mut at = earliest;
        while self.staged_mb + mb > self.capacity_mb {
            let Some((size, consumed)) = self.staged.pop_front() else {
                break;
            };
            at = at.max(consumed);
            self.staged_mb -= f64::from(size);
        }
        if self.staged.is_empty() {
            self.staged_mb = 0.0;
        }
        at
    }

    /// A sample became available at `available`; it takes `compute_s`. Returns when it is consumed.
    pub fn deliver(&mut self, mb: f64, available: f64, compute_s: f64) -> f64 {
        let consumed = available.max(self.free_at);
        self.free_at = consumed + compute_s;
        self.computed_s += compute_s;
        self.staged.push_back((mb as f32, consumed));
        self.staged_mb += mb;
        consumed
    }

    /// When the trainer is through with all that was delivered.
    #[must_use]
    pub fn free_at(&self) -> f64 {
        self.free_at
    }

    /// Seconds spent computing.
    #[must_use]
    pub fn computed_s(&self) -> f64 {
        self.computed_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_waits_until_enough_was_consumed() {
        let mut c = Consumer::new(10.0, 0.0);
        assert_eq!(c.room_at(6.0, 0.0), 0.0);
        assert_eq!(c.deliver(6.0, 1.0, 2.0), 1.0);
        assert_eq!(c.room_at(4.0, 0.5), 0.5);
        assert_eq!(c.deliver(4.0, 1.5, 2.0), 3.0);
        assert_eq!((c.room_at(4.0, 0.5), c.free_at()), (1.0, 5.0));
    }

    #[test]
    fn a_sample_larger_than_the_buffer_waits_until_it_is_empty() {
        let mut c = Consumer::new(1.0, 0.0);
        c.room_at(5.0, 0.0);
        c.deliver(5.0, 2.0, 1.0);
        assert_eq!(c.room_at(5.0, 0.0), 2.0);
    }
}
