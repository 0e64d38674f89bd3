//! One limit on requests in flight for all jobs that read from the same place, and what each of them gets of it.
//!
//! Jobs that climb each for itself take from each other: whoever climbs last wins, and it never evens out. So all of an origin's members feed one
//! [`Concurrency`], and its limit is dealt out by what they want, max-min fairly: nobody gets more than it wants while another wants more than it
//! gets, and those who are held back get the same, within one request. An odd request goes round: of a limit of five, two and three would not be
//! fair for long. What nobody wants is dealt out too, evenly, so that who wants more of it later needn't ask first; shares are dealt anew only when
//! somebody is short. A member that is alone gets the whole limit, just as its own controller would have found it.
//!
//! Pure: the carrier says what members want ([`Origin::wants`]) and how their requests end ([`Origin::ended`]), and tells each job its new share
//! ([`Origin::next_change`]) as an event, so that the decisions of a job follow from its own log.

use super::{Concurrency, ConcurrencySettings, Demand};
use crate::action::Completion;

/// Names a member of an origin; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member(u64);

/// A member, and where it stands.
#[derive(Debug)]
struct Seat {
    member: Member,
    bounds: ConcurrencySettings,
    demand: Demand,
    share: u32,
    told: Option<u32>,
}

impl Seat {
    /// Requests that it would have in flight if it could.
    fn wants(&self) -> u32 {
        let all = self.demand.queued.saturating_add(self.demand.in_flight);
        all.min(self.bounds.most)
    }

    fn is_short(&self) -> bool {
        self.wants() > self.share
    }
}

/// What several jobs share of one source.
#[derive(Debug)]
pub struct Origin {
    /// In the order in which they joined.
    seats: Vec<Seat>,
    concurrency: Concurrency,
    /// Where its limit stood when it was read from last.
    known: Option<u32>,
    joined: u64,
    /// Requests that ended since the odd one went on, and how often it did.
    ended: u32,
    rounds: usize,
}

impl Default for Origin {
    fn default() -> Self {
        Origin {
            seats: Vec::new(),
            concurrency: Concurrency::new(ConcurrencySettings::default()),
            known: None,
            joined: 0,
            ended: 0,
            rounds: 0,
        }
    }
}

impl Origin {
    /// An origin of which it is known how many requests in flight it was worth.
    #[must_use]
    pub fn known(knee: Option<u32>) -> Self {
        Origin {
            known: knee,
            ..Origin::default()
        }
    }

    /// How many requests in flight it is worth, if that was found out.
    #[must_use]
    pub fn knee(&self) -> Option<u32> {
        match self.seats.is_empty() {
            true => self.known,
            false => self.concurrency.knee().or(self.known),
        }
    }

    /// A job begins, whose own requests in flight stay within `bounds`; what it starts with counts where it is the first, and nothing is known.
    pub fn join(&mut self, bounds: ConcurrencySettings) -> Member {
        let bounds = bounds.in_order();
        let member = Member(self.joined);
        self.joined += 1;
        self.seats.push(Seat {
            member,
            bounds,
            demand: Demand::default(),
            share: 0,
            told: None,
        });
        if self.seats.len() == 1 {
            self.concurrency = match self.known {
                Some(knee) => Concurrency::known(bounds, knee),
                None => Concurrency::new(bounds),
            };
        } else {
            self.concurrency.rebound(self.bounds());
        }
        self.deal();
        member
    }

    /// A job ends: its share goes to the others.
    pub fn leave(&mut self, member: Member) {
        let (before, knee) = (self.seats.len(), self.knee());
        self.seats.retain(|seat| seat.member != member);
        self.known = knee;
        if self.seats.len() < before && !self.seats.is_empty() {
            self.concurrency.rebound(self.bounds());
            self.deal();
        }
    }

    /// What a member wants now. To be told after each of its steps; costs nothing to speak of when it is alone.
    pub fn wants(&mut self, member: Member, demand: Demand) {
        let limit = self.concurrency.limit();
        let Some(at) = self.seat(member) else { return };
        let seat = &mut self.seats[at];
        // More than the limit is wanted by all who want that much.
        let changed = seat.wants().min(limit) != {
            seat.demand = demand;
            seat.wants().min(limit)
        };
        if demand.queued > 0 && self.in_flight() >= limit {
            self.concurrency.wanted_more();
        }
        if changed && self.seats.iter().any(Seat::is_short) {
            self.deal();
        }
    }

    /// A request of a member, for `bytes`, ended at `now_ns`, `took_ns` after it was issued: a clock that all members share.
    pub fn ended(&mut self, member: Member, now_ns: u64, took_ns: u64, bytes: u64, completion: &Completion) {
        if self.seat(member).is_none() {
            return;
        }
        let before = self.concurrency.limit();
        self.concurrency.ended(now_ns, took_ns, bytes, completion.outcome);
        self.ended += 1;
        let is_round = self.seats.len() > 1 && self.ended >= before;
        if is_round {
            self.ended = 0;
            self.rounds += 1;
        }
        if self.concurrency.limit() != before || is_round && self.seats.iter().any(Seat::is_short) {
            self.deal();
        }
    }

    /// A request to it that was sent `took_ns` before `now_ns` heard nothing, and will be repeated.
    pub fn silent(&mut self, now_ns: u64, took_ns: u64) {
        let before = self.concurrency.limit();
        self.concurrency.silent(now_ns, took_ns);
        if self.concurrency.limit() != before {
            self.deal();
        }
    }

    /// A member whose share is another than it was told, and its share; it is taken as told from then on.
    pub fn next_change(&mut self) -> Option<(Member, u32)> {
        let seat = self.seats.iter_mut().find(|seat| seat.told != Some(seat.share))?;
        seat.told = Some(seat.share);
        Some((seat.member, seat.share))
    }

    /// Requests that all members together may have in flight.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.concurrency.limit()
    }

    /// Requests that a member may have in flight; `None`: it has left.
    #[must_use]
    pub fn share(&self, member: Member) -> Option<u32> {
        self.seat(member).map(|at| self.seats[at].share)
    }

    fn seat(&self, member: Member) -> Option<usize> {
        self.seats.iter().position(|seat| seat.member == member)
    }

    fn in_flight(&self) -> u32 {
        self.seats.iter().map(|seat| seat.demand.in_flight).sum()
    }

    /// The bounds of all members together: what each insists on, and no more than one job would have where nobody asks for more.
    fn bounds(&self) -> ConcurrencySettings {
        let sum = |bound: fn(&ConcurrencySettings) -> u32| {
            let bounds = self.seats.iter().map(|seat| bound(&seat.bounds));
            bounds.fold(0, u32::saturating_add)
        };
        let largest = self.seats.iter().map(|seat| seat.bounds.most).max().unwrap_or(1);
        let most = sum(|bounds| bounds.most).min(largest.max(ConcurrencySettings::default().most));
        ConcurrencySettings {
            start: self.concurrency.limit(),
            least: sum(|bounds| bounds.least).min(most),
            most,
        }
    }

    /// Deals the limit out: to each what it wants, as far as it goes, and then what is left.
    fn deal(&mut self) {
        let limit = self.concurrency.limit();
        if let [alone] = self.seats.as_mut_slice() {
            alone.share = limit.min(alone.bounds.most);
            return;
        }
        // Who wants more than there is wants all: shares don't move with how much more.
        let wanted: Vec<u32> = self.seats.iter().map(|seat| seat.wants().min(limit)).collect();
        let mut shares = fairly(limit, &wanted, self.rounds);
        // Who wants anything gets something, also where there are more members than requests.
        for (share, &wants) in shares.iter_mut().zip(&wanted) {
            *share = (*share).max(wants.min(1));
        }
        let left = limit.saturating_sub(shares.iter().sum());
        let room: Vec<u32> = self
            .seats
            .iter()
            .zip(&shares)
            .map(|(seat, share)| seat.bounds.most - share)
            .collect();
        let spare = fairly(left, &room, self.rounds);
        for (seat, (share, spare)) in self.seats.iter_mut().zip(shares.into_iter().zip(spare)) {
            seat.share = share + spare;
        }
    }
}

/// Shares of `sum`, max-min fair: the least that is wanted is given first, and what that leaves is for the others. Of those who want the same, other ones
/// get what doesn't divide in each round.
fn fairly(sum: u32, wanted: &[u32], round: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&at| (wanted[at], (at + round) % wanted.len()));
    let (mut left, mut shares) = (sum, vec![0; wanted.len()]);
    for (done, at) in order.into_iter().enumerate() {
        let even = left / (wanted.len() - done) as u32;
        shares[at] = wanted[at].min(even);
        left -= shares[at];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Action, Command, Failure};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The end of a request.
    fn done() -> Completion {
        Action::new(0, Command::Cancel { load: 0 }).done(1_000_000, 2_000_000)
    }

    fn failed() -> Completion {
        Action::new(0, Command::Cancel { load: 0 }).failed(Failure::Unavailable)
    }

    fn wanting(requests: u32) -> Demand {
        Demand {
            queued: requests,
            in_flight: 0,
        }
    }

    fn shares(origin: &Origin) -> Vec<u32> {
        origin.seats.iter().map(|seat| seat.share).collect()
    }

    /// An origin with a limit that stays, and members that want so much.
    fn with(limit: u32, wants: &[u32]) -> (Origin, Vec<Member>) {
        let mut origin = Origin::default();
        let bounds = ConcurrencySettings {
            start: limit,
            least: 1,
            most: 256,
        };
        let members: Vec<Member> = wants.iter().map(|_| origin.join(bounds)).collect();
        for (&member, &wants) in members.iter().zip(wants) {
            origin.wants(member, wanting(wants));
        }
        (origin, members)
    }

    #[test]
    fn who_comes_next_starts_where_the_last_one_stood() {
        let mut origin = Origin::known(Some(200));
        let first = origin.join(ConcurrencySettings::default());
        assert_eq!((origin.limit(), origin.knee()), (200, Some(200)));
        origin.leave(first);
        let fixed = origin.join(ConcurrencySettings::fixed(8));
        assert_eq!(
            (origin.limit(), origin.knee()),
            (8, Some(200)),
            "a fixed limit finds nothing out"
        );
        origin.leave(fixed);
        origin.join(ConcurrencySettings::default());
        assert_eq!(origin.limit(), 200);
        assert_eq!(Origin::default().knee(), None);
    }

    #[test]
    fn two_that_want_much_get_the_same_and_one_that_wants_little_leaves_the_rest() {
        assert_eq!(shares(&with(32, &[1000, 1000]).0), [16, 16]);
        assert_eq!(shares(&with(32, &[1000, 3]).0), [29, 3]);
        assert_eq!(shares(&with(33, &[999, 1000]).0), [16, 17]);
        assert_eq!(shares(&with(30, &[4, 1000, 12, 1000]).0), [4, 9, 8, 9]);
    }

    #[test]
    fn more_members_than_requests_have_one_each() {
        assert_eq!(shares(&with(3, &[7, 7, 7, 7, 7]).0), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn who_comes_gets_its_share_at_once_and_who_leaves_gives_it_back() {
        let (mut origin, members) = with(32, &[1000, 1000]);
        let third = origin.join(ConcurrencySettings::default());
        assert_eq!(shares(&origin), [16, 16, 0], "it has not asked yet");
        origin.wants(third, wanting(1000));
        assert_eq!(shares(&origin), [10, 11, 11]);
        origin.leave(members[0]);
        assert_eq!(shares(&origin), [16, 16]);
        origin.leave(third);
        assert_eq!((shares(&origin), origin.share(third)), (vec![32], None));
        // What it had in flight ends later, and is nobody's any more.
        origin.ended(third, 1, 1, 100, &failed());
        origin.wants(third, wanting(1000));
        assert_eq!(shares(&origin), [32]);
    }

    #[test]
    fn a_job_s_own_bounds_hold_among_others_and_what_it_insists_on_is_kept() {
        let mut origin = Origin::default();
        let fixed = origin.join(ConcurrencySettings::fixed(8));
        origin.wants(fixed, wanting(1000));
        assert_eq!((origin.limit(), origin.share(fixed)), (8, Some(8)));
        let other = origin.join(ConcurrencySettings::default());
        origin.wants(other, wanting(1000));
        assert_eq!(origin.limit(), 12, "eight, and the least of the other");
        let two = (origin.share(fixed), origin.share(other));
        assert_eq!(two, (Some(6), Some(6)));
        for now in 0..100_000 {
            origin.ended(other, now * 1_000_000, 1_000_000, 100_000, &done());
        }
        assert!(origin.share(fixed) <= Some(8));
        for second in 0..30 {
            origin.ended(other, (1000 + second) * 1_000_000_000, 1, 0, &failed());
        }
        assert_eq!(origin.limit(), 12, "never fewer");
        let (mut origin, two) = (Origin::default(), [(); 2]);
        let two = two.map(|()| origin.join(ConcurrencySettings::fixed(16)));
        two.into_iter().for_each(|member| origin.wants(member, wanting(1000)));
        assert_eq!(shares(&origin), [16, 16], "both have what they were given");
    }

    #[test]
    fn a_share_is_told_once() {
        let (mut origin, members) = with(32, &[1000, 1000]);
        assert_eq!(origin.next_change(), Some((members[0], 16)));
        assert_eq!(origin.next_change(), Some((members[1], 16)));
        assert_eq!(origin.next_change(), None);
        origin.wants(members[1], wanting(900));
        assert_eq!(origin.next_change(), None, "it wants more than there is, as before");
        origin.wants(members[1], wanting(2));
        assert_eq!(origin.next_change(), Some((members[0], 30)));
        assert_eq!(origin.next_change(), Some((members[1], 2)));
    }

    #[test]
    fn what_doesn_t_divide_goes_round() {
        let (mut origin, members) = with(5, &[1000; 3]);
        // Reset connections say nothing about the limit.
        let broken = || Action::new(0, Command::Cancel { load: 0 }).failed(Failure::Corrupt);
        let mut got = [0; 3];
        for _ in 0..6 {
            (0..3).for_each(|at| got[at] += shares(&origin)[at]);
            (0..5).for_each(|_| origin.ended(members[0], 1, 1, 100, &broken()));
        }
        assert_eq!(got, [10; 3]);
    }

    #[test]
    fn shares_stay_while_nobody_is_short() {
        let (mut origin, members) = with(32, &[5, 5]);
        while origin.next_change().is_some() {}
        for wants in [7, 0, 12, 3] {
            origin.wants(members[0], wanting(wants));
            assert_eq!(origin.next_change(), None, "{wants}");
        }
    }

    /// Members that always want more, over a source of `bytes_per_s` that answers in turn, `latency_s` after each request. Member `i` joins at `joins[i]`
    /// seconds; returns the bytes that each got between `from_s` and `to_s`.
    fn race(joins: &[f64], size: &[u64], bytes_per_s: f64, from_s: f64, to_s: f64) -> Vec<u64> {
        let mut origin = Origin::default();
        let (mut members, mut bytes): (Vec<Member>, _) = (Vec::new(), vec![0; joins.len()]);
        let mut in_flight = vec![0u32; joins.len()];
        let (mut now_s, mut free_s) = (0.0f64, 0.0f64);
        let mut under_way: VecDeque<(f64, f64, usize)> = VecDeque::new();
        while now_s < to_s {
            while members.len() < joins.len() && joins[members.len()] <= now_s {
                members.push(origin.join(ConcurrencySettings::default()));
            }
            for (at, &member) in members.iter().enumerate() {
                let demand = |in_flight| Demand {
                    queued: 100_000,
                    in_flight,
                };
                origin.wants(member, demand(in_flight[at]));
                while in_flight[at] < origin.share(member).expect("stays") {
                    free_s = free_s.max(now_s) + size[at] as f64 / bytes_per_s;
                    under_way.push_back((free_s + 0.03, now_s, at));
                    in_flight[at] += 1;
                }
                origin.wants(member, demand(in_flight[at]));
            }
            // Sent in turn, they end in turn.
            let Some((ended_s, sent_s, at)) = under_way.pop_front() else {
                unreachable!("somebody sends")
            };
            now_s = ended_s;
            let took_ns = ((ended_s - sent_s) * 1e9) as u64;
            in_flight[at] -= 1;
            origin.ended(members[at], (now_s * 1e9) as u64, took_ns, size[at], &done());
            if now_s >= from_s {
                bytes[at] += size[at];
            }
        }
        bytes
    }

    #[test]
    fn equal_jobs_get_equal_bytes_whoever_came_first() {
        for later in [0.0, 0.5, 2.0, 5.0, 9.0] {
            for bytes_per_s in [5e6, 60e6, 400e6] {
                // Long enough for what was in flight at either end not to count: 10,000 requests.
                let seconds = 1e9 / bytes_per_s;
                let got = race(&[0.0, later], &[100_000; 2], bytes_per_s, later, later + seconds);
                let share = got[0] as f64 / (got[0] + got[1]) as f64;
                assert!((0.47..0.53).contains(&share), "{later} s later, {bytes_per_s}: {share}");
            }
        }
    }

    #[test]
    fn a_job_among_others_takes_from_the_source_what_one_alone_would_have() {
        for bytes_per_s in [20e6, 60e6, 400e6] {
            let alone: u64 = race(&[0.0], &[100_000], bytes_per_s, 2.0, 6.0).iter().sum();
            let three: u64 = race(&[0.0, 1.0, 1.5], &[100_000; 3], bytes_per_s, 2.0, 6.0)
                .iter()
                .sum();
            assert!(three as f64 > 0.9 * alone as f64, "{three} of {alone} at {bytes_per_s}");
        }
    }

    proptest! {
        #[test]
        fn shares_are_fair_sum_to_the_limit_and_waste_nothing(
            limit in 1u32..300, wants in proptest::collection::vec(0u32..400, 1..9), caps in proptest::collection::vec(1u32..300, 9),
        ) {
            let mut origin = Origin::default();
            let bounds = |most| ConcurrencySettings { start: limit, least: 1, most };
            let members: Vec<Member> = wants.iter().zip(&caps).map(|(_, &most)| origin.join(bounds(most))).collect();
            for (&member, &wants) in members.iter().zip(&wants) {
                origin.wants(member, wanting(wants));
            }
            let (limit, shares) = (origin.limit(), shares(&origin));
            let wants: Vec<u32> = wants.iter().zip(&caps).map(|(&wants, &most)| wants.min(most)).collect();
            let asking = wants.iter().filter(|&&wants| wants > 0).count() as u32;
            let (sum, room): (u32, u32) = (shares.iter().sum(), caps[..wants.len()].iter().sum());
            prop_assert_eq!(sum, limit.max(asking).min(room));
            for (at, &share) in shares.iter().enumerate() {
                prop_assert!(share <= caps[at], "its own bound");
                prop_assert!(share >= wants[at].min(1), "nobody goes without");
                if share < wants[at] {
                    prop_assert!(shares.iter().all(|&other| other <= share + 1), "{:?} of {:?}", shares, wants);
                }
            }
            let used: u32 = shares.iter().zip(&wants).map(|(&share, &wants)| share.min(wants)).sum();
            prop_assert!(used >= limit.min(wants.iter().sum()), "{} of {} are used", used, limit);
        }

        #[test]
        fn a_member_alone_has_the_limit_that_its_own_controller_finds(
            start in 1u32..80, most in 1u32..300, events in proptest::collection::vec((0u8..20, 0u64..3_000_000, 0u32..400), 0..4000),
        ) {
            let bounds = ConcurrencySettings { start, least: 2, most };
            let (mut own, mut origin, mut now_ns) = (Concurrency::new(bounds), Origin::default(), 0);
            let member = origin.join(bounds);
            for (what, later_ns, queued) in events {
                now_ns += later_ns;
                let completion = if what == 0 { failed() } else { done() };
                own.ended(now_ns, 1_000_000, 100_000, completion.outcome);
                origin.ended(member, now_ns, 1_000_000, 100_000, &completion);
                let in_flight = own.limit().saturating_sub(u32::from(what == 1));
                if in_flight >= own.limit() && queued > 0 {
                    own.wanted_more();
                }
                origin.wants(member, Demand { queued, in_flight });
                prop_assert_eq!(origin.share(member), Some(own.limit()));
            }
        }

        #[test]
        fn whoever_comes_goes_or_wants_the_shares_stay_fair(
            events in proptest::collection::vec((0u8..8, 0usize..6, 0u32..500), 1..200),
        ) {
            let mut origin = Origin::default();
            let mut members: Vec<(Member, u32)> = Vec::new();
            for (what, which, wants) in events {
                match what {
                    0 => members.push((origin.join(ConcurrencySettings::default()), 0)),
                    1 if !members.is_empty() => origin.leave(members.remove(which % members.len()).0),
                    _ => {
                        let n = members.len().max(1);
                        if let Some((member, now)) = members.get_mut(which % n) {
                            *now = wants;
                            origin.wants(*member, wanting(wants));
                        }
                    }
                }
                let (limit, shares) = (origin.limit(), shares(&origin));
                for (&(member, wants), &share) in members.iter().zip(&shares) {
                    prop_assert_eq!(origin.share(member), Some(share));
                    prop_assert!(share >= wants.min(1));
                    if share < wants.min(limit) {
                        prop_assert!(shares.iter().all(|&other| other <= share + 1), "{:?}", shares);
                    }
                }
                let sum: u32 = shares.iter().sum();
                prop_assert!(members.is_empty() || sum == limit, "{:?} of {}", shares, limit);
            }
        }
    }
}
