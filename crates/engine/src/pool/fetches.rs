//! Fetches that carriers have: one for each load, alone or with others in one order.

use super::Pool;
use super::bytes::Proof;
use crate::carriers::Carrier;
use foreload_plan::action::Action;

/// A fetch that a carrier has.
pub(super) struct Fetch {
    pub action: Action,
    pub proof: Proof,
    pub carrier: Carrier,
    /// The order that it goes with: the id of the first of its actions, which is its own where it is alone.
    pub order: u64,
}

impl Pool {
    /// A carrier has a fetch; it goes with an order, or is one.
    pub(super) fn note_fetch(&self, action: Action, proof: Proof, carrier: Carrier, order: Option<u64>) {
        let id = action.id();
        let fetch = Fetch {
            action,
            proof,
            carrier,
            order: order.unwrap_or(id),
        };
        self.state.borrow_mut().fetches.insert(id, fetch);
    }

    /// Calls a fetch off: it comes back soon, and what goes with it comes as it would have. False: there is none.
    pub(super) fn call_off(&self, load: u64) -> bool {
        let state = self.state.borrow();
        let fetch = state.fetches.get(&load);
        if let Some(fetch) = fetch {
            self.carriers.call_off((self.id, fetch.order), load, fetch.carrier);
        }
        fetch.is_some()
    }
}
