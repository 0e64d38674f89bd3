//! LD_PRELOAD library for readers of memory-mapped files.
//!
//! It is loaded into an unmodified program (`foreload run --mmap`), where it finds out how far a reader of a mapped file has come, and has the pages ahead of it fetched. The calls that make and end
//! mappings are interposed on to keep a [table](table) of those whose file [matches a pattern](follow); nothing else happens in them. One thread is started with the first such mapping. What comes next is [`foreload_plan::window`]'s to say, and is asked for with `MADV_WILLNEED` on the program's
//! own mapping: no descriptor is opened on the file, and the thread's own ones are in a table of their own, where the program neither sees nor closes them.
//!
//! | detector | how it is found out what is touched | the thread |
//! | --- | --- | --- |
//! | `poll`, the default | [pages that are in the page table](pages) were touched | [looks](poll) from time to time |
//! | `mprotect`, `guard` | [pages that are closed](trap), one at each distance, raise a [signal](signals) | [is told](optimizer) |
//!
//! With `poll` nothing in the program's memory or page table is changed, and there is no signal handler. So the worst that a mistake does, or a mapping that comes and goes unseen (a raw system call), is that pages are fetched that nobody needs. A page that the kernel
//! takes back leaves the page table, too, and is seen again when it is touched again: a second pass needs nothing more. The other two are paper 003's mechanism, to compare with; what they do to a program is said in [`trap`] and in the guide.
//!
//! Without `FORELOAD_MMAP` the library does nothing at all. Where something isn't to be had, as `/proc`, it stops looking, and the program runs as it would without it.
//!
//! What it must never do: allocate, lock, format or panic inside an interposed call or a signal handler, change `errno`, read the environment before libc is up, or export a symbol that `exports.txt` doesn't name.
//! The one exception is the mapping that starts the thread, for `pthread_create` allocates. It is built with its own profile (`panic = "abort"`), because unwinding into a foreign frame is undefined.
//!
//! The thread has all signals blocked. A forked child starts a thread of its own (`pthread_atfork`), or has its pages opened; `exec` ends it with the rest.

#![allow(unsafe_code, reason = "a preloaded library is entered by the loader, not by Rust")]

mod advice;
mod calls;
mod env;
mod follow;
mod memory;
mod optimizer;
mod pages;
mod poll;
mod signals;
mod stats;
mod table;
mod text;
mod trap;
mod watch;

/// Number of the contract between this library and whoever injects it.
///
/// The injector refuses a library whose number differs from its own, rather than preloading a stale file. It is raised when
/// the environment variables or the lines of statistics that the two agree on change.
const ABI_VERSION: u32 = 3;

/// Returns the number of the contract that this library was built for.
// SAFETY: the name carries the project's prefix, so it can't replace a symbol of the host program.
#[unsafe(no_mangle)]
pub extern "C" fn foreload_preload_abi_version() -> u32 {
    ABI_VERSION
}

/// Runs when the loader maps the library, before `main` of the host program.
extern "C" fn on_load() {
    calls::find();
    signals::find();
    if env::read() {
        follow::on_load();
    }
}

/// Runs when the host program returns from `main` or calls `exit`.
extern "C" fn on_exit() {
    stats::end();
}

// SAFETY: the loader calls each entry of `.init_array` once with C's calling convention; `on_load` takes no argument, so
// the (argc, argv, envp) that glibc passes are ignored.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

// SAFETY: the loader calls each entry of `.fini_array` once, without arguments.
#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = on_exit;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exported_names_are_listed() {
        let listed: Vec<_> = include_str!("../exports.txt").lines().collect();
        let ours = [
            "mmap",
            "mmap64",
            "mprotect",
            "mremap",
            "munmap",
            "pthread_cancel",
            "pthread_exit",
            "pthread_sigmask",
            "sigaction",
            "signal",
            "sigprocmask",
            "thrd_exit",
        ];
        assert_eq!(listed[0], "foreload_preload_abi_version");
        assert_eq!(listed[1..], ours);
        assert_eq!(foreload_preload_abi_version(), ABI_VERSION);
    }
}
