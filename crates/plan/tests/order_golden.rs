//! Orders and digests never change silently: they equal vectors that other programs made.
//!
//! `tests/golden/torch_order.json` comes from torch itself, the others from a second implementation in Python (`tools/golden_*.py`).

use foreload_plan::Digest;
use foreload_plan::order::Order;
use foreload_plan::spec::{OrderKind, OrderSpec, Share, Tail, TorchDraws};
use foreload_plan::split::Split;
use foreload_plan::{Error, ErrorKind};
use serde::Deserialize;

fn parse<T: for<'de> Deserialize<'de>>(text: &str) -> T {
    serde_json::from_str(text).expect("golden files parse")
}

fn spec(kind: OrderKind, samples: u64, seed: u64, global_batch: u32, tail: Tail) -> OrderSpec {
    OrderSpec {
        dataset: Digest::default(),
        samples,
        kind,
        seed,
        global_batch,
        tail,
    }
}

#[derive(Deserialize)]
struct KeyedCase {
    samples: u64,
    seed: u64,
    epoch: u32,
    positions: Vec<u64>,
    found: Vec<u64>,
}

#[test]
fn keyed_equals_its_second_implementation() {
    for case in parse::<Vec<KeyedCase>>(include_str!("../../../tests/golden/keyed_order.json")) {
        let spec = spec(OrderKind::Keyed, case.samples, case.seed, 1, Tail::Drop);
        let epoch = Order::new(&spec).expect("valid").epoch(case.epoch).expect("computed");
        let found: Vec<u64> = case
            .positions
            .iter()
            .map(|&position| epoch.sample_at(position))
            .collect();
        assert_eq!(
            found, case.found,
            "{} samples, seed {}, epoch {}",
            case.samples, case.seed, case.epoch
        );
        let back: Vec<_> = found
            .iter()
            .map(|&sample| epoch.position_of(sample).expect("nothing is dropped"))
            .collect();
        assert_eq!(back, case.positions);
    }
}

#[derive(Deserialize)]
struct MixtureCase {
    streams: Vec<Share>,
    seed: u64,
    epoch: u32,
    length: u64,
    positions: Vec<u64>,
    found: Vec<u64>,
}

#[test]
fn mixtures_equal_their_second_implementation() {
    for case in parse::<Vec<MixtureCase>>(include_str!("../../../tests/golden/mixture_order.json")) {
        let samples = case.streams.iter().map(|share| share.samples).sum();
        let about = format!("{:?}, seed {}, epoch {}", case.streams, case.seed, case.epoch);
        let kind = OrderKind::Mixture {
            streams: case.streams,
            shuffle: true,
            length: case.length,
        };
        let order = Order::new(&spec(kind, samples, case.seed, 1, Tail::Uneven)).expect("valid");
        let epoch = order.epoch(case.epoch).expect("computed");
        let found: Vec<u64> = case
            .positions
            .iter()
            .map(|&position| epoch.sample_at(position))
            .collect();
        assert_eq!(found, case.found, "{about}");
    }
}

#[derive(Deserialize)]
struct DigestCase {
    spec: OrderSpec,
    digest: Digest,
}

#[test]
fn digests_equal_their_second_implementation_and_differ() {
    let cases: Vec<DigestCase> = parse(include_str!("../../../tests/golden/order_digest.json"));
    for case in &cases {
        assert_eq!(case.spec.digest(), case.digest, "{:?}", case.spec);
    }
    let mut digests: Vec<_> = cases.iter().map(|case| case.digest).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), cases.len());
}

#[test]
fn every_field_of_a_spec_is_in_its_digest() {
    let base = spec(OrderKind::Keyed, 100, 1, 8, Tail::Drop);
    let changes: [fn(&mut OrderSpec); 5] = [
        |spec| spec.dataset = Digest::from_bytes([1; 16]),
        |spec| spec.samples += 1,
        |spec| spec.kind = OrderKind::Sequential,
        |spec| spec.seed += 1,
        |spec| spec.global_batch += 8,
    ];
    for change in changes {
        let mut changed = base.clone();
        change(&mut changed);
        assert_ne!(changed.digest(), base.digest(), "{changed:?}");
    }
}

#[derive(Deserialize)]
struct Torch {
    permutations: Vec<Permutation>,
    distributed: Vec<Distributed>,
    random: Vec<Random>,
}

#[derive(Deserialize)]
struct Permutation {
    samples: u64,
    seed: u64,
    first: Vec<u64>,
    sum: u64,
}

#[derive(Deserialize)]
struct Distributed {
    samples: u64,
    seed: u64,
    epoch: u32,
    replicas: u32,
    batch: u32,
    sampler_drops: bool,
    loader_drops: bool,
    ranks: Vec<Vec<Vec<u64>>>,
}

#[derive(Deserialize)]
struct Random {
    samples: u64,
    seed: u64,
    draws: TorchDraws,
    batch: u32,
    drops: bool,
    epochs: Vec<Vec<Vec<u64>>>,
}

fn torch() -> Torch {
    parse(include_str!("../../../tests/golden/torch_order.json"))
}

#[test]
fn randperm_is_torchs() {
    for case in torch().permutations {
        let spec = spec(OrderKind::TorchDistributed, case.samples, case.seed, 1, Tail::Drop);
        let epoch = Order::new(&spec).expect("valid").epoch(0).expect("computed");
        let first: Vec<_> = (0..case.samples.min(8)).map(|at| epoch.sample_at(at)).collect();
        let sum = (0..case.samples).fold(0u64, |sum, at| {
            sum.wrapping_add((at + 1).wrapping_mul(epoch.sample_at(at)))
        });
        assert_eq!(
            (first, sum),
            (case.first, case.sum),
            "{} samples, seed {}",
            case.samples,
            case.seed
        );
    }
}

/// Each rank's batches, sample by sample; what torch leaves empty is an error here.
fn batches(order: &Result<Order, Error>, epoch: u32, ranks: u32) -> Vec<Vec<Vec<u64>>> {
    let order = match order {
        Ok(order) => order,
        Err(error) => {
            assert!(
                matches!(error, Error::EmptyEpoch { .. }) && error.kind() == ErrorKind::Invalid,
                "{error}"
            );
            return vec![vec![]; ranks as usize];
        }
    };
    let split = Split::new(order, ranks).expect("torch's tails divide");
    let epoch = order.epoch(epoch).expect("computed");
    let batch = |batch, rank| {
        split
            .batch_positions(batch, rank)
            .map(|position| epoch.sample_at(position))
            .collect()
    };
    (0..ranks)
        .map(|rank| (0..split.batches()).map(|number| batch(number, rank)).collect())
        .collect()
}

#[test]
fn every_rank_gets_the_batches_of_torchs_distributed_sampler() {
    for case in torch().distributed {
        let tail = Tail::torch(case.replicas, case.sampler_drops, case.loader_drops);
        let global_batch = case.batch * case.replicas;
        let order = Order::new(&spec(
            OrderKind::TorchDistributed,
            case.samples,
            case.seed,
            global_batch,
            tail,
        ));
        let about = format!("{} samples, {} replicas, {tail:?}", case.samples, case.replicas);
        assert_eq!(batches(&order, case.epoch, case.replicas), case.ranks, "{about}");
    }
}

#[test]
fn every_epoch_has_the_batches_of_torchs_random_sampler() {
    for case in torch().random {
        let kind = OrderKind::TorchRandom { draws: case.draws };
        let tail = Tail::torch(1, false, case.drops);
        let order = Order::new(&spec(kind, case.samples, case.seed, case.batch, tail));
        let found: Vec<_> = (0..4).map(|epoch| batches(&order, epoch, 1).remove(0)).collect();
        assert_eq!(
            found, case.epochs,
            "{} samples, {:?}, {tail:?}",
            case.samples, case.draws
        );
    }
}
