use super::*;
use crate::agent::node::{Client, LONG, Node, leases, run, until};

/// A job over sixteen samples of 16 KiB, and its client.
async fn job(node: &Node, word: &str) -> (Rc<Job>, Client) {
    let known = node.newest();
    let dataset = known.unwrap_or_else(|| node.dataset("a", &[16 << 10; 16]));
    let attach = Attach {
        session: word.into(),
        ..node.attachment(dataset)
    };
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

/// Starts at the beginning, and waits until all is in memory.
async fn fill(job: &Rc<Job>) {
    job.hear(Event::Start {
        job: job.id,
        rank: 0,
        epoch: 0,
        batch: 0,
    });
    until(|| {
        job.pool
            .look(|plan| plan.gauges().kept_samples == 16 && plan.gauges().in_flight == 0)
    })
    .await;
}

fn used(job: &Job) -> u64 {
    job.pool.look(|plan| plan.gauges().used_bytes)
}

#[test]
fn the_budget_is_what_the_jobs_ask_for_together_and_goes_with_them() {
    run(LONG, |node| async move {
        let asked = (1 << 20) - (1 << 16);
        let (first, _a) = job(&node, "first").await;
        assert_eq!(first.pool.budget.get(), asked);
        let (second, _b) = job(&node, "second").await;
        assert!(Rc::ptr_eq(&first.pool, &second.pool));
        assert_eq!((first.pool.budget.get(), first.pool.ram_bytes()), (2 * asked, 2 << 20));
        node.end(&second);
        assert_eq!((first.pool.budget.get(), first.pool.ram_bytes()), (asked, 1 << 20));
    });
}

#[test]
fn a_pool_plans_on_until_there_is_no_more_to_plan_and_then_rests() {
    run(LONG, |node| async move {
        let (job, _client) = job(&node, "first").await;
        fill(&job).await;
        let stands = || {
            let state = job.pool.state.borrow();
            let last = state.plan.log().records().last().map(|record| record.next);
            (state.plan.log().steps, last)
        };
        until(|| stands().1 == Some(Next::Wait)).await;
        // What was under way, and the watch that looks once more.
        tokio::time::sleep(TICK * 20).await;
        let rests = stands();
        tokio::time::sleep(TICK * 10).await;
        assert_eq!(stands(), (rests.0, Some(Next::Wait)));
    });
}

#[test]
fn on_a_full_machine_a_pool_takes_what_is_left_and_never_less_than_it_needs() {
    run(LONG, |node| async move {
        let (job, _client) = job(&node, "first").await;
        let bounds = job.pool.bounds();
        // Three batches of four, and one sample.
        assert_eq!(bounds.least, 13 * (16 << 10));
        assert_eq!(job.pool.share_memory(0), Some((bounds.least, bounds.asked)));
        assert_eq!(
            job.pool.share_memory(RESERVE_BYTES + 300_000),
            None,
            "that is more than it asks for"
        );
        assert_eq!(job.pool.budget.get(), bounds.asked);
    });
}

#[test]
fn memory_beyond_a_smaller_budget_goes_back_to_the_system_and_comes_again() {
    run(LONG, |node| async move {
        let (job, mut client) = job(&node, "first").await;
        fill(&job).await;
        assert!(job.pool.cache.used_bytes() >= 16 * (16 << 10));
        job.want(&client.connection, 1, |request| samples(request, job.id, &[7]));
        let Say::Deliver { items, .. } = client.hear().await else {
            panic!("a delivery")
        };
        let bytes = || {
            job.pool
                .cache
                .map()
                .bytes(items[0].offset, items[0].len)
                .map(<[u8]>::to_vec)
        };
        let before = bytes();
        job.pool.set_budget(0);
        assert_eq!((used(&job), leases(&job)), (16 << 10, 1), "what a client holds stays");
        assert!(job.pool.cache.used_bytes() <= 1 << 16);
        assert_eq!(bytes(), before);
        job.pool.set_budget(job.pool.bounds().asked);
        fill(&job).await;
    });
}

#[test]
fn the_memory_of_a_job_that_is_over_goes_back_to_the_system() {
    run(LONG, |node| async move {
        let (job, mut client) = job(&node, "first").await;
        fill(&job).await;
        job.want(&client.connection, 1, |request| samples(request, job.id, &[3]));
        client.hear().await;
        let pool = Rc::clone(&job.pool);
        node.end(&job);
        assert_eq!((used(&job), pool.cache.used_bytes()), (0, 0));
        assert!(pool.is_empty() && pool.is_closed() && pool.state.borrow().known.is_empty());
    });
}

#[test]
fn what_is_withdrawn_is_one_want_of_one_connection_unless_all_are_meant() {
    run(LONG, |node| async move {
        let ((job, first), second) = (job(&node, "first").await, node.client());
        let want = |client: &Client, id| job.pool.want(&job, &client.connection, id);
        let wants = [want(&first, 1), want(&first, 2), want(&second, 1), want(&second, 2)];
        let open = || wants.map(|request| job.pool.is_wanted(request));
        job.pool.withdraw(&first.connection, Some(job.id + 1), None);
        job.pool.withdraw(&first.connection, Some(job.id), Some(7));
        assert_eq!(open(), [true; 4]);
        job.pool.withdraw(&first.connection, Some(job.id), Some(2));
        assert_eq!(open(), [true, false, true, true]);
        job.pool.withdraw(&second.connection, None, None);
        assert_eq!(open(), [true, false, false, false]);
        job.pool.withdraw(&first.connection, Some(job.id), None);
        assert_eq!(open(), [false; 4]);
        assert_eq!(job.pool.look(|plan| plan.gauges().requests), 0);
    });
}

#[test]
fn what_nobody_is_there_to_take_is_released() {
    run(LONG, |node| async move {
        let (job, client) = job(&node, "first").await;
        let gone = node.client();
        job.want(&gone.connection, 1, |request| samples(request, job.id, &[1, 2]));
        node.lose(gone);
        until(|| {
            job.pool
                .look(|plan| plan.gauges().requests == 0 && plan.gauges().in_flight == 0)
        })
        .await;
        until(|| leases(&job) == 0).await;
        assert_eq!(job.clients(), 1);
        drop(client);
    });
}

#[test]
fn a_closed_pool_takes_no_step_and_keeps_nobodys_wants() {
    run(LONG, |node| async move {
        let (job, client) = job(&node, "first").await;
        job.want(&client.connection, 1, |request| samples(request, job.id, &[1, 2]));
        assert_eq!(job.pool.state.borrow().fetches.len(), 2);
        let log = || job.pool.state.borrow().plan.log().steps;
        let before = log();
        job.pool.close();
        job.pool.close();
        job.pool.step(Event::Tick);
        assert_eq!(log(), before);
        assert!(job.pool.state.borrow().wants.is_empty());
        // The loads notice, and change nothing.
        until(|| job.pool.state.borrow().fetches.is_empty()).await;
        assert_eq!(log(), before);
    });
}

#[test]
fn a_pool_that_nobody_is_attached_to_wants_nothing_of_its_source() {
    run(LONG, |node| async move {
        let (job, client) = job(&node, "first").await;
        job.want(&client.connection, 1, |request| samples(request, job.id, &[1, 2]));
        assert_eq!(job.pool.demand().in_flight, 2);
        job.leave();
        assert_eq!(job.pool.demand().in_flight, 0);
        assert_eq!(job.pool.look(Scheduler::demand).in_flight, 2, "though they fly");
        job.join();
        assert_eq!(job.pool.demand().in_flight, 2);
    });
}

#[test]
fn a_data_set_is_known_once_however_many_jobs_read_it_and_as_long() {
    run(LONG, |node| async move {
        let (first, _a) = job(&node, "first").await;
        let (second, _b) = job(&node, "second").await;
        let names = |job: &Job| {
            job.pool
                .state
                .borrow()
                .known
                .iter()
                .map(|known| known.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&first), [0]);
        node.end(&first);
        assert_eq!(names(&second), [0]);
        // Twice in one job, too, and after that under another name.
        let dataset = node.newest().expect("open");
        let twice = node.opened(dataset);
        let mut attach = node.attachment(dataset);
        attach.more = vec![dataset];
        attach.order.samples = 32;
        attach.order.dataset = crate::streams::digest_of(&[twice.digest(), twice.digest()]);
        attach.session = "twice".into();
        let (third, _) = node.attach(&node.client(), attach).await.expect("attached");
        assert_eq!(names(&third), [0]);
        assert_eq!(
            third
                .pool
                .look(|plan| [plan.on_node(third.id, 3), plan.on_node(third.id, 19)]),
            [Some(3); 2]
        );
    });
}

#[test]
fn settings_follow_from_the_terms() {
    run(LONG, |node| async move {
        let disk = |capacity_bytes| DiskShare {
            directory: "/d".into(),
            capacity_bytes,
            pinned: None,
        };
        let attach = Attach {
            disks: vec![disk(500), disk(2000)],
            timeout_s: 1e9,
            policy: Policy::Lru,
            bucket: Some(foreload_plan::model::Pinned {
                latency_s: 0.02,
                bytes_per_s: 1e8,
            }),
            staging_bytes: Some(555),
            hedge_per_cent: 7,
            concurrency: ConcurrencySettings::default().at_most(77),
            ..node.attachment(node.dataset("a", &[100; 8]))
        };
        let terms = Terms::of(&attach, "endpoint".to_owned(), u32::MAX);
        let settings = terms.settings(777, &[1000, 1000]);
        let capacities: Vec<u64> = settings.tiers.iter().map(|tier| tier.capacity_bytes).collect();
        assert_eq!(
            (settings.ram_bytes, capacities),
            (777, vec![500, 1000]),
            "a disk may be smaller than its share"
        );
        assert_eq!(settings.load_timeout_ns, 86_400_000_000_000);
        assert_eq!(
            (settings.policy, settings.staging_bytes, settings.hedge_per_cent),
            (Policy::Lru, Some(555), 7)
        );
        assert_eq!(
            (settings.concurrency, settings.bucket),
            (attach.concurrency, attach.bucket)
        );
        assert_eq!(terms.endpoint(), "endpoint");
        let other = |change: &dyn Fn(&mut Attach)| {
            let mut other = attach.clone();
            change(&mut other);
            Terms::of(&other, "endpoint".to_owned(), u32::MAX) == terms
        };
        assert!(
            other(&|it| it.ram_bytes = 5) && other(&|it| it.order.seed = 9) && other(&|it| it.session = "b".into())
        );
        assert!(!other(&|it| it.timeout_s = 1.0) && !other(&|it| it.disks.truncate(1)));
        assert_ne!(Terms::of(&attach, "other".to_owned(), u32::MAX), terms);
    });
}

#[test]
fn a_tier_without_room_is_told_once_to_everybody_who_is_attached() {
    run(LONG, |node| async move {
        let attach = Attach {
            disks: vec![crate::calls::DiskShare {
                directory: node.directory.path().join("tier"),
                capacity_bytes: 64 << 20,
                pinned: None,
            }],
            ..node.attachment(node.dataset("a", &[128 << 10; 32]))
        };
        let (mut reader, mut idle, mut stranger) = (node.client(), node.client(), node.client());
        let (job, _) = node.attach(&reader, attach.clone()).await.expect("attached");
        node.attach(&idle, attach).await.expect("attached");
        let other = Attach {
            session: "other".into(),
            ..node.attachment(node.dataset("b", &[16 << 10; 16]))
        };
        node.attach(&stranger, other).await.expect("attached");
        job.pool.tiers[0].borrow_mut().keep_free(u64::MAX);
        let mut told = Vec::new();
        // Twice through all of it: what memory doesn't hold is offered to the disk each time.
        for request in 0..64 {
            let sample = request % 32;
            job.want(&reader.connection, request, |request| {
                samples(request, job.id, &[sample])
            });
            loop {
                match reader.hear().await {
                    Say::Notice { body } => told.push(body),
                    Say::Deliver { items, .. } => {
                        let handles = items.iter().map(|item| item.handle).collect();
                        let handles = reader.connection.unlease(job.id, handles);
                        job.pool.step(Event::Release { handles });
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        let Say::Notice { body } = idle.hear().await else {
            panic!("a notice")
        };
        assert_eq!(told, [body]);
        assert!(told[0].contains("tier: its file system is full"), "{told:?}");
        job.pool.note_disk_trouble(0, "reading from", &"it doesn't answer");
        assert!(matches!(idle.hear().await, Say::Notice { body } if body.contains("answer")));
        assert!(stranger.is_quiet());
    });
}
