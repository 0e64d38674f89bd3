//! Fetches the objects of a listing, many at a time, into memory it already owns, and prints rate and CPU time.
//!
//! The counterpart of the yardstick `bare get`: the same work (CRC-32C included) through [`Source::fetch`].
//! `fetch URL ENDPOINT KEY SECRET CONCURRENCY [CA_FILE]`

use foreload_store::{Credentials, Result, Retry, Sink, Source, SourceOptions};
use futures::StreamExt;
use std::time::{Duration, Instant};

struct Slot {
    memory: Vec<u8>,
    digest: crc_fast::Digest,
}

impl Sink for Slot {
    fn write(&mut self, at: u64, frame: &[u8]) -> Result<()> {
        let at = at as usize;
        self.memory[at..at + frame.len()].copy_from_slice(frame);
        self.digest.update(frame);
        Ok(())
    }

    fn restart(&mut self) {
        self.digest.reset();
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: f64 = after
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|f| f.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, endpoint, id, secret, concurrency, rest @ ..] = arguments.as_slice() else {
        eprintln!("fetch URL ENDPOINT KEY SECRET CONCURRENCY [CA_FILE]");
        std::process::exit(2);
    };
    let options = SourceOptions {
        endpoint: Some(endpoint.clone()),
        credentials: Some(Credentials::AccessKey {
            id: id.clone(),
            secret: secret.clone(),
            token: None,
        }),
        ca_file: rest.first().map(Into::into),
        retry: Retry::never(),
        ..SourceOptions::default()
    };
    let concurrency: usize = concurrency.parse().expect("a number of concurrent fetches");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let source = Source::open(url, &options).expect("a source");
        let pages: Vec<_> = source.list("").collect().await;
        let mut objects: Vec<_> = pages.into_iter().flat_map(|page| page.expect("a page")).collect();
        let mut random = 1_u64;
        for i in (1..objects.len()).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            objects.swap(i, (random >> 33) as usize % (i + 1));
        }
        let largest = objects.iter().map(|o| o.size).max().unwrap_or(0) as usize;
        let objects = std::sync::Arc::new(objects);
        let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let slots: Vec<_> = (0..concurrency)
            .map(|_| Slot {
                memory: vec![1; largest],
                digest: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi),
            })
            .collect();
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let tasks = slots.into_iter().map(|mut slot| {
            let (source, objects, next) = (source.clone(), objects.clone(), next.clone());
            tokio::spawn(async move {
                let mut bytes = 0;
                while let Some(o) = objects.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
                    slot.restart();
                    source
                        .fetch(&o.key, 0..o.size, o.etag.as_deref(), deadline, &mut slot)
                        .await
                        .expect("a sample");
                    std::hint::black_box(slot.digest.finalize());
                    bytes += o.size;
                }
                bytes
            })
        });
        let mut bytes = 0;
        for task in tasks.collect::<Vec<_>>() {
            bytes += task.await.expect("a task");
        }
        let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let gigabytes = bytes as f64 / 1e9;
        println!(
            "{{\"objects\":{},\"mb_per_s\":{:.1},\"samples_per_s\":{:.0},\"cpu_s_per_gb\":{:.3}}}",
            objects.len(),
            gigabytes * 1e3 / wall,
            objects.len() as f64 / wall,
            cpu / gigabytes
        );
    });
}
