//! What the kernel has of the mounted files: whoever reads that asks nobody, and to fetch it would be in vain.
//!
//! It is asked by way of the mounted directory, as any program might. A file that was read stays in the kernel's memory for as long as there is room, so in a second epoch all of a
//! data set may be there, or nothing of it, or a part. A few files tell which; only of a part each is looked at.

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// So many files are looked at first.
const SAMPLE: usize = 128;
/// Looking at each takes no longer than this: what wasn't looked at counts as not there.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where the mount is seen.
#[derive(Clone, Debug)]
pub struct Resident {
    root: PathBuf,
}

impl Resident {
    /// Below this directory.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Resident { root }
    }

    /// A file, open, if the kernel has all of its bytes and there are so many. Asks the mount, as [`Resident::lacking`] does.
    #[must_use]
    pub fn open_whole(&self, key: &str, bytes: u64) -> Option<OwnedFd> {
        let device = std::fs::metadata(&self.root).ok()?.dev();
        let (file, size) = opened(&self.root.join(key), device)?;
        (size as u64 == bytes && is_resident(&file, size)).then_some(file)
    }

    /// Those of these files that the kernel lacks bytes of, in their order; it may have some of those that it refers to. Asks the mount: never to be called by who answers for it.
    #[must_use]
    pub fn lacking<T>(&self, files: Vec<T>, key: impl Fn(&T) -> &str, is_referred_to: impl Fn(&T) -> bool) -> Vec<T> {
        let Ok(device) = std::fs::metadata(&self.root).map(|root| root.dev()) else {
            return files;
        };
        let has = |file: &T| is_referred_to(file) && is_there(&self.root.join(key(file)), device);
        let step = files.len().div_ceil(SAMPLE).max(1);
        let sample: Vec<bool> = files.iter().step_by(step).map(&has).collect();
        let there = sample.iter().filter(|is_there| **is_there).count();
        // Nearly all or nothing of a few is so of the rest.
        if there * 32 <= sample.len() {
            return files;
        }
        if there == sample.len() && step > 1 {
            return Vec::new();
        }
        let until = Instant::now() + PATIENCE;
        files
            .into_iter()
            .filter(|file| Instant::now() >= until || !has(file))
            .collect()
    }
}

/// A file of the mount's, and its size.
fn opened(path: &Path, device: u64) -> Option<(OwnedFd, usize)> {
    // Nobody is waited for who would write it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(&file).ok().filter(|found| found.st_dev == device)?;
    Some((file, usize::try_from(found.st_size).ok()?))
}

/// Whether all of a file's pages are in memory.
fn is_there(path: &Path, device: u64) -> bool {
    opened(path, device).is_some_and(|(file, size)| is_resident(&file, size))
}

fn is_resident(file: &OwnedFd, size: usize) -> bool {
    if size == 0 {
        return true;
    }
    let mut pages = vec![0_u8; size.div_ceil(rustix::param::page_size())];
    // SAFETY: the kernel chooses where, nothing reads there, and it is given back below; `pages` has a byte for each page of it.
    #[allow(unsafe_code)]
    let is_known = unsafe {
        let Ok(at) = rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, file, 0) else {
            return false;
        };
        let is_known = libc::mincore(at, size, pages.as_mut_ptr()) == 0;
        let _ = rustix::mm::munmap(at, size);
        is_known
    };
    is_known && pages.iter().all(|page| page & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice, fadvise, fsync};

    /// Files of a directory, all written and then in memory or not.
    fn written(directory: &Path, count: usize, is_kept: impl Fn(usize) -> bool) -> Vec<String> {
        (0..count)
            .map(|nth| {
                let name = format!("{nth:04}");
                std::fs::write(directory.join(&name), vec![1; 9000]).expect("it can be written");
                let file = std::fs::File::open(directory.join(&name)).expect("it is there");
                fsync(&file).expect("it is written");
                if !is_kept(nth) {
                    fadvise(&file, 0, None, Advice::DontNeed).expect("it can be let go");
                }
                name
            })
            .collect()
    }

    #[test]
    fn what_the_kernel_has_is_left_out_however_much_that_is() {
        let place = std::env::temp_dir().join(format!("foreload-resident-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        let seen = Resident::new(place.clone());
        let lacking = |names: Vec<String>| seen.lacking(names, |name| name, |_| true);
        let all = written(&place, 300, |_| true);
        // Temporary files may be in memory and nowhere else, where nothing can be let go.
        if !lacking(written(&place, 300, |_| false)).is_empty() {
            assert_eq!(lacking(written(&place, 300, |_| true)), [""; 0]);
            assert_eq!(lacking(written(&place, 300, |_| false)), all);
            let half = written(&place, 300, |nth| nth % 2 == 0);
            let odd: Vec<String> = half.iter().skip(1).step_by(2).cloned().collect();
            assert_eq!(lacking(half), odd);
            let few = written(&place, 20, |nth| nth != 7);
            assert_eq!(lacking(few), ["0007"]);
        }
        assert_eq!(lacking(vec!["nothing".into()]), ["nothing"]);
        let unknown = written(&place, 3, |_| true);
        assert_eq!(seen.lacking(unknown.clone(), |name| name, |_| false), unknown);
        std::fs::remove_dir_all(&place).expect("it is removed");
    }
}
