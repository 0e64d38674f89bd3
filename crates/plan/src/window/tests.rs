//! Programs that read a file through a page cache over a slow store, with and without what the detector has fetched.

use super::*;
use proptest::prelude::*;

const PAGE: u64 = 4096;
const GRANULE: u64 = 64 << 10;
const KERNEL: u64 = 128 << 10;
const RECORD: u64 = 196_608;
/// As LMDB lays a record out: a header, and whole pages.
const SLOT: u64 = 49 * PAGE;
const RECORDS: u64 = 4000;
const WINDOW: u64 = 32 << 20;
const BUDGET: u64 = 256 << 20;
/// Nanoseconds: an answer of the store, of its bandwidth a byte, between two looks, and for a program a page.
const ANSWER: u64 = 6_300_000;
const BYTE_PS: u64 = 2_500;
const LOOK: u64 = 5_000_000;
const WORK: u64 = 400;

/// The store and the page cache of one machine.
struct Store {
    /// When each page is there; none: it wasn't asked for.
    pages: Vec<Option<u64>>,
    free_at: u64,
    fetched: u64,
}

impl Store {
    fn new(bytes: u64) -> Self {
        Store {
            pages: vec![None; bytes.div_ceil(PAGE) as usize],
            free_at: 0,
            fetched: 0,
        }
    }

    fn fetch(&mut self, now: u64, span: Span) {
        let mut from = span.from / PAGE;
        let end = span.to.div_ceil(PAGE).min(self.pages.len() as u64);
        while from < end {
            let to = (from + KERNEL / PAGE).min(end);
            let wanted: Vec<usize> = (from as usize..to as usize)
                .filter(|&page| self.pages[page].is_none())
                .collect();
            let bytes = wanted.len() as u64 * PAGE;
            self.fetched += bytes;
            self.free_at = self.free_at.max(now) + bytes * BYTE_PS / 1000;
            let there = self.free_at.max(now + ANSWER);
            wanted.into_iter().for_each(|page| self.pages[page] = Some(there));
            from = to;
        }
    }
}

/// A process that touches pages in its order, and whoever looks at its page table.
struct Process {
    order: std::vec::IntoIter<Span>,
    at: Span,
    present: Vec<bool>,
    fresh: Vec<u64>,
    now: u64,
    look_at: u64,
    looked_at: u64,
    /// Where the mapping begins, modulo a granule.
    shift: u64,
    detector: Option<Detector>,
}

impl Process {
    fn new(bytes: u64, order: Vec<Span>, detector: Option<Detector>) -> Self {
        Process {
            order: order.into_iter(),
            at: Span::default(),
            present: vec![false; (bytes / GRANULE + 2) as usize],
            fresh: Vec::new(),
            now: 0,
            look_at: LOOK,
            looked_at: 0,
            shift: 5 * PAGE,
            detector,
        }
    }

    /// Touches a page; false: it is through.
    fn touch(&mut self, store: &mut Store) -> bool {
        if self.at.is_empty() {
            let Some(next) = self.order.next() else { return false };
            self.at = next;
        }
        let page = self.at.from / PAGE;
        self.at.from = (page + 1) * PAGE;
        if store.pages[page as usize].is_none() {
            let from = (page * PAGE).saturating_sub(KERNEL / 2);
            store.fetch(
                self.now,
                Span {
                    from,
                    to: from + KERNEL,
                },
            );
        }
        self.now = self.now.max(store.pages[page as usize].unwrap_or(0)) + WORK;
        let granule = (page * PAGE + self.shift) / GRANULE;
        if !std::mem::replace(&mut self.present[granule as usize], true) {
            self.fresh.push(granule);
        }
        while self.now >= self.look_at {
            self.look_at += LOOK;
            self.look(store);
        }
        true
    }

    fn look(&mut self, store: &mut Store) {
        let Some(detector) = &mut self.detector else { return };
        self.fresh.sort_unstable();
        for run in self.fresh.chunk_by(|a, b| a + 1 == *b) {
            let from = (run[0] * GRANULE).saturating_sub(self.shift);
            let to = (run[run.len() - 1] + 1) * GRANULE - self.shift;
            detector.touched(Span { from, to });
        }
        self.fresh.clear();
        detector.looked(Duration::from_nanos(self.now - self.looked_at));
        self.looked_at = self.now;
        while let Some(span) = detector.next(BUDGET) {
            store.fetch(self.now, span);
        }
    }
}

/// What a run took: seconds until all are through, and bytes from the store.
#[derive(Clone, Copy, Debug)]
struct Run {
    seconds: f64,
    fetched: f64,
    tally: Tally,
}

fn run(bytes: u64, orders: &[Vec<Span>], window: Option<u64>) -> Run {
    let mut store = Store::new(bytes);
    let detector = || window.map(|window| Detector::new(bytes, GRANULE, window));
    let mut running: Vec<Process> = orders
        .iter()
        .map(|order| Process::new(bytes, order.clone(), detector()))
        .collect();
    let mut through: Vec<Process> = Vec::new();
    while let Some(first) = (0..running.len()).min_by_key(|&at| running[at].now) {
        if !running[first].touch(&mut store) {
            through.push(running.swap_remove(first));
        }
    }
    Run {
        seconds: through.iter().map(|process| process.now).max().unwrap_or(0) as f64 / 1e9,
        fetched: store.fetched as f64,
        tally: through[0].detector.as_ref().map(Detector::tally).unwrap_or_default(),
    }
}

/// By how much it is faster, and what it fetches, against the kernel alone and against what is useful.
fn compare(bytes: u64, order: &[Span]) -> (f64, f64, f64) {
    let orders = [order.to_vec()];
    let (kernel, ours) = (run(bytes, &orders, None), run(bytes, &orders, Some(WINDOW)));
    let useful: u64 = order.iter().map(|span| span.len()).sum();
    (
        kernel.seconds / ours.seconds,
        ours.fetched / kernel.fetched,
        ours.fetched / useful as f64,
    )
}

const BYTES: u64 = RECORDS * SLOT + (1 << 20);

fn record(nth: u64) -> Span {
    let from = (1 << 20) + nth * SLOT + 16;
    Span {
        from,
        to: from + RECORD,
    }
}

/// Reproducible numbers.
fn dice(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

fn shuffled(count: usize, of: u64) -> Vec<u64> {
    let (mut all, mut dice): (Vec<u64>, _) = ((0..of).collect(), dice(3));
    for at in 0..count {
        let other = at + dice() as usize % (all.len() - at);
        all.swap(at, other);
    }
    all.truncate(count);
    all
}

/// Each read after a look at the tree, which lies between the records.
fn with_tree(records: impl Iterator<Item = u64>) -> Vec<Span> {
    let leaf = |nth: u64| {
        let from = (1 << 20) + nth / 150 * 150 * SLOT;
        Span { from, to: from + 16 }
    };
    records
        .flat_map(|nth| [Span { from: 0, to: 1 }, leaf(nth), record(nth)])
        .collect()
}

#[test]
fn a_file_that_is_read_on_is_there_before_it_is_touched() {
    let (faster, _, fetched) = compare(BYTES, &with_tree(0..RECORDS));
    assert!(faster >= 8.0, "{faster}");
    assert!(fetched <= 1.05, "{fetched}");
}

#[test]
fn every_eighth_record_is_fetched_and_little_besides() {
    let (faster, _, fetched) = compare(BYTES, &with_tree((0..RECORDS).step_by(8)));
    assert!(faster >= 5.0, "{faster}");
    assert!(fetched <= 2.3, "{fetched}");
}

#[test]
fn strides_of_other_lengths_and_downwards_are_followed() {
    for (every, least) in [(3, 2.0), (5, 3.0), (16, 4.0), (31, 3.0)] {
        let (faster, _, fetched) = compare(BYTES, &with_tree((0..RECORDS).step_by(every)));
        assert!(faster >= least && fetched <= 2.3, "every {every}: {faster}, {fetched}");
    }
    let (faster, _, fetched) = compare(BYTES, &with_tree((0..RECORDS).rev().step_by(8)));
    assert!(faster >= 1.0 && fetched <= 2.7, "{faster}, {fetched}");
}

#[test]
fn every_second_record_is_fetched_with_what_lies_between() {
    let (faster, _, fetched) = compare(BYTES, &with_tree((0..RECORDS).step_by(2)));
    assert!(faster >= 4.0 && fetched <= 2.3, "{faster}, {fetched}");
    for kilobytes in [96, 150, 200, 260, 333, 500] {
        let slot = (kilobytes << 10) + PAGE;
        let order: Vec<Span> = (0..2000)
            .map(|nth| Span {
                from: nth * 2 * slot,
                to: nth * 2 * slot + (kilobytes << 10),
            })
            .collect();
        let (faster, _, fetched) = compare(4000 * slot, &order);
        assert!(faster >= 3.0 && fetched <= 2.6, "{kilobytes} KB: {faster}, {fetched}");
    }
}

#[test]
fn processes_that_share_out_a_file_in_turn_fetch_it_once_and_ahead() {
    for (processes, least) in [(2, 4.0), (4, 4.0)] {
        let mine = |first: u64| with_tree((first..RECORDS).step_by(processes as usize));
        let orders: Vec<Vec<Span>> = (0..processes).map(mine).collect();
        let (kernel, ours) = (run(BYTES, &orders, None), run(BYTES, &orders, Some(WINDOW)));
        assert!(ours.fetched <= 1.05 * BYTES as f64, "{processes}: {ours:?}");
        assert!(
            kernel.seconds / ours.seconds >= least,
            "{processes}: {kernel:?} {ours:?}"
        );
    }
}

#[test]
fn an_order_that_nobody_can_guess_costs_nothing() {
    let (faster, fetched, _) = compare(BYTES, &with_tree(shuffled(250, RECORDS).into_iter()));
    assert!(faster >= 0.99, "{faster}");
    assert!(fetched <= 1.15, "{fetched}");
}

#[test]
fn long_records_in_random_order_are_read_on_until_that_was_in_vain() {
    for kilobytes in [600, 1000, 3000, 9000] {
        let slot = kilobytes << 10;
        let order: Vec<Span> = shuffled(400, 2000)
            .into_iter()
            .map(|nth| Span {
                from: nth * slot,
                to: (nth + 1) * slot,
            })
            .collect();
        let bytes = 2000 * slot;
        let (faster, fetched, _) = compare(bytes, &order);
        assert!(faster >= 0.99, "{kilobytes} KB: {faster}");
        assert!(fetched <= 1.3, "{kilobytes} KB: {fetched}");
        let tally = run(bytes, &[order], Some(WINDOW)).tally;
        let most = 8 * GRACE + tally.touched_bytes / 4;
        assert!(tally.vain_bytes <= most, "{kilobytes} KB: {tally:?}");
    }
}

#[test]
fn two_streams_are_both_read_ahead() {
    let half = RECORDS / 2;
    let order: Vec<Span> = (0..half).flat_map(|nth| [record(nth), record(half + nth)]).collect();
    let (faster, _, fetched) = compare(BYTES, &order);
    assert!(faster >= 5.0 && fetched <= 1.1, "{faster}, {fetched}");
}

#[test]
fn threads_that_share_one_part_fetch_nothing_twice_and_lose_nothing() {
    // Pieces of 1 MiB, four at a time, each read by 64 KiB in turn.
    let piece = 1 << 20;
    let order: Vec<Span> = (0..150)
        .flat_map(|group| {
            (0..16).flat_map(move |step| (0..4).map(move |thread| (group * 4 + thread) * piece + step * GRANULE))
        })
        .map(|from| Span {
            from,
            to: from + GRANULE,
        })
        .collect();
    let (faster, _, fetched) = compare(600 << 20, &order);
    assert!(faster >= 1.0 && fetched <= 1.05, "{faster}, {fetched}");
}

#[test]
fn what_is_read_from_memory_is_not_asked_for() {
    let mut detector = Detector::new(1 << 40, GRANULE, WINDOW);
    let mut asked = [0, 0];
    for (turn, mebibytes) in [40_u64, 2].into_iter().enumerate() {
        for nth in 0..50 {
            let from = ((turn as u64 * 50 * 40) + nth * mebibytes) << 20;
            detector.touched(Span {
                from,
                to: from + (mebibytes << 20),
            });
            detector.looked(Duration::from_millis(5));
            asked[turn] += std::iter::from_fn(|| detector.next(BUDGET)).count();
        }
    }
    assert_eq!(asked[0], 0, "8 GB/s");
    assert!(asked[1] >= 25, "0.4 GB/s, right behind that: {asked:?}");
}

#[test]
fn two_threads_that_share_out_each_tensor_are_read_ahead() {
    // Each of 40 MiB is halved; a store that is busy with one half is no reason to doubt the other.
    let (tensor, step) = (40 << 20, 128 << 10);
    let order: Vec<Span> = (0..15)
        .flat_map(|nth| {
            (0..tensor / 2 / step).flat_map(move |at| [0, tensor / 2].map(|half| nth * tensor + half + at * step))
        })
        .map(|from| Span { from, to: from + step })
        .collect();
    let bytes = 15 * tensor;
    let ours = run(bytes, &[order], Some(WINDOW));
    assert!(ours.fetched <= 1.05 * bytes as f64, "{ours:?}");
    assert!(ours.tally.vain_bytes < 8 << 20, "{ours:?}");
    let bare = bytes as f64 * BYTE_PS as f64 / 1e12;
    assert!(bare / ours.seconds > 0.4, "{bare} {ours:?}");
}

#[test]
fn a_part_proves_something_before_it_is_read_on() {
    for (kibibytes, is_asked) in [(192, false), (448, false), (512, true)] {
        let mut detector = Detector::new(1 << 30, GRANULE, WINDOW);
        detector.touched(Span {
            from: 1 << 20,
            to: (1 << 20) + (kibibytes << 10),
        });
        assert_eq!(detector.next(BUDGET).is_some(), is_asked, "{kibibytes} KiB");
    }
}

#[test]
fn a_footer_that_is_touched_again_and_again_resets_nothing() {
    let bytes = 1 << 30;
    let footer = Span {
        from: bytes - GRANULE,
        to: bytes,
    };
    let mut detector = Detector::new(bytes, GRANULE, WINDOW);
    let mut reached = 0;
    for batch in 0..200 {
        detector.touched(Span {
            from: batch << 20,
            to: (batch + 1) << 20,
        });
        detector.touched(footer);
        detector.looked(Duration::from_millis(5));
        while let Some(span) = detector.next(BUDGET) {
            assert!(span.from >= reached, "nothing is fetched twice");
            reached = span.to;
        }
        if batch > 40 {
            assert!(reached >= ((batch + 1) << 20) + (3 << 20), "{batch}: {reached}");
        }
    }
    assert!(detector.tally().vain_bytes == 0);
}

#[test]
fn a_second_pass_is_read_ahead_as_the_first_was() {
    let bytes = 100 << 20;
    let mut detector = Detector::new(bytes, GRANULE, WINDOW);
    for pass in 1..=3 {
        for nth in 0..100 {
            detector.touched(Span {
                from: nth << 20,
                to: (nth + 1) << 20,
            });
            while detector.next(BUDGET).is_some() {}
        }
        assert_eq!(detector.tally().used_bytes, pass * (bytes - (1 << 20)));
    }
}

#[test]
fn backwards_is_read_ahead_too() {
    let (faster, fetched, _) = compare(BYTES, &(0..RECORDS).rev().map(record).collect::<Vec<_>>());
    assert!(faster >= 2.0 && fetched <= 1.05, "{faster}, {fetched}");
    let pages: Vec<Span> = (0..20_000)
        .rev()
        .map(|page| Span {
            from: page * PAGE,
            to: (page + 1) * PAGE,
        })
        .collect();
    let (faster, fetched, _) = compare(BYTES, &pages);
    assert!(faster >= 5.0 && fetched <= 1.05, "{faster}, {fetched}");
}

#[test]
fn large_copies_that_begin_at_their_ends_are_one_after_the_other() {
    let tensor = 20 << 20;
    let pages = |nth: u64| (0..tensor / PAGE).rev().map(move |page| nth * tensor + page * PAGE);
    let order: Vec<Span> = (0..20)
        .flat_map(pages)
        .map(|from| Span { from, to: from + PAGE })
        .collect();
    let (faster, fetched, _) = compare(20 * tensor, &order);
    assert!(faster >= 4.0 && fetched <= 1.05, "{faster}, {fetched}");
}

#[test]
fn four_processes_fetch_a_file_once() {
    let orders = vec![(0..RECORDS).map(record).collect::<Vec<_>>(); 4];
    let (kernel, ours) = (run(BYTES, &orders, None), run(BYTES, &orders, Some(WINDOW)));
    assert!(ours.fetched <= 1.05 * BYTES as f64, "{ours:?}");
    assert!(kernel.seconds / ours.seconds >= 8.0, "{kernel:?} {ours:?}");
}

#[test]
fn nothing_is_fetched_with_no_window() {
    let orders = [with_tree(0..200)];
    let (kernel, ours) = (run(BYTES, &orders, None), run(BYTES, &orders, Some(0)));
    assert_eq!(kernel.fetched, ours.fetched);
    assert_eq!((ours.tally.asked_bytes, ours.tally.streams), (0, 0));
    assert!(ours.tally.touched_bytes > 0, "and yet it is followed");
}

#[test]
fn what_was_left_is_given_up_and_counts() {
    let mut detector = Detector::new(1 << 40, GRANULE, WINDOW);
    detector.touched(Span { from: 0, to: 8 << 20 });
    while detector.next(BUDGET).is_some() {}
    assert_eq!(detector.outstanding_bytes(), 4 << 20);
    for nth in 0..200 {
        let from = (1 << 30) + nth * nth * 10_000_000;
        detector.touched(Span {
            from,
            to: from + (1 << 20),
        });
    }
    while detector.next(BUDGET).is_some() {}
    assert!(detector.tally().vain_bytes >= 4 << 20, "{:?}", detector.tally());
}

#[test]
fn a_small_budget_is_kept() {
    let mut detector = Detector::new(1 << 30, GRANULE, WINDOW);
    for nth in 0..100 {
        detector.touched(Span {
            from: nth << 20,
            to: (nth + 1) << 20,
        });
        while detector.next(3 << 20).is_some() {}
        assert!(detector.outstanding_bytes() <= 3 << 20);
    }
    assert!(detector.tally().used_bytes > 90 << 20);
}

proptest! {
    #[test]
    fn proptest_whatever_is_touched_what_is_asked_for_is_in_the_file_and_within_the_budget(
        bytes in prop_oneof![1_u64..1 << 34, Just(u64::MAX)],
        window in prop_oneof![Just(0_u64), 1_u64..1 << 28, Just(u64::MAX)],
        budget in prop_oneof![0_u64..1 << 29, Just(u64::MAX)],
        granule in prop_oneof![Just(0_u64), Just(GRANULE), 1_u64..1 << 21],
        touches in proptest::collection::vec((any::<u64>(), 0_u64..1 << 24, any::<bool>()), 1..200),
    ) {
        let mut detector = Detector::new(bytes, granule, window);
        let mut at = 0_u64;
        for (from, len, goes_on) in touches {
            let from = if goes_on { at } else { from % bytes.saturating_mul(2).max(1) };
            at = from.saturating_add(len);
            detector.touched(Span { from, to: at });
            let mut asked = 0;
            while let Some(span) = detector.next(budget) {
                prop_assert!(!span.is_empty() && span.to <= bytes, "{span:?}");
                prop_assert!(detector.outstanding_bytes() <= budget);
                asked += 1;
                prop_assert!(asked < 10_000, "it ends");
            }
            for stream in 0..STREAMS {
                for span in detector.watch(stream).into_iter().flatten() {
                    prop_assert!(span.to <= bytes);
                }
            }
        }
    }
}
