//! How much memory this machine, or the control group we run in, has left.
//!
//! Shared memory that nobody maps any more is still charged, and can't be reclaimed without swap; so what counts is what the kernel says is available,
//! bounded by each control group on the way to the root (v1 and v2).

use std::path::{Path, PathBuf};

/// Bytes that can still be taken; `None` when the system doesn't say.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let machine = meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:");
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups
        .lines()
        .filter_map(|line| group_left(line, Path::new("/sys/fs/cgroup")))
        .min();
    machine.into_iter().chain(group).min()
}

/// Bytes of memory that this machine has at all; a terabyte where the system doesn't say.
#[must_use]
pub fn machine_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo(&text, "MemTotal:").unwrap_or(1 << 40)
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// What the group of one line of `/proc/self/cgroup`, or one above it, leaves.
fn group_left(line: &str, root: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
    let (base, limit, usage) = match controllers {
        "" => (root.to_owned(), "memory.max", "memory.current"),
        list if list.split(',').any(|c| c == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
        }
        _ => return None,
    };
    let mut directory: PathBuf = base.join(path);
    let mut least = None;
    loop {
        let read = |name: &str| {
            std::fs::read_to_string(directory.join(name))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        // The page cache inside the usage goes when memory is asked for.
        let cache = std::fs::read_to_string(directory.join("memory.stat"))
            .ok()
            .and_then(|stat| {
                stat.lines()
                    .find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok())
            });
        if let (Some(limit), Some(usage)) = (read(limit), read(usage))
            // v1 says "no limit" with a number near 2^63.
            && limit < 1 << 60
        {
            let left = limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0)));
            least = Some(least.map_or(left, |other: u64| other.min(left)));
        }
        if directory == base || !directory.pop() {
            return least;
        }
    }
}

/// What helps against a failure to make an arena, which is not the memory itself.
#[must_use]
pub fn remedy(error: &std::io::Error) -> Option<&'static str> {
    use rustix::io::Errno;
    match Errno::from_io_error(error)? {
        Errno::MFILE | Errno::NFILE => Some("A process may have too few files open: raise the limit of `ulimit -n`"),
        Errno::FBIG => Some("Files may not be as large: raise the limit of `ulimit -f`"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_tightest_group_on_the_way_to_the_root_counts() {
        let root = tempfile::tempdir().expect("directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("job/memory.max", "1000000\n");
        write("job/memory.current", "400000\n");
        write("job/memory.stat", "anon 1\ninactive_file 100000\n");
        write("job/step/memory.max", "max\n");
        write("job/step/memory.current", "400000\n");
        assert_eq!(group_left("0::/job/step", root.path()), Some(700_000));
        write("memory/a/memory.limit_in_bytes", "500\n");
        write("memory/a/memory.usage_in_bytes", "200\n");
        assert_eq!(group_left("4:cpu,memory:/a", root.path()), Some(300));
        assert_eq!(group_left("4:cpu:/a", root.path()), None);
        assert_eq!(group_left("nonsense", root.path()), None);
    }

    #[test]
    fn meminfo_is_read_with_its_unit() {
        assert_eq!(
            meminfo("MemTotal: 9 kB\nMemAvailable:     12 kB\n", "MemAvailable:"),
            Some(12 * 1024)
        );
        assert_eq!(meminfo("MemAvailable: many\n", "MemAvailable:"), None);
    }
}
