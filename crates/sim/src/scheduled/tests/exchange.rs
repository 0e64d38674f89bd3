//! The fast model against the schedulers of nodes that exchange samples, on random scenarios.
//!
//! Bars: bytes of the source and between nodes within three per cent of the data set's in each epoch, requests within five per cent, time within ten. `FORELOAD_SCENARIOS=200`
//! runs all of them and prints what each came to.

use super::agreement::with_drawn;
use super::*;
use crate::Random;

/// A random cluster of two to six nodes, which hold a tenth to one and a half times the data set together; whether samples lie in shards.
fn drawn(seed: u64) -> (Vec<String>, bool) {
    let mut random = Random::new(0xc1a5 + seed);
    let mut uniform = || random.uniform();
    // From `least` to `most`, as likely in each octave.
    let mut between = |least: f64, most: f64| least * (most / least).powf(uniform());
    let nodes = between(2.0, 6.99).floor();
    let shards = between(1.0, 4.0) < 2.0;
    let mean_mb = between(if shards { 0.02 } else { 0.005 }, if shards { 0.5 } else { 2.0 });
    let samples = between(1000.0, 8000.0).floor();
    let batch = nodes * between(1.0, (samples / nodes / 8.0).min(32.0)).floor();
    let total_mb = mean_mb * samples;
    let staging_mb = batch / nodes * mean_mb * between(8.0, 60.0) + 8.0 * mean_mb + if shards { 32.0 } else { 0.0 };
    let held_mb = between(0.1, 1.5) * total_mb / nodes;
    let in_ram = if between(1.0, 4.0) < 2.0 {
        1.0
    } else {
        between(0.05, 0.9)
    };
    let source_mb_s = between(20.0, 2000.0);
    let latency_s = if between(1.0, 4.0) < 2.0 {
        0.0
    } else {
        between(0.002, 0.1)
    };
    let spread = if between(1.0, 4.0) < 2.0 {
        0.0
    } else {
        between(0.1, 0.6)
    };
    let set = vec![
        format!("dataset.seed={seed}"),
        format!("training.seed={seed}"),
        format!("dataset.samples={samples}"),
        format!("dataset.mean_mb={mean_mb}"),
        format!("dataset.std_mb={}", mean_mb * spread),
        format!("training.epochs={}", between(2.0, 4.99).floor()),
        format!("training.global_batch={batch}"),
        format!("cluster.nodes={nodes}"),
        format!("cluster.compute_mb_s={}", between(20.0, 2000.0)),
        format!("cluster.preprocess_mb_s={}", between(200.0, 5000.0)),
        format!("cluster.network_mb_s={}", between(30.0, 3000.0)),
        format!(
            "source.throughput_mb_s={{1={source_mb_s},6={}}}",
            source_mb_s * between(1.0, 6.0)
        ),
        format!("source.latency_s={latency_s}"),
        format!("source.latency_sigma={}", between(1.0, 1.5) - 1.0),
        format!("source.requests_in_flight={}", between(4.0, 256.0).floor()),
        format!("source.connection_mb_s={}", between(5.0, 500.0)),
        format!("tier.staging.capacity_mb={staging_mb}"),
        format!("tier.ram.capacity_mb={}", in_ram * held_mb),
        format!("tier.disk.capacity_mb={}", (1.0 - in_ram) * held_mb),
        format!("tier.disk.read_mb_s={}", between(100.0, 3000.0)),
        format!("tier.disk.write_mb_s={}", between(100.0, 2000.0)),
    ];
    (set, shards)
}

/// How far the fast model is from the schedulers: requests and time as shares of theirs, bytes of the source and of peers as shares of what all epochs read.
fn gaps(seed: u64) -> ([f64; 4], String) {
    let scenario = drawn(seed);
    let mut found = None;
    with_drawn(SMALL, &scenario, |setup| {
        let driven = run(setup, Policy::Foreload, false).expect("runs").outcome;
        assert!(driven.supported, "{seed}: {:?}", driven.reason);
        let fast = foreload::run(setup).expect("runs");
        let read_mb = setup.sizes.total_mb * f64::from(setup.access.epochs());
        let gaps = [
            fast.requests as f64 / driven.requests as f64 - 1.0,
            (fast.mb_by_source.source - driven.mb_by_source.source) / read_mb,
            (fast.mb_by_source.peer - driven.mb_by_source.peer) / read_mb,
            fast.hours / driven.hours - 1.0,
        ];
        let say = |outcome: &Outcome| {
            let seconds: Vec<f64> = outcome.epoch_hours.iter().map(|h| h * 3600.0).collect();
            format!("{:.0?} {seconds:.3?} {}", outcome.mb_by_source, outcome.requests)
        };
        let what = format!(
            "driven {}\n     fast   {}\n     {}",
            say(&driven),
            say(&fast),
            scenario.0.join(" ")
        );
        found = Some((gaps, what));
    });
    found.expect("was run")
}

#[test]
fn nodes_whose_blocks_find_no_whole_room_for_others_do_not_make_them_wait_until_their_patience_ends() {
    let scenario = drawn(165);
    assert!(scenario.1);
    with_drawn(SMALL, &scenario, |setup| {
        let outcome = run(setup, Policy::Foreload, false).expect("runs").outcome;
        // The network has 466 MB of others' to bring in two epochs; with a patience of 2 s for each sample that was stuck it took 84 s.
        let seconds = outcome.hours * 3600.0;
        assert!(seconds < 20.0, "{seconds} s");
    });
}

/// Of the first so many scenarios, those within the bars: requests, bytes of the source, bytes of peers, time, and all four.
///
/// What is not: blocks of a shard for which memory is torn, or that a disk holds in part; nodes that drift apart, where who is late by a little decides much; and runs of a
/// second. Before homes were the engine's, 1 of the first 60 met all.
const REACHED: [(u64, [u64; 5]); 2] = [(24, [21, 21, 22, 24, 21]), (200, [191, 190, 192, 193, 184])];

#[test]
fn the_fast_model_stays_close_to_schedulers_that_exchange_samples() {
    let all = std::env::var("FORELOAD_SCENARIOS").ok().and_then(|n| n.parse().ok());
    let count = all.unwrap_or(REACHED[0].0);
    let mut within = [0; 5];
    for seed in 0..count {
        let (gaps, what) = gaps(seed);
        let near: Vec<bool> = gaps
            .iter()
            .zip([0.05, 0.03, 0.03, 0.10])
            .map(|(gap, bar)| gap.abs() <= bar)
            .collect();
        let met = near.iter().all(|near| *near);
        for (within, met) in within.iter_mut().zip(near.iter().chain([&met])) {
            *within += u64::from(*met);
        }
        if all.is_some() && !met {
            let kind = if drawn(seed).1 { "shards" } else { "objects" };
            let [requests, source, peers, time] = gaps;
            println!(
                "{seed:>3} {kind} requests {requests:+.3} source {source:+.3} peers {peers:+.3} time {time:+.3} {what}"
            );
        }
    }
    println!("of {count}: requests, source, peers, time, all: {within:?}");
    for (_, reached) in REACHED.iter().filter(|(scenarios, _)| *scenarios == count) {
        let fell = within.iter().zip(reached).any(|(within, reached)| within < reached);
        assert!(!fell, "{within:?} of {count} are within the bars, and {reached:?} were");
    }
}
