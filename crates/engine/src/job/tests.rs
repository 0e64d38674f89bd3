use super::*;
use crate::agent::node::{Client, LONG, Node, bytes, leases, run, until};
use crate::protocol::Say;
use foreload_plan::spec::OrderKind;

/// A job over eight samples, and its client.
async fn job(node: &Node, change: impl FnOnce(&mut Attach)) -> (Rc<Job>, Client) {
    let mut attach = node.attachment(node.dataset("a", &[100, 200, 300, 400, 500, 600, 700, 800]));
    change(&mut attach);
    let client = node.client();
    let (job, _) = node.attach(&client, attach).await.expect("attached");
    (job, client)
}

fn samples(request: u64, job: u32, samples: &[u64]) -> Event {
    Event::WantSamples {
        request,
        job,
        rank: 0,
        samples: samples.to_vec(),
    }
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
fn a_job_runs_lingers_runs_again_and_is_closed_for_good() {
    run(LONG, |node| async move {
        let (job, _client) = job(&node, |_| {}).await;
        job.join();
        assert_eq!((job.clients(), job.lingers_for()), (2, None));
        assert!(job.leave() && job.lingers_for().is_none());
        assert!(!job.leave(), "that was the last one");
        assert!(job.lingers_for().is_some() && !job.is_closed());
        job.join();
        assert_eq!((job.clients(), job.lingers_for()), (1, None));
        job.close();
        assert!(job.is_closed() && job.lingers_for().is_none());
        job.close();
        assert!(job.pool.is_empty());
    });
}

#[test]
fn nothing_is_planned_for_a_job_that_lingers() {
    run(LONG, |node| async move {
        let (job, _client) = job(&node, |_| {}).await;
        job.hear(Event::Start {
            job: job.id,
            rank: 0,
            epoch: 0,
            batch: 0,
        });
        assert!(job.pool.look(|plan| plan.reads_ahead(job.id)) > 0);
        job.leave();
        assert_eq!(job.pool.look(|plan| plan.reads_ahead(job.id)), 0);
    });
}

#[test]
fn what_is_asked_for_comes_whole_and_counts_as_what_it_cost() {
    run(LONG, |node| async move {
        let (job, mut client) = job(&node, |_| {}).await;
        for (id, samples_of) in [(5, &[6, 1][..]), (6, &[1])] {
            job.want(&client.connection, id, |request| samples(request, job.id, samples_of));
            let Say::Deliver { id: told, items, .. } = client.hear().await else {
                panic!("a delivery")
            };
            assert_eq!(told, id);
            for (item, &sample) in items.iter().zip(samples_of) {
                let there = job.pool.cache.map().bytes(item.offset, item.len);
                assert_eq!(
                    (item.sample, there),
                    (sample, Some(&bytes(sample, 100 * (sample + 1))[..]))
                );
            }
            assert_eq!(items.len(), samples_of.len());
        }
        let stats = job.stats();
        assert_eq!((stats.samples, stats.bytes), (3, 1100));
        assert_eq!((stats.bucket_reads, stats.bucket_bytes), (2, 900));
        assert_eq!((stats.ram_hits, stats.ram_bytes), (1, 200));
        assert_eq!(stats.disk_hits, 0);
        assert_eq!(job.asked.get(), 2, "requests, whatever each asks for");
    });
}

#[test]
fn time_is_waited_while_any_request_is_open_and_belongs_to_one_loader() {
    run(LONG, |node| async move {
        let (job, _client) = job(&node, |_| {}).await;
        let waits = || (job.waits(), job.waiting_since.get().is_some());
        job.count_waiting(true);
        let since = job.waiting_since.get();
        job.count_waiting(true);
        assert_eq!(job.waiting_since.get(), since, "two wait no longer than one");
        job.count_waiting(false);
        assert_eq!(waits(), (true, true));
        assert_eq!(job.stats.borrow().waited_s, 0.0);
        job.count_waiting(false);
        assert_eq!(waits(), (false, false));
        assert!(job.stats.borrow().waited_s > 0.0);
        job.belong_to("first");
        assert!(job.stats.borrow().waited_s > 0.0, "it belonged to that one already");
        job.stats.borrow_mut().waited_s = 1000.0;
        job.count_waiting(true);
        let told = job.stats().waited_s;
        assert!(
            told > 1000.0 && told < 1000.5,
            "what is waited now is added to what was: {told}"
        );
        let since = job.waiting_since.get();
        job.belong_to("second");
        assert_eq!(job.stats.borrow().waited_s, 0.0);
        assert!(job.waiting_since.get() >= since && job.waits());
        job.count_waiting(false);
    });
}

#[test]
fn memory_for_samples_is_what_batches_leave() {
    run(LONG, |node| async move {
        let (job, _client) = job(&node, |_| {}).await;
        assert_eq!(job.sample_bytes(), (1 << 20) - (1 << 16));
        let attach = Attach {
            ram_bytes: 10,
            batch_bytes: 20,
            ..job.attach.clone()
        };
        assert_eq!(sample_bytes(&attach), 0);
        assert!(warning_of_order(&attach, 2).is_none() && warning_of_order(&attach, 3).is_some());
        assert_eq!(job.stall_limit(), Duration::from_secs(10));
    });
}

#[test]
fn what_batches_and_samples_hold_is_counted_together() {
    run(LONG, |node| async move {
        let (job, mut client) = job(&node, |_| {}).await;
        job.want(&client.connection, 1, |request| samples(request, job.id, &[1]));
        client.hear().await;
        job.batches.borrow().shared().write(0, &[1; 9000]).expect("inside");
        let (samples, batches) = (job.pool.cache.used_bytes(), job.batches.borrow().shared().used_bytes());
        assert!(samples > 0 && batches >= 9000);
        assert_eq!(job.stats().memory_bytes, samples + batches);
    });
}

#[test]
fn less_memory_than_was_asked_for_is_said_with_what_is_kept() {
    run(LONG, |node| async move {
        let (number, client) = (node.dataset("a", &[100; 8]), node.client());
        let attach = |session: &str| {
            let mut attach = node.attachment(number);
            attach.session = session.into();
            (attach.ram_bytes, attach.batch_bytes) = (2_000_000_000, 1_000_000_000);
            attach.order.kind = OrderKind::TorchDistributed;
            attach
        };
        let (alone, _) = node.attach(&client, attach("alone")).await.expect("attached");
        let said = |job: &Job, available| {
            let mut warnings = Vec::new();
            job.take_memory(available, &mut warnings);
            warnings
        };
        assert!(said(&alone, None).is_empty());
        let lists = alone.order(|order| order.map_or(0, |order| order.expected_bytes(false)));
        let enough = 2_000_000_000 + lists - alone.pool.cache.used_bytes();
        assert!(said(&alone, Some(enough)).is_empty());
        assert_eq!(said(&alone, Some(enough - 1)).len(), 1);
        let warnings = said(&alone, Some(enough - 1_000_000));
        let kept = 999_000_000 - crate::pool::RESERVE_BYTES;
        let told = format!(
            "the loader asks for 2000 MB of memory, and this machine or its control group has 1999 MB left: it keeps {} MB for samples now, and",
            kept / 1_000_000
        );
        assert!(warnings[0].starts_with(&told), "{}", warnings[0]);
        let (second, _) = node.attach(&client, attach("second")).await.expect("attached");
        let warnings = said(&second, Some(enough - 1));
        let told = "2000 MB of memory, all loaders that share it for 2000 MB, and this";
        assert!(warnings[0].contains(told), "{}", warnings[0]);
    });
}

#[test]
fn lists_are_warned_of_when_they_take_a_quarter_of_the_budget() {
    run(LONG, |node| async move {
        let mut attach = node.attachment(node.dataset("a", &[100; 8]));
        attach.ram_bytes = 8_000_000;
        assert_eq!(warning_of_order(&attach, 2_000_000), None);
        let warning = warning_of_order(&attach, 2_000_001).expect("more than a quarter");
        assert!(warning.contains("3 MB beside the memory budget of 8 MB"), "{warning}");
    });
}

#[test]
fn a_digest_names_who_reads_what() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let order = Digest::from_bytes([1; 16]);
        let other_memory = Attach {
            ram_bytes: 5,
            ..attach.clone()
        };
        let other_world = Attach {
            world: 2,
            ..attach.clone()
        };
        let (job, _) = node.attach(&node.client(), attach.clone()).await.expect("attached");
        let read = Order::new(&attach.order).expect("an order").digest();
        assert_eq!(job.plan_digest(), plan_digest(&attach, read));
        let digest = plan_digest(&attach, order);
        assert_eq!(digest, plan_digest(&other_memory, order));
        assert_ne!(digest, plan_digest(&other_world, order));
        assert_ne!(digest, plan_digest(&attach, Digest::from_bytes([2; 16])));
    });
}

#[test]
fn a_refusal_says_what_can_be_done() {
    run(LONG, |node| async move {
        let (job, _client) = job(&node, |_| {}).await;
        let kind = |sample, failure| job.explain_refusal(sample, failure).kind;
        assert_eq!(kind(Some(1), Failure::NoMemory), "no-memory");
        assert_eq!(kind(None, Failure::Cancelled), "cancelled");
        assert_eq!(kind(None, Failure::Final), "invalid");
        for failure in [Failure::Final, Failure::Unavailable, Failure::Corrupt] {
            let trouble = job.explain_refusal(Some(1), failure);
            assert_eq!(trouble.kind, "unavailable");
            assert!(trouble.message.contains("001"), "{}", trouble.message);
        }
    });
}

#[test]
fn a_sample_beyond_the_memory_is_refused_though_it_is_empty_to_the_plan() {
    run(LONG, |node| async move {
        let mut attach = node.attachment(node.dataset("a", &[100, 2 << 20, 100]));
        attach.skip_large = true;
        let mut client = node.client();
        let (job, _) = node.attach(&client, attach).await.expect("attached");
        job.want(&client.connection, 1, |request| samples(request, job.id, &[0, 1]));
        let (id, trouble) = client.trouble().await;
        assert_eq!((id, trouble.kind.as_str(), trouble.sample), (1, "no-memory", Some(1)));
        let told = ["2097152 bytes", "983040 without", "ram=\"4MB\"", "length <= 983040"];
        assert!(
            told.iter().all(|part| trouble.message.contains(part)),
            "{}",
            trouble.message
        );
        until(|| leases(&job) == 0).await;
        job.want(&client.connection, 2, |request| samples(request, job.id, &[0, 2]));
        assert!(matches!(client.hear().await, Say::Deliver { id: 2, .. }));
    });
}

#[test]
fn a_list_of_its_own_is_taken_once_and_only_where_the_order_waits_for_one() {
    run(LONG, |node| async move {
        let (job, mut client) = job(&node, |attach| attach.order.kind = OrderKind::Supplied { length: 8 }).await;
        let reversed: Vec<u64> = (0..8).rev().collect();
        let list = job
            .expects(1)
            .and_then(|expected| expected.list(&reversed).map_err(|e| list_trouble(1, &e)));
        let list = list.expect("a list");
        job.supply(1, list.clone()).expect("taken");
        job.supply(1, list).expect("the same again");
        let expected = job.expects(1).expect("it is of lists");
        assert!(expected.list(&[0; 8]).is_err(), "another one");
        job.want(&client.connection, 1, |request| batch(request, job.id, 1, 0));
        let Say::Deliver { items, .. } = client.hear().await else {
            panic!("a delivery")
        };
        assert_eq!(items.iter().map(|item| item.sample).collect::<Vec<_>>(), [7, 6, 5, 4]);
        let (computed, _client) = self::job(&node, |attach| attach.session = "computed".into()).await;
        assert_eq!(
            computed.expects(0).err().map(|trouble| trouble.kind).as_deref(),
            Some("invalid")
        );
    });
}
