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
    /// Nobody waits for it: where nobody waits for the others either, the order is called off.
    pub is_called_off: bool,
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
            is_called_off: false,
        };
        self.state.borrow_mut().fetches.insert(id, fetch);
    }

    /// Calls a fetch off. It comes back soon, unless others go with it that somebody waits for: then it comes as it would have. False: there is none.
    pub(super) fn call_off(&self, load: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(fetch) = state.fetches.get_mut(&load) else {
            return false;
        };
        fetch.is_called_off = true;
        let (order, carrier) = (fetch.order, fetch.carrier);
        let mut along = state.fetches.values().filter(|fetch| fetch.order == order);
        if along.all(|fetch| fetch.is_called_off) {
            self.carriers.call_off((self.id, order), carrier);
        }
        true
    }
}
