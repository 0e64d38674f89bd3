//! LD_PRELOAD library for readers of memory-mapped files.
//!
//! It is loaded into an unmodified program (`LD_PRELOAD=.../foreload/_preload.so`), where it will watch how far a
//! memory-mapped reader has come and have the pages ahead of it fetched. Today it only loads: the constructor returns at
//! once and no call is interposed on, so a preloaded program behaves exactly as it would without it.
//!
//! What it must never do: allocate, lock, format or panic inside an interposed call or a signal handler, change `errno`,
//! read the environment before libc is up, or export a symbol that `exports.txt` doesn't name. It is built with its own
//! profile (`panic = "abort"`), because unwinding into a foreign frame is undefined.
//!
//! Async-signal-safe calls that a handler here may make: none yet, because there is no handler.

#![allow(unsafe_code, reason = "a preloaded library is entered by the loader, not by Rust")]

/// Number of the contract between this library and whoever injects it.
///
/// The injector refuses a library whose number differs from its own, rather than preloading a stale file. It is raised when
/// the environment variables or the shared memory layout that the two agree on change.
const ABI_VERSION: u32 = 1;

/// Returns the number of the contract that this library was built for.
// SAFETY: the name carries the project's prefix, so it can't replace a symbol of the host program.
#[unsafe(no_mangle)]
pub extern "C" fn foreload_preload_abi_version() -> u32 {
    ABI_VERSION
}

/// Runs when the loader maps the library, before `main` of the host program.
extern "C" fn on_load() {}

// SAFETY: the loader calls each entry of `.init_array` once with C's calling convention; `on_load` takes no argument, so
// the (argc, argv, envp) that glibc passes are ignored, and it touches nothing.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exported_names_are_listed() {
        let listed: Vec<_> = include_str!("../exports.txt").lines().collect();
        assert_eq!(listed, ["foreload_preload_abi_version"]);
        assert_eq!(foreload_preload_abi_version(), ABI_VERSION);
    }
}
