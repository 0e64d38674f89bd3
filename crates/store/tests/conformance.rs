//! Each kind of source obeys the suite that every carrier of bytes obeys.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use foreload_store::{Credentials, Error, ErrorKind, Retry, Sink, Source, SourceOptions};
use foreload_testkit::Bucket;
use foreload_testkit::bucket::{Keys, Settings};
use foreload_testkit::conformance::{Carrier, Spoil, obeys};
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Where things are put.
enum Place {
    Bucket(Bucket),
    Directory(PathBuf),
}

/// A source over it, which is asked with the ETag of what was put, as an index has it.
struct Read {
    place: Place,
    source: Source,
    etags: HashMap<String, String>,
    /// Of the last file that was written: each is as if written a second after the one before.
    written: u64,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Gives up at its first frame.
struct Tired;

impl Sink for Tired {
    fn write(&mut self, _at: u64, _frame: &[u8]) -> foreload_store::Result<()> {
        Err(Error::new(ErrorKind::Closed, "given up"))
    }

    fn restart(&mut self) {}
}

impl Read {
    fn new(place: Place, url: &str, options: &SourceOptions) -> Self {
        Self {
            place,
            source: Source::open(url, options).unwrap(),
            etags: HashMap::new(),
            written: 0,
        }
    }

    /// Writes without telling the reader of its ETag.
    async fn write(&mut self, name: &str, bytes: &[u8]) -> String {
        match &self.place {
            Place::Bucket(bucket) => {
                let etag = bucket.put("bench", &format!("data/{name}"), bytes.to_vec()).unwrap();
                format!("\"{etag}\"")
            }
            Place::Directory(root) => {
                self.written += 1;
                let path = root.join(name);
                fs::write(&path, bytes).unwrap();
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(self.written);
                fs::File::options()
                    .append(true)
                    .open(&path)
                    .unwrap()
                    .set_modified(time)
                    .unwrap();
                self.source.head(name, soon()).await.unwrap().etag.unwrap()
            }
        }
    }

    fn there(&self, name: &str) -> Vec<u8> {
        match &self.place {
            Place::Bucket(bucket) => bucket.read("bench", &format!("data/{name}")).unwrap().unwrap().to_vec(),
            Place::Directory(root) => fs::read(root.join(name)).unwrap(),
        }
    }
}

impl Carrier for Read {
    async fn put(&mut self, name: &str, bytes: &[u8]) {
        let etag = self.write(name, bytes).await;
        self.etags.insert(name.into(), etag);
    }

    async fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let etag = self.etags.get(name).map(String::as_str);
        let fetched = self.source.fetch(name, range, etag, soon(), &mut bytes).await;
        fetched.map(|_| bytes).map_err(|error| error.to_string())
    }

    async fn give_up(&self, name: &str) {
        let len = self.there(name).len() as u64;
        // Once by its own will, once because nobody waits any more.
        let own = self.source.fetch(name, 0..len, None, soon(), &mut Tired).await;
        assert_eq!(own.unwrap_err().kind(), ErrorKind::Closed);
        let mut bytes = Vec::new();
        let fetch = self.source.fetch(name, 0..len, None, soon(), &mut bytes);
        drop(tokio::time::timeout(Duration::from_micros(300), fetch).await);
    }

    async fn spoil(&mut self, name: &str, how: Spoil) -> bool {
        let mut bytes = self.there(name);
        let half = bytes.len() / 2;
        match (how, &self.place) {
            (Spoil::Gone, Place::Bucket(bucket)) => bucket.delete("bench", &format!("data/{name}")).unwrap(),
            (Spoil::Gone, Place::Directory(root)) => fs::remove_file(root.join(name)).unwrap(),
            (Spoil::Exchanged, _) => {
                bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
                self.write(name, &bytes).await;
            }
            (Spoil::Cut, _) => {
                self.write(name, &bytes[..half]).await;
            }
            // A source knows no checksums: an index does.
            (Spoil::Altered, _) => return false,
        }
        true
    }
}

const NOTICED: [Spoil; 3] = [Spoil::Gone, Spoil::Exchanged, Spoil::Cut];

fn options(bucket: &Bucket) -> SourceOptions {
    SourceOptions {
        endpoint: Some(bucket.endpoint()),
        credentials: Some(Credentials::Anonymous),
        retry: Retry {
            pause: Duration::from_millis(2),
            ..Retry::default()
        },
        ..SourceOptions::default()
    }
}

fn bucket() -> Bucket {
    let keys = Keys {
        anonymous: true,
        ..Keys::default()
    };
    Bucket::start(Settings {
        keys,

        ..Settings::default()
    })
    .unwrap()
}

#[tokio::test]
async fn buckets_of_amazon_and_google_obey() {
    for url in ["s3://bench/data", "gs://bench/data"] {
        let bucket = bucket();
        let options = options(&bucket);
        obeys(&mut Read::new(Place::Bucket(bucket), url, &options), &NOTICED).await;
    }
}

#[tokio::test]
async fn a_bucket_that_wants_signatures_over_tls_obeys() {
    let bucket = Bucket::start(Settings {
        tls: true,
        ..Settings::default()
    })
    .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bucket.ca_pem().unwrap()).unwrap();
    let keys = bucket.keys();
    let credentials = Credentials::AccessKey {
        id: keys.access_key,
        secret: keys.secret_key,
        token: keys.session_token,
    };
    let options = SourceOptions {
        credentials: Some(credentials),
        ca_file: Some(file.path().to_owned()),
        ..options(&bucket)
    };
    obeys(
        &mut Read::new(Place::Bucket(bucket), "s3://bench/data", &options),
        &NOTICED,
    )
    .await;
}

#[tokio::test]
async fn a_web_server_obeys() {
    let bucket = bucket();
    let url = format!("{}/bench/data", bucket.endpoint());
    let options = SourceOptions {
        endpoint: None,
        ..options(&bucket)
    };
    obeys(&mut Read::new(Place::Bucket(bucket), &url, &options), &NOTICED).await;
}

#[tokio::test]
async fn a_directory_obeys() {
    let directory = tempfile::tempdir().unwrap();
    let url = directory.path().to_str().unwrap().to_owned();
    let place = Place::Directory(directory.path().to_owned());
    obeys(&mut Read::new(place, &url, &SourceOptions::default()), &NOTICED).await;
}
