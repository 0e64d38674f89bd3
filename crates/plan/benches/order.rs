//! What an order costs: nanoseconds per call in both directions, time to the first answer, bytes kept.
//!
//! `cargo bench -p foreload-plan --bench order`. Medians of five passes over pseudo-random positions; machines are noisy, so read the ratios.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock"
)]

use std::hint::black_box;
use std::time::Instant;

use foreload_plan::Digest;
use foreload_plan::order::Order;
use foreload_plan::spec::{OrderKind, OrderSpec, Tail, TorchDraws};

const CALLS: u64 = 1_000_000;

fn order(kind: OrderKind, samples: u64) -> Order {
    let tail = Tail::Pad { multiple: 256 };
    let spec = OrderSpec {
        dataset: Digest::default(),
        samples,
        kind,
        seed: 1,
        global_batch: 256,
        tail,
    };
    Order::new(&spec).expect("a valid spec")
}

/// Median nanoseconds per call of `call` over [`CALLS`] scattered numbers below `bound`.
fn nanoseconds(bound: u64, mut call: impl FnMut(u64) -> u64) -> f64 {
    let mut passes: Vec<f64> = (0..5)
        .map(|pass| {
            let start = Instant::now();
            for number in 0..CALLS {
                let scattered = (number + pass).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                black_box(call(scattered % bound));
            }
            start.elapsed().as_secs_f64() * 1e9 / CALLS as f64
        })
        .collect();
    passes.sort_by(f64::total_cmp);
    passes[passes.len() / 2]
}

fn main() {
    println!(
        "{:<22} {:>13} {:>12} {:>14} {:>14} {:>16}",
        "order", "samples", "first, us", "sample_at, ns", "position, ns", "bytes"
    );
    let torch = OrderKind::TorchRandom {
        draws: TorchDraws::LoaderEachEpoch,
    };
    let cases = [
        (OrderKind::Keyed, 1_000),
        (OrderKind::Keyed, 65_536),
        (OrderKind::Keyed, 65_537),
        (OrderKind::Keyed, 1_000_000),
        (OrderKind::Keyed, 1_281_167),
        (OrderKind::Keyed, 1_000_000_000),
        (OrderKind::Keyed, 1_000_000_000_000),
        (OrderKind::TorchDistributed, 1_281_167),
        (torch, 1_281_167),
        (OrderKind::Sequential, 1_281_167),
        (OrderKind::Contiguous { parts: 8 }, 1_281_167),
        (OrderKind::Strided { stride: 1000 }, 1_281_167),
    ];
    for (kind, samples) in cases {
        let start = Instant::now();
        let order = order(kind.clone(), samples);
        let epoch = order.epoch(3).expect("computed");
        black_box(epoch.sample_at(0));
        let first = start.elapsed().as_secs_f64() * 1e6;
        let forward = nanoseconds(samples, |position| epoch.sample_at(position));
        let backward = nanoseconds(samples, |sample| epoch.position_of(sample).unwrap_or(0));
        let name = format!("{kind:?}").chars().take(22).collect::<String>();
        println!(
            "{name:<22} {samples:>13} {first:>12.1} {forward:>14.1} {backward:>14.1} {:>16}",
            epoch.heap_bytes()
        );
    }
}
