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

/// The epoch that a consumer has come to.
fn epoch_of(event: &Event) -> Option<u32> {
    match event {
        Event::Start { epoch, .. } | Event::WantBatch { epoch, .. } => Some(*epoch),
        Event::WantReads { reads, .. } => reads.first().map(|read| read.0),
        _ => None,
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
        self.mind_epoch(&event);
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

    /// Behind its first epoch it may need nothing more of what scans have read.
    fn mind_epoch(&self, event: &Event) {
        let Some(epoch) = epoch_of(event) else { return };
        let last = self.last_epoch.get();
        self.last_epoch.set(last.max(Some(epoch)));
        if last.is_some_and(|last| last < epoch) {
            self.let_spools_go();
        }
    }

    /// What scans have read goes when it has served: as many samples were delivered as an epoch has, or nearly, and nearly all of it was taken. What is
    /// worth keeping is in the tiers then. Whoever only looks at batches, or reads some of the samples, leaves it to those after him.
    pub fn let_spools_go(&self) {
        let here = self.attach.ranks.len() as u64;
        let share = self.streams.len() * here / u64::from(self.attach.world).max(1);
        if 8 * self.stats.borrow().samples >= 7 * share {
            self.streams.release_read_spools();
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::node::{Client, LONG, Node, run};
    use crate::protocol::Say;
    use foreload_plan::DigestBuilder;
    use foreload_plan::spec::{OrderKind, OrderSpec, Tail};

    fn order(kind: OrderKind) -> Order {
        let spec = OrderSpec {
            dataset: DigestBuilder::new("test").finish(),
            samples: 8,
            kind,
            seed: 1,
            global_batch: 4,
            tail: Tail::Uneven,
        };
        Order::new(&spec).expect("an order")
    }

    #[test]
    fn an_event_waits_for_the_first_epoch_of_it_whose_list_is_not_there() {
        let mut order = order(OrderKind::TorchDistributed).deferred();
        let lister = order.lister().expect("it is listed");
        order.take(2, lister.list(2)).expect("taken");
        let start = |epoch| Event::Start {
            job: 0,
            rank: 0,
            epoch,
            batch: 0,
        };
        let batch = |epoch| Event::WantBatch {
            request: 1,
            job: 0,
            rank: 0,
            epoch,
            batch: 0,
        };
        let reads = |epochs: &[u32]| Event::WantReads {
            request: 1,
            job: 0,
            rank: 0,
            reads: epochs.iter().map(|&epoch| (epoch, 0)).collect(),
        };
        let unknown = |event: Event| super::unknown(&event, Some(&order));
        assert_eq!([unknown(start(2)), unknown(start(3))], [None, Some(3)]);
        assert_eq!([unknown(batch(2)), unknown(batch(1))], [None, Some(1)]);
        assert_eq!([unknown(reads(&[2, 2])), unknown(reads(&[2, 5, 4]))], [None, Some(5)]);
        let samples = Event::WantSamples {
            request: 1,
            job: 0,
            rank: 0,
            samples: vec![1],
        };
        assert_eq!([unknown(samples), unknown(reads(&[]))], [None, None]);
        assert_eq!(super::unknown(&start(3), None), None, "the job is over");
    }

    #[test]
    fn lists_are_made_of_orders_that_are_drawn_and_of_no_others() {
        assert!(Lists::of(&order(OrderKind::TorchDistributed), true).lister.is_some());
        assert!(Lists::of(&order(OrderKind::Keyed), true).lister.is_none());
        assert!(
            Lists::of(&order(OrderKind::Supplied { length: 8 }), true)
                .lister
                .is_none()
        );
    }

    /// A job whose lists are made here, and its client.
    async fn job(node: &Node) -> (Rc<Job>, Client) {
        let mut attach = node.attachment(node.dataset("a", &[100; 8]));
        attach.order.kind = OrderKind::TorchDistributed;
        let client = node.client();
        let (job, _) = node.attach(&client, attach).await.expect("attached");
        (job, client)
    }

    fn batch(request: u64, job: u32, epoch: u32, batch: u64) -> Event {
        Event::WantBatch {
            request,
            job,
            rank: 0,
            epoch,
            batch,
        }
    }

    #[test]
    fn what_needs_a_list_waits_for_it_and_all_that_is_said_later_behind_it() {
        run(LONG, |node| async move {
            let (job, mut client) = job(&node).await;
            assert!(job.makes_lists() && !job.looks_up(), "a file per sample");
            job.hear(Event::Start {
                job: job.id,
                rank: 0,
                epoch: 3,
                batch: 0,
            });
            job.want(&client.connection, 1, |request| batch(request, job.id, 3, 0));
            job.want(&client.connection, 2, |request| Event::WantSamples {
                request,
                job: job.id,
                rank: 0,
                samples: vec![5],
            });
            job.want(&client.connection, 3, |request| batch(request, job.id, 3, 1));
            assert_eq!(job.lists.borrow().waiting.len(), 4);
            job.withdraw(&client.connection, Some(3));
            let expected = Order::new(&job.attach.order)
                .expect("an order")
                .epoch(3)
                .expect("known");
            let expected: Vec<u64> = (0..4).map(|position| expected.sample_at(position)).collect();
            let mut told = Vec::new();
            for _ in 0..2 {
                let Say::Deliver { id, items, .. } = client.hear().await else {
                    panic!("a delivery")
                };
                told.push((id, items.iter().map(|item| item.sample).collect::<Vec<_>>()));
            }
            told.sort();
            assert_eq!(told, [(1, expected), (2, vec![5])]);
            assert!(job.lists.borrow().waiting.is_empty());
            // What was withdrawn meanwhile was never asked of the plan: the batch is still to be had.
            job.want(&client.connection, 4, |request| batch(request, job.id, 3, 1));
            assert!(matches!(client.hear().await, Say::Deliver { id: 4, .. }));
        });
    }

    #[test]
    fn nobody_waits_for_a_list_after_the_last_client_has_left() {
        run(LONG, |node| async move {
            let (job, client) = job(&node).await;
            job.want(&client.connection, 1, |request| batch(request, job.id, 0, 0));
            assert_eq!(job.lists.borrow().waiting.len(), 1);
            node.leave(&client);
            assert!(job.lists.borrow().waiting.is_empty() && !job.waits());
        });
    }
}
