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
///
/// # Errors
/// What is wrong with what the user says, for him.
pub fn linger() -> Result<Duration, String> {
    let text = std::env::var("FORELOAD_LINGER_S").unwrap_or_default();
    match text.trim() {
        "" => Ok(Duration::from_secs(60)),
        given => seconds_of(given).ok_or_else(|| {
            format!(
                "the variable FORELOAD_LINGER_S: {text:?} is no time; write seconds from 0 to 1,000,000, such as 60"
            )
        }),
    }
}

fn seconds_of(text: &str) -> Option<Duration> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e6).contains(seconds))?;
    Some(Duration::from_secs_f64(seconds))
}

/// Bytes on disk for what scans read, where the user says so.
///
/// # Errors
/// What is wrong with what he says, for him.
pub fn spool_bytes() -> Result<Option<u64>, String> {
    let Ok(text) = std::env::var("FORELOAD_SPOOL") else {
        return Ok(None);
    };
    let wrong = || {
        format!(
            "the variable FORELOAD_SPOOL: {text:?} is no size; write a number of bytes, or for example 32GB or 512MiB, and 0 for no spool"
        )
    };
    match text.trim() {
        "" => Ok(None),
        size => bytes_of(size).map(Some).ok_or_else(wrong),
    }
}

/// A size as people write it: 17, 1.5GB, 64 MiB.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix('B').unwrap_or(&unit);
    let (letter, base) = unit.strip_suffix('I').map_or((unit, 1000.0), |letter| (letter, 1024.0));
    let power = match letter {
        "" if base == 1000.0 => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        _ => return None,
    };
    let bytes = number * f64::powi(base, power);
    (bytes < f64::powi(2.0, 60)).then_some(bytes as u64)
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

#[cfg(test)]
mod tests {
    use super::{bytes_of, seconds_of};
    use std::time::Duration;

    #[test]
    fn seconds_are_read_and_nonsense_is_none() {
        assert_eq!(seconds_of("0"), Some(Duration::ZERO));
        assert_eq!(seconds_of("2.5"), Some(Duration::from_millis(2500)));
        for wrong in ["abc", "-1", "1e99", "nan", "inf", "5s"] {
            assert_eq!(seconds_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let sizes = ["0", "17", "1k", "1 KiB", "32GB", "0.5gib", "1.5 TB"];
        let bytes = [0, 17, 1000, 1024, 32_000_000_000, 1 << 29, 1_500_000_000_000];
        assert_eq!(sizes.map(bytes_of), bytes.map(Some));
        for wrong in ["-1", "none", "1e6", "1GBB", "GB", "1.2.3", "2000P", "1iB"] {
            assert_eq!(bytes_of(wrong), None, "{wrong}");
        }
    }
}
