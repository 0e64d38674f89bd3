//! One process that is looked at: what it has mapped, how far it is, and what was asked for.

use super::files::{Files, Opened};
use super::maps::{self, Area};
use super::pagemap::{Pagemap, Pages};
use foreload_plan::window::pace::{Pace, Resident};
use foreload_plan::window::pagemap::Way;
use foreload_plan::window::watch::{Watch, words};
use foreload_plan::window::{Span, Tally, glob};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::param::page_size;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// Mappings below this aren't worth it.
const LEAST_BYTES: u64 = 1 << 20;
/// Mappings of one process that are followed at once; of more, the first ones.
const MOST_MAPPINGS: usize = 128;

/// What was done for a process.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// What has come of it.
    pub tally: Tally,
    /// Mappings that were followed, and that could not be.
    pub mappings: u64,
    /// The latter.
    pub not_followed: u64,
    /// Looks at a mapping.
    pub scans: u64,
    /// Calls that asked for pages, and how many bytes they asked for.
    pub calls: u64,
    /// The latter.
    pub asked_bytes: u64,
    /// Time of a CPU.
    pub cpu: Duration,
}

/// A mapping that is followed.
struct Mapped {
    area: Area,
    file: Arc<Opened>,
    watch: Watch<Vec<u64>>,
}

/// A process, by its directory in `/proc`: one that has ended can't be taken for another that got its number.
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What its first thread is called.
    pub name: String,
    directory: OwnedFd,
    pages: Option<Pages>,
    /// How much of files it has in memory.
    statm: Option<File>,
    resident: Resident,
    mapped: Vec<Mapped>,
    /// What has no descriptor: it isn't tried again and again.
    refused: BTreeSet<Area>,
    ended: Tally,
    counts: Counts,
}

/// What looks have in common.
pub struct Look<'a> {
    /// Which files, as [`glob`] reads it.
    pub patterns: &'a [u8],
    /// What a stream is read ahead at most.
    pub window_bytes: u64,
    /// And all of one mapping together.
    pub budget_bytes: u64,
}

impl Process {
    /// A process that may be looked at.
    ///
    /// # Errors
    /// `NotFound`: there is none; `PermissionDenied`: it isn't ours to look at.
    pub fn open(pid: u32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty())?;
        let process = Process {
            pid,
            name: String::new(),
            directory,
            pages: None,
            statm: None,
            resident: Resident::new(),
            mapped: Vec::new(),
            refused: BTreeSet::new(),
            ended: Tally::default(),
            counts: Counts::default(),
        };
        // What may not be looked at can't be opened.
        process.file("pagemap")?;
        Ok(process)
    }

    fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.directory, name, flags, Mode::empty())?))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.file(name)?.read_to_end(&mut text)?;
        Ok(text)
    }

    /// Processes that its threads have started and that are there.
    pub fn children(&self) -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid));
        let threads = threads.into_iter().flatten().flatten();
        let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let children = |text: String| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        };
        texts.flat_map(children).collect()
    }

    /// Looks what it has mapped: mappings that have ended are let go, and new ones followed. Whether there are any.
    ///
    /// # Errors
    /// It has ended, or may not be looked at any more.
    pub fn refresh(&mut self, look: &Look<'_>, files: &mut Files) -> io::Result<bool> {
        let maps = self.read("maps")?;
        let is_meant = |area: &Area| {
            (area.end - area.at) as u64 >= LEAST_BYTES && glob::any(look.patterns, area.path.as_os_str().as_bytes())
        };
        let areas: BTreeSet<Area> = maps::areas(&maps).filter(is_meant).collect();
        self.refused.retain(|area| areas.contains(area));
        for gone in self.mapped.extract_if(.., |mapped| !areas.contains(&mapped.area)) {
            self.ended += gone.watch.tally();
        }
        if areas.is_empty() {
            (self.pages, self.statm) = (None, None);
            return Ok(false);
        }
        let is_known = |area: &Area| self.refused.contains(area) || self.mapped.iter().any(|each| each.area == *area);
        let fresh: Vec<Area> = areas.into_iter().filter(|area| !is_known(area)).collect();
        // Opened anew, for a program that another one has taken the place of has another page table.
        self.pages = self.find(&fresh)?;
        self.statm = self.file("statm").ok();
        if !fresh.is_empty() {
            let name = self.read("comm").unwrap_or_default();
            String::from_utf8_lossy(&name).trim_end().clone_into(&mut self.name);
        }
        for area in fresh {
            self.follow(area, look, files);
        }
        Ok(!self.mapped.is_empty())
    }

    fn find(&self, fresh: &[Area]) -> io::Result<Option<Pages>> {
        let page = page_size();
        let known = self.mapped.iter().map(|mapped| &mapped.area);
        let Some(at) = known.chain(fresh).map(|area| area.at).next() else {
            return Ok(None);
        };
        let pagemap = Pagemap(self.file("pagemap")?);
        Ok(Pages::find(pagemap, page, |pages| {
            pages.present(at, at + page, |_, _| ())
        }))
    }

    fn follow(&mut self, area: Area, look: &Look<'_>, files: &mut Files) {
        let file = (self.mapped.len() < MOST_MAPPINGS)
            .then(|| files.open(self.pid, &area))
            .flatten();
        let Some(file) = file else {
            self.counts.not_followed += 1;
            self.refused.insert(area);
            return;
        };
        // A file may be mapped beyond its end.
        let bytes = file.bytes.saturating_sub(area.offset).min((area.end - area.at) as u64);
        if bytes < LEAST_BYTES {
            self.refused.insert(area);
            return;
        }
        let len = (bytes as usize).next_multiple_of(page_size());
        let touched = vec![0; words(area.at, len)];
        // What was touched before we came says nothing of where the program is. So it is seen at once: what is touched from now on counts.
        let mut watch = Watch::begin(area.at, len, true, look.window_bytes, touched);
        if let Some(pages) = &self.pages {
            watch.search(pages, || true);
        }
        self.counts.mappings += 1;
        self.mapped.push(Mapped { area, file, watch });
    }

    /// Whether it has lost pages of files since the last time; what it has mapped is looked at again then.
    pub fn was_taken_from(&mut self) -> bool {
        let mut text = [0; 128];
        let said = self.statm.as_ref().and_then(|statm| statm.read_at(&mut text, 0).ok());
        let was_taken_from = said.is_some_and(|got| self.resident.has_lost(&text[..got]));
        if was_taken_from {
            self.mapped.iter_mut().for_each(|mapped| mapped.watch.taken_back());
        }
        was_taken_from
    }

    /// Looks at all its mappings, `elapsed` after the time before, and asks for what comes next. Whether anything is on its way.
    pub fn look(&mut self, look: &Look<'_>, elapsed: Duration, pace: &mut Pace, cpu: impl Fn() -> Duration) -> bool {
        let Some(pages) = &self.pages else { return false };
        let page = pages.page() as u64;
        let (begun, mut is_ahead) = (cpu(), false);
        for Mapped { area, file, watch } in &mut self.mapped {
            self.counts.scans += 1;
            let is_known = watch.hot(pages) && watch.search_within(pages, pace, &cpu);
            if !is_known {
                // It ends, or becomes another program: the next look at what it has mapped will tell.
                break;
            }
            watch.looked(elapsed);
            while let Some(Span { from, to }) = watch.next(look.budget_bytes) {
                let span = Span {
                    from: from + area.offset,
                    to: to + area.offset,
                };
                let (calls, bytes) = file.ask(span, page);
                self.counts.calls += calls;
                self.counts.asked_bytes += bytes;
            }
            is_ahead |= watch.is_ahead();
        }
        self.counts.cpu += cpu().saturating_sub(begun);
        is_ahead
    }

    /// Whether something that it has mapped is followed.
    pub fn is_followed(&self) -> bool {
        !self.mapped.is_empty()
    }

    /// Whether its page table can't be looked at although there is reason to.
    pub fn is_blind(&self) -> bool {
        self.pages.is_none() && !self.mapped.is_empty()
    }

    /// How its page table is looked at, if it is.
    pub fn way(&self) -> Option<Way> {
        self.pages.as_ref().map(Pages::way)
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        counts.tally = self.ended;
        for mapped in &self.mapped {
            counts.tally += mapped.watch.tally();
        }
        counts
    }
}
