//! Which keys a scenario file may have, and what an unknown one was probably meant to be.

use crate::Error;
use toml::{Table, Value};

const ROOT: &[&str] = &[
    "name", "dataset", "training", "cluster", "source", "tier", "deli", "drive",
];
const DATASET: &[&str] = &[
    "samples",
    "mean_mb",
    "std_mb",
    "min_mb",
    "negative",
    "seed",
    "sizes_file",
    "index",
];
const TRAINING: &[&str] = &["epochs", "global_batch", "order", "seed", "step_s"];
const CLUSTER: &[&str] = &["nodes", "compute_mb_s", "preprocess_mb_s", "network_mb_s"];
const SOURCE: &[&str] = &[
    "throughput_mb_s",
    "share",
    "latency_s",
    "requests_in_flight",
    "connection_mb_s",
];
const TIER: &[&str] = &[
    "kind",
    "capacity_mb",
    "threads",
    "read_mb_s",
    "write_mb_s",
    "write_behind_mb",
];
const DELI: &[&str] = &[
    "cache_samples",
    "fetch_samples",
    "threshold_samples",
    "parallel",
    "fetch_fixed_s",
    "hit_s",
];

fn known(section: &str) -> &'static [&'static str] {
    match section {
        "dataset" => DATASET,
        "training" => TRAINING,
        "cluster" => CLUSTER,
        "source" => SOURCE,
        "tier" => TIER,
        "deli" => DELI,
        _ => &[],
    }
}

/// Refuses keys that nothing reads.
pub fn check(table: &Table) -> Result<(), Error> {
    check_section(table, "the scenario", ROOT)?;
    for (section, value) in table {
        let name = format!("[{section}]");
        match value {
            Value::Table(t) => check_section(t, &name, known(section))?,
            Value::Array(items) => {
                for item in items.iter().filter_map(Value::as_table) {
                    check_section(item, &format!("[[{section}]]"), known(section))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_section(table: &Table, section: &str, keys: &[&str]) -> Result<(), Error> {
    match table.keys().find(|k| !keys.contains(&k.as_str())) {
        None => Ok(()),
        Some(key) => {
            let nearest = nearest(key, keys.iter().copied()).map(str::to_owned);
            Err(Error::UnknownKey {
                key: key.clone(),
                section: section.to_owned(),
                nearest,
            })
        }
    }
}

/// Turns a plain `throughput_mb_s = 146` into a curve of one point.
pub fn normalise(table: &mut Table) {
    let given = table.get_mut("source").and_then(|s| s.get_mut("throughput_mb_s"));
    if let Some(value @ (Value::Integer(_) | Value::Float(_))) = given {
        let point = std::mem::replace(value, Value::Boolean(false));
        *value = Value::Table(std::iter::once(("1".to_owned(), point)).collect());
    }
}

/// The closest of `known` to `word`, if one is close enough to have been meant.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.map(|k| (distance(word, k), k)).min_by_key(|(d, _)| *d)?;
    (best.0 <= (word.len() / 2).clamp(2, 5)).then_some(best.1)
}

/// Levenshtein distance: insertions, deletions and substitutions.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        assert_eq!(
            (
                distance("kitten", "sitting"),
                distance("", "abc"),
                distance("same", "same")
            ),
            (3, 3, 0)
        );
    }

    #[test]
    fn a_misspelt_key_finds_its_neighbour() {
        assert_eq!(nearest("latency", SOURCE.iter().copied()), Some("latency_s"));
        assert_eq!(nearest("epoch", TRAINING.iter().copied()), Some("epochs"));
        assert_eq!(nearest("colour", TRAINING.iter().copied()), None);
    }
}
