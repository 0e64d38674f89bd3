//! The client against an agent that says what a test wants it to.

use super::*;
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
    let id = hear(stream, frames, call_of).expect("a greeting");
    let reply = reply(
        id,
        &Reply::Welcome {
            version: VERSION,
            pid: std::process::id(),
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
    assert!(lock(&client.inbox).withdrawn.is_empty() && lock(&client.inbox).mail.is_empty());
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
    assert!(lock(&client.inbox).withdrawn.is_empty());
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
