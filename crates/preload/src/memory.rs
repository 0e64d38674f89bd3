//! What the machine says of itself, in small files: how much memory may be used, and what one call fetches.
//!
//! Where a file can't be read, what is usual is assumed. Only the thread asks, but for how many parts an address space may have.

use core::fmt::Write;

use crate::text::{Text, number};

/// What may be on its way for one mapping at most, and which part of the memory.
const MOST_BYTES: u64 = 256 << 20;
const SHARE: u64 = 10;
/// What one call fetches where the device doesn't say: the kernel's own default. And at most, for longer is no faster.
const USUAL_STEP: u64 = 128 << 10;
const MOST_STEP: u64 = 2 << 20;

/// Parts of an address space where the kernel doesn't say how many there may be: its default.
const USUAL_PARTS: u64 = 65_530;

/// Reads the beginning of a small file.
fn read<const N: usize>(path: &mut Text<N>, into: &mut Text<4096>) -> bool {
    *into = Text::new();
    let Some(path) = path.c() else { return false };
    // SAFETY: a path that ends with a zero.
    let fd = unsafe { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return false;
    }
    let mut buffer = [0_u8; 4096];
    // SAFETY: the buffer is as large as it says.
    let got = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    // SAFETY: the descriptor was opened here.
    unsafe { libc::close(fd) };
    into.push(buffer.get(..usize::try_from(got).unwrap_or(0)).unwrap_or(&[]));
    got > 0
}

fn file(path: &[&[u8]], into: &mut Text<4096>) -> bool {
    let mut whole = Text::<4096>::new();
    path.iter().for_each(|part| whole.push(part));
    read(&mut whole, into)
}

/// The value of `name` in lines of names and values.
fn value<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(name))
}

/// Bytes that may be on their way: part of what is available, and of what the control group may have.
pub fn budget() -> u64 {
    let mut text = Text::new();
    let available = file(&[b"/proc/meminfo"], &mut text)
        .then(|| number(value(text.bytes(), b"MemAvailable:")?)?.checked_mul(1024))
        .flatten();
    let group = group_bytes();
    let least = available.unwrap_or(u64::MAX).min(group.unwrap_or(u64::MAX));
    (least / SHARE).min(MOST_BYTES)
}

/// The least limit of this process' memory control groups, from its own to the root.
fn group_bytes() -> Option<u64> {
    let mut groups = Text::new();
    if !file(&[b"/proc/self/cgroup"], &mut groups) {
        return None;
    }
    let mut least = None;
    for line in groups.bytes().split(|&byte| byte == b'\n') {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(_), Some(kinds), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, name): (&[u8], &[u8]) = if kinds.is_empty() {
            (b"/sys/fs/cgroup", b"/memory.max")
        } else if kinds.split(|&byte| byte == b',').any(|kind| kind == b"memory") {
            (b"/sys/fs/cgroup/memory", b"/memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut text = Text::new();
        let mut path = if path == b"/" { &[][..] } else { path };
        loop {
            if file(&[root, path, name], &mut text)
                && let Some(bytes) = number(text.bytes())
            {
                least = Some(bytes.min(least.unwrap_or(u64::MAX)));
            }
            // The group above; in a container the names of those above aren't there, and the root is its own.
            let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else {
                break;
            };
            path = path.get(..slash).unwrap_or(&[]);
        }
    }
    least
}

/// Bytes that one call fetches of a file: the read-ahead window of its device.
pub fn step(major: u32, minor: u32) -> u64 {
    let mut path = Text::<64>::new();
    let _ = write!(path, "/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let mut text = Text::new();
    let said = read(&mut path, &mut text)
        .then(|| number(text.bytes())?.checked_mul(1024))
        .flatten();
    said.filter(|&bytes| bytes > 0).unwrap_or(USUAL_STEP).min(MOST_STEP)
}

/// How many parts this process' address space may have, by what is set for all processes.
pub fn most_parts() -> u64 {
    let mut text = Text::new();
    let said = file(&[b"/proc/sys/vm/max_map_count"], &mut text).then(|| number(text.bytes()));
    said.flatten().unwrap_or(USUAL_PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_memory_may_be_used() {
        let budget = budget();
        assert!(budget > 0 && budget <= MOST_BYTES, "{budget}");
    }

    #[test]
    fn a_device_that_nobody_knows_has_the_usual_step() {
        assert_eq!(step(4095, 77), USUAL_STEP);
    }

    #[test]
    fn values_are_found_by_their_names() {
        let text = b"MemTotal: 5 kB\nMemAvailable:   12 kB\n";
        assert_eq!(value(text, b"MemAvailable:").and_then(number), Some(12));
        assert_eq!(value(text, b"MemFree:"), None);
    }
}
