//! Nodes that exchange what they hold.

use super::*;

/// Four nodes on a network: what a run of our policy comes to, and the data set's samples and MB.
fn run_of_four(set: &[&str]) -> (Outcome, f64, f64) {
    let mut found = None;
    let set: Vec<&str> = ["tier.staging.capacity_mb=60"].iter().chain(set).copied().collect();
    with_scenario(SMALL, &set, |setup| {
        let outcome = run(setup, Policy::Foreload, false).expect("runs").outcome;
        assert!(outcome.supported, "{:?}", outcome.reason);
        found = Some((outcome, f64::from(setup.sizes.samples()), setup.sizes.total_mb));
    });
    found.expect("was run")
}

#[test]
fn nodes_that_hold_the_data_set_together_ask_the_source_for_each_sample_once() {
    for disk in ["tier.disk.capacity_mb=0", "tier.disk.capacity_mb=60"] {
        let ram = if disk.ends_with("=0") {
            "tier.ram.capacity_mb=90"
        } else {
            "tier.ram.capacity_mb=30"
        };
        let (outcome, samples, total_mb) = run_of_four(&[ram, disk]);
        let (requests, mb) = (outcome.requests as f64, outcome.mb_by_source);
        assert!(requests <= 1.01 * samples, "{requests} requests for {samples} samples");
        assert!(mb.source <= 1.01 * total_mb, "{mb:?} of {total_mb}");
        // Three of four samples are somebody else's, in each of three epochs.
        assert!(
            (mb.peer / (3.0 * 0.75 * total_mb) - 1.0).abs() < 0.1,
            "{mb:?} of {total_mb}"
        );
    }
}

/// Each node's own look-ahead keeps its share of the source busy for seconds; what others need first comes first all the same.
#[test]
fn what_others_need_sooner_does_not_wait_behind_what_is_read_far_ahead() {
    let set = [
        "dataset.samples=12000",
        "dataset.mean_mb=0.1",
        "dataset.std_mb=0",
        "training.epochs=2",
        "training.global_batch=192",
        "cluster.nodes=6",
        "cluster.compute_mb_s=1000",
        "cluster.network_mb_s=1000",
        "source.throughput_mb_s=120",
        "source.requests_in_flight=64",
        "tier.staging.capacity_mb=400",
        "tier.ram.capacity_mb=300",
        "tier.disk.capacity_mb=0",
    ];
    with_scenario(SMALL, &set, |setup| {
        let outcome = run(setup, Policy::Foreload, false).expect("runs").outcome;
        assert!(
            outcome.requests <= 12_120,
            "{} requests for 12000 samples",
            outcome.requests
        );
        let seconds: Vec<f64> = outcome.epoch_hours.iter().map(|hours| hours * 3600.0).collect();
        assert!(
            seconds[0] < 10.5 && seconds[1] < 0.6,
            "{seconds:?}: the source needs 10 s for one of them"
        );
    });
}

/// Three batches are all that passes through, and each node keeps most on its disk.
#[test]
fn little_staging_memory_costs_neither_what_is_kept_nor_seconds_of_waiting() {
    let set = [
        "dataset.samples=13600",
        "dataset.mean_mb=0.2937",
        "dataset.std_mb=0.2",
        "training.epochs=3",
        "training.global_batch=100",
        "tier.staging.capacity_mb=8",
        "tier.ram.capacity_mb=400",
        "tier.disk.capacity_mb=800",
    ];
    with_scenario(SMALL, &set, |setup| {
        let outcome = run(setup, Policy::Foreload, false).expect("runs").outcome;
        let (requests, samples) = (outcome.requests as f64, f64::from(setup.sizes.samples()));
        assert!(
            requests < 2.0 * samples,
            "{requests} requests for {samples} samples, which the nodes can hold"
        );
        let seconds = outcome.hours * 3600.0;
        assert!(seconds < 60.0, "{seconds} s");
    });
}

#[test]
fn nodes_that_hold_a_part_of_it_ask_the_source_for_the_rest_of_it() {
    for part in [0.25, 0.5, 0.75] {
        let mut total_mb = 0.0;
        with_scenario(SMALL, &[], |setup| total_mb = setup.sizes.total_mb);
        let ram = format!("tier.ram.capacity_mb={}", part * total_mb / 4.0);
        let (outcome, _, _) = run_of_four(&[&ram, "tier.disk.capacity_mb=0"]);
        let later = (outcome.mb_by_source.source / total_mb - 1.0) / 2.0;
        assert!(
            later <= 1.0 - part + 0.01,
            "{later} of an epoch comes from the source, where {part} of it is held"
        );
    }
}

#[test]
fn an_epoch_out_of_the_memory_of_others_is_bound_by_the_network_or_the_computing() {
    let set = ["tier.ram.capacity_mb=90", "tier.disk.capacity_mb=0"];
    let hours = |more: &str| run_of_four(&[set[0], set[1], more]).0.epoch_hours;
    let computing_s = 300.0 / 4.0 / 100.0;
    let fast = hours("cluster.network_mb_s=10000")[2] * 3600.0;
    assert!(
        fast < 1.1 * computing_s,
        "{fast} s, and computing takes {computing_s} s"
    );
    // Three quarters of 75 MB for each node.
    let slow = hours("cluster.network_mb_s=40")[2] * 3600.0;
    let bound_s = 0.75 * 300.0 / 4.0 / 40.0;
    // Some of it was had in the epoch before.
    assert!(
        (0.8 * bound_s..1.2 * bound_s).contains(&slow),
        "{slow} s, and the network takes {bound_s} s"
    );
}

#[test]
fn what_each_of_several_nodes_decided_replays_to_equality() {
    let set = ["tier.staging.capacity_mb=60", "tier.ram.capacity_mb=40"];
    with_scenario(SMALL, &set, |setup| {
        let run = run(setup, Policy::Foreload, true).expect("runs");
        for (node, recorded) in run.logs.iter().enumerate() {
            let fresh = scheduler(setup, Policy::Foreload, node as u32, None).expect("valid");
            assert_eq!(replay(fresh, recorded.log()), Ok(()), "node {node}");
        }
    });
}

/// Of the same data set and tiers, what the engine's scheduler keeps by access counts and what paper 001's own model of that does.
#[test]
fn what_is_kept_by_access_counts_is_what_the_paper_s_model_keeps() {
    for part in [0.4, 0.8] {
        let mut total_mb = 0.0;
        with_scenario(SMALL, &[], |setup| total_mb = setup.sizes.total_mb);
        let ram = format!("tier.ram.capacity_mb={}", part * total_mb / 4.0);
        let set = [
            "tier.staging.capacity_mb=60",
            &ram,
            "tier.disk.capacity_mb=0",
            "training.epochs=12",
        ];
        with_scenario(SMALL, &set, |setup| {
            let source = |outcome: Outcome| outcome.mb_by_source.source;
            let own = source(run(setup, Policy::Frequency, false).expect("runs").outcome);
            let paper = source(crate::paper::run(setup, Policy::Frequency).expect("runs"));
            let covered = source(run(setup, Policy::Foreload, false).expect("runs").outcome);
            eprintln!("{part}: {own:.0} MB by counts, {paper:.0} in the paper's model, {covered:.0} by coverage first");
            // A home fetches for others what it hasn't read yet; the model's nodes don't.
            assert!(
                (0.85..1.0).contains(&(own / paper)),
                "{part}: {own} MB of the source, and {paper} in the model"
            );
            assert!(
                covered < own,
                "{part}: one copy of each first leaves less to the source"
            );
        });
    }
}

#[test]
fn nodes_that_read_what_they_keep_send_each_other_little_in_both_models() {
    let set = |assign: &'static str, drive: &'static str| {
        vec![
            "tier.staging.capacity_mb=60",
            "tier.ram.capacity_mb=90",
            "tier.disk.capacity_mb=0",
            "training.global_batch=160",
            assign,
            drive,
        ]
    };
    let ran = |assign, drive: &'static str| {
        let mut found = None;
        with_scenario(SMALL, &set(assign, "drive=auto"), |setup| {
            let outcome = match drive {
                "engine" => run(setup, Policy::Foreload, false).expect("runs").outcome,
                _ => foreload::run(setup).expect("runs"),
            };
            assert!(outcome.supported, "{:?}", outcome.reason);
            found = Some((
                outcome.mb_by_source,
                outcome.requests as f64 / f64::from(setup.sizes.samples()),
            ));
        });
        found.expect("was run")
    };
    let mut peer = Vec::new();
    for drive in ["engine", "fast"] {
        let ((cards, _), (local, requests)) =
            (ran("training.assign=cards", drive), ran("training.assign=local", drive));
        assert!(
            local.peer < 0.25 * cards.peer,
            "{drive}: {} MB, and {} dealt out like cards",
            local.peer,
            cards.peer
        );
        assert!(requests <= 1.01, "{drive}: {requests} requests for each sample");
        peer.push(local.peer);
    }
    assert!((peer[0] / peer[1] - 1.0).abs() < 0.1, "{peer:?} MB");
}
