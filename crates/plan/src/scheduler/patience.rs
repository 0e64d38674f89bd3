//! When a peer isn't waited for any longer.
//!
//! A home that hasn't got yet what it is asked for fetches it, behind what is needed sooner. Whoever asks ahead can wait for that: the sample is needed later, and the bucket would be asked twice for it. So a load
//! has no time of its own in which a peer has to bring it. The carrier says that a peer is gone, or silent. Beyond that the bucket is asked
//!
//! | when | why |
//! | --- | --- |
//! | a rank has done nothing for [`PATIENCE_NS`] but wait for it, and for twice as long as the bucket takes | whatever keeps the peer: it is too late. Where the bucket is slow for all, the peer waits for the same, and is ahead |
//! | the same of what was asked of it so long ago, for [`OLD_NS`], where a rank has stood still for the peer lately | it would be the next to stand still |
//! | a rank has waited for [`OLD_NS`], and for twice as long as the bucket takes, for a peer that is on trial | it probably is ill still |
//! | the peer is ill, and the load has been under way for [`OLD_NS`] | what is queued there goes to the bucket, too |
//!
//! A peer for which a rank stands still twice in a row, though the bucket would have been faster by far, is left alone for a second, and for twice as long each time that it happens again: its own bucket may be slow, or its link. That is so when it was
//! waited for in vain where the bucket takes less than half of [`PATIENCE_NS`], and, of the only other one, when what it brought had been waited for for [`STILL_NS`] and for twenty times as long as the bucket takes.
//!
//! A load that races a twin is none of these: one of the two will bring it.
//!
//! The other way round nobody is kept waiting [for memory](Scheduler::turn_away) that comes back only when peers have answered. So nodes don't wait for each other in a ring.

use super::Scheduler;
use super::flights::{Flight, Part};
use crate::action::{Action, Failure, Source};

/// A rank waits so long for a peer.
pub(super) const PATIENCE_NS: u64 = 2_000_000_000;
/// And no longer, however slow the bucket is.
pub(super) const MOST_PATIENCE_NS: u64 = 120_000_000_000;
/// Who waits for so long stands still.
const STILL_NS: u64 = 1_000_000_000;
/// Who takes so many times as long as another one needn't be waited for. With less, nodes of which all are well would fetch each other's.
const SLOWER_BY_FAR: u64 = 20;
/// What takes longer isn't just a busy machine's turn.
const OLD_NS: u64 = 50_000_000;
/// A rank that has what it needs gives memory back within this time, or may be waiting for others that wait for it.
const RING_NS: u64 = 500_000_000;

impl Scheduler {
    /// Calls off what peers are not waited for any longer: it comes from the bucket, before all that waits there.
    pub(super) fn lose_patience(&mut self, actions: &mut Vec<Action>) {
        if self.group.is_alone() {
            return;
        }
        let flights = self.loads.flights.loads();
        let bucket_takes_s = self.bucket_takes_s();
        let over = flights.filter_map(|(id, flight)| Some((id, self.is_over(flight, bucket_takes_s)?)));
        for (id, too_late) in over.collect::<Vec<_>>() {
            let Some(flight) = self.loads.flights.load(id) else {
                continue;
            };
            let (source, bundle, len) = (flight.pending.source, flight.pending.bundle, flight.pending.len);
            let issued_ns = flight.issued_ns;
            if too_late {
                let is_bucket_fast = self.patience_ns(len, bucket_takes_s) == PATIENCE_NS;
                let was_trial = self.now_ns.saturating_sub(issued_ns) < PATIENCE_NS;
                let lane = self.loads.lanes.of_mut(source);
                lane.was_overtaken(self.now_ns, bundle);
                if is_bucket_fast && !was_trial {
                    lane.held_a_rank_up(self.now_ns, issued_ns);
                }
            }
            self.cancel(id, actions);
        }
    }

    /// Refuses others what they wait for memory for, where nothing that is under way gives any back: all of it is for what peers are to bring, who may be waiting in the same way. At
    /// once if a rank waits here; otherwise it may give some back soon, or wait for the ranks of the others.
    pub(super) fn turn_away(&mut self, actions: &mut Vec<Action>) {
        let patience_ns = if self.requests.are_awaited() { OLD_NS } else { RING_NS };
        let is_short = |id: &u64| self.requests.age_ns(*id, self.now_ns) >= patience_ns;
        let mut others = self.requests.guests.iter().copied().filter(is_short).peekable();
        if others.peek().is_none() || self.loads.writing > 0 {
            return;
        }
        let others: Vec<u64> = others.collect();
        let is_peers = |flight: &Flight| matches!(flight.pending.source, Source::Peer(_));
        if self.loads.flights.loads().all(|(_, flight)| is_peers(flight)) {
            others
                .into_iter()
                .for_each(|id| self.refuse(id, None, Failure::Final, actions));
        }
    }

    /// Whether a load is a peer's that isn't waited for any longer, and then whether that is so because it comes too late.
    fn is_over(&self, flight: &Flight, bucket_takes_s: f64) -> Option<bool> {
        let age_ns = self.now_ns.saturating_sub(flight.issued_ns);
        let is_ours = matches!(flight.pending.source, Source::Peer(_)) && age_ns >= OLD_NS;
        if !is_ours || flight.rival().is_some() || flight.called_off || flight.cancelled {
            return None;
        }
        let patience_ns = self.patience_ns(flight.pending.len, bucket_takes_s);
        let lane = self.loads.lanes.of(flight.pending.source);
        // Who has had a rank stand still isn't waited for as long again for what it was asked for then, and a trial takes no longer than the bucket.
        let (least_ns, oldest_ns) = match (lane.is_on_trial(), lane.holds_ranks_up(self.now_ns)) {
            (true, _) => {
                let twice_ns = self.twice_bucket_ns(flight.pending.len, bucket_takes_s);
                (twice_ns.clamp(OLD_NS, MOST_PATIENCE_NS), 0)
            }
            (false, true) => (OLD_NS, patience_ns),
            (false, false) => (patience_ns, patience_ns),
        };
        let is_late = |part| self.waited_ns(part) >= least_ns;
        let is_too_late = age_ns >= oldest_ns.max(least_ns) && flight.pending.parts.iter().any(is_late);
        let is_ill = || !lane.is_open(self.now_ns);
        (is_too_late || is_ill()).then_some(is_too_late)
    }

    /// A peer has brought this: whether a rank stood still for it meanwhile.
    pub(super) fn note_standing_still(&mut self, flight: &Flight) {
        let (len, age_ns) = (flight.pending.len, self.now_ns.saturating_sub(flight.issued_ns));
        // Where several are slow, it may be the network, and what it brings needn't be paid for.
        if !self.group.is_a_pair() || age_ns < STILL_NS || !matches!(flight.pending.source, Source::Peer(_)) {
            return;
        }
        let waited_ns = flight.pending.parts.iter().map(|part| self.waited_ns(part)).max();
        let still_ns = waited_ns.unwrap_or(0).min(age_ns);
        let twice_ns = self.twice_bucket_ns(len, self.bucket_takes_s());
        if still_ns >= STILL_NS && still_ns >= SLOWER_BY_FAR / 2 * twice_ns {
            self.loads
                .lanes
                .of_mut(flight.pending.source)
                .held_a_rank_up(self.now_ns, flight.issued_ns);
        }
    }

    /// How long a rank waits for so many bytes of a peer.
    fn patience_ns(&self, len: u64, bucket_takes_s: f64) -> u64 {
        self.twice_bucket_ns(len, bucket_takes_s)
            .clamp(PATIENCE_NS, MOST_PATIENCE_NS)
    }

    fn twice_bucket_ns(&self, len: u64, bucket_takes_s: f64) -> u64 {
        let expected_s = self.loads.lanes.bucket.estimate.expected_s(len);
        (2e9 * expected_s.max(bucket_takes_s)) as u64
    }

    /// For how long somebody here has waited for a part.
    fn waited_ns(&self, part: &Part) -> u64 {
        let since_ns = |id| self.requests.awaited_since_ns(id);
        let first_ns = self.residents.waiters(part.handle.index).filter_map(since_ns).min();
        first_ns.map_or(0, |since_ns| self.now_ns.saturating_sub(since_ns))
    }

    /// How long the bucket takes by what is in the air from it now, of which half of the time is over on average: what came from it says that later.
    fn bucket_takes_s(&self) -> f64 {
        let flights = self.loads.flights.loads().map(|(_, flight)| flight);
        let ages = flights
            .filter(|flight| flight.pending.source == Source::Bucket)
            .map(|flight| self.now_ns.saturating_sub(flight.issued_ns));
        let (count, sum_ns) = ages.fold((0u64, 0u64), |(count, sum), age| (count + 1, sum + age));
        2e-9 * sum_ns as f64 / count.max(1) as f64
    }
}

#[cfg(test)]
mod tests;
