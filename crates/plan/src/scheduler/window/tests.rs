use super::*;
use crate::DigestBuilder;
use crate::spec::{OrderKind, OrderSpec, Tail};

/// A job over `samples` samples, read in order in global batches of four by two ranks, both on this node.
fn reader(job: u32, samples: u64) -> Reader {
    of_kind(job, samples, OrderKind::Sequential)
}

fn of_kind(job: u32, samples: u64, kind: OrderKind) -> Reader {
    let order = Order::new(&OrderSpec {
        dataset: DigestBuilder::new("test").finish(),
        samples,
        kind,
        seed: 7,
        global_batch: 4,
        tail: Tail::Uneven,
    });
    let order = order.expect("an order");
    Reader {
        job,
        split: Split::weighted(&order, 2).expect("a split"),
        order,
        deal: None,
        ranking: None,
        dealt: VecDeque::new(),
        ranks: vec![0, 1],
        places: Vec::new(),
        epochs: None,
        known: Vec::new(),
        sets: vec![(0, 0)],
        samples,
        ram_bytes: 100,
        mean_bytes: 10,
        batch_bytes: 40,
        largest: Some(Largest {
            sample_bytes: 20 - u64::from(job),
            batch_bytes: 30 + u64::from(job),
        }),
        supplied: None,
        ahead: 0,
        chunk_left: 0,
        left: false,
    }
}

/// The windows of one such job; the places of its ranks are 0 and 1.
fn windows(samples: u64) -> Windows {
    with(reader(0, samples))
}

fn with(reader: Reader) -> Windows {
    let mut windows = Windows::default();
    windows.join(reader);
    windows
}

fn samples(windows: &Windows, place: usize, step: u64) -> Vec<u64> {
    let line = windows.peek(windows.line_at(place, step)).expect("laid out");
    line.entries.iter().map(|it| it.sample).collect()
}

/// Ends all reads of a line.
fn end_line(windows: &mut Windows, place: usize, step: u64) {
    let line = windows.line_at(place, step);
    let count = windows.peek(line).expect("laid out").entries.len();
    (0..count).for_each(|entry| windows.close(line, entry));
    windows.advance(place);
}

/// Plans a read, as the scheduler does.
fn plan(windows: &mut Windows, place: usize, step: u64, entry: usize) {
    let line = windows.line_at(place, step);
    windows.line(line).expect("laid out").entries[entry].read = Read::Planned;
    windows.count_ahead(place, true);
    windows.of_mut(place).frontier = (step, entry + 1);
}

fn supplied() -> Reader {
    of_kind(0, 8, OrderKind::Supplied { length: 8 })
}

fn list(reader: &Reader, epoch: u32, first: u64) -> Listed {
    let samples: Vec<u64> = (0..8).map(|at| (first + at) % 8).collect();
    reader
        .order
        .expects(epoch)
        .expect("it is supplied")
        .list(&samples)
        .expect("a list")
}

/// Of the first epochs, those whose lists a job holds.
fn known(windows: &Windows) -> Vec<u32> {
    let order = &windows.reader(0).expect("joined").order;
    (0..8).filter(|&epoch| order.knows(epoch)).collect()
}

#[test]
fn ranks_share_each_batch_and_a_short_last_one_too() {
    let mut windows = windows(9);
    for place in [0, 1] {
        windows.begin(place, 0);
        assert!(windows.reach(place, 3));
        assert_eq!((windows.of(place).head(), windows.of(place).end()), (0, 4));
    }
    let lines = |place| [0, 1, 2, 3].map(|step| samples(&windows, place, step));
    assert_eq!(lines(0), [vec![0, 2], vec![4, 6], vec![8], vec![0, 2]]);
    // Nothing is left for the second rank in the last batch: it gets a filler.
    assert_eq!(lines(1), [vec![1, 3], vec![5, 7], vec![8], vec![1, 3]]);
    assert_eq!([0, 1].map(|place| windows.of(place).open), [7, 7]);
}

#[test]
fn steps_go_on_from_one_epoch_to_the_next() {
    let reader = reader(0, 9);
    for step in 0..12 {
        let (epoch, batch) = reader.batch_of(step);
        assert_eq!((u64::from(epoch), batch), (step / 3, step % 3));
        assert_eq!(reader.step_of(epoch, batch), Some(step));
    }
    assert_eq!(reader.step_of(0, 3), None, "an epoch has three batches");
}

#[test]
fn nothing_is_laid_out_beyond_the_last_epoch_of_the_run() {
    let mut windows = with(Reader {
        epochs: Some(1),
        ..reader(0, 9)
    });
    windows.begin(0, 0);
    assert!(windows.reach(0, 2) && !windows.reach(0, 3));
    assert_eq!(windows.of(0).end(), 3);
    assert!(windows.epoch(0, 0).is_some() && windows.epoch(0, 1).is_none());
}

#[test]
fn a_line_is_found_by_its_name_and_names_are_in_the_order_of_steps() {
    let windows = windows(9);
    let names = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(place, step)| windows.line_at(place, step));
    assert!(names.is_sorted());
    for (place, step) in [(0, 0), (1, 7), (MOST_PLACES - 1, 1 << 40)] {
        assert_eq!(windows.parts(windows.line_at(place, step)), (step, place));
    }
}

#[test]
fn a_position_is_found_where_it_is_laid_out_and_by_nobody_else() {
    for count in 5..=12 {
        let mut windows = windows(count);
        for place in [0, 1] {
            windows.begin(place, 0);
            assert!(windows.reach(place, 8));
        }
        let steps = windows.reader(0).expect("joined").split.batches();
        for position in 0..count {
            for place in [0, 1] {
                let rows = |step| samples(&windows, place, step).into_iter().enumerate();
                let mut laid = (0..steps).flat_map(|step| rows(step).map(move |(row, sample)| (step, row, sample)));
                // In this order a position is the number of its sample.
                let laid = laid.find(|&(.., sample)| sample == position);
                let found = windows.find(place, 0, position);
                assert_eq!(found, laid.map(|(step, row, _)| (step, row)), "{position} of {count}");
                let later = windows.find(place, 2, position);
                assert_eq!(later, found.map(|(step, row)| (step + 2 * steps, row)));
            }
        }
        assert_eq!(windows.find(0, 0, count), None, "beyond the epoch");
    }
}

#[test]
fn a_position_that_was_dealt_is_found_where_it_is_laid_out_and_where_it_will_be() {
    for count in 5..=12 {
        let dealt = || {
            with(Reader {
                deal: Some(Deal::new(vec![71, 5], 0)),
                ..reader(0, count)
            })
        };
        // One knows all its lines, the other one none.
        let (mut laid, mut blank) = (dealt(), dealt());
        for place in [0, 1] {
            laid.begin(place, 0);
            blank.begin(place, 0);
            assert!(laid.reach(place, 8));
        }
        let steps = laid.reader(0).expect("joined").split.batches();
        for position in 0..count {
            let mut times = 0;
            for place in [0, 1] {
                let rows = |step| samples(&laid, place, step).into_iter().enumerate();
                let mut all = (0..steps).flat_map(|step| rows(step).map(move |(row, sample)| (step, row, sample)));
                let expected = all
                    .find(|&(.., sample)| sample == position)
                    .map(|(step, row, _)| (step, row));
                times += usize::from(expected.is_some());
                assert_eq!(laid.find(place, 0, position), expected, "{position} of {count}");
                assert_eq!(blank.find(place, 0, position), expected, "{position} of {count}");
            }
            // Once, but for the filler of a batch of one sample.
            assert!((1..=2).contains(&times), "{position} of {count} is read {times} times");
        }
        assert_eq!(laid.find(0, 0, count), None, "beyond the epoch");
    }
}

#[test]
fn a_deal_follows_the_list_that_an_epoch_has_now() {
    let deal = Deal::new(vec![71, 5], 0);
    let mut windows = with(Reader {
        deal: Some(deal.clone()),
        ..supplied()
    });
    let mut read = |first: u64| {
        for (epoch, first) in [(4, 0), (0, first)] {
            // A later epoch's list lets those before it go.
            let told = list(windows.reader(0).expect("joined"), epoch, first);
            windows.supply(0, epoch, told).expect("a list");
        }
        let split = windows.reader(0).expect("joined").split.clone();
        let order = windows.epoch(0, 0).expect("supplied");
        let dealt = deal.batch(&split, order, 0);
        let of = |rank| {
            dealt
                .of(rank)
                .iter()
                .map(|&position| order.sample_at(position))
                .collect()
        };
        let expected: [Vec<u64>; 2] = [0, 1].map(of);
        for place in [0, 1] {
            windows.begin(place, 0);
            assert!(windows.reach(place, 0));
            assert_eq!(samples(&windows, place, 0), expected[place], "{first}");
            end_line(&mut windows, place, 0);
            windows.end(place);
        }
        dealt
    };
    let first = read(0);
    assert!(
        (1..8).any(|from| read(from) != first),
        "what a list holds decides who reads which position"
    );
}

#[test]
fn a_sample_that_an_epoch_repeats_has_an_entry_for_each_read() {
    let list = [2, 2, 0, 1, 2, 0, 0, 0];
    let mut windows = with(of_kind(
        0,
        3,
        OrderKind::Explicit {
            list: list.to_vec().into(),
        },
    ));
    windows.begin(0, 0);
    assert!(windows.reach(0, 1));
    assert_eq!([0, 1].map(|step| samples(&windows, 0, step)), [vec![2, 0], vec![2, 0]]);
    let line = windows.line_at(0, 0);
    windows.close(line, 0);
    let reads = |step| windows.peek(windows.line_at(0, step)).expect("there").entries[0].read;
    assert_eq!([reads(0), reads(1)], [Read::Over, Read::Unplanned]);
}

#[test]
fn a_line_leaves_when_all_before_it_are_over_too() {
    let mut windows = windows(12);
    windows.begin(0, 0);
    assert!(windows.reach(0, 2));
    end_line(&mut windows, 0, 1);
    assert_eq!((windows.of(0).head(), windows.of(0).end()), (0, 3));
    let first = windows.line_at(0, 0);
    windows.close(first, 0);
    windows.advance(0);
    assert_eq!(windows.of(0).head(), 0, "one read of the first line is left");
    windows.close(first, 1);
    windows.advance(0);
    assert_eq!((windows.of(0).head(), windows.of(0).end()), (2, 3));
    assert_eq!(samples(&windows, 0, 2), [8, 10]);
    assert!(windows.peek(first).is_none());
}

#[test]
fn a_read_is_over_once_and_then_counts_no_more() {
    let mut windows = windows(12);
    windows.begin(0, 0);
    assert!(windows.reach(0, 0));
    plan(&mut windows, 0, 0, 0);
    let line = windows.line_at(0, 0);
    windows.line(line).expect("there").entries[0].waiter = 5;
    assert_eq!((windows.ahead, windows.reader(0).map(|it| it.ahead)), (1, Some(1)));
    for _ in 0..2 {
        windows.close(line, 0);
        assert_eq!((windows.ahead, windows.reader(0).map(|it| it.ahead)), (0, Some(0)));
        assert_eq!(windows.of(0).open, 1);
    }
    let it = windows.peek(line).expect("there").entries[0];
    assert_eq!((it.resident, it.waiter), (NONE, 0));
}

#[test]
fn planning_goes_on_at_the_head_where_consumption_has_overtaken_it() {
    let mut windows = windows(12);
    windows.begin(0, 0);
    assert!(windows.reach(0, 2));
    end_line(&mut windows, 0, 0);
    assert_eq!(windows.of(0).frontier, (1, 0));
    windows.of_mut(0).frontier = (2, 1);
    end_line(&mut windows, 0, 1);
    assert_eq!(windows.of(0).frontier, (2, 1), "it is ahead already");
    assert_eq!(windows.of(0).lead(), 0);
}

#[test]
fn only_a_last_line_without_plans_and_waiters_is_taken_back() {
    let mut windows = windows(12);
    windows.begin(0, 0);
    assert!(!windows.retract(0), "there is none");
    assert!(windows.reach(0, 2));
    plan(&mut windows, 0, 1, 1);
    windows.of_mut(0).frontier = (2, 1);
    assert!(windows.retract(0));
    assert_eq!((windows.of(0).end(), windows.of(0).open), (2, 4));
    assert_eq!(windows.of(0).frontier, (2, 0), "the line's rest is planned anew");
    assert!(!windows.retract(0), "a read of the last one is planned");
    let line = windows.line_at(0, 1);
    windows.close(line, 1);
    assert!(!windows.retract(0), "a read of the last one is over");
    assert!(windows.reach(0, 2));
    let line = windows.line_at(0, 2);
    windows.line(line).expect("there").entries[0].waiter = 5;
    assert!(!windows.retract(0), "somebody waits for a read of the last one");
    assert_eq!(windows.of(0).end(), 3);
    assert_eq!(samples(&windows, 0, 2), [8, 10]);
}

#[test]
fn a_rank_that_starts_again_reads_the_same_again_and_the_other_goes_on() {
    let mut windows = windows(12);
    for place in [0, 1] {
        windows.begin(place, 0);
        assert!(windows.reach(place, 2));
    }
    for step in 0..3 {
        end_line(&mut windows, 0, step);
    }
    windows.end(0);
    assert!(!windows.has_started(0) && windows.has_started(1));
    windows.begin(0, 1);
    assert!(windows.has_started(0) && windows.reach(0, 2));
    assert_eq!((windows.of(0).head(), windows.of(0).newest), (1, 1));
    assert_eq!((windows.of(0).frontier, windows.of(0).open), ((1, 0), 4));
    assert_eq!([1, 2].map(|step| samples(&windows, 0, step)), [vec![4, 6], vec![8, 10]]);
    assert_eq!((windows.of(1).head(), windows.of(1).end()), (0, 3));
}

#[test]
fn it_is_told_whether_something_was_read_from_a_step_on() {
    let mut windows = windows(12);
    windows.begin(0, 0);
    assert!(windows.reach(0, 2));
    assert!(!windows.of(0).is_over_from(0));
    let line = windows.line_at(0, 1);
    windows.close(line, 0);
    let over = |windows: &Windows| [0, 1, 2].map(|step| windows.of(0).is_over_from(step));
    assert_eq!(over(&windows), [true, true, false]);
    end_line(&mut windows, 0, 0);
    assert_eq!(over(&windows), [true, true, false], "steps keep their numbers");
}

#[test]
fn the_place_of_a_job_that_is_gone_goes_to_the_next_one_and_is_closed() {
    let mut windows = windows(8);
    windows.join(Reader {
        ranks: vec![1],
        ..reader(5, 12)
    });
    assert_eq!(windows.place_of(5, 1), Some(2));
    assert_eq!(windows.place_of(5, 0), None, "that rank is of another node");
    windows.begin(0, 4);
    windows.end(0);
    windows.part(0);
    assert_eq!((windows.place_of(0, 0), windows.job_at(0)), (None, u32::MAX));
    assert!(windows.reader_at(0).is_none() && !windows.reach(0, 0));
    assert_eq!(windows.reader_at(2).map(|it| (it.job, it.samples)), Some((5, 12)));
    windows.join(reader(9, 20));
    assert_eq!([0, 1].map(|rank| windows.place_of(9, rank)), [Some(0), Some(1)]);
    assert!(!windows.has_started(0) && windows.of(0).head() == 0);
    let of = |place| windows.reader_at(place).map(|it| (it.job, it.samples));
    assert_eq!([0, 1, 2].map(of), [Some((9, 20)), Some((9, 20)), Some((5, 12))]);
    assert_eq!(windows.places(), 0..3);
}

#[test]
fn a_node_has_so_many_places_and_those_that_are_free_count() {
    let mut windows = windows(8);
    assert!(windows.check_room(MOST_PLACES - 2).is_ok());
    let refused = windows.check_room(MOST_PLACES - 1);
    assert!(matches!(refused, Err(Error::TooManyRanks { .. })));
    windows.part(0);
    assert!(windows.check_room(MOST_PLACES).is_ok());
}

#[test]
fn memory_is_what_jobs_bring_that_somebody_reads_for() {
    let mut windows = windows(8);
    windows.join(reader(1, 8));
    assert_eq!((windows.ram_bytes(), windows.batch_bytes()), (200, 80));
    let largest = windows.largest().expect("known");
    assert_eq!((largest.sample_bytes, largest.batch_bytes), (20, 31));
    windows.reader_mut(1).expect("joined").left = true;
    assert_eq!((windows.ram_bytes(), windows.batch_bytes()), (100, 80));
    windows.reader_mut(0).expect("joined").ram_bytes = u64::MAX;
    windows.reader_mut(1).expect("joined").left = false;
    assert_eq!(windows.ram_bytes(), u64::MAX);
    windows.reader_mut(1).expect("joined").largest = None;
    assert_eq!(windows.largest(), None);
}

#[test]
fn a_job_numbers_its_data_sets_through_and_the_first_answers_for_one_that_comes_twice() {
    // Ten samples that the node has from 100 on, five from 30 on, and the ten again.
    let mut windows = with(Reader {
        sets: vec![(0, 100), (10, 30), (15, 100)],
        ..reader(0, 25)
    });
    let reader = windows.reader_mut(0).expect("joined");
    assert_eq!(
        [0, 9, 10, 14, 15, 24].map(|own| reader.on_node(own)),
        [100, 109, 30, 34, 100, 109]
    );
    let own = [100, 109, 30, 34, 110, 99, 35, 29].map(|node| reader.own(node));
    assert_eq!(own, [Some(0), Some(9), Some(10), Some(14), None, None, None, None]);
    assert!(windows.is_read(100) && windows.is_read(30) && !windows.is_read(0));
}

#[test]
fn only_ranks_that_have_started_are_apart() {
    let mut windows = windows(8);
    let spread = |windows: &Windows| windows.spread(windows.reader(0).expect("joined"));
    assert_eq!(spread(&windows), 0);
    windows.begin(0, 40);
    assert_eq!(spread(&windows), 0);
    windows.begin(1, 12);
    assert_eq!(spread(&windows), 28);
    windows.end(1);
    assert_eq!(spread(&windows), 0);
}

#[test]
fn the_time_until_a_line_is_needed_follows_from_the_pace_of_its_rank() {
    let mut windows = windows(12);
    windows.begin(0, 0);
    assert!(windows.reach(0, 2));
    let line = windows.line_at(0, 2);
    windows.of_mut(0).pace(1000);
    assert_eq!(
        (windows.steps_left(line), windows.needed_in_ns(line)),
        (2, 0.0),
        "one teaches nothing"
    );
    windows.of_mut(0).pace(1160);
    assert_eq!(windows.needed_in_ns(line), 20.0, "a sixteenth of 160, twice");
    end_line(&mut windows, 0, 0);
    assert_eq!((windows.steps_left(line), windows.needed_in_ns(line)), (1, 10.0));
    for step in [1, 2] {
        end_line(&mut windows, 0, step);
    }
    windows.end(0);
    windows.begin(0, 1);
    assert_eq!(windows.needed_in_ns(line), 10.0, "it goes on at its pace");
    windows.of_mut(0).pace(1 << 40);
    assert_eq!(windows.needed_in_ns(line), 10.0, "the pause is none of it");
}

#[test]
fn a_window_ends_where_no_list_is_supplied_and_goes_on_when_it_comes() {
    let mut windows = with(supplied());
    windows.begin(0, 0);
    assert!(!windows.reach(0, 0));
    assert_eq!(windows.of(0).end(), 0);
    let first = list(windows.reader(0).expect("joined"), 0, 3);
    windows.supply(0, 0, first.clone()).expect("taken");
    assert!(windows.reach(0, 1) && !windows.reach(0, 2));
    assert_eq!([0, 1].map(|step| samples(&windows, 0, step)), [vec![3, 5], vec![7, 1]]);
    windows.supply(0, 0, first).expect("the same again");
    let other = list(windows.reader(0).expect("joined"), 1, 0);
    assert!(windows.supply(0, 0, other.clone()).is_err(), "an epoch has one list");
    let short = of_kind(0, 4, OrderKind::Supplied { length: 4 });
    let short = short
        .order
        .expects(1)
        .and_then(|it| it.list(&[0, 1, 2, 3]))
        .expect("a list");
    assert!(windows.supply(0, 1, short).is_err(), "it has other samples");
    assert!(!windows.reach(0, 2));
    windows.supply(0, 1, other).expect("taken");
    assert!(windows.reach(0, 2));
    assert_eq!(samples(&windows, 0, 2), [0, 2]);
}

#[test]
fn the_list_of_an_epoch_stays_while_a_rank_reads_it_or_the_next_one_is_the_newest() {
    let mut windows = with(supplied());
    for place in [0, 1] {
        windows.begin(place, 0);
    }
    for epoch in 0..4 {
        let list = list(windows.reader(0).expect("joined"), epoch, u64::from(epoch));
        windows.supply(0, epoch, list).expect("taken");
    }
    // Nobody was in epoch 1 when 3 came.
    assert_eq!(known(&windows), [0, 2, 3]);
    windows.begin(0, 6);
    let fourth = list(windows.reader(0).expect("joined"), 4, 0);
    windows.supply(0, 4, fourth).expect("taken");
    assert_eq!(
        known(&windows),
        [0, 3, 4],
        "the second rank is still in the first epoch"
    );
    windows.end(1);
    let fifth = list(windows.reader(0).expect("joined"), 5, 0);
    windows.supply(0, 5, fifth).expect("taken");
    assert_eq!(known(&windows), [3, 4, 5]);
    assert!(windows.reach(0, 7) && samples(&windows, 0, 6) == [3, 5]);
}

#[test]
fn of_lists_that_are_made_here_those_go_that_nobody_is_in() {
    let mut reader = of_kind(0, 8, OrderKind::TorchDistributed);
    let lister = reader.order.lister().expect("it is listed");
    reader.order = reader.order.deferred();
    let mut windows = with(reader);
    let supply = |windows: &mut Windows, epoch| windows.supply(0, epoch, lister.list(epoch)).expect("taken");
    windows.begin(0, 0);
    windows.begin(1, 0);
    supply(&mut windows, 0);
    supply(&mut windows, 1);
    assert_eq!(known(&windows), [0, 1]);
    windows.begin(0, 4);
    supply(&mut windows, 2);
    assert_eq!(known(&windows), [0, 2]);
    assert!(windows.epoch(0, 3).is_none());
    assert_eq!(windows.reader(0).expect("joined").order.missing(), Some(3));
    windows.begin(1, 4);
    assert_eq!(known(&windows), [2]);
}

#[test]
fn before_another_list_is_made_those_go_that_nobody_is_in_but_for_the_one_that_came_last() {
    let mut reader = of_kind(0, 8, OrderKind::TorchDistributed);
    let lister = reader.order.lister().expect("it is listed");
    reader.order = reader.order.deferred();
    let mut windows = with(reader);
    [0, 1].into_iter().for_each(|place| windows.begin(place, 0));
    for epoch in [0, 5] {
        windows.supply(0, epoch, lister.list(epoch)).expect("taken");
    }
    for place in [0, 1] {
        assert!(windows.reach(place, 1));
        [0, 1].into_iter().for_each(|step| end_line(&mut windows, place, step));
    }
    assert_eq!(
        known(&windows),
        [0, 5],
        "they are in the second epoch, and nothing was made since"
    );
    assert!(!windows.reach(0, 2));
    // Somebody may be about to begin there.
    assert_eq!(known(&windows), [5]);
}

#[test]
fn orders_of_three_epochs_are_held_and_a_fourth_drives_the_first_out() {
    let mut reader = reader(0, 8);
    for epoch in 0..5 {
        assert_eq!(reader.epoch(epoch).map(EpochOrder::epoch), Some(epoch));
    }
    let held = |reader: &Reader| reader.known.iter().map(EpochOrder::epoch).collect::<Vec<_>>();
    assert_eq!(held(&reader), [2, 3, 4]);
    assert_eq!(reader.epoch(3).map(EpochOrder::epoch), Some(3));
    assert_eq!(held(&reader), [2, 3, 4]);
}
