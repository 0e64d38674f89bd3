//! Who shares a source: the pools of this agent that read from one endpoint, and the limit on requests that is theirs together.
//!
//! The shares are the plan's ([`flow::Origin`]); here its members are pools. A pool takes a [`Seat`] when it is made and leaves it when it closes. After each of
//! its steps it reports what it wants, and after each request how that ended; whoever's share changes by that has a step of its own, with
//! [`Event::Limit`], so that each pool's log holds what it was given. Nothing here decides, and nothing is shared between endpoints.

use crate::pool::Pool;
use foreload_plan::action::{Completion, Event};
use foreload_plan::flow::{self, ConcurrencySettings, Demand, Member};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use tokio::time::Instant;

/// The origins that pools of this agent read from, by endpoint.
#[derive(Default)]
pub struct Origins(RefCell<BTreeMap<String, Weak<Origin>>>);

impl Origins {
    /// The origin at an endpoint: the one that other pools read from, or a new one.
    #[must_use]
    pub fn at(&self, endpoint: &str) -> Rc<Origin> {
        let mut known = self.0.borrow_mut();
        if let Some(origin) = known.get(endpoint).and_then(Weak::upgrade) {
            return origin;
        }
        known.retain(|_, origin| origin.strong_count() > 0);
        let origin = Rc::new(Origin {
            shares: RefCell::default(),
            pools: RefCell::default(),
            begun: Instant::now(),
            telling: Cell::new(false),
        });
        known.insert(endpoint.to_owned(), Rc::downgrade(&origin));
        origin
    }
}

/// One endpoint, and the pools that read from it.
pub struct Origin {
    shares: RefCell<flow::Origin>,
    pools: RefCell<BTreeMap<Member, Weak<Pool>>>,
    /// The clock that its members share.
    begun: Instant,
    /// Pools are being told their shares.
    telling: Cell<bool>,
}

impl Origin {
    /// Takes a seat for a pool, whose own requests in flight stay within `bounds`.
    #[must_use]
    pub fn join(self: &Rc<Self>, pool: Weak<Pool>, bounds: ConcurrencySettings) -> Seat {
        let member = self.shares.borrow_mut().join(bounds);
        self.pools.borrow_mut().insert(member, pool);
        Seat {
            origin: Rc::clone(self),
            member,
        }
    }

    /// Tells pools their shares until none has changed. What a pool does with its share may change those of others: they are told by the same loop.
    fn tell(&self) {
        if self.telling.replace(true) {
            return;
        }
        loop {
            let change = self.shares.borrow_mut().next_change();
            let Some((member, requests)) = change else { break };
            let pool = self.pools.borrow().get(&member).and_then(Weak::upgrade);
            if let Some(pool) = pool {
                pool.step(Event::Limit { requests });
            }
        }
        self.telling.set(false);
    }
}

/// A pool's place among those that share an origin.
pub struct Seat {
    origin: Rc<Origin>,
    member: Member,
}

impl Seat {
    /// What the pool wants now.
    pub fn report(&self, demand: Demand) {
        self.origin.shares.borrow_mut().wants(self.member, demand);
        self.origin.tell();
    }

    /// A request of the pool, for `bytes`, ended.
    pub fn ended(&self, completion: &Completion, bytes: u64) {
        let now_ns = self.origin.begun.elapsed().as_nanos() as u64;
        self.origin
            .shares
            .borrow_mut()
            .ended(self.member, now_ns, bytes, completion);
    }

    /// The pool sends no more requests: its share goes to the others.
    pub fn leave(&self) {
        self.origin.shares.borrow_mut().leave(self.member);
        self.origin.pools.borrow_mut().remove(&self.member);
        self.origin.tell();
    }
}
