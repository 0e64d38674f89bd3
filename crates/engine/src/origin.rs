//! Who shares a source: the pools of this agent that read from one endpoint, and the limit on requests that is theirs together.
//!
//! The shares are the plan's ([`flow::Origin`]); here its members are pools. A pool takes a [`Seat`] when it is made and leaves it when it closes. After each of
//! its steps it reports what it wants, and after each request how that ended; whoever's share changes by that has a step of its own, with
//! [`Event::Limit`], so that each pool's log holds what it was given. Nothing here decides, and nothing is shared between endpoints. What an endpoint
//! was worth is remembered for the next run ([`Knees`]).

use crate::knees::Knees;
use crate::pool::Pool;
use crate::turns::{Turn, Turns};
use foreload_plan::action::{Completion, Event};
use foreload_plan::flow::{self, ConcurrencySettings, Demand, Member};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The origins that pools of this agent read from, by endpoint.
pub struct Origins {
    open: RefCell<BTreeMap<String, Weak<Origin>>>,
    knees: Knees,
}

impl Origins {
    /// None yet; what endpoints are worth is remembered in a cache directory.
    #[must_use]
    pub fn new(cache_dir: &Path) -> Self {
        Origins {
            open: RefCell::default(),
            knees: Knees::new(cache_dir),
        }
    }

    /// Writes down what the endpoints that are still read from are worth. Blocks.
    pub fn learn(&self) {
        let open = self.open.borrow();
        let found = open.values().filter_map(Weak::upgrade);
        found.filter_map(|origin| origin.lesson()).for_each(|learn| learn());
    }

    /// The origin at an endpoint: the one that other pools read from, or a new one.
    pub async fn at(&self, endpoint: &str) -> Rc<Origin> {
        if let Some(origin) = self.open.borrow().get(endpoint).and_then(Weak::upgrade) {
            return origin;
        }
        let (knees, asked) = (self.knees.clone(), endpoint.to_owned());
        let knee = tokio::task::spawn_blocking(move || knees.find(&asked))
            .await
            .ok()
            .flatten();
        let mut open = self.open.borrow_mut();
        // Opened meanwhile.
        if let Some(origin) = open.get(endpoint).and_then(Weak::upgrade) {
            return origin;
        }
        open.retain(|_, origin| origin.strong_count() > 0);
        let shares = flow::Origin::known(knee);
        let turns = Turns::new(shares.limit());
        let origin = Rc::new(Origin {
            endpoint: endpoint.to_owned(),
            knees: self.knees.clone(),
            limit: Cell::new(shares.limit()),
            shares: RefCell::new(shares),
            turns,
            pools: RefCell::default(),
            begun: Instant::now(),
            telling: Cell::new(false),
        });
        open.insert(endpoint.to_owned(), Rc::downgrade(&origin));
        tokio::task::spawn_local(hear(Rc::downgrade(&origin), Arc::clone(&origin.turns)));
        origin
    }
}

/// Hears of requests that heard nothing, for as long as the origin is there.
async fn hear(origin: Weak<Origin>, turns: Arc<Turns>) {
    loop {
        turns.silence.notified().await;
        let Some(origin) = origin.upgrade() else { return };
        origin.hear();
        origin.tell();
    }
}

/// One endpoint, and the pools that read from it.
pub struct Origin {
    endpoint: String,
    knees: Knees,
    shares: RefCell<flow::Origin>,
    turns: Arc<Turns>,
    /// The limit that they have.
    limit: Cell<u32>,
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

    /// Writes down what the endpoint is worth, if that was found out. Blocks when it is called.
    fn lesson(&self) -> Option<impl FnOnce() + Send + use<>> {
        let requests = self.shares.borrow().knee()?;
        let (knees, endpoint) = (self.knees.clone(), self.endpoint.clone());
        Some(move || knees.learn(&endpoint, requests))
    }

    /// Takes what requests have heard nothing since.
    fn hear(&self) {
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        for took in self.turns.silences() {
            self.shares.borrow_mut().silent(now_ns, took.as_nanos() as u64);
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
        let limit = self.shares.borrow().limit();
        if self.limit.replace(limit) != limit {
            self.turns.limit(limit);
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // Whoever hears for it hears that it is gone.
        self.turns.silence.notify_one();
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

    /// The turn of a request that the pool issues now.
    #[must_use]
    pub fn issue(&self) -> Turn {
        self.origin.turns.issue()
    }

    /// A request of the pool, for `bytes`, which was issued so long ago, ended. Those that were cut off with it count first: what follows it keeps to that.
    pub fn ended(&self, completion: &Completion, took: Duration, bytes: u64) {
        self.origin.hear();
        let now_ns = self.origin.begun.elapsed().as_nanos() as u64;
        let took_ns = took.as_nanos() as u64;
        self.origin
            .shares
            .borrow_mut()
            .ended(self.member, now_ns, took_ns, bytes, completion);
    }

    /// The pool sends no more requests: its share goes to the others.
    pub fn leave(&self) {
        self.origin.shares.borrow_mut().leave(self.member);
        self.origin.pools.borrow_mut().remove(&self.member);
        if let Some(learn) = self.origin.lesson() {
            drop(tokio::task::spawn_blocking(learn));
        }
        self.origin.tell();
    }
}
