//! When nobody reads any more: what is in flight ends, nothing follows it, and whoever asks next finds everything as it was.

use crate::carrier::{Carrier, assert_order, read_epochs, sizes, spec};
use foreload_plan::action::{Command, Event, Failure};
use foreload_plan::catalog::Objects;
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::settings::Settings;
use foreload_plan::spec::OrderKind;
use std::sync::Arc;

#[test]
fn nothing_new_is_loaded_when_all_have_left_and_the_next_one_goes_on() {
    let samples = 200u64;
    let settings = Settings {
        ram_bytes: 4 << 20,
        concurrency: ConcurrencySettings::fixed(4),
        ..Settings::default()
    };
    let order = spec(samples, 10, OrderKind::Keyed);
    let catalog = Arc::new(Objects(sizes(samples, 10_000, 3)));
    let mut carrier = Carrier::new(settings, catalog, order, 1, vec![0], 5);
    carrier.step(Event::Left { job: 0 });
    let failed = carrier.under_way.pop().expect("a load");
    carrier.step(Event::Completed(failed.failed(Failure::Unavailable)));
    let ends = carrier.under_way.len();
    while carrier.end_one() {
        carrier.now_ns += 10_000_000_000;
        carrier.step(Event::Tick);
        let late = carrier
            .under_way
            .iter()
            .any(|action| matches!(action.command(), Command::Load(load) if load.hedge));
        assert!(!late, "no twin of what nobody waits for");
    }
    assert_eq!(carrier.requests as usize, ends + 1, "only what was in flight");
    carrier.step(Event::Start {
        job: 0,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    let epochs = read_epochs(&mut carrier, 1);
    assert_order(&carrier, &epochs);
    // One was ordered again after its failure.
    assert_eq!(carrier.requests, samples + 1);
    carrier.finish();
}
