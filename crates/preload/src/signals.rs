//! `SIGSEGV` under the detectors that trap: our handler in front of the program's own.
//!
//! Ours is put in place when the first mapping gets checkpoints, and not before. From then on `signal` and `sigaction` keep what the program wants for `SIGSEGV` here, answer what it had wanted before, and never reach the kernel; all other
//! signals go through as ever. A fault that isn't a checkpoint's is the program's: its handler is called with the mask and the arguments that it would have had, or the signal is left to do what it does without one.
//!
//! A thread that has `SIGSEGV` blocked is killed by a checkpoint, so it is left out of all masks that are set with `pthread_sigmask`, `sigprocmask` and `sigaction`. Under other detectors all four calls are the C library's.
//!
//! The handler runs with all signals blocked, on the thread's alternate stack if it has one. It calls `madvise` or `mprotect`, `futex` and `clock_gettime`, and nothing of the C library that isn't a system call; `errno` is put back.
//! Nothing waits for a lock: what the program wants is kept in records that are written once and then only read, until [`RECORDS`] others have been.

use core::mem::{MaybeUninit, transmute};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::ffi::CStr;

use libc::{c_int, c_long, c_void, sighandler_t, siginfo_t, sigset_t, ucontext_t};

use crate::{calls, env, trap};

type Action = libc::sigaction;
type SetAction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;
type SetHandler = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
type SetMask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// Why memory can't be touched: nothing is mapped, or it is and may not be.
pub const SEGV_MAPERR: c_int = 1;
pub const SEGV_ACCERR: c_int = 2;

const BIT: u64 = 1 << (libc::SIGSEGV - 1);

static ACTION: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static HANDLER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static THREAD_MASK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static PROCESS_MASK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks up the calls behind ours.
pub fn find() {
    for (place, name) in [
        (&ACTION, c"sigaction"),
        (&HANDLER, c"signal"),
        (&THREAD_MASK, c"pthread_sigmask"),
        (&PROCESS_MASK, c"sigprocmask"),
    ] {
        real(place, name);
    }
}

/// The call of this name behind ours; null: there is none.
fn real(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let found = place.load(Ordering::Acquire);
    if !found.is_null() {
        return found;
    }
    // SAFETY: a look-up by a name that ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Release);
    found
}

fn refuse(why: c_int) -> c_int {
    // SAFETY: the C library's own place for it, of this thread.
    unsafe { *libc::__errno_location() = why };
    -1
}

unsafe fn set_action(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let real = real(&ACTION, c"sigaction");
    if real.is_null() {
        return refuse(libc::ENOSYS);
    }
    // SAFETY: a function with this signature was found, and the arguments are the caller's.
    unsafe { transmute::<*mut c_void, SetAction>(real)(signal, new, old) }
}

// -- what the program wants ------------------------------------------------------------------------------------------

/// Records that are kept: so many calls may be made while one is being read.
const RECORDS: usize = 64;

/// A handler, how it is to be called, and what is blocked meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    handler: usize,
    flags: c_int,
    mask: u64,
}

struct Record {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

static WANTED: [Record; RECORDS] = [const {
    Record {
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicI32::new(0),
        mask: AtomicU64::new(0),
    }
}; RECORDS];
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static CURRENT: AtomicUsize = AtomicUsize::new(0);

impl Wanted {
    fn current() -> Self {
        let record = WANTED.get(CURRENT.load(Ordering::Acquire) % RECORDS);
        record.map_or(
            Wanted {
                handler: libc::SIG_DFL,
                flags: 0,
                mask: 0,
            },
            |record| Wanted {
                handler: record.handler.load(Ordering::Relaxed),
                flags: record.flags.load(Ordering::Relaxed),
                mask: record.mask.load(Ordering::Relaxed),
            },
        )
    }

    /// From now on this; what it was before.
    fn replace(self) -> Self {
        let at = (TAKEN.fetch_add(1, Ordering::AcqRel) + 1) % RECORDS;
        if let Some(record) = WANTED.get(at) {
            record.handler.store(self.handler, Ordering::Relaxed);
            record.flags.store(self.flags, Ordering::Relaxed);
            record.mask.store(self.mask, Ordering::Relaxed);
        }
        let before = Wanted::current();
        CURRENT.store(at, Ordering::Release);
        before
    }

    fn of(action: &Action) -> Self {
        Wanted {
            handler: action.sa_sigaction,
            flags: action.sa_flags,
            mask: first(&action.sa_mask),
        }
    }

    fn action(self) -> Action {
        // SAFETY: numbers, all of which may be zero.
        let mut action: Action = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        *first_mut(&mut action.sa_mask) = self.mask;
        action
    }
}

/// The first 64 signals of a set: all that the kernel has.
fn first(set: &sigset_t) -> u64 {
    // SAFETY: it is longer than that, and as aligned.
    unsafe { *core::ptr::from_ref(set).cast::<u64>() }
}

fn first_mut(set: &mut sigset_t) -> &mut u64 {
    // SAFETY: as above.
    unsafe { &mut *core::ptr::from_mut(set).cast::<u64>() }
}

// -- our handler -----------------------------------------------------------------------------------------------------

const NONE: u32 = 0;
const BEGUN: u32 = 1;
const OURS: u32 = 2;
/// The program is about to end by the signal.
const GIVEN_BACK: u32 = 3;
static STATE: AtomicU32 = AtomicU32::new(NONE);

fn has_proxy() -> bool {
    matches!(STATE.load(Ordering::Acquire), BEGUN | OURS)
}

fn ours() -> Action {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_fault;
    Wanted {
        handler: handler as usize,
        flags: libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART,
        mask: u64::MAX,
    }
    .action()
}

/// Puts our handler in place, if it isn't; false: it isn't there, or another one has replaced it by a way that we don't see.
pub fn install() -> bool {
    let ours = ours();
    // SAFETY: numbers, all of which may be zero.
    let mut before: Action = unsafe { MaybeUninit::zeroed().assume_init() };
    match STATE.compare_exchange(NONE, BEGUN, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let taken = TAKEN.load(Ordering::Acquire);
            // SAFETY: both places are as large as the call reads and fills.
            if unsafe { set_action(libc::SIGSEGV, &raw const ours, &raw mut before) } != 0 {
                STATE.store(NONE, Ordering::Release);
                return false;
            }
            if TAKEN.load(Ordering::Acquire) == taken {
                Wanted::of(&before).replace();
            }
            STATE.store(OURS, Ordering::Release);
            true
        }
        Err(OURS) => {
            // SAFETY: a question.
            let failed = unsafe { set_action(libc::SIGSEGV, core::ptr::null(), &raw mut before) } != 0;
            !failed && before.sa_sigaction == ours.sa_sigaction
        }
        Err(_) => false,
    }
}

/// Lets `SIGSEGV` through in this thread.
pub fn unblock() {
    set_mask(libc::SIG_UNBLOCK, BIT);
}

/// Runs something that no signal's handler interrupts, and that touches no memory that may fault.
pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let before = set_mask(libc::SIG_SETMASK, u64::MAX);
    let found = work();
    set_mask(libc::SIG_SETMASK, before);
    found
}

/// Sets this thread's mask; what it was.
fn set_mask(how: c_int, mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: both masks outlive the call, and have the length that is given.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const mask,
            &raw mut before,
            size_of::<u64>() as c_long,
        )
    };
    before
}

/// Whether it is known that a fault was a write's: none of those is a checkpoint's.
#[cfg(target_arch = "x86_64")]
fn is_write(context: &ucontext_t) -> bool {
    let error = context.uc_mcontext.gregs.get(libc::REG_ERR as usize);
    error.is_some_and(|error| error & 2 != 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn is_write(_: &ucontext_t) -> bool {
    false
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // SAFETY: the kernel passes it.
    let is_ours =
        !is_write(unsafe { &*context.cast::<ucontext_t>() }) && calls::quietly(|| trap::passed(address, code));
    if !is_ours {
        // SAFETY: the arguments are the kernel's.
        unsafe { pass_on(signal, code, info, context) };
    }
}

/// It is the program's: what it does about it, or nothing but what the signal does.
unsafe fn pass_on(signal: c_int, code: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let wanted = Wanted::current();
    // Not a fault, but sent.
    let is_sent = code <= 0;
    match wanted.handler {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            STATE.store(GIVEN_BACK, Ordering::Release);
            let default = Wanted {
                handler: libc::SIG_DFL,
                flags: 0,
                mask: 0,
            }
            .action();
            // SAFETY: the place is as large as the call reads.
            unsafe { set_action(signal, &raw const default, core::ptr::null_mut()) };
            if is_sent {
                // SAFETY: a signal to this thread, which gets it when we return. A fault happens again by itself.
                unsafe {
                    libc::syscall(
                        libc::SYS_tgkill,
                        libc::getpid(),
                        libc::syscall(libc::SYS_gettid),
                        signal,
                    )
                };
            }
        }
        handler => {
            if wanted.flags & libc::SA_RESETHAND != 0 {
                Wanted {
                    handler: libc::SIG_DFL,
                    ..wanted
                }
                .replace();
            }
            // SAFETY: the kernel passes it.
            let before = first(unsafe { &(*context.cast::<ucontext_t>()).uc_sigmask });
            let own = if wanted.flags & libc::SA_NODEFER == 0 { BIT } else { 0 };
            set_mask(libc::SIG_SETMASK, before | wanted.mask | own);
            if wanted.flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program said that its handler has this signature.
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: as above.
                let handler: extern "C" fn(c_int) = unsafe { transmute(handler) };
                handler(signal);
            }
        }
    }
}

// -- the calls that are interposed on --------------------------------------------------------------------------------

/// As in the C library; see the module for `SIGSEGV`.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    if !env::is_on() || !env::detector().is_trap() {
        // SAFETY: the caller's.
        return unsafe { set_action(signal, new, old) };
    }
    if signal == libc::SIGSEGV && has_proxy() {
        // SAFETY: the caller's.
        let before = match unsafe { new.as_ref() } {
            Some(new) => Wanted::of(new).replace(),
            None => Wanted::current(),
        };
        if !old.is_null() {
            // SAFETY: the caller's.
            unsafe { *old = before.action() };
        }
        return 0;
    }
    // SAFETY: the caller's.
    let mut kept = unsafe { new.as_ref() }.copied();
    let new = match &mut kept {
        Some(action) if signal != libc::SIGSEGV => {
            *first_mut(&mut action.sa_mask) &= !BIT;
            &raw const *action
        }
        _ => new,
    };
    // SAFETY: the caller's, or a copy of it.
    unsafe { set_action(signal, new, old) }
}

/// As in the C library; see the module for `SIGSEGV`.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if signal == libc::SIGSEGV && handler != libc::SIG_ERR && has_proxy() {
        let wanted = Wanted {
            handler,
            flags: libc::SA_RESTART,
            mask: BIT,
        };
        return wanted.replace().handler;
    }
    let real = real(&HANDLER, c"signal");
    if real.is_null() {
        refuse(libc::ENOSYS);
        return libc::SIG_ERR;
    }
    // SAFETY: a function with this signature was found, and the arguments are the caller's.
    unsafe { transmute::<*mut c_void, SetHandler>(real)(signal, handler) }
}

/// A mask that isn't to hold `SIGSEGV`: what is to be passed on for it, a copy in `kept` where it does.
fn without(how: c_int, set: *const sigset_t, kept: &mut MaybeUninit<sigset_t>) -> *const sigset_t {
    // SAFETY: the caller's.
    let Some(given) = (unsafe { set.as_ref() }) else {
        return set;
    };
    if !env::is_on() || !env::detector().is_trap() || how == libc::SIG_UNBLOCK || first(given) & BIT == 0 {
        return set;
    }
    let kept = kept.write(*given);
    *first_mut(kept) &= !BIT;
    kept
}

/// As in the C library; see the module for `SIGSEGV`.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let mut kept = MaybeUninit::uninit();
    let set = without(how, set, &mut kept);
    let real = real(&THREAD_MASK, c"pthread_sigmask");
    if real.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: a function with this signature was found, and the arguments are the caller's, or a copy.
    unsafe { transmute::<*mut c_void, SetMask>(real)(how, set, old) }
}

/// As in the C library; see the module for `SIGSEGV`.
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let mut kept = MaybeUninit::uninit();
    let set = without(how, set, &mut kept);
    let real = real(&PROCESS_MASK, c"sigprocmask");
    if real.is_null() {
        return refuse(libc::ENOSYS);
    }
    // SAFETY: as above.
    unsafe { transmute::<*mut c_void, SetMask>(real)(how, set, old) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_wants_is_kept_and_answered() {
        let wanted = Wanted {
            handler: 0x1234,
            flags: libc::SA_SIGINFO,
            mask: 7 | BIT,
        };
        assert_eq!(Wanted::of(&wanted.action()), wanted);
        let first = wanted.replace();
        for handler in 0..200 {
            let before = Wanted { handler, ..wanted }.replace();
            assert_eq!(before.handler, if handler == 0 { 0x1234 } else { handler - 1 });
        }
        assert_eq!(first.replace().handler, 199);
        assert_eq!(Wanted::current(), first);
    }

    #[test]
    fn without_checkpoints_the_calls_are_the_c_library_s() {
        // SAFETY: numbers, all of which may be zero.
        let mut old: Action = unsafe { MaybeUninit::zeroed().assume_init() };
        let new = Wanted {
            handler: libc::SIG_IGN,
            flags: 0,
            mask: BIT,
        }
        .action();
        // SAFETY: the places outlive the calls, and nobody sends this signal.
        unsafe {
            assert_eq!(sigaction(libc::SIGUSR2, &raw const new, &raw mut old), 0);
            assert_eq!(signal(libc::SIGUSR2, libc::SIG_DFL), libc::SIG_IGN);
            assert_eq!(sigaction(libc::SIGUSR2, &raw const old, core::ptr::null_mut()), 0);
            assert_eq!(sigaction(libc::SIGKILL, &raw const new, core::ptr::null_mut()), -1);
        }
        let mask = |call: unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int| {
            // SAFETY: the places outlive the calls; the mask is put back.
            unsafe {
                let mut before: sigset_t = MaybeUninit::zeroed().assume_init();
                let mut after: sigset_t = MaybeUninit::zeroed().assume_init();
                assert_eq!(call(libc::SIG_BLOCK, &raw const new.sa_mask, &raw mut before), 0);
                assert_eq!(call(libc::SIG_SETMASK, &raw const before, &raw mut after), 0);
                (first(&before), first(&after))
            }
        };
        for call in [pthread_sigmask, sigprocmask] {
            let (before, after) = mask(call);
            assert_eq!(after, before | BIT);
        }
        assert!(!has_proxy());
    }
}
