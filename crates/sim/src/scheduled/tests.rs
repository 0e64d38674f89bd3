use super::*;
use crate::scenario::tests::SMALL;
use crate::{Access, Hardware, Outcome, Scenario, Sizes, Totals, Watch, foreload};
use foreload_plan::replay::replay;

mod agreement;
mod cluster;
mod exchange;

/// Calls `check` with the set-up of one node.
fn with_setup(set: &[&str], check: impl FnMut(&Setup<'_>)) {
    let set: Vec<&str> = ["cluster.nodes=1"].iter().chain(set).copied().collect();
    with_scenario(SMALL, &set, check);
}

fn with_scenario(text: &str, set: &[&str], mut check: impl FnMut(&Setup<'_>)) {
    let scenario = Scenario::parse(text, set).expect("valid");
    let watch = Watch::quiet();
    let sizes = Sizes::new(&scenario.dataset, &watch).expect("valid");
    let access = Access::new(&scenario, sizes.samples(), &watch).expect("valid");
    let totals = Totals::new(&scenario, &sizes, &access).expect("valid");
    let (hardware, curve) = (Hardware::new(&scenario), scenario.curve().expect("valid"));
    let compute = Compute::new(&scenario);
    check(&Setup {
        scenario: &scenario,
        sizes: &sizes,
        access: &access,
        totals: &totals,
        hardware: &hardware,
        curve: &curve,
        compute,
    });
}

/// What a run of one policy comes to, with one setting more.
fn outcome(set: &[&str], more: &str, policy: Policy) -> Outcome {
    let set: Vec<&str> = set.iter().copied().chain([more]).collect();
    let mut found = None;
    with_setup(&set, |setup| {
        found = Some(run(setup, policy, false).expect("runs").outcome)
    });
    found.expect("was run")
}

const ENGINE: [Policy; 5] = [
    Policy::Naive,
    Policy::Staging,
    crate::policy::DELI,
    Policy::Frequency,
    Policy::Foreload,
];

/// The engine's staging memory also holds the two batches of 6 MB that are prepared and trained on; the fast model's doesn't.
const ROOMY: &str = "tier.staging.capacity_mb=60";

#[test]
fn replaying_a_simulated_run_gives_the_same_decisions_for_every_policy_of_the_engine() {
    for policy in ENGINE {
        with_setup(
            &[
                "deli.cache_samples=80",
                "source.latency_s=0.01",
                "source.latency_sigma=0.4",
            ],
            |setup| {
                let run = run(setup, policy, true).expect("runs");
                for (node, recorded) in run.logs.iter().enumerate() {
                    let fresh = scheduler(
                        setup,
                        policy,
                        node as u32,
                        ranking(setup, policy).expect("valid").as_ref(),
                    )
                    .expect("valid");
                    assert_eq!(replay(fresh, recorded.log()), Ok(()), "{policy:?}");
                    assert!(
                        recorded.log().steps > 1000,
                        "{policy:?}: {} steps",
                        recorded.log().steps
                    );
                }
            },
        );
    }
}

#[test]
fn requests_whose_latencies_differ_share_the_source_in_turn() {
    // 32 requests of 1 MB take 0.5 s to arrive, as long as their latency: in step they leave the source idle half of the time.
    let alike = [
        "source.throughput_mb_s=64",
        "source.latency_s=0.5",
        "source.requests_in_flight=32",
        "dataset.mean_mb=1",
        "dataset.std_mb=0",
        "cluster.compute_mb_s=1e6",
        "tier.staging.capacity_mb=200",
    ];
    let hours = |sigma| outcome(&alike, sigma, Policy::Staging).hours;
    let (in_step, apart) = (hours("source.latency_sigma=0"), hours("source.latency_sigma=0.3"));
    assert!(apart < 0.7 * in_step, "{apart} h, in step {in_step} h");
    assert_eq!(apart, hours("source.latency_sigma=0.3"));
}

#[test]
fn fresh_memory_is_written_as_fast_as_the_kernel_hands_it_out_and_the_rest_at_once() {
    let set = [
        ROOMY,
        "tier.ram.capacity_mb=400",
        "tier.disk.capacity_mb=0",
        "source.throughput_mb_s=1e6",
        "cluster.compute_mb_s=1e6",
    ];
    let times = |write| outcome(&set, write, Policy::Foreload).epoch_hours;
    let (slow, quick) = (times("tier.ram.write_mb_s=10"), times("tier.ram.write_mb_s=1e6"));
    let mut total_mb = 0.0;
    with_setup(&set, |setup| total_mb = setup.sizes.total_mb);
    let more_s = (slow[0] - quick[0]) * 3600.0;
    assert!(
        (more_s / (total_mb / 10.0) - 1.0).abs() < 0.05,
        "{more_s} s for {total_mb} MB"
    );
    assert!((slow[1] / quick[1] - 1.0).abs() < 1e-6);
}

#[test]
fn fresh_memory_holds_up_no_request_that_ended_before_another() {
    let set = [
        "tier.ram.capacity_mb=400",
        "tier.disk.capacity_mb=0",
        "tier.ram.write_mb_s=1e6",
        "training.epochs=1",
        "source.throughput_mb_s=1e6",
        "source.connection_mb_s=10",
        "source.requests_in_flight=8",
        "cluster.compute_mb_s=1e6",
    ];
    // Eight connections of 10 MB/s, never idle though sizes differ.
    with_setup(&set, |setup| {
        let seconds = run(setup, Policy::Foreload, false).expect("runs").outcome.hours * 3600.0;
        let least = setup.sizes.total_mb / 80.0;
        assert!(seconds < 1.05 * least, "{seconds} s of {least} s");
    });
}

#[test]
fn every_policy_of_the_engine_obeys_the_lower_bound() {
    for policy in ENGINE {
        with_setup(&["deli.cache_samples=80"], |setup| {
            let hours = run(setup, policy, false).expect("runs").outcome.hours;
            let bound_s = crate::bound::lower_bound_s(setup.scenario, setup.sizes, setup.totals).expect("valid");
            assert!(
                hours * 3600.0 >= bound_s * (1.0 - 1e-6),
                "{policy:?}: {} s of {bound_s} s",
                hours * 3600.0
            );
        });
    }
}

#[test]
fn the_scheduler_and_the_fast_model_agree_where_the_node_holds_the_data_set() {
    for sizes in [
        ["tier.ram.capacity_mb=400", "tier.disk.capacity_mb=0"],
        ["tier.ram.capacity_mb=100", "tier.disk.capacity_mb=300"],
    ] {
        with_setup(&[ROOMY, sizes[0], sizes[1]], |setup| {
            let driven = run(setup, Policy::Foreload, false).expect("runs").outcome;
            let fast = foreload::run(setup).expect("runs");
            assert_eq!((driven.requests, fast.requests), (1000, 1000), "{sizes:?}");
            let ratio = driven.hours / fast.hours;
            assert!(
                (ratio - 1.0).abs() < 0.05,
                "{sizes:?}: driven {} h, fast {} h",
                driven.hours,
                fast.hours
            );
        });
    }
}

#[test]
fn they_agree_on_what_is_read_again_where_it_does_not() {
    with_setup(
        &[ROOMY, "tier.ram.capacity_mb=100", "tier.disk.capacity_mb=0"],
        |setup| {
            let driven = run(setup, Policy::Foreload, false).expect("runs").outcome;
            let fast = foreload::run(setup).expect("runs");
            let ratio = driven.mb_by_source.source / fast.mb_by_source.source;
            assert!(
                (ratio - 1.0).abs() < 0.05,
                "driven {:?}, fast {:?}",
                driven.mb_by_source,
                fast.mb_by_source
            );
            assert!(
                (driven.hours / fast.hours - 1.0).abs() < 0.05,
                "driven {} h, fast {} h",
                driven.hours,
                fast.hours
            );
        },
    );
}

#[test]
fn several_nodes_share_the_source_and_read_what_each_of_them_lacks() {
    let set = ["cluster.nodes=2", "tier.ram.capacity_mb=400", "tier.disk.capacity_mb=0"];
    let alone = SMALL.replace("network_mb_s = 10000\n", "");
    with_scenario(&alone, &set, |setup| {
        let run = run(setup, Policy::Foreload, true).expect("runs");
        let mut lacked = 0;
        let mut held = std::collections::BTreeSet::new();
        for epoch in 0..setup.access.epochs() {
            let order = setup.access.lay_out(epoch).expect("an order");
            let reads = order.iter().enumerate().map(|(at, sample)| (at % 2, *sample));
            lacked += reads.filter(|read| held.insert(*read)).count() as u64;
        }
        assert_eq!(run.outcome.requests, lacked);
        for (node, recorded) in run.logs.iter().enumerate() {
            let fresh = scheduler(setup, Policy::Foreload, node as u32, None).expect("valid");
            assert_eq!(replay(fresh, recorded.log()), Ok(()));
        }
    });
}

#[test]
fn samples_that_lie_side_by_side_share_requests() {
    let set = [
        "tier.ram.capacity_mb=400",
        "tier.disk.capacity_mb=0",
        "training.epochs=1",
    ];
    let made = |places: Option<Vec<(u64, u64)>>| {
        let mut made = 0;
        with_setup(&set, |setup| {
            let sizes = Sizes {
                places: places.clone(),
                ..setup.sizes.clone()
            };
            let setup = Setup {
                sizes: &sizes,
                ..*setup
            };
            made = run(&setup, Policy::Foreload, false).expect("runs").outcome.requests;
        });
        made
    };
    // Holes of more than 16 KiB are not read over.
    let apart = |bytes: u64| {
        Some(
            (0..1000)
                .map(|k| (k * bytes / (16 << 20), k * bytes % (16 << 20)))
                .collect(),
        )
    };
    assert_eq!(made(None), 1000);
    assert_eq!(made(apart(1 << 20)), 1000);
    with_setup(&set, |setup| {
        let mut at = 0;
        let packed = setup.sizes.mb.iter().map(|mb| {
            let first = at;
            at += (f64::from(*mb) * MB) as u64;
            (0, first)
        });
        // One for each 4 MiB of the object, as the engine reads it.
        let packed: Vec<_> = packed.collect();
        assert_eq!(made(Some(packed)), at.div_ceil(4 << 20));
    });
}

#[test]
fn any_number_of_writes_may_wait_for_a_slow_disk() {
    let set = [
        ROOMY,
        "dataset.mean_mb=0.05",
        "dataset.std_mb=0",
        "tier.ram.capacity_mb=0",
        "tier.disk.capacity_mb=300",
        "tier.disk.write_mb_s=0.5",
    ];
    with_setup(&set, |setup| {
        let outcome = run(setup, Policy::Foreload, false).expect("runs").outcome;
        assert!(outcome.requests >= 1000, "{} requests", outcome.requests);
    });
}

/// A node that keeps the data set in memory, or on its disk.
const IN_MEMORY: [&str; 3] = [ROOMY, "tier.ram.capacity_mb=400", "tier.disk.capacity_mb=0"];
const ON_DISK: [&str; 3] = [ROOMY, "tier.ram.capacity_mb=0", "tier.disk.capacity_mb=400"];

/// A run with faults and what the policy says to it.
fn with_fault(set: &[&str], fault: &str) -> Outcome {
    let set: Vec<&str> = set.iter().copied().chain(["drive=engine", fault]).collect();
    let mut outcome = None;
    with_setup(&set, |setup| {
        let run = run(setup, Policy::Foreload, true).expect("runs");
        let fresh = scheduler(setup, Policy::Foreload, 0, None).expect("valid");
        assert_eq!(replay(fresh, run.logs[0].log()), Ok(()), "{fault}");
        outcome = Some(run.outcome);
    });
    outcome.expect("was run")
}

#[test]
fn a_request_that_the_source_does_not_answer_is_made_again() {
    let well = outcome(&IN_MEMORY, "training.seed=0", Policy::Foreload);
    // More than there are connections, so that a request that is made again comes before the next one that isn't answered.
    let ill = with_fault(&IN_MEMORY, "fault.source_every=100");
    // Of 1,010 requests 10 are not answered.
    assert_eq!((well.requests, ill.requests), (1000, 1010), "{:?}", ill.reason);
    let delivered = |outcome: &Outcome| outcome.mb_by_source.ram;
    assert_eq!(delivered(&ill), delivered(&well));
    assert_eq!(ill.epoch_hours.len(), well.epoch_hours.len());
}

#[test]
fn a_source_that_never_answers_ends_the_run_and_says_which_sample_it_was() {
    let outcome = with_fault(&IN_MEMORY, "fault.source_every=1");
    let reason = outcome.reason.expect("it can't run");
    assert!(
        !outcome.supported && reason.starts_with("sample ") && reason.contains("can't be read"),
        "{reason}"
    );
}

#[test]
fn what_a_disk_that_failed_held_is_read_from_the_source() {
    let well = outcome(&ON_DISK, "training.seed=0", Policy::Foreload);
    let broken = with_fault(&ON_DISK, "fault.disk_at_s=0");
    let late = with_fault(&ON_DISK, "fault.disk_at_s=6");
    let none = outcome(&ON_DISK, "tier.disk.capacity_mb=0", Policy::Foreload);
    assert_eq!((well.requests, broken.requests), (1000, none.requests));
    assert!(late.supported, "{late:?}");
    assert!(
        (1001..none.requests).contains(&late.requests),
        "{} requests, {} without a disk",
        late.requests,
        none.requests
    );
    // A read that failed was begun, so its bytes don't count as the disk's: each sample is delivered in each epoch all the same.
    let all_mb = 3.0 * well.mb_by_source.source;
    assert!(late.mb_by_source.total() >= all_mb * (1.0 - 1e-6), "{late:?}");
}

#[test]
fn memory_that_no_batch_fits_is_no_run() {
    let outcome = with_fault(
        &[
            "tier.staging.capacity_mb=0",
            "tier.ram.capacity_mb=0",
            "tier.disk.capacity_mb=0",
        ],
        "training.epochs=1",
    );
    let reason = outcome.reason.expect("it can't run");
    assert!(!outcome.supported && reason.contains("memory"), "{reason}");
}
