//! Fetches ahead of what a program maps that already runs, from outside.
//!
//! Nothing enters the program. `/proc/PID/maps` says what it has mapped, and its page table, by `/proc/PID/pagemap`, what it has touched; what comes next is [`foreload_plan::window`]'s to say, as it is for the preload library, and is asked for
//! with `POSIX_FADV_WILLNEED` on descriptors of our [own](files). The page cache is one for all, so the pages are there when the program touches them. The processes that it has started are looked at, too, found anew with each look at the maps.
//!
//! All that it takes is the right to look, which is that of a debugger: the same user, and a program that doesn't forbid it. Everything here is done by the thread that calls [`Attached::turn`]; it sleeps on the program's
//! descriptor (`pidfd`) and so wakes when that ends. Nothing is left behind then, and a file is closed soon after the last mapping of it has ended.

mod files;
mod maps;
mod pagemap;
mod process;

use crate::memory;
use files::Files;
use foreload_plan::window::pace::Pace;
use foreload_plan::window::pagemap::Way;
pub use process::Counts;
use process::{Look, Process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// What a stream is read ahead at most; as the preload library does.
pub const WINDOW_BYTES: u64 = 32 << 20;
/// Part of the memory that may be on its way for one mapping, and at most.
const MEMORY_SHARE: u64 = 10;
const MOST_BYTES: u64 = 256 << 20;
/// How often the memory is looked at.
const MEMORY_EVERY: Duration = Duration::from_secs(5);
/// How often what is mapped is looked at: as this says, and no more than so small a part of a core's time.
const MAPS_EVERY: Duration = Duration::from_millis(100);
const MAPS_SHARE: u32 = 200;
const MAPS_SELDOM: Duration = Duration::from_secs(5);
/// Processes that are looked at, and that have ended and are still told of.
const MOST_PROCESSES: usize = 256;

/// What was done for one process.
#[derive(Clone, Debug)]
pub struct Line {
    /// The process.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// Whether its page table is read, for want of a call that tells at once.
    pub is_read: bool,
    /// What was done.
    pub counts: Counts,
}

/// A program that is helped.
pub struct Attached {
    pid: u32,
    /// Can be read when the program has ended.
    ended: OwnedFd,
    patterns: Vec<u8>,
    window_bytes: u64,
    budget_bytes: u64,
    processes: BTreeMap<u32, Process>,
    /// Those that may not be looked at.
    closed: BTreeSet<u32>,
    past: VecDeque<Line>,
    files: Files,
    pace: Pace,
    looked_at: Instant,
    maps_at: Instant,
    memory_at: Instant,
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), part)
}

fn budget_bytes() -> u64 {
    memory::available_bytes().map_or(MOST_BYTES, |bytes| (bytes / MEMORY_SHARE).min(MOST_BYTES))
}

/// The error for a program that can't be helped, in words.
fn refused(pid: u32, error: io::Error) -> io::Error {
    // One that has ended and is waited for has a number still, and nothing to look at.
    let is_gone = error.raw_os_error() == Some(Errno::SRCH.raw_os_error());
    let kind = if is_gone { io::ErrorKind::NotFound } else { error.kind() };
    let why = match kind {
        io::ErrorKind::NotFound => format!("there is no process {pid}, or /proc doesn't show it"),
        io::ErrorKind::PermissionDenied => format!(
            "process {pid} may not be looked at: that takes its user or root, and a program that allows it; one that has changed its user, or can't be read by it, doesn't"
        ),
        _ => format!("process {pid} can't be looked at: {error}"),
    };
    io::Error::new(kind, why)
}

impl Attached {
    /// Begins with a program that runs.
    ///
    /// `patterns` say which files, as [`foreload_plan::window::glob`] reads them, parted by colons; a stream is read ahead `window_bytes` at most, and with 0 it is only looked.
    ///
    /// # Errors
    /// `NotFound`: there is no such process; `PermissionDenied`: it may not be looked at; or what the system says.
    pub fn new(pid: u32, patterns: Vec<u8>, window_bytes: u64) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let opened = number
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let ended = opened.map_err(|error| match error {
            // The number of a thread that isn't its process' first one is no process.
            Errno::SRCH | Errno::INVAL => refused(pid, io::ErrorKind::NotFound.into()),
            error => refused(pid, error.into()),
        })?;
        let now = Instant::now();
        let mut attached = Attached {
            pid,
            ended,
            patterns,
            window_bytes,
            budget_bytes: budget_bytes(),
            processes: BTreeMap::new(),
            closed: BTreeSet::new(),
            past: VecDeque::new(),
            files: Files::default(),
            pace: Pace::new(),
            looked_at: now,
            maps_at: now,
            memory_at: now,
        };
        let program = Process::open(pid).map_err(|error| refused(pid, error))?;
        attached.processes.insert(pid, program);
        attached.refresh().map_err(|error| refused(pid, error))?;
        Ok(attached)
    }

    /// Looks once, and sleeps until the next look; false: the program has ended. A signal ends the sleep.
    ///
    /// # Errors
    /// The program may not be looked at any more.
    pub fn turn(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        if now >= self.maps_at {
            match self.refresh() {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(refused(self.pid, error)),
                // It ends: its descriptor will say so.
                Ok(()) | Err(_) => {}
            }
        }
        if now.duration_since(self.memory_at) >= MEMORY_EVERY {
            (self.memory_at, self.budget_bytes) = (now, budget_bytes());
        }
        let elapsed = now.duration_since(self.looked_at);
        self.looked_at = now;
        let (mut is_ahead, mut is_followed, mut touched_bytes) = (false, false, 0);
        let look = Look {
            patterns: &self.patterns,
            window_bytes: self.window_bytes,
            budget_bytes: self.budget_bytes,
        };
        // They have one time to search: it is theirs when none of them loses pages any more.
        let mut are_taken_back = false;
        for process in self.processes.values_mut() {
            are_taken_back |= process.was_taken_from();
        }
        self.pace.taken_back(are_taken_back);
        for process in self.processes.values_mut() {
            is_ahead |= process.look(&look, elapsed, &mut self.pace, cpu);
            is_followed |= process.is_followed();
            touched_bytes += process.counts().tally.touched_bytes;
        }
        self.pace.looked(elapsed, touched_bytes);
        let until_maps = self.maps_at.saturating_duration_since(Instant::now());
        let wait = if is_followed {
            self.pace.wait(is_ahead).min(until_maps)
        } else {
            until_maps
        };
        Ok(!self.has_ended(wait))
    }

    /// Whether the program has ended, or does within this time.
    fn has_ended(&self, wait: Duration) -> bool {
        let mut fds = [PollFd::new(&self.ended, PollFlags::IN)];
        let wait = Timespec::try_from(wait).ok();
        // A signal is for who called us.
        poll(&mut fds, wait.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Looks which processes there are, and what they have mapped.
    fn refresh(&mut self) -> io::Result<()> {
        let begun = cpu();
        let result = self.refresh_all();
        // Not what it waits for a store to open a file.
        let took = cpu().saturating_sub(begun);
        self.maps_at = Instant::now() + (took * MAPS_SHARE).clamp(MAPS_EVERY, MAPS_SELDOM);
        result
    }

    fn refresh_all(&mut self) -> io::Result<()> {
        let children: BTreeSet<u32> = self.processes.values().flat_map(Process::children).collect();
        self.closed.retain(|pid| children.contains(pid));
        for pid in children {
            if self.processes.len() >= MOST_PROCESSES || self.processes.contains_key(&pid) || self.closed.contains(&pid)
            {
                continue;
            }
            match Process::open(pid) {
                Ok(process) => {
                    self.processes.insert(pid, process);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.closed.insert(pid);
                }
                Err(_) => {}
            }
        }
        let look = Look {
            patterns: &self.patterns,
            window_bytes: self.window_bytes,
            budget_bytes: self.budget_bytes,
        };
        let (mut gone, mut result) = (Vec::new(), Ok(()));
        for (pid, process) in &mut self.processes {
            let before = process.counts().mappings;
            let refreshed = process.refresh(&look, &mut self.files);
            if process.counts().mappings > before {
                self.pace.renew();
            }
            match refreshed {
                Ok(_) if process.is_blind() => {
                    self.files.note_once(format!(
                        "the page table of process {pid} can't be looked at, so nothing is fetched for it"
                    ));
                }
                Ok(_) => {}
                Err(error) if *pid == self.pid => result = Err(error),
                Err(_) => gone.push(*pid),
            }
        }
        for pid in gone {
            if let Some(process) = self.processes.remove(&pid) {
                self.past.extend(line(&process));
            }
        }
        while self.past.len() > MOST_PROCESSES {
            self.past.pop_front();
        }
        result
    }

    /// What was done for each process that has mapped such a file: those that have ended come first.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let there = self.processes.values().filter_map(line);
        self.past.iter().cloned().chain(there).collect()
    }

    /// What there is to say since the last time, of files that can't be opened and the like.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.files.take_notes()
    }
}

fn line(process: &Process) -> Option<Line> {
    let counts = process.counts();
    let has_mapped = counts.mappings + counts.not_followed > 0;
    has_mapped.then(|| Line {
        pid: process.pid,
        name: process.name.clone(),
        is_read: process.way() == Some(Way::Read),
        counts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn child() -> Child {
        Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .expect("started")
    }

    #[test]
    fn it_ends_when_the_program_does() {
        let mut program = child();
        let mut attached = Attached::new(program.id(), b"*".to_vec(), 0).expect("attached");
        assert!(attached.turn().expect("it runs"));
        program.kill().expect("killed");
        let begun = Instant::now();
        while attached.turn().expect("it is ours") {
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        program.wait().expect("ended");
        let gone = Attached::new(program.id(), b"*".to_vec(), 0).map(|_| ());
        assert_eq!(gone.map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    #[allow(unsafe_code, reason = "a file is mapped and touched")]
    fn what_is_touched_from_the_first_moment_on_counts_and_nothing_before() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("touched.bin");
        let (len, half) = (4 << 20, 2 << 20);
        std::fs::write(&path, vec![7; len]).expect("written");
        let file = std::fs::File::open(&path).expect("opened");
        // SAFETY: new memory, which nobody else knows of, and which is given back below.
        let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        let at = at.expect("mapped").cast::<u8>();
        let touch = |from: usize, to: usize| {
            // SAFETY: it lies within the mapping.
            let bytes = (from..to)
                .step_by(4096)
                .map(|offset| unsafe { at.add(offset).read_volatile() });
            assert!(bytes.into_iter().all(|byte| byte == 7));
        };
        touch(0, half);
        let mut attached = Attached::new(std::process::id(), b"*touched.bin".to_vec(), 0).expect("attached");
        touch(half, len);
        let begun = Instant::now();
        let touched = |attached: &Attached| {
            attached
                .lines()
                .first()
                .map_or(0, |line| line.counts.tally.touched_bytes)
        };
        while touched(&attached) == 0 && begun.elapsed() < Duration::from_secs(20) {
            attached.turn().expect("it runs");
        }
        // A fault brings what lies around it.
        let around = 128 << 10;
        assert!((half as u64 - around..=half as u64 + around).contains(&touched(&attached)));
        // SAFETY: nobody uses it any more.
        unsafe { munmap(at.cast(), len).expect("unmapped") };
    }

    #[test]
    fn a_thread_is_no_process() {
        let (say, hear) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            say.send(rustix::thread::gettid()).expect("heard");
            std::thread::park();
        });
        let number = hear.recv().expect("said").as_raw_nonzero().get() as u32;
        let refused = Attached::new(number, b"*".to_vec(), 0).map(|_| ());
        assert_eq!(refused.map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
        thread.thread().unpark();
        thread.join().expect("ended");
    }
}
