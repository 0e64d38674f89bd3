//! Files that another process has mapped, on descriptors of our own.
//!
//! A descriptor is shared by all mappings of its file, in whichever process, and closed with the last of them.

use super::maps::{self, Area, FileId};
use crate::pages;
use foreload_plan::window::Span;
use rustix::fs::{Advice, FileType, Mode, OFlags, fadvise, fstat, major, minor, open};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// A file whose pages are asked for.
#[derive(Debug)]
pub struct Opened {
    file: File,
    /// Its length when it was opened.
    pub bytes: u64,
    /// What one call fetches.
    step: u64,
}

impl Opened {
    /// Asks for bytes of the file, in steps of what one call fetches: how many calls, and how many bytes.
    ///
    /// It copies nothing and returns at once.
    pub fn ask(&self, span: Span, page: u64) -> (u64, u64) {
        let end = span.to.next_multiple_of(page);
        let mut from = span.from / page * page;
        let (mut calls, mut bytes) = (0, 0);
        while from < end {
            // The kernel cuts requests where the file has whole windows.
            let len = (self.step - from % self.step).min(end - from);
            let is_asked = fadvise(&self.file, from, NonZeroU64::new(len), Advice::WillNeed).is_ok();
            (calls, bytes) = (calls + 1, bytes + u64::from(is_asked) * len);
            from += len;
        }
        (calls, bytes)
    }
}

/// All that are open, and what there is to say of those that can't be.
#[derive(Debug, Default)]
pub struct Files {
    open: BTreeMap<FileId, Weak<Opened>>,
    /// What was noted, and of it what hasn't been told.
    noted: BTreeSet<String>,
    notes: Vec<String>,
}

/// What is noted at most.
const MOST_NOTES: usize = 100;

impl Files {
    /// Opens an area's file, if it isn't open; none: it can't be, which is noted once.
    pub fn open(&mut self, pid: u32, area: &Area) -> Option<Arc<Opened>> {
        if let Some(open) = self.open.get(&area.file).and_then(Weak::upgrade) {
            return Some(open);
        }
        match find(pid, area) {
            Ok(opened) => {
                let opened = Arc::new(opened);
                self.open.retain(|_, file| file.strong_count() > 0);
                self.open.insert(area.file, Arc::downgrade(&opened));
                Some(opened)
            }
            Err(why) => {
                self.note_once(format!("{}: {why}", area.path.display()));
                None
            }
        }
    }

    /// Keeps a note for whoever asks, unless it was kept before.
    pub fn note_once(&mut self, note: String) {
        if self.noted.len() < MOST_NOTES && self.noted.insert(note.clone()) {
            self.notes.push(note);
        }
    }

    /// What there is to say since the last time.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

/// The file that is mapped there: by the kernel's own link, which takes a privilege; by its path; and by its path in what the process has as its root.
fn find(pid: u32, area: &Area) -> Result<Opened, String> {
    let path = area.path.strip_prefix("/").unwrap_or(&area.path);
    let places = [
        PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", area.at, area.end)),
        area.path.clone(),
        PathBuf::from(format!("/proc/{pid}/root")).join(path),
    ];
    let mut why = None;
    for (nth, place) in places.iter().enumerate() {
        // What isn't a file may have come in its place: nothing is waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open(place, flags, Mode::empty()) {
            Ok(file) => match same(File::from(file), area.file) {
                Some(opened) => return Ok(opened),
                None => {
                    why = Some("another file has this name now, and the one that is mapped can't be opened".to_owned())
                }
            },
            Err(error) if nth == 1 => why = Some(std::io::Error::from(error).to_string()),
            Err(_) => {}
        }
    }
    Err(why.unwrap_or_else(|| "it can't be opened".to_owned()))
}

/// A file, if it is the one that is mapped.
fn same(file: File, wanted: FileId) -> Option<Opened> {
    let stat = fstat(&file).ok()?;
    let found = FileId {
        major: major(stat.st_dev),
        minor: minor(stat.st_dev),
        inode: stat.st_ino,
    };
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // On Btrfs and on overlays of several file systems a mapping is told with another device than the file.
    (is_file && (found == wanted || maps::told_of(&file) == Some(wanted))).then(|| Opened {
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        step: pages::step_of(&file),
        file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn area(path: PathBuf) -> Area {
        let stat = std::fs::metadata(&path).expect("there");
        let file = FileId {
            major: major(stat.dev()),
            minor: minor(stat.dev()),
            inode: stat.ino(),
        };
        let (at, end, offset) = (4096, 8192, 0);
        Area {
            at,
            end,
            offset,
            file,
            path,
        }
    }

    #[test]
    fn a_file_is_open_as_long_as_somebody_has_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 10_000]).expect("written");
        let (mut files, area) = (Files::default(), area(path));
        let first = files.open(std::process::id(), &area).expect("open");
        assert!(Arc::ptr_eq(
            &first,
            &files.open(std::process::id(), &area).expect("open")
        ));
        assert_eq!(first.bytes, 10_000);
        let span = Span { from: 5000, to: 9000 };
        assert_eq!(first.ask(span, 4096), (1, 8192));
        let left = Arc::downgrade(&first);
        drop(first);
        assert!(left.upgrade().is_none());
        assert_eq!(files.take_notes(), Vec::<String>::new());
    }

    #[test]
    fn another_file_of_the_same_name_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "one").expect("written");
        let (mut files, area) = (Files::default(), area(path.clone()));
        std::fs::write(directory.path().join("other"), "two").expect("written");
        std::fs::rename(directory.path().join("other"), &path).expect("renamed");
        for _ in 0..2 {
            assert!(files.open(std::process::id(), &area).is_none());
        }
        let notes = files.take_notes();
        assert!(notes.len() == 1 && notes[0].contains("another file"), "{notes:?}");
        assert!(files.open(std::process::id(), &area).is_none());
        assert!(files.take_notes().is_empty(), "it was said");
    }
}
