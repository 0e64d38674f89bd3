//! `--set key=value`: changes one key of a scenario before it is checked.
//!
//! The key is a path: `training.epochs`, `source.throughput_mb_s.4`, `tier.1.capacity_mb` by number or `tier.ram.capacity_mb` by kind (the first of
//! it). The value is read as TOML, or taken as a string when it isn't.

use crate::Error;
use toml::{Table, Value};

/// Applies `key=value` to the file's table.
pub fn apply(table: &mut Table, set: &str) -> Result<(), Error> {
    let (path, text) = set
        .split_once('=')
        .ok_or_else(|| Error::invalid("--set", format!("{set:?} is not key=value, such as training.epochs=5")))?;
    let mut parts: Vec<&str> = path.trim().split('.').collect();
    let last = parts.pop().filter(|p| !p.is_empty());
    let last = last.ok_or_else(|| Error::invalid("--set", format!("{set:?} names no key")))?;
    let mut at = table;
    let mut rest = parts.into_iter();
    while let Some(part) = rest.next() {
        let entry = at.entry(part.to_owned()).or_insert_with(|| Value::Table(Table::new()));
        at = match entry {
            Value::Table(inner) => inner,
            Value::Array(items) => element(items, part, rest.next())?,
            _ => {
                return Err(Error::invalid(
                    "--set",
                    format!("{part:?} in {path:?} is a value, not a section"),
                ));
            }
        };
    }
    at.insert(last.to_owned(), value(text.trim()));
    Ok(())
}

fn element<'a>(items: &'a mut [Value], section: &str, which: Option<&str>) -> Result<&'a mut Table, Error> {
    let which = which.unwrap_or("");
    let kinds: Vec<&str> = items.iter().filter_map(|t| t.get("kind")?.as_str()).collect();
    let index = which.parse().ok().or_else(|| kinds.iter().position(|k| *k == which));
    let problem = || {
        Error::invalid(
            "--set",
            format!(
                "there is no {section}.{which}: use a number below {} or one of {kinds:?}",
                items.len()
            ),
        )
    };
    let index: usize = index.filter(|i| *i < items.len()).ok_or_else(problem)?;
    items[index]
        .as_table_mut()
        .ok_or_else(|| Error::invalid("--set", format!("{section}.{which} is not a section")))
}

fn value(text: &str) -> Value {
    match format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
    {
        Some(value) => value,
        None => Value::String(text.to_owned()),
    }
}
