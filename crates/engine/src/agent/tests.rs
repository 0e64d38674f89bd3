use super::node::{LONG, leases, run, until, want};
use super::*;
use crate::calls::Attach;
use foreload_plan::action::Handle;

fn handles(say: &Say) -> Vec<Handle> {
    match say {
        Say::Deliver { items, .. } => items.iter().map(|item| item.handle).collect(),
        other => panic!("{other:?}"),
    }
}

/// The kind of trouble that a call meets before it is answered.
fn refusal(body: &str, list: Option<u64>) -> Option<String> {
    let laid = List::new(&[5, 6]).expect("a list");
    let fd = || rustix::io::dup(laid.fd().expect("laid down")).expect("another");
    trouble_of(body, list.map(|count| (fd(), count))).map(|trouble| trouble.kind)
}

fn trouble_of(body: &str, list: Option<Beside>) -> Option<Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    runtime.block_on(call_of(body, list)).err()
}

#[test]
fn a_call_has_a_list_where_its_kind_needs_one_and_nowhere_else() {
    let subset = r#"{"call":"subset","dataset":1}"#;
    assert_eq!(refusal(subset, Some(2)), None);
    assert_eq!(refusal(subset, None).as_deref(), Some("invalid"));
    assert_eq!(
        refusal(subset, Some(3)).as_deref(),
        Some("invalid"),
        "it is shorter than it says"
    );
    assert_eq!(refusal(r#"{"call":"status"}"#, None), None);
    assert_eq!(refusal(r#"{"call":"status"}"#, Some(2)).as_deref(), Some("invalid"));
    assert_eq!(refusal(r#"{"call":"dance"}"#, None).as_deref(), Some("invalid"));
    assert_eq!(refusal("{", None).as_deref(), Some("invalid"));
}

#[test]
fn a_list_beyond_the_machine_is_no_fault_of_the_call() {
    let fd = rustix::fs::memfd_create("list", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, 1 << 50).expect("sparse");
    let trouble = trouble_of(r#"{"call":"subset","dataset":1}"#, Some((fd, 1 << 47))).expect("a petabyte");
    assert_eq!(trouble.kind, "no-memory");
    assert!(
        trouble.message.contains("140737488355328 samples"),
        "{}",
        trouble.message
    );
}

#[test]
fn a_shortage_that_may_pass_does_not_end_the_agent() {
    use rustix::io::Errno;
    let is_passing = |errno: Errno| is_shortage(&errno.into());
    assert!(is_passing(Errno::MFILE) && is_passing(Errno::NFILE) && is_passing(Errno::CONNABORTED));
    assert!(!is_passing(Errno::BADF) && !is_passing(Errno::INVAL));
    assert!(!is_shortage(&io::Error::other("no number")));
}

#[test]
fn an_agent_of_another_version_is_no_partner() {
    run(LONG, |node| async move {
        let client = node.client();
        let hello = |version| Call::Hello { version, pid: 1 };
        let call = |call| Rc::clone(&node.agent).call(&client.connection, 1, call);
        let (welcome, _) = call(hello(VERSION)).await.expect("welcome");
        let id = client.connection.id;
        assert!(matches!(welcome, Reply::Welcome { connection, .. } if connection == id));
        assert!(matches!(call(Call::Ping).await, Ok((Reply::Done, _))), "a sign of life");
        let refused = call(hello(VERSION + 1)).await.err().map(|trouble| trouble.kind);
        assert_eq!(refused.as_deref(), Some("invalid"));
    });
}

#[test]
fn who_asks_of_a_job_that_has_ended_or_for_too_much_is_told() {
    run(LONG, |node| async move {
        let mut client = node.client();
        let mut ask = async |ask: Ask| {
            node.agent.take(&client.connection, ask, None);
            let (id, trouble) = client.trouble().await;
            (id, trouble.kind)
        };
        let batch = Ask::WantBatch {
            id: 3,
            job: 9,
            rank: 0,
            epoch: 0,
            batch: 0,
        };
        let reads = |id, count| Ask::WantReads {
            id,
            job: 9,
            rank: 0,
            reads: vec![(0, 0); count],
        };
        assert_eq!(ask(want(1, 9, vec![0])).await, (1, "closed".to_owned()));
        assert_eq!(ask(reads(2, 1)).await, (2, "closed".to_owned()));
        assert_eq!(ask(batch).await, (3, "closed".to_owned()));
        assert_eq!(ask(want(4, 9, vec![0; MAX_ITEMS + 1])).await, (4, "invalid".to_owned()));
        assert_eq!(ask(reads(5, MAX_ITEMS + 1)).await, (5, "invalid".to_owned()));
        assert_eq!(ask(want(6, 9, vec![0; MAX_ITEMS])).await, (6, "closed".to_owned()));
        assert_eq!(ask(reads(7, MAX_ITEMS)).await, (7, "closed".to_owned()));
    });
}

#[test]
fn leases_and_slots_are_adopted_together_or_not_at_all() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let (mut worker, mut parent) = (node.client(), node.client());
        let (job, _) = node.attach(&worker, attach.clone()).await.expect("attached");
        node.attach(&parent, attach).await.expect("attached");
        node.agent.take(&worker.connection, want(1, job.id, vec![3, 4]), None);
        let held = handles(&worker.hear().await);
        let slot = Ask::WantSlot {
            id: 2,
            job: job.id,
            len: 100,
        };
        node.agent.take(&worker.connection, slot, None);
        let Say::Slot { slot, .. } = worker.hear().await else {
            panic!("a slot")
        };
        let adopt = |from: u64, slots: &[u64]| Ask::Adopt {
            id: 3,
            job: job.id,
            from,
            handles: held.clone(),
            slots: slots.to_vec(),
        };
        let worker_id = worker.connection.id;
        for (from, slots, expected) in [
            (worker_id + 100, vec![slot], false),
            (worker_id, vec![slot + 1], false),
            (worker_id, vec![slot], true),
            (worker_id, vec![slot], false),
        ] {
            node.agent.take(&parent.connection, adopt(from, &slots), None);
            assert_eq!(parent.hear().await, Say::Adopted { id: 3, whole: expected });
        }
        node.leave(&worker);
        assert_eq!(
            (leases(&job), job.batches.borrow().leases()),
            (2, 1),
            "they are the parent's"
        );
        let release = Ask::Release {
            job: job.id,
            handles: held,
            slots: vec![slot],
        };
        node.agent.take(&parent.connection, release, None);
        assert_eq!((leases(&job), job.batches.borrow().leases()), (0, 0));
    });
}

#[test]
fn nobody_gives_back_what_another_one_holds() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let (mut holder, thief) = (node.client(), node.client());
        let (job, _) = node.attach(&holder, attach.clone()).await.expect("attached");
        node.attach(&thief, attach).await.expect("attached");
        node.agent.take(&holder.connection, want(1, job.id, vec![3]), None);
        let handles = handles(&holder.hear().await);
        let release = || Ask::Release {
            job: job.id,
            handles: handles.clone(),
            slots: vec![],
        };
        node.agent.take(&thief.connection, release(), None);
        assert_eq!(leases(&job), 1);
        node.agent.take(&holder.connection, release(), None);
        node.agent.take(&holder.connection, release(), None);
        assert_eq!(leases(&job), 0);
    });
}

#[test]
fn a_data_set_that_is_held_again_in_time_stays() {
    run(Duration::from_millis(50), |node| async move {
        let (first, second) = (node.dataset("a", &[1]), node.dataset("b", &[1]));
        node.agent.drop_unheld_later();
        until(|| node.agent.unheld.borrow().len() == 2).await;
        let client = node.client();
        node.agent.hold(&client.connection, first);
        until(|| node.agent.dataset(second).is_err()).await;
        assert!(node.agent.dataset(first).is_ok() && node.agent.unheld.borrow().is_empty());
    });
}

#[test]
fn a_data_set_goes_when_nobody_has_held_it_for_the_lingering_time() {
    run(Duration::ZERO, |node| async move {
        let (held, left, read) = (
            node.dataset("a", &[1]),
            node.dataset("b", &[1]),
            node.dataset("c", &[100; 8]),
        );
        let (client, other) = (node.client(), node.client());
        [held, left]
            .into_iter()
            .for_each(|number| node.agent.hold(&client.connection, number));
        node.agent.hold(&other.connection, held);
        let attach = node.attachment(read);
        node.attach(&other, attach).await.expect("attached");
        node.leave(&client);
        until(|| node.agent.dataset(left).is_err()).await;
        assert!(node.agent.dataset(held).is_ok() && node.agent.dataset(read).is_ok());
        node.leave(&other);
        until(|| [held, read].iter().all(|&number| node.agent.dataset(number).is_err())).await;
    });
}

#[test]
fn the_newest_of_a_kind_is_known() {
    run(LONG, |node| async move {
        let numbers = [
            node.dataset("a", &[1]),
            node.dataset("b", &[1]),
            node.dataset("a", &[1]),
        ];
        let known = |url: &str| node.agent.known(|dataset| dataset.open.url == url);
        assert_eq!(
            [known("a"), known("b"), known("c")],
            [Some(numbers[2]), Some(numbers[1]), None]
        );
    });
}

#[test]
fn who_opens_the_same_at_once_or_later_gets_the_same_number() {
    run(LONG, |node| async move {
        let directory = node.directory.path().join("files");
        std::fs::create_dir_all(&directory).expect("made");
        std::fs::write(directory.join("a.bin"), b"abc").expect("written");
        let open = Open {
            url: format!("file://{}", directory.display()),
            ..Open::default()
        };
        let (first, second) = (node.client(), node.client());
        let number = |opened: Result<(Reply, Fds), Trouble>| match opened {
            Ok((Reply::Opened { dataset, .. }, _)) => dataset,
            Ok((other, _)) => panic!("{other:?}"),
            Err(trouble) => panic!("{trouble:?}"),
        };
        let (one, other) = tokio::join!(
            node.agent.open(&first.connection, 1, open.clone()),
            node.agent.open(&second.connection, 1, open.clone())
        );
        let numbers = [number(one), number(other)];
        assert_eq!(numbers[0], numbers[1]);
        let again = Open {
            refresh: true,
            ..open.clone()
        };
        let again = number(node.agent.open(&first.connection, 1, again).await);
        assert_eq!(again, numbers[0], "it was listed again and is as it was");
        assert!(node.agent.opening.borrow().is_empty());
        let another = Open {
            digest: Some("00".repeat(16)),
            ..open
        };
        let refused = node.agent.open(&first.connection, 1, another).await;
        assert_eq!(refused.err().map(|trouble| trouble.kind).as_deref(), Some("changed"));
        assert!(node.agent.opening.borrow().is_empty());
    });
}

#[test]
fn who_asks_for_a_new_look_gets_what_is_there_now() {
    run(LONG, |node| async move {
        let directory = node.directory.path().join("files");
        std::fs::create_dir_all(&directory).expect("made");
        let client = node.client();
        let asked = |refresh, update| Open {
            url: format!("file://{}", directory.display()),
            refresh,
            update,
            ..Open::default()
        };
        for (files, (refresh, update)) in (1..).zip([(true, false), (false, true)]) {
            std::fs::write(directory.join(format!("{files}.bin")), b"abc").expect("written");
            // Opened before by whoever asked for nothing.
            let _ = node.agent.open(&client.connection, 1, asked(false, false)).await;
            std::fs::write(directory.join(format!("{files}.too")), b"abc").expect("written");
            let opened = node.agent.open(&client.connection, 1, asked(refresh, update)).await;
            let Ok((Reply::Opened { dataset, .. }, _)) = opened else {
                panic!("it opens")
            };
            assert_eq!(node.opened(dataset).index.len(), 2 * files, "{refresh} {update}");
        }
    });
}

#[test]
fn pools_and_jobs_have_numbers_of_their_own() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let (client, mut numbers) = (node.client(), vec![]);
        for timeout_s in [7.0, 8.0, 9.0] {
            let other = Attach {
                session: timeout_s.to_string(),
                timeout_s,
                ..attach.clone()
            };
            let (job, _) = node.attach(&client, other).await.expect("attached");
            numbers.extend([job.id, job.pool.id]);
        }
        let distinct: std::collections::BTreeSet<u32> = numbers.iter().copied().collect();
        assert_eq!(distinct.len(), 6, "{numbers:?}");
    });
}

#[test]
fn who_is_attached_is_told_in_the_status() {
    run(LONG, |node| async move {
        let attach = node.attachment(node.dataset("a", &[100; 8]));
        let client = node.client();
        let (job, _) = node.attach(&client, attach.clone()).await.expect("attached");
        let other = Attach {
            session: "second".into(),
            ..attach
        };
        node.attach(&client, other).await.expect("attached");
        let status = node.agent.status_of(&job);
        assert_eq!(
            (status.job, status.clients, status.ram_bytes, status.pool_bytes),
            (job.id, 1, 1 << 20, 2 << 20)
        );
        assert_eq!(status.processes, [std::process::id()]);
        node.leave(&client);
        assert!(node.agent.status_of(&job).processes.is_empty());
    });
}

#[test]
fn an_agent_keeps_its_post_for_who_reads_from_it_and_ends_where_nobody_does() {
    run(LONG, |node| async move {
        let runtime = node.directory.path().join("run");
        let settings = AgentSettings {
            socket: runtime.join("it.sock"),
            ..node.agent.settings.clone()
        };
        let (mut post, listener) = Post::take(&settings).expect("usable").expect("free");
        let mut listener = UnixListener::from_std(listener).expect("in the runtime");
        let mut keep = |retires: bool| {
            node.agent.keep_post(&mut post, &mut listener).expect("kept");
            assert_eq!(node.agent.retire.replace(false), retires);
        };
        keep(false);
        std::fs::remove_file(&settings.socket).expect("there");
        keep(true);
        assert!(!settings.socket.exists(), "nobody reads from it");
        let client = node.client();
        keep(false);
        assert!(UnixStream::connect(&settings.socket).await.is_ok());
        // With its lock gone another agent takes it.
        std::fs::remove_dir_all(&runtime).expect("there");
        let other = Post::take(&settings).expect("usable").expect("free");
        keep(true);
        // And who was told to go stays told.
        node.agent.retire.set(true);
        node.agent.keep_post(&mut post, &mut listener).expect("kept");
        assert!(node.agent.retire.get());
        node.leave(&client);
        drop(other);
    });
}

#[test]
fn an_agent_that_ends_calls_off_what_is_done_aside_and_waits_for_it() {
    run(LONG, |node| async move {
        let client = node.client();
        let (agent, connection) = (Rc::clone(&node.agent), Rc::clone(&client.connection));
        let waiting = |work: &Work| {
            while work.is_wanted() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let aside = tokio::task::spawn_local(async move { agent.aside(&connection, 1, waiting).await });
        until(|| node.agent.asides.get() == 1).await;
        node.agent.end_asides().await;
        assert_eq!(node.agent.asides.get(), 0);
        aside.await.expect("no panic").expect("it came to its end");
    });
}

#[test]
fn an_agent_waits_for_who_started_it_and_then_no_longer_than_it_lingers() {
    let directory = tempfile::tempdir().expect("directory");
    let settings = AgentSettings {
        socket: directory.path().join("run").join("it.sock"),
        cache_dir: directory.path().to_owned(),
        linger: Duration::ZERO,
        record: true,
    };
    let (mut post, listener) = Post::take(&settings).expect("usable").expect("free");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("runtime"), async {
        let agent = Agent::new(settings.clone());
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&agent)));
        let listener = UnixListener::from_std(listener).expect("in the runtime");
        let serving = agent.serve(&mut post, listener);
        tokio::pin!(serving);
        let early = tokio::time::timeout(Duration::from_millis(200), &mut serving).await;
        assert!(early.is_err(), "nobody has come yet");
        let client = UnixStream::connect(&settings.socket);
        let both = async { tokio::join!(&mut serving, async { drop(client.await.expect("somebody listens")) }) };
        let ended = tokio::time::timeout(FIRST_CLIENT / 2, both).await;
        ended.expect("the client has gone").0.expect("in good order");
        CURRENT.with(|current| current.borrow_mut().take());
    });
}
