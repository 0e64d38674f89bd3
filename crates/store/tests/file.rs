//! The `file` source: directories as data sets.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use foreload_store::{ErrorKind, Source, SourceOptions};
use futures::StreamExt;
use std::fs;
use std::time::Duration;
use tokio::time::Instant;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn open(directory: &tempfile::TempDir) -> Source {
    Source::open(directory.path().to_str().unwrap(), &SourceOptions::default()).unwrap()
}

#[tokio::test]
async fn files_are_listed_and_read_in_ranges() {
    let directory = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    fs::create_dir_all(directory.path().join("a/b")).unwrap();
    fs::write(directory.path().join("a/b/x.bin"), &data).unwrap();
    fs::write(directory.path().join("a/y"), b"yy").unwrap();
    fs::write(directory.path().join("z"), b"").unwrap();
    std::os::unix::fs::symlink("nowhere", directory.path().join(".broken")).unwrap();
    let source = open(&directory);
    let mut objects = source.list("").map(Result::unwrap).collect::<Vec<_>>().await.concat();
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    let keys: Vec<_> = objects.iter().map(|o| (o.key.as_str(), o.size)).collect();
    assert_eq!(keys, [("a/b/x.bin", 3_000_000), ("a/y", 2), ("z", 0)]);
    let etag = objects[0].etag.clone();
    for range in [0..3_000_000, 7..1_500_000, 2_999_999..3_000_000, 4..4] {
        let mut bytes = Vec::new();
        source
            .fetch("a/b/x.bin", range.clone(), etag.as_deref(), soon(), &mut bytes)
            .await
            .unwrap();
        assert!(bytes == data[range.start as usize..range.end as usize]);
    }
    assert_eq!(source.head("a/y", soon()).await.unwrap().size, 2);
}

#[tokio::test]
async fn links_whose_file_is_not_there_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let class = directory.path().join("cat");
    fs::create_dir(&class).unwrap();
    fs::write(class.join("1.jpg"), b"1").unwrap();
    for (name, to) in [("2.jpg", "../blobs/2"), ("3.jpg", "3.jpg")] {
        std::os::unix::fs::symlink(to, class.join(name)).unwrap();
    }
    let listed = |directory: &tempfile::TempDir| {
        let source = open(directory);
        async move {
            source
                .list("")
                .collect::<Vec<_>>()
                .await
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
        }
    };
    let error = listed(&directory).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let text = error.to_string();
    assert!(
        text.contains("2 links in ") && text.contains("/cat whose file isn't there: "),
        "{text}"
    );
    fs::remove_file(class.join("3.jpg")).unwrap();
    let text = listed(&directory).await.unwrap_err().to_string();
    assert!(
        text.contains("a link in ") && text.contains("/cat/2.jpg -> ../blobs/2"),
        "{text}"
    );
    fs::create_dir(directory.path().join("blobs")).unwrap();
    fs::write(directory.path().join("blobs/2"), b"22").unwrap();
    let sizes: Vec<u64> = listed(&directory)
        .await
        .unwrap()
        .concat()
        .iter()
        .map(|o| o.size)
        .collect();
    assert_eq!(sizes.iter().sum::<u64>(), 5);
}

#[tokio::test]
async fn a_pipe_is_no_file_and_nobody_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let began = std::time::Instant::now();
    let error = open(&directory)
        .fetch("pipe", 0..4, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("it is not a file"), "{error}");
    assert!(began.elapsed() < std::time::Duration::from_secs(1));
}

#[tokio::test]
async fn a_changed_file_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x");
    fs::write(&path, b"before").unwrap();
    let source = open(&directory);
    let etag = source.head("x", soon()).await.unwrap().etag;
    fs::write(&path, b"after!").unwrap();
    fs::File::open(&path)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    let error = source
        .fetch("x", 0..6, etag.as_deref(), soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    let error = source
        .fetch("x", 0..7, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
}

#[tokio::test]
async fn keys_cannot_leave_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("in")).unwrap();
    fs::write(directory.path().join("secret"), b"s").unwrap();
    let source = Source::open(directory.path().join("in").to_str().unwrap(), &SourceOptions::default()).unwrap();
    for key in ["../secret", "/etc/hostname", "a/../../secret", ".", "", "a\0b"] {
        let error = source
            .fetch(key, 0..1, None, soon(), &mut Vec::new())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{key:?}");
    }
    let missing = source
        .fetch("none", 0..1, None, soon(), &mut Vec::new())
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
