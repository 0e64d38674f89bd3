//! What another process has mapped: the lines of `/proc/PID/maps` that are data of files.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr;

/// Bytes of a file that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Area {
    /// Its first byte's address, and the one behind its last.
    pub at: usize,
    /// The end.
    pub end: usize,
    /// Where in the file it begins.
    pub offset: u64,
    /// Which file.
    pub file: FileId,
    /// The file's path, as the kernel tells it to us.
    pub path: PathBuf,
}

/// Names a file as long as somebody has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// The device.
    pub major: u32,
    /// The same.
    pub minor: u32,
    /// The file on it.
    pub inode: u64,
}

/// All areas that are read, and neither run nor written for others to see.
pub fn areas(maps: &[u8]) -> impl Iterator<Item = Area> {
    maps.split(|&byte| byte == b'\n').filter_map(area)
}

/// One line: `from-to rwxp offset major:minor inode   path`.
fn area(line: &[u8]) -> Option<Area> {
    let mut rest = line;
    let mut word = || {
        let end = rest.iter().position(|&byte| byte == b' ')?;
        let (word, behind) = rest.split_at_checked(end)?;
        rest = behind.get(1..)?;
        std::str::from_utf8(word).ok()
    };
    let (range, rights, offset, device, inode) = (word()?, word()?, word()?, word()?, word()?);
    let path = rest.trim_ascii_start();
    let is_read = rights.starts_with('r') && !rights.contains('x');
    let is_written = rights.ends_with('s') && rights.contains('w');
    if !is_read || is_written || path.first() != Some(&b'/') {
        return None;
    }
    let ((at, end), (major, minor)) = (range.split_once('-')?, device.split_once(':')?);
    Some(Area {
        at: usize::from_str_radix(at, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        file: FileId {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode: inode.parse().ok()?,
        },
        path: PathBuf::from(OsString::from_vec(plain(path))),
    })
}

/// How the kernel names a file to those who ask what is mapped: as it does where we map it ourselves.
#[allow(unsafe_code, reason = "a file is mapped")]
pub fn told_of(file: &File) -> Option<FileId> {
    let len = param::page_size();
    // SAFETY: new memory, which nobody touches, and which is given back below.
    let at = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, 0) }.ok()?;
    let told = std::fs::read("/proc/self/maps");
    // SAFETY: nobody has seen it.
    unsafe { munmap(at, len) }.ok()?;
    areas(&told.ok()?)
        .find(|area| area.at == at.addr())
        .map(|area| area.file)
}

/// A path as it is: the kernel writes an end of line as `\012`, and says behind the path of a file that it has no name any more.
fn plain(path: &[u8]) -> Vec<u8> {
    const LINE_END: &[u8] = b"\\012";
    let mut rest = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((&first, behind)) = rest.split_first() {
        match rest.strip_prefix(LINE_END) {
            Some(behind) => {
                plain.push(b'\n');
                rest = behind;
            }
            None => {
                plain.push(first);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
7f0000000000-7f0000100000 r--s 00002000 fe:10 123456                     /data/my file.mdb
7f0000100000-7f0000200000 rw-p 00000000 00:2c 7                          /mnt/a\\012b (deleted)
7f0000200000-7f0000300000 rw-s 00000000 00:2c 8                          /mnt/written
7f0000300000-7f0000400000 r-xp 00000000 00:2c 9                          /usr/lib/code.so
7f0000400000-7f0000500000 ---p 00000000 00:2c 9                          /usr/lib/code.so
7f0000500000-7f0000600000 r--p 00000000 00:00 0                          [heap]
7f0000600000-7f0000700000 r--p 00000000 00:00 0
";

    #[test]
    fn what_is_read_of_files_is_found() {
        let found: Vec<Area> = areas(MAPS).collect();
        let (major, minor) = (0xfe, 0x10);
        let file = FileId {
            major,
            minor,
            inode: 123_456,
        };
        let first = Area {
            at: 0x7f00_0000_0000,
            end: 0x7f00_0010_0000,
            offset: 0x2000,
            file,
            path: "/data/my file.mdb".into(),
        };
        assert_eq!(found.first(), Some(&first));
        assert_eq!(found.get(1).map(|area| area.path.clone()), Some("/mnt/a\nb".into()));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn what_is_no_line_is_none() {
        for line in [
            "",
            "x",
            "1-2 r--p 0",
            "1-2 r--p 0 0:0 x /a",
            "zz-2 r--p 0 0:0 1 /a",
            "12 r--p 0 0:0 1 /a",
        ] {
            assert_eq!(areas(line.as_bytes()).count(), 0, "{line}");
        }
    }

    #[test]
    fn our_own_are_read() {
        let maps = std::fs::read("/proc/self/maps").expect("maps");
        assert!(areas(&maps).count() > 0, "a program maps its own constants");
    }
}
