//! What the policy costs per sample: `cargo bench -p foreload-plan --bench scheduler [-- NAME]`.
//!
//! Reads epochs of a million samples with a carrier that ends loads in the order of their issue: one epoch in which everything is fetched, one in
//! which all is in memory, and one in which a quarter is. Of a billion samples of 64 bytes it reads four million: they cost what their blocks cost.
//! CPU time of this thread, so that a busy machine matters little; memory of the process, beyond what it had before.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use foreload_plan::action::{Action, Command, Event};
use foreload_plan::catalog::{Catalog, Objects, Place, Shards};
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::job::{Reads, Set};
use foreload_plan::order::Order;
use foreload_plan::settings::Settings;
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_plan::{DigestBuilder, Scheduler};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(
        stat.split_whitespace()
            .next()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0),
    )
}

/// Bytes of this process in memory.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = status.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    4096 * pages.unwrap_or(0)
}

/// Rows of 64 bytes in objects of 256 MiB.
struct Rows(u64);

const ROW: u64 = 64;
const OBJECT: u64 = 256 << 20;

impl Catalog for Rows {
    fn samples(&self) -> u64 {
        self.0
    }

    fn place(&self, sample: u64) -> Place {
        Place {
            object: sample * ROW / OBJECT,
            offset: sample * ROW % OBJECT,
            len: ROW,
        }
    }
}

struct Carrier {
    plan: Scheduler,
    under_way: VecDeque<Action>,
    now_ns: u64,
}

impl Carrier {
    fn step(&mut self, event: Event) -> bool {
        let mut actions = Vec::new();
        self.now_ns += 1000;
        let _ = self.plan.step(self.now_ns, event, &mut actions);
        let mut release = None;
        for action in actions {
            match action.command() {
                Command::Load(_) | Command::Keep { .. } => self.under_way.push_back(action),
                Command::Deliver { items, .. } => release = Some(items.iter().map(|item| item.handle).collect()),
                _ => {}
            }
        }
        let delivered = release.is_some();
        if let Some(handles) = release {
            self.step(Event::Release { handles });
        }
        delivered
    }
}

fn run(name: &str, catalog: Arc<dyn Catalog>, ram_bytes: u64, epochs: u32, most_batches: u64) {
    let mut only = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    if only.peek().is_some() && !only.any(|part| name.contains(&part)) {
        return;
    }
    let samples = catalog.samples();
    let before = memory();
    let made = cpu();
    let spec = OrderSpec {
        dataset: DigestBuilder::new("bench").finish(),
        samples,
        kind: OrderKind::Keyed,
        seed: 1,
        global_batch: 64,
        tail: Tail::Drop,
    };
    let reads = Reads {
        sets: vec![Set::new(0, catalog)],
        order: Order::new(&spec).expect("an order"),
        world: 1,
        uneven: false,
        deal: None,
        ranking: None,
        ranks: vec![0],
        ram_bytes: None,
        largest: None,
        epochs: None,
    };
    let batches = reads.check().expect("it fits").batches().min(most_batches);
    let settings = Settings {
        ram_bytes,
        concurrency: ConcurrencySettings::fixed(64),
        ..Settings::default()
    };
    let plan = Scheduler::for_one(settings, &reads).expect("scheduler");
    let mut carrier = Carrier {
        plan,
        under_way: VecDeque::new(),
        now_ns: 0,
    };
    let made_s = (cpu() - made).as_secs_f64();
    let cut = memory().saturating_sub(before) >> 20;
    println!(
        "{name:28} made in {made_s:.2} s, {cut} MiB for {} blocks",
        carrier.plan.library().count()
    );
    carrier.step(Event::Start {
        job: 0,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    for epoch in 0..epochs {
        let begun = cpu();
        for batch in 0..batches {
            let mut served = carrier.step(Event::WantBatch {
                job: 0,
                request: u64::from(epoch) * batches + batch,
                rank: 0,
                epoch,
                batch,
            });
            let request = u64::from(epoch) * batches + batch;
            served = served || carrier.step(Event::Awaited { request });
            while !served {
                let action = carrier.under_way.pop_front().expect("something is under way");
                served = carrier.step(Event::Completed(action.done(1000, 2000)));
            }
        }
        let ns = (cpu() - begun).as_nanos() as f64 / (batches * 64) as f64;
        let (held, gauges) = (memory().saturating_sub(before) >> 20, carrier.plan.gauges());
        println!(
            "{name:28} epoch {epoch}: {ns:6.0} ns per sample (bar: 700), {held} MiB, {} blocks in memory, {} reads ahead",
            gauges.residents,
            carrier.plan.reads_ahead(0)
        );
    }
}

fn main() {
    let lengths = vec![100_000u64; 1_000_000];
    run(
        "objects, all fit",
        Arc::new(Objects(lengths.clone())),
        120_000_000_000,
        2,
        u64::MAX,
    );
    run(
        "objects, a quarter fits",
        Arc::new(Objects(lengths.clone())),
        25_000_000_000,
        3,
        u64::MAX,
    );
    run(
        "shards, all fit",
        Arc::new(Shards::pack(&lengths, 1024, 100_000_000)),
        120_000_000_000,
        2,
        u64::MAX,
    );
    run(
        "a billion rows, all fit",
        Arc::new(Rows(1_000_000_000)),
        72_000_000_000,
        1,
        62_500,
    );
    run(
        "a billion rows, a hundredth",
        Arc::new(Rows(1_000_000_000)),
        640_000_000,
        1,
        62_500,
    );
}
