//! The only place of this crate that reads environment variables.
//!
//! They are the defaults of what a caller did not set, under the names that the clouds' own tools use.

use std::path::PathBuf;

/// The variable's value, when it is set to something.
pub(crate) fn get(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The first of these variables that is set.
pub(crate) fn first(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| get(name))
}

/// All variables that begin with `prefix`, names in lower case, in order of name.
pub(crate) fn with_prefix(prefix: &str) -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let mut found: Vec<_> = std::env::vars_os()
        .filter_map(text)
        .filter(|(name, value)| name.starts_with(prefix) && !value.is_empty())
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect();
    found.sort();
    found
}

/// The user's home directory.
pub(crate) fn home() -> Option<PathBuf> {
    get("HOME").map(PathBuf::from)
}
