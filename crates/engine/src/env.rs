//! The environment variables that client and agent read, all of them.
//!
//! `FORELOAD_CACHE_DIR`: where indexes, logs and disk tiers go (default `~/.cache/foreload`). `FORELOAD_LINGER_S`: how long an agent outlives its last
//! client. `FORELOAD_RUNTIME_DIR`: where sockets go. `FORELOAD_AGENT`: another agent executable. `FORELOAD_SPOOL`: bytes on disk for what a scan of
//! shards reads.
//! `FORELOAD_UNSTABLE_RECORD`: the agent records all decisions and proves at its end that it obeyed them. `FORELOAD_UNSTABLE_PANIC`: the agent panics
//! when this URL is opened, for tests of what follows.

use std::path::PathBuf;
use std::time::Duration;

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Where indexes, logs and disk tiers go unless the user says otherwise.
#[must_use]
pub fn cache_dir() -> PathBuf {
    path("FORELOAD_CACHE_DIR")
        .or_else(|| path("XDG_CACHE_HOME").map(|home| home.join("foreload")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/foreload")))
        .unwrap_or_else(|| std::env::temp_dir().join(format!("foreload-cache-{}", rustix::process::getuid().as_raw())))
}

/// Where sockets go: a directory of the user's own, short enough for a socket's address (107 bytes).
#[must_use]
pub fn runtime_dir() -> PathBuf {
    let own = || std::env::temp_dir().join(format!("foreload-{}", rustix::process::getuid().as_raw()));
    path("FORELOAD_RUNTIME_DIR")
        // A batch job may have the variable of a session on another machine, without its directory.
        .or_else(|| {
            path("XDG_RUNTIME_DIR")
                .filter(|dir| dir.is_dir())
                .map(|dir| dir.join("foreload"))
        })
        .filter(|dir| dir.as_os_str().len() < 70)
        .unwrap_or_else(own)
}

/// How long an agent outlives its last client.
#[must_use]
pub fn linger() -> Duration {
    let given = std::env::var("FORELOAD_LINGER_S")
        .ok()
        .and_then(|text| text.parse::<f64>().ok());
    Duration::from_secs_f64(given.filter(|s| s.is_finite()).unwrap_or(60.0).clamp(0.0, 1e6))
}

/// Bytes on disk for what a scan reads, where the user says so.
#[must_use]
pub fn spool_bytes() -> Option<u64> {
    std::env::var("FORELOAD_SPOOL").ok()?.trim().parse().ok()
}

/// Whether the agent records every decision and replays them at its end: for tests.
#[must_use]
pub fn record() -> bool {
    std::env::var_os("FORELOAD_UNSTABLE_RECORD").is_some()
}

/// The URL at whose opening the agent panics: for tests.
#[must_use]
pub fn panic_at() -> Option<String> {
    std::env::var("FORELOAD_UNSTABLE_PANIC").ok()
}

/// Another agent executable than the package's.
#[must_use]
pub fn agent() -> Option<PathBuf> {
    path("FORELOAD_AGENT")
}
