//! Clients as independent actors: ranks that start, ask by batch, by name and by sample, hold what they got, give it back, start again elsewhere, leave
//! and die, on one scheduler, in any interleaving with the loads' ends and faults of the source.
//!
//! A carrier for one consumer can't see what one consumer does to another. Here the memory is modelled in grains of 64 bytes: a load that is under way
//! has scribbled over its slots, a leased grain may not be touched, and every delivered byte is compared, when it comes and when it is given
//! back. Each theme is a family of schedules; a schedule is a seed. `FORELOAD_CHAOS_SEEDS` says how many of each theme are tried.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test may hash and read the environment"
)]

mod client;
mod cluster;
mod lists;
mod memory;
mod world;

use cluster::{Cluster, Network, Outcome, Shape};
use world::{Theme, World};

fn seeds(default: u64) -> u64 {
    std::env::var("FORELOAD_CHAOS_SEEDS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(default)
}

fn run(theme: Theme) {
    let only = std::env::var("FORELOAD_CHAOS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let all = only.map_or(0..seeds(400), |seed: u64| seed..seed + 1);
    for seed in all {
        let caught = std::panic::catch_unwind(|| World::new(theme, seed).play());
        if let Err(panic) = caught {
            eprintln!("{theme:?}: FORELOAD_CHAOS_SEED={seed} shows it again");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn ranks_that_start_anywhere_leave_and_die_get_the_bytes_they_asked_for() {
    run(Theme::Restarts);
}

#[test]
fn workers_that_ask_by_name_and_by_sample_with_padding_get_the_bytes_they_asked_for() {
    run(Theme::Workers);
}

#[test]
fn ranks_that_wait_for_each_other_never_wait_for_ever_in_a_memory_that_just_suffices() {
    run(Theme::Lockstep);
}

#[test]
fn faults_of_source_and_disk_are_told_and_leave_nothing_behind() {
    run(Theme::Faults);
}

#[test]
fn who_is_told_that_samples_are_gone_gets_the_rest_and_never_waits_for_ever() {
    run(Theme::Gone);
}

#[test]
fn jobs_that_join_and_part_share_what_they_read_and_get_the_bytes_they_asked_for() {
    run(Theme::Jobs);
}

/// Plays a cluster for each seed.
fn clusters(network: Network, shape: fn(u64) -> Shape, look: fn(&Shape, Outcome)) {
    let only = std::env::var("FORELOAD_CHAOS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let all = only.map_or(0..seeds(150), |seed: u64| seed..seed + 1);
    for seed in all {
        let caught = std::panic::catch_unwind(|| {
            let shape = shape(seed);
            let outcome = Cluster::new(network, &shape, seed).play();
            look(&shape, outcome);
        });
        if let Err(panic) = caught {
            eprintln!("{network:?}: FORELOAD_CHAOS_SEED={seed} shows it again");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn nodes_with_a_bad_network_get_the_bytes_they_asked_for_and_never_wait_for_ever() {
    let shape = |seed| Shape {
        nodes: 2 + seed as usize % 3,
        // The last has room for all of it on each node, half of it on a disk.
        kept_per_cent: [0, 30, 70, 130, 1200][seed as usize / 3 % 5],
        epochs: 3,
        is_plain: false,
        is_local: seed % 5 < 2,
        is_counted: seed % 5 == 4,
        has_disks: seed % 2 == 1,
    };
    clusters(Network::Bad, shape, |_, _| {});
}

#[test]
fn nodes_that_hold_the_data_set_together_fetch_each_sample_once() {
    let shape = |seed| Shape {
        nodes: 1 + seed as usize % 4,
        kept_per_cent: [125, 1200][seed as usize / 6 % 2],
        epochs: 4,
        is_plain: true,
        is_local: false,
        is_counted: false,
        has_disks: seed % 2 == 1,
    };
    clusters(Network::Good, shape, |shape, outcome| {
        let samples = outcome.reads / u64::from(shape.epochs);
        assert!(outcome.gets <= samples, "{} GETs for {samples} samples", outcome.gets);
        assert_eq!((outcome.served > 0, outcome.given_up), (shape.nodes > 1, 0));
        assert_eq!(outcome.bundles > 0, shape.nodes > 1);
    });
}

#[test]
fn nodes_that_hold_a_part_of_it_fetch_the_rest_in_every_epoch() {
    let shape = |seed| Shape {
        nodes: 2 + seed as usize % 3,
        kept_per_cent: [25, 50, 75][seed as usize / 3 % 3],
        epochs: 4,
        is_plain: true,
        is_local: false,
        is_counted: false,
        has_disks: false,
    };
    clusters(Network::Good, shape, |shape, outcome| {
        let samples = outcome.reads / u64::from(shape.epochs);
        let most = samples + samples * u64::from(shape.epochs - 1) * (100 - shape.kept_per_cent + 4) / 100;
        assert_eq!(outcome.given_up, 0, "nobody waits for a node that waits");
        assert!(
            outcome.gets <= most,
            "{} GETs of at most {most} for {samples} samples",
            outcome.gets
        );
    });
}

#[test]
fn nodes_that_read_what_they_keep_ask_each_other_for_less_and_the_bucket_for_no_more() {
    let (mut cards, mut local) = ((0, 0), (0, 0));
    for seed in 0..seeds(60) {
        let play = |is_local| {
            let shape = Shape {
                nodes: 2 + seed as usize % 3,
                kept_per_cent: 125,
                epochs: 4,
                is_plain: true,
                is_local,
                is_counted: false,
                has_disks: seed % 2 == 1,
            };
            Cluster::new(Network::Good, &shape, seed).play()
        };
        for (sum, outcome) in [(&mut cards, play(false)), (&mut local, play(true))] {
            assert!(outcome.gets * 4 <= outcome.reads, "{seed}: each sample comes once");
            *sum = (sum.0 + outcome.served, sum.1 + outcome.reads);
        }
    }
    assert_eq!(cards.1, local.1, "epochs are as long");
    // One to eight samples a node and step: the fewer, the more is left to chance.
    let share = |(served, reads): (u64, u64)| served as f64 / reads as f64;
    assert!(
        share(local) < 0.6 * share(cards),
        "{} and {}",
        share(local),
        share(cards)
    );
}
