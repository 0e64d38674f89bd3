//! Lists of epochs, for orders that can't be computed position by position: torch's.
//!
//! Making one takes time in proportion to the data set, and the thread that serves everybody has none. So it is made on another thread when the plan
//! comes to its epoch, one at a time, and given to the plan as an event. What a consumer asks of an epoch whose list isn't there waits for it, and
//! whatever it says after that waits behind.

use super::Job;
use foreload_plan::action::Event;
use foreload_plan::order::{Lister, Order};
use std::collections::VecDeque;
use std::rc::Rc;

/// What makes them, and what waits for them.
pub(super) struct Lists {
    lister: Option<Lister>,
    /// Whether the plan asks where samples come: their places are looked up then, which takes as much memory again.
    looks_up: bool,
    making: Option<u32>,
    waiting: VecDeque<Event>,
}

impl Lists {
    pub(super) fn of(order: &Order, looks_up: bool) -> Self {
        Lists {
            lister: order.lister(),
            looks_up,
            making: None,
            waiting: VecDeque::new(),
        }
    }

    /// Nobody waits any more.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }
}

/// The first epoch of an event whose order isn't known.
fn unknown(event: &Event, order: Option<&Order>) -> Option<u32> {
    let order = order?;
    match event {
        Event::Start { epoch, .. } | Event::WantBatch { epoch, .. } => {
            Some(*epoch).filter(|&epoch| !order.knows(epoch))
        }
        Event::WantReads { reads, .. } => reads.iter().map(|read| read.0).find(|&epoch| !order.knows(epoch)),
        _ => None,
    }
}

impl Job {
    /// Takes what a consumer says, which may need the list of an epoch.
    pub fn hear(self: &Rc<Self>, event: Event) {
        let has_list = {
            let lists = self.lists.borrow();
            let is_known = || self.order(|order| unknown(&event, order)).is_none();
            lists.lister.is_none() || (lists.waiting.is_empty() && is_known())
        };
        if has_list {
            return self.pool.step(event);
        }
        self.lists.borrow_mut().waiting.push_back(event);
        self.make_lists();
    }

    /// Hears what waited, as far as the lists are there.
    fn hear_on(&self) {
        loop {
            let event = {
                let mut lists = self.lists.borrow_mut();
                let Some(event) = lists.waiting.front() else {
                    return;
                };
                if self.order(|order| unknown(event, order)).is_some() {
                    return;
                }
                let event = lists.waiting.pop_front();
                // Nobody waits for what was withdrawn.
                event.filter(|event| match event {
                    Event::WantBatch { request, .. }
                    | Event::WantReads { request, .. }
                    | Event::WantSamples { request, .. } => self.pool.is_wanted(*request),
                    _ => true,
                })
            };
            if let Some(event) = event {
                self.pool.step(event);
            }
        }
    }

    /// Whether the order's lists are made here.
    pub fn makes_lists(&self) -> bool {
        self.lists.borrow().lister.is_some()
    }

    /// Whether places are looked up in lists.
    pub(super) fn looks_up(&self) -> bool {
        self.lists.borrow().looks_up
    }

    /// Has the list made that is wanted next, if there is one.
    pub fn make_lists(self: &Rc<Self>) {
        let mut lists = self.lists.borrow_mut();
        let Some(lister) = lists.lister.clone().filter(|_| lists.making.is_none()) else {
            return;
        };
        let next = self.order(|order| {
            let asked = lists.waiting.front().and_then(|event| unknown(event, order));
            asked.or_else(|| {
                order?
                    .missing()
                    .filter(|&epoch| order.is_some_and(|order| !order.knows(epoch)))
            })
        });
        let Some(epoch) = next else { return };
        lists.making = Some(epoch);
        let (job, looks_up) = (Rc::clone(self), lists.looks_up);
        tokio::task::spawn_local(async move {
            let list = move || match lister.list(epoch) {
                list if looks_up => list.looked_up(),
                list => list,
            };
            let made = tokio::task::spawn_blocking(list).await;
            job.lists.borrow_mut().making = None;
            if let Ok(samples) = made {
                job.pool.step(Event::Epoch {
                    job: job.id,
                    epoch,
                    samples,
                });
                job.hear_on();
                job.make_lists();
            }
        });
    }
}
