//! The limit on requests in flight, when others say it: it holds, it changes nothing but how many fly, and it is in the log.

use crate::carrier::{Carrier, assert_order, read_epochs, reads, sizes, spec};
use foreload_plan::action::Event;
use foreload_plan::catalog::{Catalog, Objects};
use foreload_plan::job::Reads;
use foreload_plan::settings::Settings;
use foreload_plan::spec::OrderKind;
use std::sync::Arc;

fn carrier(seed: u64) -> Carrier {
    let settings = Settings {
        ram_bytes: 200_000,
        hedge_per_cent: 0,
        ..Settings::default()
    };
    let catalog: Arc<dyn Catalog> = Arc::new(Objects(sizes(400, 800, seed)));
    let reads = Reads {
        epochs: Some(2),
        ..reads(catalog, spec(400, 8, OrderKind::Keyed), 1, vec![0])
    };
    Carrier::of(settings, reads, seed)
}

const START: Event = Event::Start {
    job: 0,
    rank: 0,
    epoch: 0,
    batch: 20,
};

#[test]
fn a_limit_plans_nothing_by_itself_and_holds_from_the_start() {
    let mut carrier = carrier(1);
    carrier.step(Event::Limit { requests: 5 });
    assert_eq!(carrier.under_way.len(), 0, "where the job begins is not known yet");
    carrier.step(START);
    assert_eq!(carrier.under_way.len(), 5);
    let demand = carrier.plan.scheduler().demand();
    assert!(demand.in_flight == 5 && demand.queued > 20, "{demand:?}");
    carrier.step(Event::Limit { requests: 9 });
    assert_eq!(carrier.under_way.len(), 9, "what was queued flies at once");
    carrier.finish();
}

#[test]
fn a_lower_limit_waits_for_what_is_in_flight_and_one_request_is_always_allowed() {
    let mut carrier = carrier(2);
    carrier.step(Event::Limit { requests: 12 });
    carrier.step(START);
    carrier.step(Event::Limit { requests: 0 });
    for left in (1..12).rev() {
        assert!(carrier.end_one());
        assert_eq!(carrier.under_way.len(), left);
    }
    assert!(carrier.end_one());
    assert_eq!(carrier.under_way.len(), 1, "the next one");
    carrier.finish();
}

#[test]
fn limits_that_come_and_go_change_no_order_and_no_request() {
    let requests = [0, 3].map(|every| {
        let mut carrier = carrier(3);
        carrier.step(Event::Start {
            job: 0,
            rank: 0,
            epoch: 0,
            batch: 0,
        });
        carrier.limit_every = every;
        let epochs = read_epochs(&mut carrier, 2);
        assert_order(&carrier, &epochs);
        let requests = carrier.requests;
        carrier.finish();
        requests
    });
    assert_eq!(requests[0], requests[1]);
}
