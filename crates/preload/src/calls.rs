//! The calls that are interposed on: those that make, move and end mappings.
//!
//! Each does what the C library's does, and nothing else changes for who calls it: arguments, result and `errno` are the same. What is noted besides takes no lock and allocates nothing; a mapping is forgotten before it ends.
//! Until the real calls are found (they are looked up when the library is loaded) the system is called directly.

use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CStr;

use libc::{c_int, c_void, off_t, size_t};

use crate::table::Mapping;
use crate::{env, follow};

type Map = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Unmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
type Protect = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
type Remap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;

static MAP: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static UNMAP: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static PROTECT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REMAP: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static LEAVE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static LEAVE_BY_C11: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static CANCEL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks up the calls behind ours: the C library's, or those of another library that interposes.
pub fn find() {
    let calls: [(&AtomicPtr<c_void>, &CStr); 7] = [
        (&MAP, c"mmap"),
        (&UNMAP, c"munmap"),
        (&PROTECT, c"mprotect"),
        (&REMAP, c"mremap"),
        (&LEAVE, c"pthread_exit"),
        (&LEAVE_BY_C11, c"thrd_exit"),
        (&CANCEL, c"pthread_cancel"),
    ];
    for (place, name) in calls {
        // SAFETY: a look-up by a name that ends with a zero.
        place.store(
            unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) },
            Ordering::Release,
        );
    }
}

/// Runs something and leaves `errno` as it was.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's own place for it, of this thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *place };
    let found = work();
    // SAFETY: as above.
    unsafe { *place = before };
    found
}

fn ended(at: usize, len: usize) -> Option<Mapping> {
    quietly(|| follow::ended(at, len))
}

unsafe fn map(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 {
        ended(at as usize, len);
    }
    let real = MAP.load(Ordering::Acquire);
    let mapped = if real.is_null() {
        // SAFETY: the arguments are the caller's.
        unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) as *mut c_void }
    } else {
        // SAFETY: `find` stored a function with this signature, and the arguments are the caller's.
        unsafe { transmute::<*mut c_void, Map>(real)(at, len, protection, flags, fd, offset) }
    };
    if mapped != libc::MAP_FAILED && fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
        quietly(|| follow::mapped(mapped as usize, len, protection, flags, fd, offset as u64));
    }
    mapped
}

/// As in the C library.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { map(at, len, protection, flags, fd, offset) }
}

/// As in the C library.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's; `off_t` has 64 bits where this is built.
    unsafe { map(at, len, protection, flags, fd, offset) }
}

/// As in the C library.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: size_t) -> c_int {
    ended(at as usize, len);
    let real = UNMAP.load(Ordering::Acquire);
    if real.is_null() {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc::syscall(libc::SYS_munmap, at, len) as c_int };
    }
    // SAFETY: `find` stored a function with this signature, and the arguments are the caller's.
    unsafe { transmute::<*mut c_void, Unmap>(real)(at, len) }
}

/// As in the C library.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(at: *mut c_void, len: size_t, protection: c_int) -> c_int {
    let is_data = protection & libc::PROT_READ != 0 && protection & libc::PROT_EXEC == 0;
    // Nobody reads data there any more; or the program protects pages itself, and we must not besides.
    if !is_data || env::detector().is_trap() {
        ended(at as usize, len);
    }
    let real = PROTECT.load(Ordering::Acquire);
    if real.is_null() {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc::syscall(libc::SYS_mprotect, at, len, protection) as c_int };
    }
    // SAFETY: `find` stored a function with this signature, and the arguments are the caller's.
    unsafe { transmute::<*mut c_void, Protect>(real)(at, len, protection) }
}

/// As in the C library, where the last argument is there for some flags only; both conventions that this is built for pass it like a named one, and what isn't passed isn't looked at.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    len: size_t,
    new_len: size_t,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    let known = ended(at as usize, len.max(1));
    if flags & libc::MREMAP_FIXED != 0 {
        ended(new_at as usize, new_len);
    }
    let real = REMAP.load(Ordering::Acquire);
    let moved = if real.is_null() {
        // SAFETY: the arguments are the caller's.
        unsafe { libc::syscall(libc::SYS_mremap, at, len, new_len, flags, new_at) as *mut c_void }
    } else {
        // SAFETY: `find` stored a function with this signature, and the arguments are the caller's.
        unsafe { transmute::<*mut c_void, Remap>(real)(at, len, new_len, flags, new_at) }
    };
    if let Some(known) = known.filter(|known| moved != libc::MAP_FAILED && known.at == at as usize) {
        quietly(|| follow::moved(&known, moved as usize, new_len));
    }
    moved
}

/// A call by which a thread ends itself, or another one. Where it is the program's first one, ours ends before: the last thread that there is ends the program as `exit` does, and ours has none of the
/// program's descriptors, into which that writes what is buffered.
///
/// The C library unwinds the stack of whoever calls it, so that nothing of ours may be on it: the real call is jumped to.
macro_rules! leaving {
    ($name:ident, $leaves:ident, $place:ident, $is_first:expr, $answer:ty) => {
        /// As in the C library.
        ///
        /// # Safety
        /// As there.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(value: *mut c_void) -> $answer {
            core::arch::naked_asm!("push rdi", "call {leaves}", "pop rdi", "jmp rax", leaves = sym $leaves)
        }

        /// As in the C library.
        ///
        /// # Safety
        /// As there.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(value: *mut c_void) -> $answer {
            core::arch::naked_asm!(
                "stp x0, x30, [sp, #-16]!",
                "bl {leaves}",
                "mov x16, x0",
                "ldp x0, x30, [sp], #16",
                "br x16",
                leaves = sym $leaves
            )
        }

        extern "C" fn $leaves(value: *mut c_void) -> *mut c_void {
            leaves(&$place, $is_first(value))
        }
    };
}

leaving!(pthread_exit, leaves_by_posix, LEAVE, is_first_here, !);
leaving!(thrd_exit, leaves_by_c11, LEAVE_BY_C11, is_first_here, !);
leaving!(pthread_cancel, leaves_by_another, CANCEL, follow::is_first, c_int);

fn is_first_here(_: *mut c_void) -> bool {
    // SAFETY: numbers of the caller's.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
}

/// A thread ends; what is to be called for that.
fn leaves(real: &AtomicPtr<c_void>, is_first: bool) -> *mut c_void {
    if is_first {
        quietly(follow::first_leaves);
    }
    let real = real.load(Ordering::Acquire);
    match real.is_null() {
        true => ends as *mut c_void,
        false => real,
    }
}

/// Where the C library has no such call, the system ends the thread.
extern "C" fn ends(_: *mut c_void) {
    // SAFETY: it ends this thread.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_itself_is_ended_by_the_c_library() {
        find();
        assert_ne!(pthread_exit as *const c_void, thrd_exit as *const c_void);
        assert_ne!(pthread_exit as *const c_void, pthread_cancel as *const c_void);
        let nobody = core::ptr::null_mut();
        assert_ne!(leaves_by_posix(nobody), leaves_by_c11(nobody));
        assert_ne!(leaves_by_posix(nobody), leaves_by_another(nobody));
        assert_ne!(leaves_by_posix(nobody), ends as *mut c_void);
        assert!(!follow::has_left(), "the first thread doesn't run tests");
    }

    #[test]
    fn errno_stays_as_it_was() {
        // SAFETY: the C library's own place for it.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *place = 77 };
        // SAFETY: a descriptor that isn't open is refused.
        quietly(|| assert_eq!(unsafe { libc::close(-1) }, -1));
        // SAFETY: as above.
        assert_eq!(unsafe { *place }, 77);
    }

    #[test]
    fn a_call_works_before_the_real_ones_are_found_and_afterwards() {
        for _ in 0..2 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new memory, given back below.
            let at = unsafe { mmap64(core::ptr::null_mut(), 8192, libc::PROT_READ, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            // SAFETY: it is ours.
            assert_eq!(unsafe { mprotect(at, 4096, libc::PROT_READ | libc::PROT_WRITE) }, 0);
            // SAFETY: it is ours.
            unsafe { *at.cast::<u8>() = 7 };
            // SAFETY: it is ours.
            let at = unsafe { mremap(at, 4096, 4096 * 64, libc::MREMAP_MAYMOVE, core::ptr::null_mut()) };
            assert_ne!(at, libc::MAP_FAILED);
            // SAFETY: it was written.
            assert_eq!(unsafe { *at.cast::<u8>() }, 7);
            // SAFETY: it is ours.
            assert_eq!(unsafe { munmap(at, 4096 * 64) }, 0);
            find();
        }
        // SAFETY: an offset within a page is refused.
        let refused = unsafe { mmap(core::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, 0, 1) };
        assert_eq!(refused, libc::MAP_FAILED);
    }
}
