//! The controller against a store that is simulated request by request.

use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A store behind a link: each request has a latency of its own, then its bytes pass through the link one request after the other.
struct Store {
    bytes_per_s: f64,
    latency_s: f64,
    /// Spread of the latency: the deviation of its logarithm.
    spread: f64,
    /// What a connection takes to make, and those that there are.
    connect_s: f64,
    connections: usize,
    /// Every so often all that is in flight stands still for a moment: seconds between two, and of each.
    hiccups_s: Option<(f64, f64)>,
    stood_still: u64,
    bytes: u64,
    dice: u64,
    link_free_ns: u64,
    now_ns: u64,
    /// When requests in flight end, and when they were sent over a connection.
    flying: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Store {
    fn new(bytes_per_s: f64, latency_s: f64, bytes: u64) -> Self {
        Store {
            bytes_per_s,
            latency_s,
            spread: 0.3,
            connect_s: latency_s,
            connections: 0,
            hiccups_s: None,
            stood_still: 0,
            bytes,
            dice: 1,
            link_free_ns: 0,
            now_ns: 0,
            flying: BinaryHeap::new(),
        }
    }

    fn roll(&mut self) -> f64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A latency with the mean that was asked for.
    fn latency_ns(&mut self) -> u64 {
        let normal = (0..12).map(|_| self.roll()).sum::<f64>() - 6.0;
        let factor = (self.spread * normal - self.spread * self.spread / 2.0).exp();
        (self.latency_s * factor * 1e9) as u64
    }

    fn send(&mut self) {
        let mut sent_ns = self.now_ns;
        if self.flying.len() >= self.connections {
            self.connections += 1;
            sent_ns += (self.connect_s * 1e9) as u64;
        }
        let first_byte = sent_ns + self.latency_ns();
        // The link serves in the order in which requests were sent: near enough, and each bit of it is used.
        let start = self.link_free_ns.max(self.now_ns);
        self.link_free_ns = start + (self.bytes as f64 / self.bytes_per_s * 1e9) as u64;
        let end = self.link_free_ns.max(first_byte);
        self.flying.push(Reverse((end, sent_ns)));
    }

    /// Keeps as many in flight as the controller allows until `until_s`; the bytes that came after `from_s`.
    fn run(&mut self, control: &mut Concurrency, from_s: f64, until_s: f64) -> f64 {
        let mut bytes = 0;
        while (self.now_ns as f64) < until_s * 1e9 {
            while (self.flying.len() as u32) < control.limit() {
                self.send();
            }
            control.wanted_more();
            let Some(Reverse((end, sent))) = self.flying.pop() else {
                unreachable!("the limit is never 0")
            };
            let mut end = end.max(self.now_ns);
            if let Some((every_s, for_s)) = self.hiccups_s
                && end / (every_s * 1e9) as u64 > self.stood_still
            {
                self.stood_still = end / (every_s * 1e9) as u64;
                end += (for_s * 1e9) as u64;
            }
            self.now_ns = end;
            let took = end.saturating_sub(sent);
            control.done(end, took, took, self.bytes);
            bytes += if end as f64 >= from_s * 1e9 { self.bytes } else { 0 };
        }
        bytes as f64
    }

    /// What can be had of it with so many requests at a time.
    fn best_per_s(&self, most: u32) -> f64 {
        (f64::from(most) * self.bytes as f64 / self.latency_s).min(self.bytes_per_s)
    }
}

#[test]
fn the_knee_is_found_within_two_seconds_on_any_link_at_any_size_and_latency() {
    let mut worst: Vec<(f64, String)> = Vec::new();
    for bytes in [10_000, 110_000, 323_000, 1_000_000, 8_000_000] {
        for latency_ms in [2.0, 10.0, 30.0, 80.0] {
            for per_s in [0.1e9, 0.5e9, 1e9, 4e9, 12e9] {
                let mut store = Store::new(per_s, latency_ms / 1e3, bytes);
                let mut control = Concurrency::new(ConcurrencySettings::default());
                // Two seconds, or what forty of the largest requests take where that is longer.
                let found_s = 2.0f64.max(40.0 * bytes as f64 / per_s);
                let got = store.run(&mut control, found_s, found_s + 1.0);
                let share = got / store.best_per_s(ConcurrencySettings::MOST);
                let case = format!(
                    "{bytes} bytes, {latency_ms} ms, {} GB/s: limit {}",
                    per_s / 1e9,
                    control.limit()
                );
                worst.push((share, case));
            }
        }
    }
    worst.sort_by(|one, other| one.0.total_cmp(&other.0));
    worst
        .iter()
        .take(5)
        .for_each(|(share, case)| println!("{share:.3} {case}"));
    assert!(worst[0].0 >= 0.9, "{:?}", worst[0]);
}

#[test]
fn no_more_are_in_flight_than_a_few_times_what_fills_the_link() {
    for (bytes, latency_s, per_s) in [
        (110_000, 0.03, 1e9),
        (1_000_000, 0.01, 1e9),
        (323_000, 0.03, 4e9),
        (8_000_000, 0.002, 12e9),
    ] {
        let mut store = Store::new(per_s, latency_s, bytes);
        let mut control = Concurrency::new(ConcurrencySettings::default());
        let mut sum = 0.0;
        store.run(&mut control, 0.0, 2.0);
        for step in 0..40 {
            store.run(&mut control, 0.0, 2.0 + 0.1 * f64::from(step));
            sum += f64::from(control.limit()) / 40.0;
        }
        let product = per_s * latency_s / bytes as f64;
        assert!(sum < 4.0 * product + 8.0, "{sum} of {product}");
    }
}

#[test]
fn nine_tenths_are_there_within_a_second_from_nothing() {
    for (bytes, latency_s, per_s) in [(110_000, 0.03, 1e9), (323_000, 0.03, 1e9), (10_000, 0.03, 0.5e9)] {
        let mut store = Store::new(per_s, latency_s, bytes);
        let mut control = Concurrency::new(ConcurrencySettings::default());
        let got = store.run(&mut control, 1.0, 1.5) / 0.5;
        assert!(got > 0.9 * store.best_per_s(ConcurrencySettings::MOST), "{got}");
    }
}

#[test]
fn nine_tenths_are_there_at_once_where_the_knee_is_known() {
    for (bytes, latency_s, per_s) in [(110_000, 0.03, 1e9), (323_000, 0.03, 4e9), (10_000, 0.03, 0.5e9)] {
        let mut control = Concurrency::new(ConcurrencySettings::default());
        assert_eq!(control.knee(), None, "nothing was tried yet");
        Store::new(per_s, latency_s, bytes).run(&mut control, 0.0, 5.0);
        let knee = control.knee().expect("the link was full");
        let rate = |mut control: Concurrency| {
            let mut store = Store::new(per_s, latency_s, bytes);
            store.run(&mut control, 0.1, 0.3) / 0.2 / store.best_per_s(ConcurrencySettings::MOST)
        };
        let settings = ConcurrencySettings::default();
        let (known, unknown) = (
            rate(Concurrency::known(settings, knee)),
            rate(Concurrency::new(settings)),
        );
        assert!(
            known > 0.9 && known > unknown,
            "{known} with, {unknown} without, at {knee}"
        );
    }
}

#[test]
fn what_is_known_binds_nobody() {
    let settings = ConcurrencySettings::default();
    // What was a good limit once is none for another link.
    let mut store = Store::new(4e9, 0.03, 110_000);
    let mut control = Concurrency::known(settings, 100);
    assert_eq!(control.limit(), 100);
    assert!(store.run(&mut control, 2.0, 3.0) > 0.9 * 4e9);
    assert_eq!(
        Concurrency::known(settings, 4).limit(),
        settings.start,
        "a slow moment is no bound"
    );
    assert_eq!(Concurrency::known(settings.at_most(64), 4000).limit(), 64);
    let fixed = Concurrency::known(ConcurrencySettings::fixed(8), 100);
    assert_eq!((fixed.limit(), fixed.knee()), (8, None));
}

#[test]
fn a_link_that_becomes_faster_is_used_and_one_that_becomes_slower_gets_fewer() {
    let mut store = Store::new(0.25e9, 0.03, 110_000);
    let mut control = Concurrency::new(ConcurrencySettings::default());
    store.run(&mut control, 0.0, 5.0);
    let narrow = control.limit();
    store.bytes_per_s = 2e9;
    store.run(&mut control, 0.0, 10.0);
    assert!(store.run(&mut control, 10.0, 12.0) / 2.0 > 0.9 * 2e9);
    let wide = control.limit();
    store.bytes_per_s = 0.25e9;
    store.run(&mut control, 0.0, 60.0);
    assert!(
        narrow < 200 && wide > 500 && control.limit() < wide / 2,
        "{narrow} {wide} {}",
        control.limit()
    );
}

#[test]
fn a_limit_that_is_not_used_says_nothing() {
    let settings = ConcurrencySettings::default();
    let mut control = Concurrency::new(settings);
    for now in 0..10_000 {
        control.done(now * 1_000_000, 30_000_000, 30_000_000, 110_000);
    }
    assert_eq!(control.limit(), settings.start);
}

#[test]
fn a_process_has_no_more_than_it_can_have_whatever_is_asked_for() {
    let bounds = ConcurrencySettings::default().at_most(100);
    assert_eq!((bounds.start, bounds.least, bounds.most), (64, 4, 100));
    let fixed = ConcurrencySettings::fixed(1000).at_most(64);
    assert_eq!((fixed.start, fixed.least, fixed.most), (64, 64, 64));
    let none = ConcurrencySettings::default().at_most(0);
    assert_eq!((none.start, none.least, none.most), (1, 1, 1));
    let mut store = Store::new(12e9, 0.03, 10_000);
    let mut control = Concurrency::new(bounds);
    store.run(&mut control, 0.0, 3.0);
    assert!((75..=100).contains(&control.limit()), "{}", control.limit());
}

#[test]
fn throttling_lowers_the_limit_once_per_second() {
    let mut control = Concurrency::new(ConcurrencySettings {
        start: 100,
        least: 4,
        most: 256,
    });
    for i in 0..50 {
        control.look_at(i * 1_000_000, 0, true);
    }
    assert_eq!(control.limit(), 70);
    for i in 0..50 {
        control.look_at(2_000_000_000 + i, 0, true);
    }
    assert_eq!(control.limit(), 49);
}

/// Rounds of a source that refuses some requests, each of which comes on its second try; returns the mean limit of the later half.
fn refusing(control: &mut Concurrency, from_ns: u64, rounds: u32, is_refused: impl Fn(u32, u32) -> bool) -> f64 {
    let (mut now, mut sum) = (from_ns, 0.0);
    let mut number = 0;
    for round in 0..rounds {
        let n = control.limit();
        for i in 0..n {
            let throttled = is_refused(number, i);
            number += 1;
            control.wanted_more();
            let (latency_ns, total_ns) = (30_000_000, 33_000_000);
            let told = match throttled {
                true => Told::Throttled { latency_ns, total_ns },
                false => Told::Speed { latency_ns, total_ns },
            };
            control.ended(now + total_ns + u64::from(i), total_ns, 110_000, Outcome::Done(told));
        }
        now += 33_000_000;
        if round >= rounds / 2 {
            sum += f64::from(control.limit()) / f64::from(rounds - rounds / 2);
        }
    }
    sum
}

/// Room for the tests that count refusals.
fn few() -> ConcurrencySettings {
    ConcurrencySettings::default().at_most(256)
}

#[test]
fn single_errors_cost_no_throughput() {
    // One in 333, in 100 and in 33, spread as dice spread them.
    for one_in in [333, 100, 33] {
        let mut control = Concurrency::new(few());
        let hit = |number: u32, _| number.wrapping_mul(2_654_435_761) >> 8 < (1 << 24) / one_in;
        let limit = refusing(&mut control, 0, 600, hit);
        assert!(limit > 0.8 * 256.0, "one in {one_in}: {limit}");
    }
}

#[test]
fn errors_that_fewer_requests_dont_lessen_cost_little_throughput() {
    // One in ten, and one in five.
    for one_in in [10, 5] {
        let mut control = Concurrency::new(few());
        let hit = |number: u32, _| number.wrapping_mul(2_654_435_761) >> 8 < (1 << 24) / one_in;
        let limit = refusing(&mut control, 0, 600, hit);
        assert!(limit > 0.9 * 256.0, "one in {one_in}: {limit}");
        // The source that it was is a source that refuses what is too much.
        refusing(&mut control, 20_000_000_000, 100, |_, _| false);
        let limit = refusing(&mut control, 30_000_000_000, 2000, |_, of_round| of_round >= 60);
        assert!((50.0..110.0).contains(&limit), "{limit} of 60");
    }
}

#[test]
fn a_source_that_refuses_what_is_too_much_gets_about_what_it_takes() {
    let mut control = Concurrency::new(few());
    let limit = refusing(&mut control, 0, 2000, |_, of_round| of_round >= 60);
    assert!((50.0..110.0).contains(&limit), "{limit} of 60");
}

#[test]
fn a_moment_of_refusals_is_forgotten() {
    let mut control = Concurrency::new(few());
    refusing(&mut control, 0, 60, |_, _| false);
    let before = control.limit();
    refusing(&mut control, 2_000_000_000, 15, |_, _| true);
    assert!(control.limit() < before);
    let later = refusing(&mut control, 4_000_000_000, 200, |_, _| false);
    assert!(later > 0.9 * f64::from(before), "{later} of {before}");
}

/// A link that serves the requests of several clients one after the other, also those that were cut off meanwhile.
struct Drowning {
    request_s: f64,
    latency_s: f64,
}

impl Drowning {
    /// Sends what each client may send for `for_s`; of its last half: what was answered, as a share of what the link could have brought, and how many
    /// requests were cut off.
    fn run(&self, clients: &mut [Concurrency], for_s: f64) -> (f64, u32) {
        const CUT_NS: u64 = 10_000_000_000;
        let ns = |s: f64| (s * 1e9) as u64;
        let (mut now, mut free, mut answered, mut cut_off) = (0, 0, 0u32, 0);
        let mut on_wire = vec![0; clients.len()];
        // When it ends, whose it is, when it was sent.
        let mut flying: BinaryHeap<Reverse<(u64, usize, u64)>> = BinaryHeap::new();
        while now < ns(for_s) {
            for (client, control) in clients.iter_mut().enumerate() {
                while on_wire[client] < control.limit() {
                    on_wire[client] += 1;
                    free = free.max(now) + ns(self.request_s);
                    flying.push(Reverse((
                        free.max(now + ns(self.latency_s)).min(now + CUT_NS),
                        client,
                        now,
                    )));
                }
                control.wanted_more();
            }
            let Reverse((end, client, sent)) = flying.pop().expect("no limit is 0");
            now = end;
            on_wire[client] -= 1;
            match end - sent {
                CUT_NS => {
                    cut_off += u32::from(now > ns(for_s / 2.0));
                    clients[client].silent(now, CUT_NS);
                }
                took => {
                    answered += u32::from(now > ns(for_s / 2.0));
                    clients[client].done(now, took, took, 100_000);
                }
            }
        }
        (f64::from(answered) * self.request_s / (for_s / 2.0), cut_off)
    }
}

#[test]
fn several_clients_of_a_slow_source_dont_drown_it() {
    for clients in [1, 2, 4, 8, 16, 32] {
        let mut controls = vec![Concurrency::new(ConcurrencySettings::default()); clients];
        let slow = Drowning {
            request_s: 0.025,
            latency_s: 0.1,
        };
        // Half of it, with 32 clients, is gone until the link has served what was cut off at the beginning.
        let (share, cut_off) = slow.run(&mut controls, 240.0);
        let limits: Vec<u32> = controls.iter().map(Concurrency::limit).collect();
        println!("{clients}: {share:.3} of the link, {cut_off} cut off, {limits:?}");
        assert!(share > 0.99 && cut_off == 0, "{clients}: {share}, {cut_off} cut off");
    }
}

#[test]
fn a_source_that_is_slow_for_every_request_gets_as_many_as_another() {
    let mut control = Concurrency::new(ConcurrencySettings::default());
    let mut store = Store::new(1e9, 2.0, 1_000_000);
    let got = store.run(&mut control, 60.0, 120.0) / 60.0;
    assert!(got > 0.9e9, "{got}");
}

#[test]
fn single_requests_that_hear_nothing_cost_nothing() {
    let mut control = Concurrency::new(ConcurrencySettings::default());
    for i in 0..20_000u64 {
        let now = 10_000_000_000 + i * 1_000_000;
        match i % 20 {
            0 => control.silent(now, 10_000_000_000),
            _ => control.done(now, 64_000_000, 30_000_000, 110_000),
        }
    }
    assert_eq!(control.limit(), 64);
}

#[test]
fn after_an_outage_it_is_soon_where_it_was() {
    let mut control = Concurrency::new(ConcurrencySettings::default());
    let mut store = Store::new(1e9, 0.03, 110_000);
    store.run(&mut control, 0.0, 3.0);
    let before = control.limit();
    let end_ns = 30_000_000_000;
    (0..before).for_each(|i| control.silent(end_ns + u64::from(i), 10_000_000_000));
    assert_eq!(control.limit(), 4, "nothing was answered");
    store.now_ns = end_ns;
    store.flying.clear();
    assert!(store.run(&mut control, 31.0, 32.0) > 0.9e9);
}

#[test]
fn a_fixed_limit_stays() {
    let mut control = Concurrency::new(ConcurrencySettings::fixed(64));
    Store::new(1e9, 0.03, 110_000).run(&mut control, 0.0, 3.0);
    (0..100).for_each(|now| control.look_at(now, 0, true));
    assert_eq!(control.limit(), 64);
}

#[test]
fn moments_in_which_all_stands_still_cost_hardly_more_than_themselves() {
    for (bytes, per_s) in [(10_000, 0.2e9), (110_000, 1e9), (323_000, 4e9)] {
        let mut store = Store::new(per_s, 0.03, bytes);
        store.hiccups_s = Some((0.7, 0.1));
        let mut control = Concurrency::new(ConcurrencySettings::default());
        let got = store.run(&mut control, 2.0, 12.0) / 10.0 / store.best_per_s(ConcurrencySettings::MOST);
        assert!(got > 0.9 * 0.6 / 0.7, "{got} of {bytes} bytes at {}", control.limit());
    }
}
