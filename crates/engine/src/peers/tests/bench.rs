//! Measurements, not tests: `cargo test --release -p foreload-engine peers::tests::bench -- --ignored --nocapture`.
//!
//! `FORELOAD_BENCH_BYTES` says how much is sent for each number (512 MiB), `FORELOAD_BENCH_LEN` names the only length,
//! `FORELOAD_BENCH_CONGESTION` how the sender is slowed down (`cubic`, which is what most systems do; `bbr` sets a timer for each packet on loopback, and that costs
//! more than anything else).

use super::*;

/// Samples of so many bytes together: more than a cache of the processor holds.
const SET_BYTES: u64 = 128 << 20;
const ROUNDS: usize = 5;

/// Keeps a thread on a core of its own: in life the two sides are on two machines, and no cache has what the other has just copied.
fn stay_on(core: usize, thread: Option<rustix::thread::Pid>) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(thread, &cores).expect("a machine with two cores");
}

fn own_s() -> f64 {
    let busy = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    busy.tv_sec as f64 + busy.tv_nsec as f64 / 1e9
}

/// Requests that are under way at a time, where the client of the engine asks.
const AT_ONCE: u64 = 4;

/// Microseconds of the processor for each sample, of the thread that serves and of the engine's own client, for so many samples in a request; 1: as they are
/// asked for alone.
async fn costs_together(asker: &mut bundles::Asker, place: &Place, together: usize, count: u64) -> [f64; 2] {
    let (len, samples) = (place.slots[0].1, place.slots.len() as u64);
    let busy = || {
        place.settle();
        place.busy_ns.load(Ordering::Relaxed) as f64 / 1e9
    };
    let (before, own_before) = (busy(), own_s());
    let (mut asked, mut came, mut requests) = (0, 0, 0);
    while came < count {
        while asked < count && asked < came + AT_ONCE * together as u64 {
            requests += 1;
            let mut next = || {
                asked += 1;
                (asked * 7 % samples, len)
            };
            if together == 1 {
                asker.ask_alone(requests, next().0, len);
            } else {
                let wanted: Vec<(u64, u64)> = (0..together).map(|_| next()).collect();
                asker.ask_as(requests, &wanted);
            }
        }
        let landed = asker.landed.recv().await.expect("open");
        let fetched = landed.fetched.expect("not called off").expect("there");
        let said = fetched.etag.as_deref().and_then(Said::of).expect("said");
        // Parts of several requests go to the same places, one after the other: what was summed up is what came.
        assert_eq!(landed.sink.checksums(), Some(&[said.crc][..]));
        came += 1;
    }
    let own = own_s() - own_before;
    [busy() - before, own].map(|seconds| seconds * 1e6 / count as f64)
}

#[test]
#[ignore = "a measurement"]
fn processor_time_of_bundles() {
    stay_on(1, None);
    println!(
        "us of the processor for each sample, serving + reading (median of {ROUNDS}; least..most of the sum); s/GB of the sum"
    );
    for len in [1_000, 10_000, 30_000, 64_000] {
        let lens = vec![len; (SET_BYTES / len).min(4096) as usize];
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        rustix::net::sockopt::set_tcp_congestion(&listener, "cubic").expect("one that there is");
        let place = Place::at(listener, limits(), &lens, 1 << 50);
        for task in std::fs::read_dir("/proc/self/task")
            .unwrap()
            .map(|task| task.unwrap().path())
        {
            if std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "serving") {
                let number = task.file_name().unwrap().to_string_lossy().parse().unwrap();
                stay_on(0, rustix::thread::Pid::from_raw(number));
            }
        }
        let sizes = [1, 2, 4, 8, 16, 32, 64].map(|together: usize| together.min(BUNDLE_LOADS));
        let mut sizes = sizes.to_vec();
        sizes.dedup();
        let mut all = vec![Vec::new(); sizes.len()];
        bundles::run(async {
            let mut asker = bundles::Asker::new(&place);
            costs_together(&mut asker, &place, 1, lens.len() as u64).await;
            for round in 0..ROUNDS {
                for at in 0..sizes.len() {
                    let at = (at + round) % sizes.len();
                    let count = (128 << 20) / len.max(8_000) / 64 * 64;
                    all[at].push(costs_together(&mut asker, &place, sizes[at], count).await);
                }
            }
        });
        for (together, found) in sizes.iter().zip(&all) {
            let of = |pick: fn(&[f64; 2]) -> f64| median(found.iter().map(pick).collect());
            let (sum, least, most) = of(|it| it[0] + it[1]);
            println!(
                "{len:>6} bytes, {together:>2} together: {:.1} + {:.1} = {sum:.1} ({least:.1}..{most:.1})   {:.2} s/GB",
                of(|it| it[0]).0,
                of(|it| it[1]).0,
                sum * 1e3 / len as f64
            );
        }
    }
}

/// Processor seconds per GB of the thread that serves and of the one that reads, and MB/s, for requests one after the other.
fn costs(place: &Place, count: u64) -> [f64; 3] {
    let len = place.slots[0].1;
    let samples = place.slots.len() as u64;
    let busy = || {
        place.settle();
        place.busy_ns.load(Ordering::Relaxed) as f64 / 1e9
    };
    let mut peer = TcpStream::connect(place.address).expect("connects");
    peer.set_nodelay(true).expect("set");
    let mut piece = vec![0; 256 << 10];
    let (began, before, own_before) = (std::time::Instant::now(), busy(), own_s());
    for turn in 0..count {
        place.ask(&mut peer, turn * 7 % samples);
        let (mut head, mut have) = (None, 0);
        while head.is_none_or(|head: usize| have < head + len as usize) {
            let count = peer.read(&mut piece).expect("more");
            assert!(count > 0);
            if head.is_none() {
                let end = piece[..count].windows(4).position(|four| four == b"\r\n\r\n");
                head = Some(end.expect("a head comes in one piece") + 4);
                assert!(piece.starts_with(b"HTTP/1.1 206"));
            }
            have += count;
        }
    }
    let (own, took) = (own_s() - own_before, began.elapsed().as_secs_f64());
    let gb = (count * len) as f64 / 1e9;
    [(busy() - before) / gb, own / gb, 1000.0 * gb / took]
}

fn median(mut all: Vec<f64>) -> (f64, f64, f64) {
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[0], all[all.len() - 1])
}

#[test]
#[ignore = "a measurement"]
fn processor_time_of_serving() {
    let bytes: u64 = std::env::var("FORELOAD_BENCH_BYTES").map_or(512 << 20, |v| v.parse().unwrap());
    let congestion = std::env::var("FORELOAD_BENCH_CONGESTION").unwrap_or_else(|_| "cubic".to_owned());
    stay_on(1, None);
    println!("s/GB with {congestion} of the thread that serves (median, least, most of {ROUNDS}); of the reader; MB/s");
    let only = std::env::var("FORELOAD_BENCH_LEN").map(|len| vec![len.parse().unwrap()]);
    let usual = || {
        vec![
            8_000, 16_000, 30_000, 64_000, 110_000, 250_000, 500_000, 1_000_000, 8_000_000,
        ]
    };
    for len in only.unwrap_or_else(|_| usual()) {
        let lens = vec![len; (SET_BYTES / len) as usize];
        let ways = [u64::MAX, 0].map(|sendfile_from| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            rustix::net::sockopt::set_tcp_congestion(&listener, &congestion).expect("one that there is");
            Place::at(
                listener,
                Limits {
                    sendfile_from,
                    ..limits()
                },
                &lens,
                1 << 50,
            )
        });
        let mut all = [vec![], vec![]];
        // All sums are known then.
        for place in &ways {
            costs(place, lens.len() as u64);
        }
        let mut servers = 0;
        for task in std::fs::read_dir("/proc/self/task")
            .unwrap()
            .map(|task| task.unwrap().path())
        {
            if std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "serving") {
                let number = task.file_name().unwrap().to_string_lossy().parse().unwrap();
                servers += 1;
                stay_on(0, rustix::thread::Pid::from_raw(number));
            }
        }
        assert_eq!(servers, 2);
        // Half as much of small ones, which take longer.
        let count = bytes.min(len * 20_000) / len;
        for round in 0..ROUNDS {
            // Whoever comes first finds another machine.
            for way in [round % 2, 1 - round % 2] {
                all[way].push(costs(&ways[way], count));
            }
        }
        let [copied, in_place] = all.map(|all| [0, 1, 2].map(|at| median(all.iter().map(|it| it[at]).collect())));
        for (name, [busy, reader, rate]) in [("copied", copied), ("in place", in_place)] {
            println!(
                "{len:>8} bytes, {name:<8}: {:.3} ({:.3}..{:.3})   reader {:.3}   {:.0} MB/s",
                busy.0, busy.1, busy.2, reader.0, rate.0
            );
        }
        println!(
            "{len:>8} bytes: in place takes {:.2} of copying",
            in_place[0].0 / copied[0].0
        );
    }
}

/// How long requests take from the question to the last byte, one after the other: percentiles in microseconds.
#[test]
#[ignore = "a measurement"]
fn time_of_bundles() {
    println!("us from the question to the last byte: median, 99 %, 99.9 %, longest");
    for (len, sizes) in [(10_000, [1, 4, 25]), (60_000, [1, 2, 4])] {
        let lens = vec![len; (SET_BYTES / len).min(4096) as usize];
        let place = Place::new(limits(), &lens);
        bundles::run(async {
            let mut asker = bundles::Asker::new(&place);
            for together in sizes {
                let mut took = Vec::new();
                for turn in 0..4000u64 {
                    let wanted: Vec<(u64, u64)> = (0..together)
                        .map(|at| ((turn * 31 + at) % lens.len() as u64, len))
                        .collect();
                    let begun = std::time::Instant::now();
                    match together {
                        1 => asker.ask_alone(turn, wanted[0].0, len),
                        _ => drop(asker.ask_as(turn, &wanted)),
                    }
                    for _ in 0..together {
                        let landed = asker.landed.recv().await.expect("open");
                        assert!(landed.fetched.expect("not called off").is_ok());
                    }
                    took.push(begun.elapsed().as_micros());
                }
                took.sort_unstable();
                let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
                println!(
                    "{len:>6} bytes, {together:>2} together: {} {} {} {}",
                    at(0.5),
                    at(0.99),
                    at(0.999),
                    at(1.0)
                );
            }
        });
    }
}
