//! For how long memory is lent to an answer: until it has been read, and not for longer.
//!
//! The first tests show that the rule is needed: on one machine what is sent in place is read out of its slot when the *receiver* reads it.

use super::*;

/// Fits the buffers of both sides, so it is handed over before anything of it is read.
const LEN: u64 = 128 << 10;
const SOON: Duration = Duration::from_millis(150);

fn copying() -> Limits {
    Limits {
        sendfile_from: u64::MAX,
        ..limits()
    }
}

/// Answers are soon taken for read.
fn soon() -> Limits {
    Limits {
        progress: SOON,
        ..limits()
    }
}

/// A peer asks for a sample and reads the answer when all of it has come: what it reads. If the slot comes back before that, it is used again.
fn late(limits: Limits, comes_back: bool) -> Vec<u8> {
    let mut place = Place::new(limits, &[LEN]);
    let mut peer = place.connect();
    place.ask(&mut peer, 0);
    place.wait_for_answer(&peer, &[0]);
    if comes_back {
        place.wait_for_back(0);
        let next = vec![b'x'; LEN as usize];
        place.arena.write(place.slots[0].0, &next).expect("inside");
    }
    assert!(place.back().is_empty());
    hear(&mut peer).expect("an answer").body
}

#[test]
fn who_reads_late_has_the_right_bytes_since_its_slot_is_not_used_again() {
    assert!(late(limits(), false) == bytes(0, LEN));
}

#[test]
fn a_copied_answer_needs_its_slot_no_longer() {
    assert!(late(copying(), true) == bytes(0, LEN));
}

/// Without this, nobody knows whether the test before last can fail: the loan ends when the answer is handed over.
#[test]
fn a_slot_that_is_used_again_before_its_answer_is_read_puts_other_bytes_into_it() {
    let early = Limits {
        progress: Duration::ZERO,
        ..limits()
    };
    let read = late(early, true);
    let others = read.iter().filter(|&&byte| byte == b'x').count();
    assert!(read != bytes(0, LEN) && others > LEN as usize / 2, "{others}");
}

#[test]
fn memory_is_lent_until_the_next_request_or_the_end() {
    let mut place = Place::new(limits(), &[LEN, LEN + 1, 40]);
    let mut peer = place.connect();
    for sample in [0, 1, 2, 0] {
        place.read(&mut peer, sample);
        place.settle();
        assert!(place.back().is_empty(), "{sample} is lent");
        // The first byte of a request is enough.
        let request = place.request(NOWHERE);
        peer.write_all(&request[..1]).expect("sent");
        place.wait_for_back(sample);
        peer.write_all(&request[1..]).expect("sent");
        assert_eq!(hear(&mut peer).expect("an answer").status, 404);
    }
    place.read(&mut peer, 1);
    place.settle();
    assert!(place.back().is_empty());
    drop(peer);
    place.wait_for_back(1);
}

#[test]
fn an_idle_connection_holds_no_memory_and_goes_on() {
    let mut place = Place::new(soon(), &[LEN, LEN]);
    let mut peer = place.connect();
    for sample in [0, 1] {
        place.read(&mut peer, sample);
        place.wait_for_back(sample);
    }
}

#[test]
fn memory_comes_back_while_the_next_request_waits_for_its_answer() {
    let mut place = Place::new(soon(), &[LEN, LEN]);
    let mut peer = place.connect();
    // The second comes before the first is answered, so it shows nothing.
    let both = [place.request(0), place.request(NEVER)].concat();
    peer.write_all(&both).expect("sent");
    place.compare(&mut peer, 0);
    place.wait_for_back(0);
    // Nor does it end when there is no room for what comes behind.
    let full = [place.request(1), place.request(NEVER), vec![b' '; 64 << 10]].concat();
    let mut peer = place.connect();
    peer.write_all(&full).expect("sent");
    place.compare(&mut peer, 1);
    place.wait_for_back(1);
}

#[test]
fn requests_behind_each_other_are_answered_in_order_and_show_nothing() {
    let mut place = Place::new(limits(), &[LEN, LEN + 1, 40, LEN]);
    let mut peer = place.connect();
    let requests: Vec<u8> = [0, 1, 2].iter().flat_map(|&sample| place.request(sample)).collect();
    peer.write_all(&requests).expect("sent");
    place.wait_for_answer(&peer, &[0, 1, 2]);
    assert_eq!(place.back(), [1, 2], "copied, while the first is lent");
    (0..3).for_each(|sample| place.compare(&mut peer, sample));
    place.settle();
    assert!(place.back().is_empty());
    place.ask(&mut peer, 3);
    place.wait_for_back(0);
    place.compare(&mut peer, 3);
}

#[test]
fn a_request_that_comes_while_its_answer_is_handed_over_shows_nothing() {
    const LARGE: u64 = 24 << 20;
    let mut place = Place::new(limits(), &[LARGE]);
    let mut peer = place.connect();
    place.ask(&mut peer, 0);
    wait_for("it begins", || rustix::io::ioctl_fionread(&peer).expect("asked") > 0);
    place.ask(&mut peer, NOWHERE);
    place.compare(&mut peer, 0);
    assert_eq!(hear(&mut peer).expect("an answer").status, 404);
    place.settle();
    assert!(place.back().is_empty());
    place.ask(&mut peer, NOWHERE);
    place.wait_for_back(0);
}

#[test]
fn an_end_that_was_there_before_the_answer_shows_nothing() {
    const LARGE: u64 = 24 << 20;
    let progress = Duration::from_secs(2);
    let mut place = Place::new(Limits { progress, ..limits() }, &[LARGE]);
    let mut peer = place.connect();
    place.ask(&mut peer, 0);
    wait_for("it begins", || rustix::io::ioctl_fionread(&peer).expect("asked") > 0);
    peer.shutdown(Shutdown::Write).expect("open");
    let begun = std::time::Instant::now();
    place.compare(&mut peer, 0);
    place.settle();
    // On a machine that is busy for so long it may have come back by now.
    assert!(place.back().is_empty() || begun.elapsed() > progress);
    assert_eq!(peer.read(&mut [0]).expect("closed"), 0);
}

#[test]
fn a_peer_that_reads_nothing_is_given_up_and_its_loan_ends() {
    const LARGE: u64 = 24 << 20;
    for sendfile_from in [0, u64::MAX] {
        let patience = SOON;
        let mut place = Place::new(
            Limits {
                patience,
                sendfile_from,
                ..limits()
            },
            &[LARGE],
        );
        let mut peer = place.connect();
        place.ask(&mut peer, 0);
        place.wait_for_back(0);
        assert!(hear(&mut peer).is_err(), "it isn't whole");
    }
}

#[test]
fn a_peer_that_reads_ever_so_little_is_given_up_too() {
    const LARGE: u64 = 64 << 20;
    let limits = Limits {
        patience: Duration::from_secs(2),
        progress: Duration::ZERO,
        least_rate: 1 << 40,
        ..limits()
    };
    let mut place = Place::new(limits, &[LARGE]);
    let mut peer = place.connect();
    place.ask(&mut peer, 0);
    let (mut read, mut piece) = (0, vec![0; 256 << 10]);
    while place.back().is_empty() {
        read += peer.read(&mut piece).expect("something");
        assert!(read < LARGE as usize);
        std::thread::sleep(Duration::from_millis(20));
    }
    let rest = peer.read_to_end(&mut Vec::new());
    assert!(
        rest.is_err() || read + rest.expect("read") < LARGE as usize,
        "it isn't whole"
    );
}

#[test]
fn what_is_lent_to_answers_that_were_sent_has_a_bound_and_the_others_are_copied() {
    // A sixty-fourth of this: room for two.
    let mut place = Place::of(limits(), &[LEN; 4], 64 * (2 * LEN + LEN / 2));
    let mut peers: Vec<TcpStream> = (0..4).map(|_| place.connect()).collect();
    for sample in 0..4 {
        place.read(&mut peers[sample as usize], sample);
    }
    place.settle();
    assert_eq!(place.back(), [2, 3]);
    place.read(&mut peers[0], 2);
    place.settle();
    assert_eq!(place.back(), [0], "there is room again");
}

#[test]
fn who_goes_away_is_not_waited_for() {
    let place = Place::new(limits(), &[LEN]);
    let mut peer = place.connect();
    place.read(&mut peer, 0);
    place.ask(&mut peer, NEVER);
    place.settle();
    assert_eq!(place.withdrawn.load(Ordering::Relaxed), 0);
    drop(peer);
    wait_for("the question is withdrawn", || {
        place.withdrawn.load(Ordering::Relaxed) == 1
    });
}
