//! Lists of epochs, for orders that can't be computed position by position: torch's.
//!
//! Making one takes time in proportion to the data set, and the thread that serves everybody has none. So it is made on another thread when the plan
//! comes to its epoch, one at a time, and given to the plan as an event. What a consumer asks of an epoch whose list isn't there waits for it, and
//! whatever it says after that waits behind.

use super::{Job, SOLE};
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
            let state = self.state.borrow();
            let lists = &state.lists;
            lists.lister.is_none() || (lists.waiting.is_empty() && unknown(&event, state.order()).is_none())
        };
        if has_list {
            return self.step(event);
        }
        self.state.borrow_mut().lists.waiting.push_back(event);
        self.make_lists();
    }

    /// Hears what waited, as far as the lists are there.
    fn hear_on(self: &Rc<Self>) {
        loop {
            let event = {
                let mut state = self.state.borrow_mut();
                let Some(event) = state.lists.waiting.front() else {
                    return;
                };
                if unknown(event, state.order()).is_some() {
                    return;
                }
                let event = state.lists.waiting.pop_front();
                // Nobody waits for what was withdrawn.
                event.filter(|event| match event {
                    Event::WantBatch { request, .. }
                    | Event::WantReads { request, .. }
                    | Event::WantSamples { request, .. } => state.wants.contains_key(request),
                    _ => true,
                })
            };
            if let Some(event) = event {
                self.step(event);
            }
        }
    }

    /// Has the list made that is wanted next, if there is one.
    pub(super) fn make_lists(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        let Some(lister) = state.lists.lister.clone().filter(|_| state.lists.making.is_none()) else {
            return;
        };
        let Some(order) = state.order() else { return };
        let asked = state
            .lists
            .waiting
            .front()
            .and_then(|event| unknown(event, Some(order)));
        let Some(epoch) = asked.or_else(|| order.missing().filter(|&epoch| !order.knows(epoch))) else {
            return;
        };
        state.lists.making = Some(epoch);
        let (job, looks_up) = (Rc::clone(self), state.lists.looks_up);
        tokio::task::spawn_local(async move {
            let list = move || match lister.list(epoch) {
                list if looks_up => list.looked_up(),
                list => list,
            };
            let made = tokio::task::spawn_blocking(list).await;
            job.state.borrow_mut().lists.making = None;
            if let Ok(samples) = made {
                job.step(Event::Epoch {
                    job: SOLE,
                    epoch,
                    samples,
                });
                job.hear_on();
                job.make_lists();
            }
        });
    }
}
