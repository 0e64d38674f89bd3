use super::*;

pub(crate) const SMALL: &str = r#"
name = "small"
[dataset]
samples = 1000
mean_mb = 0.3
std_mb = 0.2
[training]
epochs = 3
global_batch = 20
[cluster]
nodes = 4
compute_mb_s = 100
preprocess_mb_s = 200
network_mb_s = 10000
[source]
throughput_mb_s = { 1 = 66, 2 = 86, 3 = 129, 4 = 146 }
[[tier]]
kind = "staging"
capacity_mb = 10
threads = 2
read_mb_s = 21164
[[tier]]
kind = "ram"
capacity_mb = 25
threads = 2
read_mb_s = 21164
[[tier]]
kind = "disk"
capacity_mb = 40
threads = 2
read_mb_s = 86
"#;

const NONE: [&str; 0] = [];

#[test]
fn an_unknown_key_is_an_error_with_a_suggestion() {
    let text = SMALL.replace("compute_mb_s", "compute_mbs");
    let message = Scenario::parse(&text, &NONE).expect_err("unknown").to_string();
    assert_eq!(
        message,
        r#"unknown key "compute_mbs" in [cluster]; did you mean "compute_mb_s"?"#
    );
    let text = SMALL.replace("capacity_mb = 25", "capacity = 25");
    assert!(
        Scenario::parse(&text, &NONE)
            .expect_err("unknown")
            .to_string()
            .contains("capacity_mb")
    );
}

#[test]
fn overrides_reach_every_section() {
    let set = [
        "training.epochs=9",
        "tier.ram.capacity_mb=7.5",
        "tier.0.capacity_mb = 3",
        "source.throughput_mb_s.4=150",
        "source.share=literal",
    ];
    let s = Scenario::parse(SMALL, &set).expect("valid");
    assert_eq!(
        (s.training.epochs, s.tier[1].capacity_mb, s.tier[0].capacity_mb),
        (9, 7.5, 3.0)
    );
    assert_eq!(
        (s.curve().expect("valid").total(4), s.source.share),
        (150.0, Share::Literal)
    );
    assert!(Scenario::parse(SMALL, &["training.epoch=9"]).is_err());
    assert!(
        Scenario::parse(SMALL, &["tier.tape.capacity_mb=9"])
            .expect_err("no such tier")
            .to_string()
            .contains("tape")
    );
    assert!(Scenario::parse(SMALL, &["nonsense"]).is_err());
}

#[test]
fn one_number_is_a_constant_throughput() {
    let s = Scenario::parse(SMALL, &["source.throughput_mb_s=500"]).expect("valid");
    assert_eq!(s.curve().expect("valid").total(3), 500.0);
}

#[test]
fn numbers_that_make_no_run_are_refused() {
    for bad in [
        "cluster.nodes=0",
        "training.epochs=0",
        "cluster.compute_mb_s=0",
        "dataset.std_mb=-1",
        "tier.0.read_mb_s=0",
        "cluster.compute_mb_s=inf",
        "cluster.compute_mb_s=true",
        "dataset.mean_mb=1e300",
        "dataset.min_mb=-1",
        "dataset.samples=4294967295",
        "dataset.seed=-1",
        "deli.parallel=0",
        "source.latency_s=nan",
        "source.latency_sigma=-0.1",
        "source.throughput_mb_s=inf",
        "source.throughput_mb_s.4=-3",
        "tier.0.write_mb_s=1e13",
        "training.epochs=2.5",
        "training.epochs=99999999999999999999",
    ] {
        let message = Scenario::parse(SMALL, &[bad]).expect_err(bad).to_string();
        let key = bad.split_once('=').expect("a key").0;
        assert!(message.starts_with(&format!("{key}: ")), "{message}");
    }
}

#[test]
fn whole_numbers_may_be_written_with_an_exponent() {
    let s = Scenario::parse(SMALL, &["training.epochs=1e2", "dataset.samples=5e6"]).expect("valid");
    assert_eq!((s.training.epochs, s.dataset.samples), (100, 5_000_000));
}

#[test]
fn a_section_in_place_of_a_value_and_the_other_way_round_are_named() {
    for (set, text) in [
        ("cluster=3", "cluster: is a section with the keys nodes,"),
        ("tier=3", "tier: is a [[tier]] with the keys kind,"),
        ("nodes=3", "did you mean \"cluster.nodes\"?"),
        ("training.epochs.x=3", "\"epochs\" in \"training.epochs.x\" is a value"),
    ] {
        let message = Scenario::parse(SMALL, &[set]).expect_err(set).to_string();
        assert!(message.contains(text), "{message}");
    }
    let text = SMALL.replace("nodes = 4\n", "");
    let message = Scenario::parse(&text, &NONE).expect_err("no nodes").to_string();
    assert!(
        message.contains("not complete") && message.contains("nodes"),
        "{message}"
    );
}
