use super::*;

pub(crate) const SMALL: &str = r#"
name = "small"
drive = "fast"
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
fn a_word_that_is_none_of_a_keys_words_is_told_which_there_are() {
    for (set, message) in [
        (
            "source.share=literaly",
            r#"source.share: "literaly" is not one of shared, literal; did you mean "literal"?"#,
        ),
        (
            "dataset.negative=redrew",
            r#"dataset.negative: "redrew" is not one of clip-rescale, clip, redraw; did you mean "redraw"?"#,
        ),
        (
            "training.order=random",
            r#"training.order: "random" is not one of keyed, sequential"#,
        ),
        (
            "training.assign=locally",
            r#"training.assign: "locally" is not one of cards, local; did you mean "local"?"#,
        ),
        (
            "drive=engines",
            r#"drive: "engines" is not one of auto, fast, engine; did you mean "engine"?"#,
        ),
        (
            "tier.1.kind=rams",
            r#"tier.1.kind: "rams" is not one of staging, ram, disk; did you mean "ram"?"#,
        ),
        ("drive=3", "drive: 3 is not a word; write it in quotes"),
    ] {
        assert_eq!(Scenario::parse(SMALL, &[set]).expect_err(set).to_string(), message);
    }
}

#[test]
fn every_word_that_a_key_may_have_is_read() {
    for (path, word) in keys::words() {
        let set = format!("{}={word}", path.replace("tier.kind", "tier.2.kind"));
        // There is one staging tier at most.
        let text = SMALL.replace("\"staging\"", "\"ram\"");
        Scenario::parse(&text, &[set.as_str()]).expect(&set);
    }
}

#[test]
fn what_a_number_may_be_is_said_in_plain_numbers() {
    for (set, range) in [
        ("source.latency_sigma=4", "4 is not between 0 and 3, which"),
        ("dataset.mean_mb=1e10", "is not between 1e-7 and 1e9, which"),
        ("deli.parallel=1e-9", "is not between 0.001 and 1e9, which"),
    ] {
        let message = Scenario::parse(SMALL, &[set]).expect_err(set).to_string();
        assert!(message.contains(range), "{message}");
    }
}

#[test]
fn the_engines_requests_do_not_read_the_source_literally() {
    let set = ["drive=engine", "source.share=literal"];
    let message = Scenario::parse(SMALL, &set).expect_err("refused").to_string();
    assert!(
        message.starts_with("source.share: \"literal\" goes with drive"),
        "{message}"
    );
    for one in set {
        Scenario::parse(SMALL, &[one]).expect("each alone");
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
