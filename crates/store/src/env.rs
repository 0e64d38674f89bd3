//! The only place of this crate that reads environment variables.
//!
//! They are the defaults of what a caller did not set, under the names that the clouds' own tools use.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The variable's value, when it is set to something.
pub(crate) fn get(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The first of these variables that is set.
pub(crate) fn first(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| get(name))
}

/// All variables that are text.
pub(crate) fn all() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// The user's home directory.
pub(crate) fn home() -> Option<PathBuf> {
    get("HOME").map(PathBuf::from)
}
