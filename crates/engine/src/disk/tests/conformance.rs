//! A disk tier obeys the suite that every carrier of bytes obeys.

use super::super::layout::RECORD_HEADER;
use super::*;
use foreload_testkit::conformance::{Carrier, SPOILS, Spoil, obeys};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;

struct Disk {
    tier: DiskTier,
    /// What is put under a name again is another content, as another version of an object is.
    keys: HashMap<String, [u8; 16]>,
    puts: u64,
}

impl Disk {
    fn find(&self, name: &str) -> Result<Entry, String> {
        let key = self.keys.get(name).ok_or("nothing has this name")?;
        self.tier.find(key).ok_or_else(|| "not in the tier".to_owned())
    }
}

impl Carrier for Disk {
    async fn put(&mut self, name: &str, bytes: &[u8]) {
        self.puts += 1;
        let key = key(self.puts);
        let place = self.tier.reserve(1, key, bytes.len() as u64).unwrap();
        self.tier.commit(place.write(bytes).ok().unwrap());
        self.keys.insert(name.into(), key);
    }

    async fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut out = vec![0xaa; (range.end - range.start) as usize];
        let mut put = |at: u64, bytes: &[u8]| {
            out[at as usize..][..bytes.len()].copy_from_slice(bytes);
            true
        };
        let read = self.find(name)?.read(range, &mut Buffer::new(0), &mut put);
        match read {
            Ok(true) => Ok(out),
            Ok(false) => Err("nobody gave up".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn give_up(&self, name: &str) {
        let entry = self.find(name).unwrap();
        let mut frames = 0;
        let mut put = |_: u64, _: &[u8]| {
            frames += 1;
            false
        };
        assert!(!entry.read(0..entry.len(), &mut Buffer::new(0), &mut put).unwrap());
        assert_eq!(frames, 1);
    }

    async fn spoil(&mut self, name: &str, how: Spoil) -> bool {
        let entry = self.find(name).unwrap();
        let path = entry.segment.path().to_owned();
        let (start, len) = (u64::from(entry.record.offset) + RECORD_HEADER, entry.len());
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, start).unwrap();
        match how {
            Spoil::Gone => self.tier.forget(&self.keys[name]),
            Spoil::Exchanged => bytes.iter_mut().for_each(|byte| *byte ^= 0x55),
            // Where it was, the file has a hole.
            Spoil::Cut => bytes[len as usize / 2..].fill(0),
            Spoil::Altered => bytes[len as usize / 2] ^= 1,
        }
        file.write_all_at(&bytes, start).unwrap();
        true
    }
}

#[tokio::test]
async fn a_disk_tier_obeys() {
    let dir = tempfile::tempdir().unwrap();
    let (tier, _) = DiskTier::open(dir.path(), settings(64 << 20, 16 << 20)).unwrap();
    let keys = HashMap::new();
    obeys(&mut Disk { tier, keys, puts: 0 }, &SPOILS).await;
}
