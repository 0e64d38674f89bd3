//! Another process' page table.

use foreload_plan::window::pagemap::{self, Kernel, PAGEMAP_SCAN, Scan};
use rustix::io::pread;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use std::ffi::c_void;
use std::fs::File;

/// An open `/proc/PID/pagemap`.
#[derive(Debug)]
pub struct Pagemap(pub File);

/// The page table of a process.
pub type Pages = pagemap::Pages<Pagemap>;

/// The call of [`PAGEMAP_SCAN`], which returns how many runs were found.
struct Ask<'a>(&'a mut Scan);

// SAFETY: the number belongs to `struct pm_scan_arg`, which `Scan` is, and the kernel writes into it and to what it names.
#[allow(unsafe_code)]
unsafe impl Ioctl for Ask<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        Ok(usize::try_from(output).unwrap_or(0))
    }
}

impl Kernel for Pagemap {
    #[allow(unsafe_code)]
    fn scan(&self, scan: &mut Scan) -> Option<usize> {
        // SAFETY: the structure is the call's, and names places that outlive it.
        unsafe { ioctl(&self.0, Ask(scan)) }.ok()
    }

    fn read(&self, offset: u64, entries: &mut [u64]) -> usize {
        // In pieces that stay on the stack: entries are numbers, and files give bytes.
        let mut bytes = [0_u8; 4096];
        let wanted = size_of_val(entries).min(bytes.len());
        let Some(room) = bytes.get_mut(..wanted) else { return 0 };
        let read = pread(&self.0, room, offset).unwrap_or(0) / size_of::<u64>();
        let (words, _) = bytes.as_chunks();
        for (entry, word) in entries.iter_mut().zip(words).take(read) {
            *entry = u64::from_ne_bytes(*word);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreload_plan::window::pagemap::Way;
    use rustix::param::page_size;
    use std::hint::black_box;

    #[test]
    fn both_ways_find_the_same_pages() {
        let (page, count) = (page_size(), 1300);
        // Zeros that nobody has touched are in no page table.
        let mut memory = black_box(vec![0_u8; (count + 1) * page]);
        let first = memory.as_ptr().addr().next_multiple_of(page);
        let skipped = first - memory.as_ptr().addr();
        let touched = (0..count).filter(|nth| nth % 7 == 0 || *nth > 1200);
        touched.for_each(|nth| memory[skipped + nth * page] = 1);
        let found = [Way::Scan, Way::Read].map(|way| {
            let pagemap = Pagemap(File::open("/proc/self/pagemap").expect("open"));
            let pages = Pages::find(pagemap, page, |pages| pages.way() == way).expect("that way");
            let mut found = Vec::new();
            let is_known = pages.present(first, first + count * page, |from, to| {
                found.extend((from..to).step_by(page))
            });
            is_known.then_some(found)
        });
        let [scanned, read] = found;
        let read = read.expect("it can be read");
        assert!((0..count).all(|nth| nth % 7 != 0 || read.contains(&(first + nth * page))));
        // Before Linux 6.7 there is nothing to compare with.
        assert!(scanned.is_none_or(|scanned| scanned == read));
        black_box(memory);
    }
}
