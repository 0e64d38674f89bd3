use crate::agent::node::{Client, LONG, Node, leases, run, until, want};
use crate::calls::Attach;
use crate::job::Job;
use crate::protocol::{MAX_ITEMS, Say, Trouble};
use foreload_plan::action::{Event, Via};
use foreload_plan::spec::OrderKind;
use std::time::Duration;

fn kind<T>(refused: Result<T, Trouble>) -> Option<String> {
    refused.err().map(|trouble| trouble.kind)
}

fn with_word(attach: &Attach, word: &str) -> Attach {
    Attach {
        session: word.into(),
        ..attach.clone()
    }
}

/// Attaches, and leaves again.
async fn linger(node: &Node, attach: Attach) -> u32 {
    let client = node.client();
    let (job, _) = node.attach(&client, attach).await.expect("attached");
    node.leave(&client);
    assert!(job.lingers_for().is_some());
    job.id
}

#[test]
fn ranks_join_the_job_of_their_word_even_if_they_bring_other_memory() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let clients: Vec<Client> = (0..2).map(|_| node.client()).collect();
        let (job, joined) = node.attach(&clients[0], attach.clone()).await.expect("attached");
        assert!(!joined);
        let later = Attach {
            ram_bytes: 2 << 20,
            ..attach.clone()
        };
        let (same, joined) = node.attach(&clients[1], later).await.expect("attached");
        assert_eq!((same.id, joined, same.clients()), (job.id, true, 2));
        assert_eq!(same.attach.ram_bytes, 1 << 20, "the first one's budget holds");
    });
}

#[test]
fn who_reads_otherwise_or_says_another_word_has_a_job_of_its_own() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let client = node.client();
        let (job, _) = node.attach(&client, attach.clone()).await.expect("attached");
        let mut others = vec![with_word(&attach, "second")];
        let change = |change: &dyn Fn(&mut Attach)| {
            let mut other = attach.clone();
            change(&mut other);
            other
        };
        others.push(change(&|it| it.order.seed = 4));
        others.push(change(&|it| it.order.global_batch = 2));
        others.push(change(&|it| it.uneven = false));
        others.push(change(&|it| (it.world, it.ranks) = (2, vec![0, 1])));
        others.push(change(&|it| (it.world, it.ranks) = (2, vec![1])));
        for (at, other) in others.into_iter().enumerate() {
            let (another, joined) = node.attach(&client, other).await.expect("attached");
            assert!(!joined && another.id > job.id, "{at}");
        }
        assert_eq!(node.jobs().len(), 7);
    });
}

#[test]
fn a_connection_counts_once_however_often_it_attaches_and_leaves_with_the_last() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let client = node.client();
        let (job, _) = node.attach(&client, attach.clone()).await.expect("attached");
        node.attach(&client, attach).await.expect("attached");
        assert_eq!(job.clients(), 1);
        node.agent.detach(&client.connection, job.id + 100);
        node.agent.detach(&client.connection, job.id);
        assert_eq!((job.clients(), job.lingers_for()), (1, None));
        node.agent.detach(&client.connection, job.id);
        assert!(job.clients() == 0 && job.lingers_for().is_some());
        node.agent.detach(&client.connection, job.id);
        assert_eq!(job.clients(), 0, "it isn't attached any more");
        node.leave(&client);
        assert_eq!((job.clients(), node.jobs()), (0, vec![job.id]));
    });
}

#[test]
fn a_restart_takes_the_place_of_the_one_that_died_and_counts_anew() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let before = linger(&node, attach.clone()).await;
        node.agent
            .job(before)
            .expect("it lingers")
            .count(|stats| stats.samples = 5);
        let client = node.client();
        let (job, joined) = node
            .attach(&client, with_word(&attach, "second"))
            .await
            .expect("attached");
        assert_eq!((job.id, joined, job.lingers_for()), (before, true, None));
        assert_eq!((job.stats().samples, job.word.borrow().as_str()), (0, "second"));
        // The first word is nobody's now.
        let (other, joined) = node.attach(&client, attach).await.expect("attached");
        assert!(!joined && other.id != before);
    });
}

#[test]
fn only_the_same_plan_and_settings_take_a_lingering_job_over() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let before = linger(&node, attach.clone()).await;
        let other = Attach {
            ram_bytes: 2 << 20,
            ..with_word(&attach, "second")
        };
        let (job, joined) = node.attach(&node.client(), other).await.expect("attached");
        assert!(!joined && job.id != before);
        assert_eq!(node.jobs(), [job.id], "the one that lingered made room");
    });
}

#[test]
fn lists_of_its_own_are_nobody_elses() {
    run(LONG, |node| async move {
        let mut attach = node.attachment(node.dataset("a", &[100; 8]));
        attach.order.kind = OrderKind::Supplied { length: 8 };
        let before = linger(&node, attach.clone()).await;
        let (job, joined) = node.attach(&node.client(), attach.clone()).await.expect("attached");
        assert_eq!((job.id, joined), (before, true), "its own word finds it");
        assert!(!job.leave());
        let (job, joined) = node
            .attach(&node.client(), with_word(&attach, "second"))
            .await
            .expect("attached");
        assert!(!joined && job.id != before);
    });
}

#[test]
fn an_order_of_another_data_set_and_batches_beyond_a_message_are_refused() {
    run(LONG, |node| async move {
        let (first, second) = (node.dataset("a", &[100; 8]), node.dataset("b", &[100; 9]));
        let attach = node.attachment(first);
        let client = node.client();
        let other = Attach {
            dataset: second,
            ..attach.clone()
        };
        assert_eq!(kind(node.attach(&client, other).await).as_deref(), Some("invalid"));
        let mut other = attach.clone();
        other.order.global_batch = 2 * MAX_ITEMS as u32 + 1;
        other.world = 2;
        assert_eq!(kind(node.attach(&client, other).await).as_deref(), Some("invalid"));
        let other = Attach { dataset: 99, ..attach };
        assert_eq!(kind(node.attach(&client, other).await).as_deref(), Some("closed"));
        assert!(node.jobs().is_empty());
        assert_eq!(kind(node.agent.job(1)).as_deref(), Some("closed"));
    });
}

#[test]
fn a_job_that_cannot_be_served_leaves_no_pool_behind() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100, 2 << 20]));
        let refused = node.attach(&node.client(), attach.clone()).await;
        assert_eq!(kind(refused).as_deref(), Some("no-memory"));
        let other = Attach {
            skip_large: true,
            ranks: vec![7],
            ..attach
        };
        assert_eq!(
            kind(node.attach(&node.client(), other).await).as_deref(),
            Some("invalid")
        );
        assert!(node.jobs().is_empty() && node.agent.pools.borrow().is_empty());
    });
}

#[test]
fn who_left_while_its_job_was_made_is_not_counted_and_its_job_goes() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let gone = node.client();
        node.leave(&gone);
        assert_eq!(
            kind(node.attach(&gone, attach.clone()).await).as_deref(),
            Some("cancelled")
        );
        assert!(node.jobs().is_empty() && node.agent.pools.borrow().is_empty());
        let client = node.client();
        let (job, _) = node.attach(&client, attach.clone()).await.expect("attached");
        assert_eq!(kind(node.attach(&gone, attach).await).as_deref(), Some("cancelled"));
        assert_eq!((job.clients(), node.jobs()), (1, vec![job.id]), "others keep theirs");
    });
}

#[test]
fn a_job_ends_when_it_has_lingered_unless_somebody_came() {
    run(Duration::ZERO, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let (gone, client) = (node.client(), node.client());
        let (job, _) = node.attach(&gone, attach.clone()).await.expect("attached");
        node.leave(&gone);
        // Its time is up, but it has not been seen to.
        node.attach(&client, with_word(&attach, "second"))
            .await
            .expect("attached");
        let (other, _) = node
            .attach(&node.client(), with_word(&attach, "third"))
            .await
            .expect("attached");
        for id in [job.id, other.id] {
            assert!(node.agent.job(id).is_ok());
        }
        node.leave(&client);
        until(|| node.agent.job(job.id).is_err()).await;
        assert_eq!(node.jobs(), [other.id]);
        assert_eq!(
            (job.lingers_for(), job.pool.is_closed()),
            (None, false),
            "the other reads from its pool"
        );
    });
}

#[test]
fn what_a_dead_client_held_comes_back_and_nobody_elses() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let (mut dying, mut living) = (node.client(), node.client());
        let (job, _) = node.attach(&dying, attach.clone()).await.expect("attached");
        node.attach(&living, attach).await.expect("attached");
        for (request, client) in [(1, &mut dying), (2, &mut living)] {
            job.want(&client.connection, request, |request| Event::WantSamples {
                request,
                job: job.id,
                rank: 0,
                samples: vec![1, 2],
            });
            client.hear().await;
        }
        assert_eq!(leases(&job), 4);
        node.leave(&dying);
        assert_eq!((leases(&job), job.clients()), (2, 1));
        node.leave(&living);
        assert_eq!((leases(&job), job.clients()), (0, 0));
    });
}

#[test]
fn jobs_with_equal_terms_share_a_pool_which_ends_with_the_last_of_them() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let client = node.client();
        let mut jobs = Vec::new();
        for (word, hedge_per_cent) in [("first", 0), ("second", 0), ("third", 5)] {
            let attach = Attach {
                hedge_per_cent,
                ..with_word(&attach, word)
            };
            jobs.push(node.attach(&client, attach).await.expect("attached").0);
        }
        let pools: Vec<u32> = jobs.iter().map(|job| job.pool.id).collect();
        assert!(pools[0] == pools[1] && pools[1] != pools[2]);
        assert_eq!(node.agent.replay_all(), Ok(2), "pools that obeyed their plans");
        assert_eq!(node.agent.asides.get(), 0, "nothing goes on aside");
        node.agent.drop_job(&jobs[0]);
        assert!(!jobs[1].pool.is_closed());
        node.agent.drop_job(&jobs[1]);
        assert!(jobs[1].pool.is_closed() && !jobs[2].pool.is_closed());
        let left: Vec<u32> = node.agent.pools.borrow().iter().map(|pool| pool.id).collect();
        assert_eq!((left, node.jobs()), (vec![pools[2]], vec![jobs[2].id]));
    });
}

#[test]
fn what_lingers_in_another_pool_makes_room_for_a_new_job() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let busy = node.client();
        node.attach(&busy, with_word(&attach, "busy")).await.expect("attached");
        let other = Attach {
            hedge_per_cent: 5,
            ..with_word(&attach, "idle")
        };
        let idle = linger(&node, other).await;
        let (job, _) = node
            .attach(&node.client(), with_word(&attach, "new"))
            .await
            .expect("attached");
        assert!(node.agent.job(idle).is_err());
        assert_eq!((node.jobs().len(), node.agent.pools.borrow().len()), (2, 1));
        assert_eq!(job.clients(), 1);
    });
}

#[test]
fn what_lingers_in_the_same_pool_leaves_what_it_brought_to_the_new_job() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let mut client = node.client();
        let (before, _) = node.attach(&client, attach.clone()).await.expect("attached");
        let read = async |job: &Job, client: &mut Client| {
            node.agent
                .take(&client.connection, want(1, job.id, vec![0, 1, 2, 3]), None);
            let Say::Deliver { items, .. } = client.hear().await else {
                panic!("a delivery")
            };
            items.iter().map(|item| item.via).collect::<Vec<_>>()
        };
        assert_eq!(read(&before, &mut client).await, [Via::Bucket; 4]);
        node.leave(&client);
        let mut other = with_word(&attach, "second");
        other.order.seed = 4;
        let mut client = node.client();
        let (job, joined) = node.attach(&client, other).await.expect("attached");
        assert!(!joined && node.agent.job(before.id).is_err());
        assert_eq!(job.pool.id, before.pool.id);
        assert_eq!(read(&job, &mut client).await, [Via::Ram; 4]);
    });
}

#[test]
fn a_disk_tier_is_opened_once_and_is_as_large_as_the_job_that_asks_for_most() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let client = node.client();
        let share = |capacity_bytes| crate::calls::DiskShare {
            directory: node.directory.path().join("disk"),
            capacity_bytes,
            pinned: None,
        };
        let with = |word, megabytes: u64| Attach {
            disks: vec![share(megabytes << 20)],
            ..with_word(&attach, word)
        };
        let mut usable = Vec::new();
        for (word, megabytes) in [("first", 512), ("second", 1024), ("third", 256)] {
            node.attach(&client, with(word, megabytes)).await.expect("attached");
            let tiers = node.agent.tiers.borrow();
            assert_eq!(tiers.len(), 1);
            usable.extend(tiers.values().map(|tier| tier.borrow().usable_bytes()));
        }
        assert!(usable[0] < usable[1] && usable[1] == usable[2], "{usable:?}");
    });
}
