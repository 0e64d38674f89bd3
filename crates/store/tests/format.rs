//! Data sets of every format, from a bucket and from a directory, to an index.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use foreload_store::format::{self, BuildOptions, Changes, Columns};
use foreload_store::{Credentials, ErrorKind, Format, Index, Result, Source, SourceOptions};
use foreload_testkit::Bucket;
use foreload_testkit::bucket::{Class, Settings};
use std::fs;
use std::time::Duration;
use tokio::time::Instant;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn options(bucket: &Bucket) -> SourceOptions {
    let keys = bucket.keys();
    let credentials = Credentials::AccessKey {
        id: keys.access_key,
        secret: keys.secret_key,
        token: None,
    };
    SourceOptions {
        endpoint: Some(bucket.endpoint()),
        credentials: Some(credentials),
        ..SourceOptions::default()
    }
}

async fn build(url: &str, source: &SourceOptions, options: &BuildOptions) -> Result<Index> {
    format::build(url, source, options, None, &mut |_| {}).await
}

fn synthetic(rules: &[&str]) -> Bucket {
    let synthetic = rules.iter().map(|r| r.parse().unwrap()).collect();
    Bucket::start(Settings {
        synthetic,
        ..Settings::default()
    })
    .unwrap()
}

/// Fetches every sample of an index and compares it with the bucket's object.
async fn read_all(index: &Index, bucket: &Bucket, source_options: &SourceOptions) {
    let source = Source::open(index.root(), source_options).unwrap();
    let prefix = index
        .root()
        .strip_prefix("s3://bench")
        .unwrap()
        .trim_start_matches('/')
        .to_owned();
    for i in 0..index.len() {
        let sample = index.sample(i).unwrap();
        let object = index.object(sample.object).unwrap();
        let mut bytes = Vec::new();
        source
            .fetch(&object.key, sample.range(), object.etag.as_deref(), soon(), &mut bytes)
            .await
            .unwrap();
        let key = format!("{prefix}/{}", object.key);
        let whole = bucket.read("bench", key.trim_start_matches('/')).unwrap().unwrap();
        assert!(bytes == whole[sample.offset as usize..(sample.offset + sample.length) as usize]);
        if let Some(crc) = sample.crc32c {
            assert_eq!(
                crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes) as u32,
                crc
            );
        }
    }
}

#[tokio::test]
async fn class_directories_become_labels() {
    let bucket = synthetic(&["train:60x100-900,classes=3,ext=jpg"]);
    bucket.put("bench", "train/readme.txt", "no sample").unwrap();
    bucket.put("bench", "train/c0001/.hidden", "no sample").unwrap();
    let index = build("s3://bench/train", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!((index.format(), index.len()), (Format::Folder, 60));
    assert_eq!(index.classes(), ["c0000", "c0001", "c0002"]);
    let labels: Vec<_> = (0..60).map(|i| index.label(i).unwrap()).collect();
    assert!(labels.is_sorted() && labels[59] == 2);
    read_all(&index, &bucket, &options(&bucket)).await;
    let moved = build("s3://bench/train/", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!(moved.digest(), index.digest());
}

#[tokio::test]
async fn a_flat_set_and_an_extension_filter() {
    let bucket = synthetic(&["flat:40x10,ext=npy"]);
    bucket.put("bench", "flat/x.txt", "x").unwrap();
    let all = build("s3://bench/flat", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!((all.format(), all.len(), all.label(0)), (Format::Flat, 41, None));
    let some = BuildOptions {
        extensions: vec![".NPY".into()],
        ..BuildOptions::default()
    };
    assert_eq!(
        build("s3://bench/flat", &options(&bucket), &some).await.unwrap().len(),
        40
    );
    let none = BuildOptions {
        extensions: vec!["jpg".into()],
        ..BuildOptions::default()
    };
    assert_eq!(
        build("s3://bench/flat", &options(&bucket), &none)
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Invalid
    );
    let error = build("s3://bench/nothing", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn tar_shards_are_indexed_from_their_headers() {
    let bucket = synthetic(&["shards:3x20x1000-9000,tar"]);
    let source = options(&bucket);
    for (url, shards) in [
        ("s3://bench/shards", 3),
        ("s3://bench/shards/0000000{0..1}.tar", 2),
        ("s3://bench/shards/*2.tar", 1),
    ] {
        let index = build(url, &source, &BuildOptions::default()).await.unwrap();
        assert_eq!(
            (index.format(), index.objects(), index.len()),
            (Format::Tar, shards, shards * 20),
            "{url}"
        );
        let fields: Vec<_> = index
            .sample(0)
            .unwrap()
            .fields()
            .map(|(name, ..)| name.to_owned())
            .collect();
        assert_eq!(fields, ["bin", "cls"]);
        assert!((0..index.len()).all(|i| index.label(i).is_some()));
        read_all(&index, &bucket, &source).await;
    }
    let missing = build("s3://bench/shards/0000000{2..3}.tar", &source, &BuildOptions::default())
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("00000003.tar"));
}

#[tokio::test]
async fn a_glob_lists_what_it_may_stand_for() {
    let bucket = synthetic(&[
        "shards/train:2x5x1000,tar",
        "shards/train/deep/er:3000x10",
        "other:3000x10",
    ]);
    for (url, lists) in [
        // Three pages of what lies deeper aren't looked at.
        ("s3://bench/shards/train/*.tar", 1),
        ("s3://bench/shards/train/0000000?.tar", 1),
        ("s3://bench/sh*/train/*.tar", 3),
    ] {
        bucket.reset_counts();
        let index = build(url, &options(&bucket), &BuildOptions::default()).await.unwrap();
        assert_eq!(
            (index.format(), index.objects(), index.len()),
            (Format::Tar, 2, 10),
            "{url}"
        );
        assert!(bucket.counts().of(Class::List) <= lists, "{url}: {:?}", bucket.counts());
    }
}

#[tokio::test]
async fn a_glob_of_files_goes_into_no_directory_that_it_may_not_lead_to() {
    let root = tempfile::tempdir().unwrap();
    let mut inside = root.path().to_owned();
    // Listed to its end it is an error.
    for _ in 0..70 {
        inside.push("deep");
    }
    std::fs::create_dir_all(&inside).unwrap();
    for name in ["x-1.bin", "x-2.bin", "y.bin"] {
        std::fs::write(root.path().join(name), name).unwrap();
    }
    let url = format!("{}/x-*.bin", root.path().display());
    let index = build(&url, &SourceOptions::default(), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!(index.len(), 2);
    let all = format!("{}/**.bin", root.path().display());
    assert!(
        build(&all, &SourceOptions::default(), &BuildOptions::default())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn large_members_cost_one_request_each_and_few_bytes() {
    let bucket = synthetic(&["big:1x8x5000000,tar"]);
    bucket.reset_counts();
    let index = build("s3://bench/big", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!(index.len(), 8);
    let counts = bucket.counts();
    assert!(counts.of(Class::Get) <= 20, "{counts:?}");
    assert!(counts.bytes_sent < 2_000_000, "{counts:?}");
}

#[tokio::test]
async fn a_manifest_names_objects_ranges_and_labels() {
    let bucket = Bucket::start_default().unwrap();
    bucket.put("bench", "data/a.bin", vec![1; 100]).unwrap();
    bucket.put("bench", "data/b.bin", vec![2; 50]).unwrap();
    let csv = "path,offset,length,label\na.bin,10,20,dog\nb.bin,,,cat\na.bin,0,5,dog\n";
    bucket.put("bench", "data/set.csv", csv).unwrap();
    let source = options(&bucket);
    let index = build("s3://bench/data/set.csv", &source, &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!((index.format(), index.len(), index.objects()), (Format::Manifest, 3, 2));
    assert_eq!(index.classes(), ["cat", "dog"]);
    let samples: Vec<_> = (0..3).map(|i| index.sample(i).unwrap()).collect();
    let read: Vec<_> = samples
        .iter()
        .map(|s| (s.object, s.offset, s.length, s.label))
        .collect();
    assert_eq!(read, [(0, 10, 20, Some(1)), (1, 0, 50, Some(0)), (0, 0, 5, Some(1))]);
    read_all(&index, &bucket, &source).await;
    let far = "{\"where\":\"s3://bench/data/b.bin\",\"label\":7}\n";
    bucket.put("bench", "lists/set.jsonl", far).unwrap();
    let columns = Columns {
        object: Some("where".into()),
        ..Columns::default()
    };
    let named = BuildOptions {
        columns,
        ..BuildOptions::default()
    };
    let index = build("s3://bench/lists/set.jsonl", &source, &named).await.unwrap();
    assert_eq!((index.root(), index.label(0)), ("s3://bench", Some(7)));
    bucket
        .put("bench", "data/bad.csv", "path,offset,length\na.bin,90,20\n")
        .unwrap();
    let error = build("s3://bench/data/bad.csv", &source, &BuildOptions::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("data/a.bin"), "{error}");
}

#[tokio::test]
async fn a_manifest_makes_samples_of_several_ranges_and_checksums_cover_all_of_them() {
    let bucket = Bucket::start_default().unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    bucket.put("bench", "data/a.bin", bytes[..100].to_vec()).unwrap();
    bucket.put("bench", "data/b.bin", bytes[100..150].to_vec()).unwrap();
    let lines = r#"{"ranges": [["b.bin", 10, 20], ["a.bin", 90], "b.bin", ["a.bin", 0, 5]], "label": 4}
{"path": "a.bin", "offset": 5, "length": 7}
{"ranges": [["a.bin", 3, 9]]}
{"ranges": [["a.bin", 95, 100], ["s3://bench/data/a.bin", 95, 100]]}
"#;
    bucket.put("bench", "data/set.jsonl", lines).unwrap();
    let (source, url) = (options(&bucket), "s3://bench/data/set.jsonl");
    let index = build(url, &source, &BuildOptions::default()).await.unwrap();
    assert_eq!((index.len(), index.objects(), index.label(0)), (4, 2, Some(4)));
    let several: Vec<bool> = (0..4).map(|i| index.is_several(i)).collect();
    assert_eq!(several, [true, false, false, true]);
    let expected: [&[&[u8]]; 4] = [
        &[&bytes[110..120], &bytes[90..100], &bytes[100..150], &bytes[..5]],
        &[&bytes[5..12]],
        &[&bytes[3..9]],
        &[&bytes[95..100], &bytes[95..100]],
    ];
    let opened = Source::open(index.root(), &source).unwrap();
    let with = format::checksum(&index, &opened, 4, &mut |_| {}).await.unwrap();
    let again = format::with_checksums_of(&index, &with).unwrap();
    assert_eq!(again.as_bytes(), with.as_bytes());
    assert_eq!(with.digest(), index.digest());
    for (i, expected) in (0..).zip(expected) {
        let expected = expected.concat();
        assert_eq!(index.length(i), expected.len() as u64);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &expected) as u32;
        assert_eq!(with.crc32c(i), Some(crc), "sample {i}");
        assert_eq!(with.sample_key("", i).unwrap(), index.sample_key("", i).unwrap());
    }
    for (line, what, object) in [
        (
            r#"["a.bin", 90, 101]"#,
            "line 2 of the manifest: bytes 90..101 lie outside",
            "data/a.bin",
        ),
        (
            r#"["b.bin", 51]"#,
            "line 2 of the manifest: bytes 51..51 lie outside",
            "data/b.bin",
        ),
        (r#"["c.bin", 0, 1]"#, "there is no such object", "data/c.bin"),
    ] {
        let lines = format!("{{\"path\": \"a.bin\"}}\n{{\"ranges\": [[\"a.bin\", 0, 5], {line}]}}\n");
        bucket.put("bench", "data/bad.jsonl", lines).unwrap();
        let built = build("s3://bench/data/bad.jsonl", &source, &BuildOptions::default()).await;
        let error = built.unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(object), "{error}");
    }
}

#[tokio::test]
async fn an_update_keeps_the_order_of_what_is_unchanged() {
    let bucket = Bucket::start_default().unwrap();
    for key in ["t/b/1", "t/b/2", "t/c/1"] {
        bucket.put("bench", key, key.to_owned()).unwrap();
    }
    let source = options(&bucket);
    let old = build("s3://bench/t", &source, &BuildOptions::default()).await.unwrap();
    bucket.put("bench", "t/a/0", "new").unwrap();
    bucket.put("bench", "t/b/1", "changed").unwrap();
    bucket.delete("bench", "t/c/1").unwrap();
    let (new, changes) = format::update(&old, "s3://bench/t", &source, &mut |_| {})
        .await
        .unwrap();
    assert_eq!(
        changes,
        Changes {
            unchanged: 1,
            added: 1,
            changed: 1,
            removed: 1
        }
    );
    let keys: Vec<_> = (0..new.len()).map(|i| new.object(i).unwrap().key).collect();
    assert_eq!(keys, ["b/2", "a/0", "b/1"]);
    // Classes are those of a new listing, so that every data set with these classes has the same numbers.
    let listed = build("s3://bench/t", &source, &BuildOptions::default()).await.unwrap();
    assert_eq!(new.classes(), listed.classes());
    assert_eq!(new.classes(), ["a", "b"]);
    assert_eq!(
        (0..3).map(|i| new.label(i)).collect::<Vec<_>>(),
        [Some(1), Some(0), Some(1)]
    );
    let (same, changes) = format::update(&new, "s3://bench/t", &source, &mut |_| {})
        .await
        .unwrap();
    assert_eq!((same.digest(), changes.unchanged), (new.digest(), 3));
}

#[tokio::test]
async fn checksums_are_computed_in_one_pass_over_each_object() {
    let bucket = synthetic(&["shards:2x30x500-3000,tar", "flat:20x0-700"]);
    let source = options(&bucket);
    for url in ["s3://bench/shards", "s3://bench/flat"] {
        let index = build(url, &source, &BuildOptions::default()).await.unwrap();
        bucket.reset_counts();
        let opened = Source::open(index.root(), &source).unwrap();
        let with = format::checksum(&index, &opened, 8, &mut |_| {}).await.unwrap();
        assert!(bucket.counts().of(Class::Get) <= index.objects());
        assert_eq!(with.digest(), index.digest());
        assert!((0..with.len()).all(|i| with.crc32c(i).is_some()));
        read_all(&with, &bucket, &source).await;
        let again = format::with_checksums_of(&index, &with).unwrap();
        assert_eq!(
            again.as_bytes(),
            with.as_bytes(),
            "one that is listed again takes them over"
        );
    }
}

#[tokio::test]
async fn an_interrupted_listing_goes_on_where_it_was() {
    let bucket = synthetic(&["train:300x10,classes=6"]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("listing");
    let checkpoint = BuildOptions {
        checkpoint: Some(path.clone()),
        concurrency: 1,
        ..BuildOptions::default()
    };
    let lists = |bucket: &Bucket| bucket.counts().of(Class::List);
    bucket.add_fault(foreload_testkit::bucket::Fault::parse("kind=status,status=403,on=list,nth=4").unwrap());
    build("s3://bench/train", &options(&bucket), &checkpoint)
        .await
        .unwrap_err();
    assert!(path.exists());
    bucket.reset_counts();
    let index = build("s3://bench/train", &options(&bucket), &checkpoint).await.unwrap();
    assert_eq!((index.len(), path.exists()), (300, false));
    assert!(lists(&bucket) < 13, "{}", lists(&bucket));
    let plain = build("s3://bench/train", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!(plain.digest(), index.digest());
}

#[tokio::test]
async fn directories_work_like_buckets() {
    let directory = tempfile::tempdir().unwrap();
    for (class, count) in [("dog", 3), ("cat", 2)] {
        fs::create_dir(directory.path().join(class)).unwrap();
        for i in 0..count {
            fs::write(
                directory.path().join(class).join(format!("{i}.png")),
                format!("{class}{i}"),
            )
            .unwrap();
        }
    }
    fs::write(directory.path().join("list.csv"), "file,label\ndog/1.png,4\n").unwrap();
    let url = directory.path().to_str().unwrap();
    let index = build(url, &SourceOptions::default(), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!((index.len(), index.classes()), (5, vec!["cat", "dog"]));
    assert!(index.object(0).unwrap().etag.is_some());
    let listed = build(
        &format!("{url}/list.csv"),
        &SourceOptions::default(),
        &BuildOptions::default(),
    )
    .await
    .unwrap();
    assert_eq!((listed.len(), listed.label(0)), (1, Some(4)));
    let source = Source::open(listed.root(), &SourceOptions::default()).unwrap();
    let mut bytes = Vec::new();
    source
        .fetch(&listed.object(0).unwrap().key, 0..4, None, soon(), &mut bytes)
        .await
        .unwrap();
    assert_eq!(bytes, b"dog1");
}

#[tokio::test]
async fn an_idx_file_beside_a_shard_saves_the_walk() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("s.tar"), vec![0; 10_240]).unwrap();
    fs::write(
        directory.path().join("s.idx"),
        "v1.2 2\njpg 512 100 a.jpg\njpg 1536 5 b.jpg json 2560 9 b.json\n",
    )
    .unwrap();
    let url = directory.path().to_str().unwrap();
    let index = build(url, &SourceOptions::default(), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!((index.format(), index.len()), (Format::Tar, 2));
    let sample = index.sample(1).unwrap();
    assert_eq!(sample.fields().collect::<Vec<_>>(), [("jpg", 0, 5), ("json", 1024, 9)]);
}

#[tokio::test]
async fn an_object_of_another_size_than_indexed_has_changed() {
    let bucket = synthetic(&["data:3x1000"]);
    let directory = tempfile::tempdir().unwrap();
    let mut manifest = String::from("object,size,offset,length\n");
    for number in 0..3 {
        let key = format!("{number:08}.bin");
        fs::write(directory.path().join(&key), vec![number as u8; 1000]).unwrap();
        // Whole, but shorter than it is; a range of it; and as it is.
        let (size, range) = [(500, ","), (900, "100,200"), (1000, "100,200")][number];
        manifest += &format!("{key},{size},{range}\n");
    }
    fs::write(directory.path().join("list.csv"), &manifest).unwrap();
    bucket.put("bench", "data/list.csv", manifest.into_bytes()).unwrap();
    let local = directory.path().join("list.csv");
    for (url, options) in [
        ("s3://bench/data/list.csv", options(&bucket)),
        (local.to_str().unwrap(), SourceOptions::default()),
    ] {
        let index = build(url, &options, &BuildOptions::default()).await.unwrap();
        let source = Source::open(index.root(), &options).unwrap();
        for i in 0..3 {
            let sample = index.sample(i).unwrap();
            let object = index.object(sample.object).unwrap();
            let mut bytes = Vec::new();
            let fetched = source.fetch_indexed(&object, sample.range(), soon(), &mut bytes).await;
            if i == 2 {
                assert_eq!((fetched.unwrap().object_size, bytes.len()), (Some(1000), 200));
                continue;
            }
            let error = fetched.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Changed, "{url}");
            let words = format!("1000 bytes, indexed were {}", object.size);
            assert!(error.to_string().contains(&words), "{error}");
        }
    }
}

#[tokio::test]
async fn a_manifest_without_sizes_lists_the_directories_that_it_names() {
    let bucket = synthetic(&["data:120000x10,classes=60"]);
    let everything = build("s3://bench/data", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap();
    let mut manifest = String::from("object\n");
    for o in 0..everything.objects() {
        let key = everything.object(o).unwrap().key;
        // All of three directories, and one object of each of ten others.
        let class: u64 = everything.label(o).unwrap() as u64;
        if class < 3 || class < 13 && o % 2000 == 0 {
            manifest += &format!("{key}\n");
        }
    }
    let rows = manifest.lines().count() as u64 - 1;
    bucket.put("bench", "data/list.csv", manifest.into_bytes()).unwrap();
    let before = bucket.counts();
    let index = build("s3://bench/data/list.csv", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!((rows, index.len()), (6010, 6010));
    let (lists, heads) = (
        bucket.counts().of(Class::List) - before.of(Class::List),
        bucket.counts().of(Class::Head) - before.of(Class::Head),
    );
    // Two pages for each of the three, and a first one that tells of its subdirectories; a HEAD for the manifest itself.
    assert!(lists <= 9, "{lists} listings");
    assert_eq!(heads, 11);
    read_all(
        &index.choose([0, 3000, 6009].into_iter().collect()).unwrap(),
        &bucket,
        &options(&bucket),
    )
    .await;
}

#[tokio::test]
async fn samples_of_shards_have_webdatasets_keys() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("s.tar"), vec![0; 10_240]).unwrap();
    let lines = "v1.2 2\njpg 512 100 ./x/a.b.jpg\njpg 1536 5 c.jpg json 2560 9 c.json\n";
    fs::write(directory.path().join("s.idx"), lines).unwrap();
    let url = directory.path().to_str().unwrap();
    let index = build(url, &SourceOptions::default(), &BuildOptions::default())
        .await
        .unwrap();
    let names = |index: &Index| (0..index.len()).map(|i| index.name(i)).collect::<Vec<_>>();
    assert_eq!(names(&index), [Some("x/a".to_owned()), Some("c".to_owned())]);
    assert_eq!(
        names(&index.choose([1, 0, 1].into_iter().collect()).unwrap())[..2],
        [Some("c".to_owned()), Some("x/a".to_owned())]
    );
    assert_eq!(index.as_bytes()[8], 2, "the layout's version");
    fs::write(directory.path().join("s.idx"), "v1.1 1\njpg 512 100\n").unwrap();
    let plain = build(url, &SourceOptions::default(), &BuildOptions::default())
        .await
        .unwrap();
    assert_eq!((names(&plain), plain.as_bytes()[8]), (vec![None], 1));
}

#[tokio::test]
async fn links_that_lead_back_are_left_out_and_others_followed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::create_dir_all(root.join("set/a/deep")).unwrap();
    fs::create_dir_all(root.join("elsewhere")).unwrap();
    fs::write(root.join("set/a/1"), b"x").unwrap();
    fs::write(root.join("set/a/deep/2"), b"x").unwrap();
    fs::write(root.join("elsewhere/3"), b"x").unwrap();
    for (link, to) in [
        ("set/a/up", ".."),
        ("set/a/up2", "../../set"),
        ("set/a/deep/self", "."),
        ("set/b", "../elsewhere"),
    ] {
        std::os::unix::fs::symlink(to, root.join(link)).unwrap();
    }
    let source = SourceOptions::default();
    let url = root.join("set");
    let index = build(url.to_str().unwrap(), &source, &BuildOptions::default())
        .await
        .unwrap();
    let keys: Vec<String> = (0..index.len())
        .map(|i| index.object(index.sample(i).unwrap().object).unwrap().key)
        .collect();
    assert_eq!(keys, ["a/1", "a/deep/2", "b/3"]);
}

#[tokio::test]
async fn a_directory_may_be_called_like_a_file_and_an_archive_lie_beside_data() {
    let directory = tempfile::tempdir().unwrap();
    let source = SourceOptions::default();
    for name in ["x.tar", "y.parquet", "z.json"] {
        let root = directory.path().join(name);
        fs::create_dir_all(root.join("a")).unwrap();
        for sample in 0..5 {
            fs::write(root.join(format!("a/{sample}.png")), b"x").unwrap();
        }
        fs::write(root.join("images.tar.gz"), b"x").unwrap();
        for url in [
            format!("{}", root.display()),
            format!("file://{}", root.display()),
            format!("{}/", root.display()),
        ] {
            let index = build(&url, &source, &BuildOptions::default()).await.unwrap();
            assert_eq!((index.len(), index.format()), (5, Format::Folder), "{url}");
        }
    }
    // Nothing but archives: they are meant to be shards.
    let root = directory.path().join("packed");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("1.tar.gz"), b"x").unwrap();
    let url = root.to_str().unwrap();
    let error = build(url, &source, &BuildOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("compressed archives"), "{error}");
    let flat = BuildOptions {
        format: Some(Format::Flat),
        ..BuildOptions::default()
    };
    assert_eq!(build(url, &source, &flat).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_etag_of_a_manifest_is_compared_whatever_else_the_row_says() {
    let bucket = synthetic(&[]);
    let source = options(&bucket);
    bucket.put("bench", "data/x", vec![1; 10]).unwrap();
    let at = Source::open("s3://bench/data", &source).unwrap();
    let etag = at.head("x", soon()).await.unwrap().etag.unwrap();
    let bare = etag.trim_matches('"');
    for (is_right, rows) in [
        (true, format!("object,etag\nx,{bare}\n")),
        (true, format!("object,etag,offset,length\nx,{bare},0,5\nx,{bare},5,5\n")),
        (false, "object,etag\nx,0123\n".to_owned()),
        (false, format!("object,etag,offset,length\nx,{bare},0,5\nx,0123,5,5\n")),
    ] {
        bucket.put("bench", "data/list.csv", rows.clone().into_bytes()).unwrap();
        match build("s3://bench/data/list.csv", &source, &BuildOptions::default()).await {
            Ok(index) => assert!(is_right && !index.is_empty(), "{rows}"),
            Err(error) => assert!(!is_right && error.kind() == ErrorKind::Changed, "{rows}: {error}"),
        }
    }
}

#[tokio::test]
async fn what_is_known_by_its_size_alone_is_another_block_by_each_index() {
    let bucket = synthetic(&[]);
    bucket.put("bench", "data/x", vec![1; 10]).unwrap();
    let etag = Source::open("s3://bench/data", &options(&bucket))
        .unwrap()
        .head("x", soon())
        .await
        .unwrap()
        .etag
        .unwrap();
    let bare = etag.trim_matches('"');
    for (is_new, rows) in [
        (true, "object,size\nx,10\n".to_owned()),
        (false, format!("object,size,etag\nx,10,{bare}\n")),
        (false, "object\nx\n".to_owned()),
    ] {
        bucket.put("bench", "data/list.csv", rows.clone().into_bytes()).unwrap();
        let (mut keys, mut digests) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let index = build("s3://bench/data/list.csv", &options(&bucket), &BuildOptions::default())
                .await
                .unwrap();
            keys.push(index.sample_key("", 0).unwrap());
            digests.push(index.digest());
        }
        assert_eq!(keys[0] != keys[1], is_new, "{rows}");
        assert_eq!(digests[0], digests[1], "the data set is the same all the same");
    }
}

#[tokio::test]
async fn a_row_with_a_query_is_refused_before_it_is_asked_for() {
    let bucket = synthetic(&[]);
    bucket
        .put(
            "bench",
            "data/list.csv",
            "url,size\nhttp://h/d/a.bin,3\nhttp://h/d/b.bin?sig=secret,3\n",
        )
        .unwrap();
    let error = build("s3://bench/data/list.csv", &options(&bucket), &BuildOptions::default())
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("line 3") && text.contains("query") && !text.contains("secret"),
        "{text}"
    );
}

#[tokio::test]
async fn lines_that_contradict_one_another_are_refused() {
    let bucket = synthetic(&[]);
    for (is_right, rows) in [
        (true, "x,10,,0,5\nx,10,ab,5,5\n"),
        (true, "x,10,ab,0,5\nx,10,\"\"\"ab\"\"\",5,5\n"),
        (false, "x,10,,0,5\nx,12,,5,5\n"),
        (false, "x,10,ab,0,5\nx,10,cd,5,5\n"),
    ] {
        let text = format!("object,object_size,etag,offset,length\n{rows}");
        bucket.put("bench", "data/list.csv", text.into_bytes()).unwrap();
        let built = build("s3://bench/data/list.csv", &options(&bucket), &BuildOptions::default()).await;
        match built {
            Ok(index) => assert!(is_right && index.object(0).unwrap().etag.is_some(), "{rows}"),
            Err(error) => assert!(!is_right && error.to_string().contains("line 3"), "{rows}: {error}"),
        }
    }
}
