//! Scans of shards that hand on what they read, from a bucket that counts requests and bytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use foreload_store::format::{self, BuildOptions};
use foreload_store::spool::PART;
use foreload_store::{Credentials, Index, SourceOptions, Spool};
use foreload_testkit::Bucket;
use foreload_testkit::bucket::{Class, Settings};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn bucket(rule: &str) -> Bucket {
    let settings = Settings {
        synthetic: vec![rule.parse().unwrap()],
        ..Settings::default()
    };
    Bucket::start(settings).unwrap()
}

async fn scanned(bucket: &Bucket, spool: Option<&Spool>) -> Index {
    let keys = bucket.keys();
    let source = SourceOptions {
        endpoint: Some(bucket.endpoint()),
        credentials: Some(Credentials::AccessKey {
            id: keys.access_key,
            secret: keys.secret_key,
            token: None,
        }),
        ..SourceOptions::default()
    };
    let options = BuildOptions::default();
    format::build("s3://bench/shards", &source, &options, spool, &mut |_| {})
        .await
        .unwrap()
}

/// All objects: how many parts they have, and how many bytes.
fn parts_and_bytes(index: &Index) -> (u64, u64) {
    let sizes = (0..index.objects()).map(|object| index.object(object).unwrap().size);
    sizes.fold((0, 0), |(parts, bytes), size| {
        (parts + size.div_ceil(PART), bytes + size)
    })
}

/// How many samples a spool has, each compared with the bucket's bytes.
fn compared(index: &Index, spool: &Spool, bucket: &Bucket) -> u64 {
    let has = (0..index.len()).filter(|&number| {
        let sample = index.sample(number).unwrap();
        let (object, range) = (index.object(sample.object).unwrap(), sample.range());
        let mut bytes = Vec::new();
        let is_there = spool.has(&object, &range);
        assert_eq!(spool.read(&object, range.clone(), &mut bytes).unwrap(), is_there);
        let whole = bucket
            .read("bench", &format!("shards/{}", object.key))
            .unwrap()
            .unwrap();
        assert!(!is_there || bytes == whole[range.start as usize..range.end as usize]);
        is_there
    });
    has.count() as u64
}

#[tokio::test]
async fn a_scan_asks_for_each_part_once_and_the_spool_has_all_of_it() {
    let bucket = bucket("shards:3x250x20000-60000,tar");
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 100 * MIB, Arc::default()).unwrap();
    bucket.reset_counts();
    let index = scanned(&bucket, Some(&spool)).await;
    let (parts, bytes) = parts_and_bytes(&index);
    let counts = bucket.counts();
    assert_eq!((counts.of(Class::Get), counts.bytes_sent), (parts, bytes));
    assert_eq!((index.len(), spool.bytes()), (750, bytes));
    assert_eq!(compared(&index, &spool, &bucket), 750);
    assert_eq!(scanned(&bucket, None).await.digest(), index.digest());
}

#[tokio::test]
async fn shards_beyond_its_room_are_scanned_without_it() {
    let bucket = bucket("shards:3x100x20000-60000,tar");
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 5 * MIB, Arc::default()).unwrap();
    let index = scanned(&bucket, Some(&spool)).await;
    assert_eq!(compared(&index, &spool, &bucket), 100, "one of three");
    assert_eq!(scanned(&bucket, None).await.digest(), index.digest());
}

#[tokio::test]
async fn a_shard_of_large_members_is_skipped_through() {
    let bucket = bucket("shards:1x8x9000000,tar");
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 100 * MIB, Arc::default()).unwrap();
    bucket.reset_counts();
    let index = scanned(&bucket, Some(&spool)).await;
    assert!(bucket.counts().bytes_sent < 3 * PART, "{:?}", bucket.counts());
    assert_eq!(compared(&index, &spool, &bucket), 0);
    assert_eq!(scanned(&bucket, None).await.digest(), index.digest());
}
