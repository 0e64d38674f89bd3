//! The only place of this crate that reads environment variables.

/// The variable's value, when it is set to something.
pub(crate) fn get(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
