//! Threads that share one client, in every order that the scheduler of tests comes upon. A wake-up that is lost ends as a deadlock.

use super::*;
use crate::protocol::{Frames, Malformed};
use foreload_plan::action::Via;
use shuttle::thread;
use std::io::{Read, Write};

fn client() -> (Arc<Client>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.set_nonblocking(true).expect("set");
    (Arc::new(Client::over(ours)), theirs)
}

fn delivery(id: u64) -> Vec<u8> {
    let item = Sent {
        sample: id,
        handle: Handle {
            index: id as u32,
            generation: 1,
        },
        offset: 0,
        len: 10,
        label: 0,
        via: Via::Ram,
    };
    let items = vec![item];
    Say::Deliver { id, items, copy: false }.encode()
}

/// Everything that the agent's end has been sent so far.
fn heard(stream: &mut UnixStream, frames: &mut Frames) -> Vec<Ask> {
    let (mut buffer, mut found) = ([0u8; 4096], Vec::new());
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        frames.feed(&buffer[..n]);
    }
    let asked = frames.drain(|frame| {
        found.push(Ask::decode(frame)?);
        Ok::<_, Malformed>(())
    });
    asked.expect("well-formed");
    found
}

#[test]
fn interleave_each_thread_gets_its_own_answer_whoever_reads() {
    shuttle::check_random(
        || {
            let (client, mut agent) = client();
            let waiting: Vec<_> = (1..4)
                .map(|id| {
                    let client = Arc::clone(&client);
                    thread::spawn(move || client.wait(id, None, &mut || true).expect("delivered"))
                })
                .collect();
            // Frames come in pieces, and not in the order of the wants.
            let bytes: Vec<u8> = [3, 1, 2].into_iter().flat_map(delivery).collect();
            for piece in bytes.chunks(29) {
                agent.write_all(piece).expect("sent");
                thread::yield_now();
            }
            for (id, thread) in (1..).zip(waiting) {
                let Say::Deliver { items, .. } = thread.join().expect("no panic") else {
                    panic!("another answer");
                };
                assert_eq!(items[0].sample, id);
            }
        },
        500,
    );
}

#[test]
fn interleave_everybody_who_waits_learns_of_the_end() {
    shuttle::check_random(
        || {
            let (client, mut agent) = client();
            let waiting: Vec<_> = (1..4)
                .map(|id| {
                    let client = Arc::clone(&client);
                    thread::spawn(move || client.wait(id, None, &mut || true).is_ok())
                })
                .collect();
            agent.write_all(&delivery(2)).expect("sent");
            thread::yield_now();
            drop(agent);
            let answered: Vec<bool> = waiting
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect();
            assert_eq!(answered, [false, true, false]);
        },
        500,
    );
}

#[test]
fn interleave_a_withdrawn_want_is_given_back_exactly_once() {
    shuttle::check_random(
        || {
            let (client, mut agent) = client();
            let other = {
                let client = Arc::clone(&client);
                thread::spawn(move || client.wait(2, None, &mut || true).expect("delivered"))
            };
            let withdrawing = {
                let client = Arc::clone(&client);
                thread::spawn(move || client.withdraw(9, 1).expect("sent"))
            };
            agent.write_all(&delivery(1)).expect("sent");
            thread::yield_now();
            agent.write_all(&delivery(2)).expect("sent");
            withdrawing.join().expect("no panic");
            other.join().expect("no panic");
            client.glance();
            client.flush();
            let released: Vec<_> = heard(&mut agent, &mut Frames::default())
                .into_iter()
                .filter_map(|ask| match ask {
                    Ask::Release { job, handles, .. } => Some((job, handles)),
                    _ => None,
                })
                .collect();
            let handle = Handle {
                index: 1,
                generation: 1,
            };
            assert_eq!(released, [(9, vec![handle])]);
        },
        500,
    );
}
