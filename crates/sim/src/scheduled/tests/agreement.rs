//! The fast model against the scheduler, on random scenarios.
//!
//! Bars: requests and bytes of the source within one per cent, time within five. `FORELOAD_SCENARIOS=200` runs all of them and prints what
//! each came to.

use super::*;
use crate::Random;

/// A random scenario that both drives can run: nodes that exchange nothing, memory for some batches.
fn drawn(seed: u64) -> (Vec<String>, bool) {
    let mut random = Random::new(0x5eed + seed);
    let mut uniform = || random.uniform();
    // From `least` to `most`, as likely in each octave.
    let mut between = |least: f64, most: f64| least * (most / least).powf(uniform());
    let nodes = [1.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0][(between(1.0, 7.99)) as usize - 1];
    let shards = between(1.0, 4.0) < 2.0;
    let mean_mb = between(if shards { 0.02 } else { 0.005 }, if shards { 0.5 } else { 3.0 });
    let samples = between(1000.0, 20_000.0).floor();
    let batch = nodes * between(1.0, (samples / nodes / 8.0).min(32.0)).floor();
    let total_mb = mean_mb * samples;
    let staging_mb = batch / nodes * mean_mb * between(8.0, 60.0) + 8.0 * mean_mb + if shards { 32.0 } else { 0.0 };
    let kept = |share: f64| if share < 0.1 { 0.0 } else { share * total_mb };
    let (ram_mb, disk_mb) = (kept(between(0.03, 2.0)), kept(between(0.01, 2.0)));
    let source_mb_s = between(20.0, 2000.0);
    let latency_s = if between(1.0, 4.0) < 2.0 {
        0.0
    } else {
        between(0.002, 0.1)
    };
    let set = vec![
        format!("dataset.seed={seed}"),
        format!("training.seed={seed}"),
        format!("dataset.samples={samples}"),
        format!("dataset.mean_mb={mean_mb}"),
        format!("dataset.std_mb={}", mean_mb * (between(1.0, 1.6) - 1.0)),
        format!("training.epochs={}", between(1.0, 4.99).floor()),
        format!("training.global_batch={batch}"),
        format!("cluster.nodes={nodes}"),
        format!("cluster.compute_mb_s={}", between(20.0, 2000.0)),
        format!("cluster.preprocess_mb_s={}", between(200.0, 5000.0)),
        format!(
            "source.throughput_mb_s={{1={source_mb_s},16={}}}",
            source_mb_s * between(1.0, 8.0)
        ),
        format!("source.latency_s={latency_s}"),
        format!("source.latency_sigma={}", between(1.0, 1.5) - 1.0),
        format!("source.requests_in_flight={}", between(4.0, 256.0).floor()),
        format!("source.connection_mb_s={}", between(5.0, 500.0)),
        format!("tier.staging.capacity_mb={staging_mb}"),
        format!("tier.ram.capacity_mb={ram_mb}"),
        format!("tier.disk.capacity_mb={disk_mb}"),
        format!("tier.disk.read_mb_s={}", between(100.0, 3000.0)),
        format!("tier.disk.write_mb_s={}", between(100.0, 2000.0)),
    ];
    (set, shards)
}

/// Looks at a scenario that was drawn, whose samples may lie in shards.
pub(super) fn with_drawn(text: &str, (set, shards): &(Vec<String>, bool), mut look: impl FnMut(&Setup<'_>)) {
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    with_scenario(text, &set, |setup| {
        let sizes = match shards {
            true => in_shards(setup.sizes),
            false => setup.sizes.clone(),
        };
        look(&Setup {
            sizes: &sizes,
            ..*setup
        });
    });
}

/// The same samples in shards of 64 MB, with a header of 512 bytes before each.
fn in_shards(sizes: &Sizes) -> Sizes {
    let (mut object, mut at) = (0, 0);
    let place = |mb: &f32| {
        let bytes = (f64::from(*mb) * MB) as u64;
        if at > 64 << 20 {
            (object, at) = (object + 1, 0);
        }
        at += 512 + bytes;
        (object, at - bytes)
    };
    let places = Some(sizes.mb.iter().map(place).collect());
    Sizes {
        places,
        ..sizes.clone()
    }
}

/// How far the fast model is from the scheduler: requests, bytes, time.
fn gaps(seed: u64) -> ([f64; 3], String) {
    let scenario = drawn(seed);
    let mut found = None;
    let alone = SMALL.replace("network_mb_s = 10000\n", "");
    with_drawn(&alone, &scenario, |setup| {
        let driven = run(setup, Policy::Foreload, false).expect("runs").outcome;
        let fast = foreload::run(setup).expect("runs");
        let gap = |fast: f64, driven: f64| if driven == 0.0 { fast } else { fast / driven - 1.0 };
        let gaps = [
            gap(fast.requests as f64, driven.requests as f64),
            gap(fast.mb_by_source.source, driven.mb_by_source.source),
            gap(fast.hours, driven.hours),
        ];
        let what = format!(
            "driven {:?} {:.4?} {}\n     fast   {:?} {:.4?} {}\n     {}",
            driven.mb_by_source,
            driven.epoch_hours.iter().map(|h| h * 3600.0).collect::<Vec<_>>(),
            driven.requests,
            fast.mb_by_source,
            fast.epoch_hours.iter().map(|h| h * 3600.0).collect::<Vec<_>>(),
            fast.requests,
            scenario.0.join(" "),
        );
        found = Some((gaps, what));
    });
    found.expect("was run")
}

/// Of the first so many scenarios, those within the bars: requests, bytes, time, and all three.
///
/// What is not: cells of a shard that fit a tier in part, which the scheduler keeps in part and the fast model not at all; disks at the edge of what the
/// scheduler calls ill; and batches that a few nodes share unevenly, where the scheduler reads fillers.
///
/// Before memory held blocks, 19, 23, 23 and 19 of the 24 were, and 170, 187, 196 and 166 of the 200: in time fewer are now. Before a request for neighbours
/// ended at wide gaps, 20, 24, 20 and 18, and 181, 192, 191 and 174 were: in bytes fewer are now, by two that were at the edge. Before concurrency was found
/// by Little's law, 21, 24, 21 and 19, and 183, 190, 191 and 175 were: in time fewer are now, by four of which the scheduler's runs take a few per cent longer.
const REACHED: [(u64, [u64; 4]); 2] = [(24, [22, 24, 20, 19]), (200, [185, 191, 187, 174])];

#[test]
fn the_fast_model_stays_close_to_the_scheduler() {
    let all = std::env::var("FORELOAD_SCENARIOS").ok().and_then(|n| n.parse().ok());
    let count = all.unwrap_or(REACHED[0].0);
    let mut within = [0; 4];
    for seed in 0..count {
        let ([requests, bytes, time], what) = gaps(seed);
        let met = [requests.abs() <= 0.01, bytes.abs() <= 0.01, time.abs() <= 0.05];
        let met = [met[0], met[1], met[2], met == [true; 3]];
        for (within, met) in within.iter_mut().zip(met) {
            *within += u64::from(met);
        }
        if all.is_some() && !met[3] {
            let kind = if drawn(seed).1 { "shards" } else { "objects" };
            println!("{seed:>3} {kind} requests {requests:+.3} bytes {bytes:+.3} time {time:+.3} {what}");
        }
    }
    let [requests, bytes, time, met] = within;
    println!("of {count}: requests {requests}, bytes {bytes}, time {time}, all three {met}");
    for (_, reached) in REACHED.iter().filter(|(scenarios, _)| *scenarios == count) {
        let fell = within.iter().zip(reached).any(|(within, reached)| within < reached);
        assert!(!fell, "{within:?} of {count} are within the bars, and {reached:?} were");
    }
}
