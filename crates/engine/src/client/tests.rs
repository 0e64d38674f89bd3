//! The client against an agent that says what a test wants it to.

use super::*;
use crate::protocol::{Frames, Malformed};
use crate::slots::Mapping;
use foreload_plan::action::Via;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

/// Reads messages until there is one that `wanted` takes.
fn hear<T>(stream: &mut UnixStream, frames: &mut Frames, wanted: impl Fn(&Ask) -> Option<T>) -> Option<T> {
    let (mut buffer, mut found) = ([0u8; 4096], None);
    while found.is_none() {
        let n = stream.read(&mut buffer).ok().filter(|&n| n > 0)?;
        frames.feed(&buffer[..n]);
        frames
            .drain(|frame| {
                let ask = Ask::decode(frame)?;
                found = found.take().or_else(|| wanted(&ask));
                Ok::<_, Malformed>(())
            })
            .expect("well-formed");
    }
    found
}

/// Reads messages until there are so many that `wanted` takes.
fn hear_all<T>(
    stream: &mut UnixStream,
    frames: &mut Frames,
    many: usize,
    wanted: impl Fn(&Ask) -> Option<T>,
) -> Vec<T> {
    let (mut buffer, mut found) = ([0u8; 4096], Vec::new());
    while found.len() < many {
        let n = stream.read(&mut buffer).expect("read");
        assert!(n > 0, "the client left");
        frames.feed(&buffer[..n]);
        frames
            .drain(|frame| {
                found.extend(wanted(&Ask::decode(frame)?));
                Ok::<_, Malformed>(())
            })
            .expect("well-formed");
    }
    found
}

fn call_of(ask: &Ask) -> Option<u64> {
    match ask {
        Ask::Call { id, .. } => Some(*id),
        _ => None,
    }
}

fn reply(id: u64, reply: &Reply) -> Vec<u8> {
    let body = serde_json::to_string(reply).expect("JSON");
    Say::Reply { id, body }.encode()
}

fn welcome(stream: &mut UnixStream, frames: &mut Frames) {
    welcome_of(std::process::id(), stream, frames);
}

fn welcome_of(pid: u32, stream: &mut UnixStream, frames: &mut Frames) {
    let id = hear(stream, frames, call_of).expect("a greeting");
    let reply = reply(
        id,
        &Reply::Welcome {
            version: VERSION,
            pid,
            connection: 1,
        },
    );
    stream.write_all(&reply).expect("sent");
}

/// A client whose agent greets it and goes on with `act`.
fn client_of<T: Send + 'static>(
    act: impl FnOnce(UnixStream, Frames) -> T + Send + 'static,
) -> (Arc<Client>, JoinHandle<T>) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    let agent = std::thread::spawn(move || {
        let mut frames = Frames::default();
        welcome(&mut theirs, &mut frames);
        act(theirs, frames)
    });
    (Client::greet(ours, &mut || true).expect("greeted"), agent)
}

fn sent(index: u32) -> Sent {
    Sent {
        sample: 7,
        handle: Handle { index, generation: 1 },
        offset: 0,
        len: 10,
        label: 0,
        via: Via::Ram,
    }
}

fn delivery(id: u64, index: u32) -> Vec<u8> {
    let items = vec![sent(index)];
    Say::Deliver { id, items, copy: false }.encode()
}

#[test]
fn progress_that_comes_with_the_answer_is_told_before_it() {
    let (client, agent) = client_of(|mut stream, mut frames| {
        let id = hear(&mut stream, &mut frames, call_of).expect("a call");
        let progress = Progress {
            step: "listing".into(),
            done: 3,
            ..Progress::default()
        };
        let body = serde_json::to_string(&progress).expect("JSON");
        let mut both = Say::Progress { id, body }.encode();
        both.extend(reply(id, &Reply::Done));
        stream.write_all(&both).expect("sent");
        stream
    });
    let mut told = Vec::new();
    client
        .call_with(&Call::Status, &mut || true, &mut |progress| told.push(progress.done))
        .expect("answered");
    assert_eq!(told, [3]);
    drop(agent.join());
}

#[test]
fn what_comes_for_a_withdrawn_want_is_given_back() {
    let released = |ask: &Ask| match ask {
        Ask::Release { job: 5, handles, .. } => Some(handles.clone()),
        _ => None,
    };
    let (client, agent) = client_of(move |mut stream, mut frames| {
        // The first want is served before its withdrawal can be heard, the second after it was sent.
        stream.write_all(&delivery(100, 1)).expect("sent");
        let first = hear(&mut stream, &mut frames, released).expect("given back");
        stream.write_all(&delivery(101, 2)).expect("sent");
        let second = hear(&mut stream, &mut frames, released).expect("given back");
        (first, second)
    });
    client.next.store(102, Ordering::Relaxed);
    while !lock(&client.inbox).mail.contains_key(&100) {
        client.glance();
        std::thread::yield_now();
    }
    client.withdraw(5, 100).expect("sent");
    client.withdraw(5, 101).expect("sent");
    while !agent.is_finished() {
        client.glance();
        std::thread::yield_now();
    }
    assert_eq!(
        agent.join().expect("heard"),
        (vec![sent(1).handle], vec![sent(2).handle])
    );
    assert!(lock(&client.inbox).forgotten.is_empty() && lock(&client.inbox).mail.is_empty());
}

#[test]
fn withdrawals_are_forgotten_once_the_agent_has_heard_them() {
    let (client, agent) = client_of(|mut stream, mut frames| {
        let id = hear(&mut stream, &mut frames, |ask| match ask {
            Ask::WantSlot { id, .. } => Some(*id),
            _ => None,
        });
        let slot = Say::Slot {
            id: id.expect("asked"),
            slot: 1,
            offset: 0,
            len: 1,
        };
        stream.write_all(&slot.encode()).expect("sent");
        stream
    });
    client.withdraw(5, client.next_id()).expect("sent");
    let id = client.next_id();
    client.send(&Ask::WantSlot { id, job: 5, len: 1 }).expect("sent");
    client.wait(id, None, &mut || true).expect("answered");
    assert!(lock(&client.inbox).forgotten.is_empty());
    drop(agent.join());
}

#[test]
fn an_agent_that_drops_the_connection_is_asked_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place {
        socket: directory.path().join("a.sock"),
        cache_dir: directory.path().into(),
        program: "/bin/false".into(),
        linger: Duration::ZERO,
    };
    let listener = UnixListener::bind(&place.socket).expect("bound");
    let agent = std::thread::spawn(move || {
        // Closed with the greeting unread: the client gets a reset.
        drop(listener.accept().expect("a client"));
        let (mut stream, _) = listener.accept().expect("the same once more");
        welcome(&mut stream, &mut Frames::default());
        stream
    });
    let client = Client::connect(&place, &mut || true).expect("the second time");
    assert_eq!(client.connection(), 1);
    drop(agent.join());
}

#[test]
fn an_agent_that_keeps_dropping_connections_is_an_error_in_the_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place {
        socket: directory.path().join("a.sock"),
        cache_dir: directory.path().into(),
        program: "/bin/false".into(),
        linger: Duration::ZERO,
    };
    let listener = UnixListener::bind(&place.socket).expect("bound");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let begun = Instant::now();
    let refused = Client::connect(&place, &mut || true).err();
    assert!(matches!(refused, Some(ClientError::Closed(_))), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

fn attached_to(client: Arc<Client>) -> Attached {
    let map = |writable| {
        let shared = crate::slots::Shared::new("test", 100, false).expect("memfd");
        Mapping::new(shared.as_fd(), 100, writable).expect("mapped")
    };
    Attached::of(&client, 5, [map(false), map(true)], Reply::Done)
}

#[test]
fn what_comes_after_an_interruption_is_given_back() {
    let (interrupted, all_are) = std::sync::mpsc::channel();
    let (client, agent) = client_of(move |mut stream, mut frames| {
        let asked = hear_all(&mut stream, &mut frames, 3, |ask| match ask {
            Ask::WantSlot { id, .. } | Ask::Adopt { id, .. } | Ask::Call { id, .. } => Some(*id),
            _ => None,
        });
        let [id, adopted, call] = asked[..] else {
            panic!("{asked:?}")
        };
        all_are.recv().expect("told");
        for say in [
            Say::Slot {
                id,
                slot: 9,
                offset: 0,
                len: 10,
            },
            Say::Adopted {
                id: adopted,
                whole: true,
            },
        ] {
            stream.write_all(&say.encode()).expect("sent");
        }
        let attached = Reply::Attached {
            job: 7,
            cache_bytes: 1,
            batch_bytes: 1,
            joined: false,
            found: 0,
            plan: foreload_plan::Digest::of("test", b""),
            warnings: Vec::new(),
        };
        stream.write_all(&reply(call, &attached)).expect("sent");
        hear_all(&mut stream, &mut frames, 3, |ask| Some(ask.clone()))
    });
    let job = attached_to(Arc::clone(&client));
    let stopped = |answer: Result<bool, ClientError>| assert!(matches!(answer, Err(ClientError::Interrupted)));
    stopped(job.batch_slot(10, &mut || false).map(|slot| slot.is_some()));
    let handles = vec![sent(3).handle];
    stopped(job.adopt(2, std::process::id(), handles.clone(), vec![4], &mut || false));
    stopped(client.call(&Call::Status, &mut || false).map(|_| true));
    interrupted.send(()).expect("heard");
    while !agent.is_finished() {
        client.glance();
        std::thread::yield_now();
    }
    let release = |handles, slots| Ask::Release { job: 5, handles, slots };
    let expected = vec![
        release(vec![], vec![9]),
        release(handles, vec![4]),
        Ask::Detach { job: 7 },
    ];
    assert_eq!(agent.join().expect("heard"), expected);
    assert!(lock(&client.inbox).forgotten.is_empty() && lock(&client.inbox).mail.is_empty());
}

#[test]
fn of_a_dead_agent_only_what_living_processes_passed_on_is_adopted() {
    let mut agent = std::process::Command::new("sleep").arg("600").spawn().expect("started");
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    let pid = agent.id();
    let greeting = std::thread::spawn(move || {
        welcome_of(pid, &mut theirs, &mut Frames::default());
    });
    let client = Client::greet(ours, &mut || true).expect("greeted");
    greeting.join().expect("greeted");
    agent.kill().expect("killed");
    agent.wait().expect("ended");
    let job = attached_to(client);
    // A zombie, as a loader's worker is until its parent looks.
    let mut worker = std::process::Command::new("true").spawn().expect("started");
    let stat = format!("/proc/{}/stat", worker.id());
    while !std::fs::read_to_string(&stat).expect("not reaped").contains(") Z ") {
        std::thread::yield_now();
    }
    let adopt = |process| job.adopt(2, process, vec![], vec![4], &mut || true).expect("answered");
    assert!(!adopt(worker.id()), "it may have ended before the agent");
    assert!(adopt(std::process::id()));
    worker.wait().expect("ended");
}

/// Limits of a silence that a test can wait for.
fn short(client: &Client) {
    let ms = Duration::from_millis;
    lock(&client.inbox).silence = silence::Silence::with(ms(60), ms(200));
}

/// The number of a ping.
fn ping_of(ask: &Ask) -> Option<u64> {
    match ask {
        Ask::Call { id, body } if body.contains("\"ping\"") => Some(*id),
        _ => None,
    }
}

/// What has been reported of an agent; other tests' reports lie in the same queue.
fn reported(of: u32) -> Vec<Trouble> {
    static ALL: std::sync::Mutex<Vec<Trouble>> = std::sync::Mutex::new(Vec::new());
    let mut all = ALL.lock().expect("whole");
    all.extend(reports());
    let name = format!("process {of},");
    let of_it = |report: &&Trouble| report.message.contains(&name);
    all.iter().filter(of_it).cloned().collect()
}

/// A client whose agent greets it as a process of this number, and goes on with `act`.
fn named<T: Send + 'static>(
    pid: u32,
    act: impl FnOnce(UnixStream, Frames) -> T + Send + 'static,
) -> (Arc<Client>, JoinHandle<T>) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    let agent = std::thread::spawn(move || {
        let mut frames = Frames::default();
        welcome_of(pid, &mut theirs, &mut frames);
        act(theirs, frames)
    });
    let client = Client::greet(ours, &mut || true).expect("greeted");
    short(&client);
    (client, agent)
}

#[test]
fn an_agent_that_says_nothing_is_asked_and_reported_again_and_again() {
    let pid = 0x3fff_0001;
    let (client, agent) = named(pid, |mut stream, mut frames| {
        let call = hear(&mut stream, &mut frames, call_of).expect("a call");
        let ping = hear(&mut stream, &mut frames, ping_of).expect("a ping");
        (stream, call, ping)
    });
    let waited = client.call(&Call::Status, &mut || reported(pid).len() < 3);
    assert!(matches!(waited, Err(ClientError::Interrupted)), "{waited:?}");
    let told = reported(pid);
    assert!(told.iter().all(|report| report.kind == "stalled"), "{told:?}");
    // A late answer ends the silence, and is nobody's.
    let (mut stream, call, ping) = agent.join().expect("heard");
    stream.write_all(&reply(ping, &Reply::Done)).expect("sent");
    stream.write_all(&reply(call, &Reply::Done)).expect("sent");
    while !lock(&client.inbox).forgotten.is_empty() {
        client.glance();
    }
    let mut inbox = lock(&client.inbox);
    assert!(inbox.mail.is_empty() && inbox.silence.due().is_none());
}

#[test]
fn an_agent_that_answers_pings_alone_is_not_reported() {
    let pid = 0x3fff_0002;
    let (client, agent) = named(pid, |mut stream, mut frames| {
        let call = hear(&mut stream, &mut frames, call_of).expect("a call");
        for _ in 0..8 {
            let ping = hear(&mut stream, &mut frames, ping_of).expect("a ping");
            stream.write_all(&reply(ping, &Reply::Done)).expect("sent");
        }
        stream.write_all(&reply(call, &Reply::Done)).expect("sent");
        stream
    });
    // Eight times as long as is asked after: more than twice what is reported.
    client.call(&Call::Status, &mut || true).expect("answered");
    assert!(reported(pid).is_empty());
    assert!(lock(&client.inbox).forgotten.is_empty());
    drop(agent.join());
}

#[test]
fn a_full_socket_does_not_keep_a_silent_agent_from_being_reported() {
    let pid = 0x3fff_0003;
    let (client, agent) = named(pid, |stream, _| stream);
    let full = |flags| while rustix::net::send(&client.stream, &[0; 4096], flags).is_ok() {};
    full(SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let waited = client.wait(77, None, &mut || reported(pid).is_empty());
    assert!(matches!(waited, Err(ClientError::Interrupted)), "{waited:?}");
    assert!(lock(&client.inbox).forgotten.is_empty(), "it was never asked");
    drop(agent.join());
}
