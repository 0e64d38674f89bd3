//! Pages of files that a program maps, fetched into the page cache ahead of it.
//!
//! A fault brings what the device's read-ahead window has, 128 KiB say, and the program waits for each. [`ReadAhead`] asks for the pages of known ranges in their order,
//! as far ahead as its [window](Window) allows. It asks with `POSIX_FADV_WILLNEED`, which copies nothing and returns at once; but whatever one call
//! asks for, the kernel fetches no more than the device's window, so it asks in [steps](step_of) of that. What was asked for is known to be there when
//! its last byte can be read: that keeps what is under way bounded, and says how far it is.
//!
//! Pages that are there, or that another process has asked for, are not fetched again. So several processes that read ahead in one file fetch it once.

use foreload_plan::flow::{Concurrency, ConcurrencySettings};
use rustix::fs::{Access, Advice, access, fadvise, fstat, major, minor};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is asked for at a time where the device doesn't say what it fetches: the kernel's own default.
const USUAL_STEP: u64 = 128 << 10;
/// And at most: a longer step is no faster.
const MOST_STEP: u64 = 2 << 20;

/// The thread wakes up so often while the reader goes as far as the window reaches ahead.
const TURNS: usize = 8;

/// A stretch of one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The file, by its number.
    pub file: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// How far ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes under way at most.
    pub bytes: u64,
    /// Stretches that may be asked for until [`ReadAhead::allow`] says more.
    pub stretches: usize,
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are there, of those that were asked for.
    pub there_bytes: u64,
    /// Whether there is nothing more to do: all is there, it was stopped, or it failed.
    pub is_over: bool,
    /// Why it failed.
    pub error: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    progress: Progress,
    allowed: usize,
    /// The thread sleeps until so many are allowed.
    wakes_at: Option<usize>,
    is_stopped: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until a stretch may be asked for; false: it was stopped. Who has to wait waits for `several`: a reader that finds all in memory is faster than a thread wakes up.
    fn may(&self, stretch: usize, several: usize) -> bool {
        let mut state = self.state();
        if !state.is_stopped && stretch >= state.allowed {
            let wakes_at = stretch + several;
            state.wakes_at = Some(wakes_at);
            let may_not = |state: &mut State| !state.is_stopped && state.allowed < wakes_at;
            let waited = self.changed.wait_while(state, may_not);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.wakes_at = None;
        }
        !state.is_stopped
    }
}

/// A thread that reads ahead.
#[derive(Debug)]
pub struct ReadAhead {
    shared: Arc<Shared>,
}

impl ReadAhead {
    /// Begins with the stretches of these files, in the order given. The thread opens them: a busy file system takes a while for that.
    ///
    /// # Errors
    /// What the system says of a file that is looked at; `InvalidInput` for a stretch beyond its end, or of a file that isn't named.
    pub fn begin(files: &[PathBuf], stretches: Vec<Stretch>, window: Window) -> io::Result<Self> {
        let bytes: Vec<u64> = files.iter().map(readable_bytes).collect::<io::Result<_>>()?;
        for stretch in &stretches {
            let end = stretch.offset.checked_add(stretch.len);
            let is_inside = bytes
                .get(stretch.file)
                .zip(end)
                .is_some_and(|(bytes, end)| end <= *bytes);
            if !is_inside {
                let Stretch { file, offset, len } = stretch;
                let why = format!("{len} bytes from {offset} on are not all in file {file}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        let shared = Arc::new(Shared::default());
        shared.state().allowed = window.stretches;
        let (theirs, files) = (Arc::clone(&shared), files.to_vec());
        std::thread::Builder::new()
            .name("foreload-pages".to_owned())
            .spawn(move || {
                let opened: io::Result<Vec<Mapped>> = files.iter().map(Mapped::open).collect();
                let read = opened.and_then(|files| read(&theirs, &files, &stretches, window));
                theirs.change(|state| {
                    state.progress.is_over = true;
                    state.progress.error = read.err().map(|error| error.to_string());
                });
            })?;
        Ok(ReadAhead { shared })
    }

    /// So many stretches, counted from the first, may be asked for; never fewer than before.
    pub fn allow(&self, stretches: usize) {
        let mut state = self.shared.state();
        state.allowed = state.allowed.max(stretches);
        if state.wakes_at.is_some_and(|wakes_at| wakes_at <= state.allowed) {
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// Asks for nothing more.
    pub fn stop(&self) {
        self.shared.change(|state| state.is_stopped = true);
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.shared.state().progress.clone()
    }

    /// Waits until it is over, but no longer than `limit`: how far it is then.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Progress {
        let until = Instant::now() + limit;
        let mut state = self.shared.state();
        while !state.progress.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.progress.clone()
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        // The thread may be waiting for a store that doesn't answer: nobody waits for it.
        self.stop();
    }
}

fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// How long a file is that may be read.
fn readable_bytes(path: &PathBuf) -> io::Result<u64> {
    access(path, Access::READ_OK).map_err(|error| named(path)(error.into()))?;
    let found = path.metadata().map_err(named(path))?;
    if !found.is_file() {
        // A pipe would be waited for until somebody writes to it.
        return Err(named(path)(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        )));
    }
    Ok(found.len())
}

/// An open file, and what one call fetches of it.
struct Mapped {
    file: File,
    step: u64,
}

impl Mapped {
    fn open(path: &PathBuf) -> io::Result<Self> {
        let file = File::open(path).map_err(named(path))?;
        // Else each look whether something is there would fetch what lies behind it.
        fadvise(&file, 0, None, Advice::Random)?;
        let step = step_of(&file);
        Ok(Mapped { file, step })
    }
}

/// Bytes that one call fetches: the read-ahead window of the file's device.
#[must_use]
pub fn step_of(file: &File) -> u64 {
    let said = fstat(file).ok().and_then(|stat| {
        let device = format!("{}:{}", major(stat.st_dev), minor(stat.st_dev));
        let text = std::fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).ok()?;
        text.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    said.filter(|&bytes| bytes > 0).unwrap_or(USUAL_STEP).min(MOST_STEP)
}

/// Asks for all stretches, with no more under way than the window has, and than makes the store faster.
fn read(shared: &Shared, files: &[Mapped], stretches: &[Stretch], window: Window) -> io::Result<()> {
    let mut under_way = UnderWay::new(shared, files, window);
    for (number, stretch) in stretches.iter().enumerate() {
        if !under_way.steps.is_empty() && shared.state().allowed <= number {
            // Nothing more may be asked for: what is under way may as well be waited for.
            under_way.until(0)?;
        }
        let Mapped { file, step, .. } = &files[stretch.file];
        let (mut offset, end) = (stretch.offset, stretch.offset + stretch.len);
        while offset < end {
            let several = (window.stretches / TURNS).clamp(1, stretches.len() - number);
            if !shared.may(number, several) {
                return Ok(());
            }
            // Up to where a window ends, as the kernel cuts them.
            let len = (step - offset % step).min(end - offset);
            fadvise(file, offset, NonZeroU64::new(len), Advice::WillNeed)?;
            let file = stretch.file;
            under_way.asked(Stretch { file, offset, len })?;
            offset += len;
        }
    }
    under_way.until(0)
}

/// What was asked for, in that order, and isn't known to be there.
struct UnderWay<'a> {
    shared: &'a Shared,
    files: &'a [Mapped],
    most_bytes: u64,
    begun: Instant,
    /// How many steps at once the store is worth: with more of them it has its hands full, and so have the processes that read.
    flow: Concurrency,
    steps: VecDeque<(Stretch, u64)>,
    bytes: u64,
}

impl<'a> UnderWay<'a> {
    fn new(shared: &'a Shared, files: &'a [Mapped], window: Window) -> Self {
        UnderWay {
            shared,
            files,
            most_bytes: window.bytes,
            begun: Instant::now(),
            flow: Concurrency::new(ConcurrencySettings::default()),
            steps: VecDeque::new(),
            bytes: 0,
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// One more; waits for the first ones until no more are under way than may be.
    fn asked(&mut self, step: Stretch) -> io::Result<()> {
        self.steps.push_back((step, self.now_ns()));
        self.bytes += step.len;
        while self.bytes > self.most_bytes {
            self.first()?;
        }
        if self.steps.len() > self.flow.limit() as usize {
            self.flow.wanted_more();
            self.until(self.flow.limit() as usize)?;
        }
        Ok(())
    }

    /// Waits for the first ones until there are so few.
    fn until(&mut self, steps: usize) -> io::Result<()> {
        while self.steps.len() > steps {
            self.first()?;
        }
        Ok(())
    }

    /// Waits for the first one's last page.
    fn first(&mut self) -> io::Result<()> {
        let Some((step, asked_ns)) = self.steps.pop_front() else {
            return Ok(());
        };
        self.bytes -= step.len;
        if self.shared.state().is_stopped {
            return Ok(());
        }
        // A file that was cut short meanwhile has nothing there, and whoever maps it will see that.
        self.files[step.file]
            .file
            .read_at(&mut [0], step.offset + step.len - 1)?;
        let now_ns = self.now_ns();
        self.flow.done(now_ns, now_ns - asked_ns, now_ns - asked_ns, step.len);
        // Nobody waits for less than all.
        self.shared.state().progress.there_bytes += step.len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: usize) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, vec![7; bytes]).expect("written");
        (directory, path)
    }

    fn all(offset: u64, len: u64) -> Stretch {
        Stretch { file: 0, offset, len }
    }

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn all_of_it_is_there_in_the_end() {
        let (_directory, path) = file(3_000_000);
        let window = Window {
            bytes: 1 << 20,
            stretches: usize::MAX,
        };
        let stretches = vec![all(5, 1_000_000), all(2_000_000, 1), all(1_500_000, 1_500_000)];
        let ahead = ReadAhead::begin(&[path], stretches, window).expect("begun");
        let progress = ahead.wait(SOON);
        assert_eq!(
            (progress.there_bytes, progress.is_over, progress.error),
            (2_500_001, true, None)
        );
    }

    #[test]
    fn it_goes_no_farther_than_it_may() {
        let (_directory, path) = file(3_000_000);
        let window = Window {
            bytes: 1 << 20,
            stretches: 1,
        };
        let stretches = (0..3).map(|nth| all(nth * 1_000_000, 1_000_000)).collect();
        let ahead = ReadAhead::begin(&[path], stretches, window).expect("begun");
        for allowed in 1..=2 {
            ahead.allow(allowed as usize);
            let until = Instant::now() + SOON;
            while ahead.progress().there_bytes < allowed * 1_000_000 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let progress = ahead.wait(Duration::from_millis(50));
            assert_eq!((progress.there_bytes, progress.is_over), (allowed * 1_000_000, false));
        }
        ahead.stop();
        assert!(ahead.wait(SOON).is_over);
    }

    #[test]
    fn what_is_not_in_a_file_is_refused() {
        let (_directory, path) = file(100);
        let window = Window { bytes: 1, stretches: 1 };
        for stretch in [
            all(0, 101),
            all(u64::MAX, 1),
            Stretch {
                file: 1,
                offset: 0,
                len: 1,
            },
        ] {
            let refused = ReadAhead::begin(std::slice::from_ref(&path), vec![stretch], window).map(|_| ());
            assert_eq!(refused.map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput));
        }
        let gone = ReadAhead::begin(&[PathBuf::from("/nothing/there")], Vec::new(), window).map(|_| ());
        assert!(gone.is_err_and(|error| error.to_string().contains("/nothing/there")));
    }
}
