//! Which keys a scenario file may have, which values each takes, and what an unknown one was probably meant to be.
//!
//! Everything is checked on the file's table, before it becomes a [`Scenario`](crate::Scenario), because a table still knows the names. The ranges
//! hold whatever is real by a wide margin, from a byte to a petabyte and from a byte per second on, and keep every sum of a simulation finite.

use crate::Error;
use toml::{Table, Value};

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Any word.
    Word,
    /// One of these words, as the scenario's enums spell them.
    OneOf(&'static [&'static str]),
    /// A whole number, from the first to the second.
    Count(u64, u64),
    /// A number, from the first to the second.
    Number(f64, f64),
    /// A rate by number of readers, or one rate.
    Curve,
}

type Keys = &'static [(&'static str, Kind)];

const MOST: u64 = u32::MAX as u64;
/// Sample ids take 32 bits, and one of them means none.
const SAMPLES: Kind = Kind::Count(0, MOST - 1);
const COUNT: Kind = Kind::Count(1, MOST);
const ANY: Kind = Kind::Count(0, i64::MAX as u64);
/// MB of a sample: a tenth of a byte to a petabyte.
const SIZE: Kind = Kind::Number(1e-7, 1e9);
const SPREAD: Kind = Kind::Number(0.0, 1e9);
/// MB/s: a byte to an exabyte per second.
const RATE: Kind = Kind::Number(1e-6, 1e12);
/// Thirty years.
const SECONDS: Kind = Kind::Number(0.0, 1e9);
/// MB of a tier: a zettabyte.
const CAPACITY: Kind = Kind::Number(0.0, 1e15);

const DATASET: Keys = &[
    ("samples", SAMPLES),
    ("mean_mb", SIZE),
    ("std_mb", SPREAD),
    ("min_mb", SIZE),
    ("negative", Kind::OneOf(&["clip-rescale", "clip", "redraw"])),
    ("seed", ANY),
    ("sizes_file", Kind::Word),
    ("index", Kind::Word),
];
const TRAINING: Keys = &[
    ("epochs", COUNT),
    ("global_batch", COUNT),
    ("order", Kind::OneOf(&["keyed", "sequential"])),
    ("assign", Kind::OneOf(&["cards", "local"])),
    ("seed", ANY),
    ("step_s", SECONDS),
];
const CLUSTER: Keys = &[
    // Nodes are numbered with 16 bits, and one number means none.
    ("nodes", Kind::Count(1, u16::MAX as u64 - 1)),
    ("compute_mb_s", RATE),
    ("preprocess_mb_s", RATE),
    ("network_mb_s", RATE),
];
const SOURCE: Keys = &[
    ("throughput_mb_s", Kind::Curve),
    ("share", Kind::OneOf(&["shared", "literal"])),
    ("latency_s", SECONDS),
    ("latency_sigma", Kind::Number(0.0, 3.0)),
    ("requests_in_flight", COUNT),
    ("connection_mb_s", RATE),
    ("overlap", Kind::OneOf(&["again", "join"])),
];
const TIER: Keys = &[
    ("kind", Kind::OneOf(&["staging", "ram", "disk"])),
    ("capacity_mb", CAPACITY),
    ("threads", COUNT),
    ("read_mb_s", RATE),
    ("write_mb_s", RATE),
    ("write_behind_mb", CAPACITY),
];
const DELI: Keys = &[
    ("cache_samples", ANY),
    ("fetch_samples", ANY),
    ("threshold_samples", ANY),
    ("parallel", Kind::Number(1e-3, 1e9)),
    ("fetch_fixed_s", SECONDS),
    ("hit_s", SECONDS),
];
const FAULT: Keys = &[("source_every", COUNT), ("disk_at_s", SECONDS)];
const SECTIONS: &[(&str, Keys)] = &[
    ("dataset", DATASET),
    ("training", TRAINING),
    ("cluster", CLUSTER),
    ("source", SOURCE),
    ("tier", TIER),
    ("deli", DELI),
    ("fault", FAULT),
];
const WORDS: Keys = &[
    ("name", Kind::Word),
    ("drive", Kind::OneOf(&["auto", "fast", "engine"])),
];

/// Every key that takes numbers, with its section.
#[cfg(test)]
pub fn numeric() -> impl Iterator<Item = (&'static str, &'static str, Kind)> {
    let keys = SECTIONS
        .iter()
        .flat_map(|(s, keys)| keys.iter().map(|(k, kind)| (*s, *k, *kind)));
    keys.filter(|(.., kind)| !matches!(kind, Kind::Word | Kind::OneOf(_)))
}

/// Every word of every key that takes one of some, with the key's path.
#[cfg(test)]
pub fn words() -> impl Iterator<Item = (String, &'static str)> {
    let keys = SECTIONS
        .iter()
        .flat_map(|(s, keys)| keys.iter().map(move |(k, kind)| (format!("{s}.{k}"), *kind)))
        .chain(WORDS.iter().map(|(k, kind)| ((*k).to_owned(), *kind)));
    keys.flat_map(|(path, kind)| match kind {
        Kind::OneOf(words) => words.iter().map(|word| (path.clone(), *word)).collect(),
        _ => Vec::new(),
    })
}

/// Refuses keys that nothing reads and values that nothing can be done with; `1e6` becomes a whole number where one is meant, and one
/// throughput a curve of one point.
pub fn check(table: &mut Table) -> Result<(), Error> {
    for (name, value) in table {
        let Some((section, keys)) = SECTIONS.iter().find(|(section, _)| section == name) else {
            match WORDS.iter().find(|(word, _)| word == name) {
                Some((_, kind)) => check_value(name, value, *kind)?,
                None => return Err(unknown_section(name)),
            }
            continue;
        };
        match value {
            Value::Table(inner) if *section != "tier" => check_section(inner, &format!("[{section}]"), section, keys)?,
            Value::Array(items) if *section == "tier" => {
                for (i, item) in items.iter_mut().enumerate() {
                    let path = format!("tier.{i}");
                    let tier = item.as_table_mut().ok_or_else(|| not_a_section(&path, keys))?;
                    check_section(tier, "[[tier]]", &path, keys)?;
                }
            }
            _ => return Err(not_a_section(section, keys)),
        }
    }
    Ok(())
}

fn not_a_section(path: &str, keys: Keys) -> Error {
    let names: Vec<&str> = keys.iter().map(|(key, _)| *key).collect();
    let head = if path.starts_with("tier") {
        "[[tier]]"
    } else {
        "section"
    };
    Error::invalid(path, format!("is a {head} with the keys {}", names.join(", ")))
}

fn check_section(table: &mut Table, title: &str, path: &str, keys: Keys) -> Result<(), Error> {
    for (key, value) in table {
        let Some((_, kind)) = keys.iter().find(|(known, _)| known == key) else {
            return Err(Error::UnknownKey {
                key: key.clone(),
                section: title.to_owned(),
                nearest: nearest(key, keys.iter().map(|(known, _)| *known)).map(str::to_owned),
            });
        };
        check_value(&format!("{path}.{key}"), value, *kind)?;
    }
    Ok(())
}

/// A key in front of the sections: often one whose section was left out.
fn unknown_section(key: &str) -> Error {
    let paths = SECTIONS.iter().flat_map(|(section, keys)| {
        let section = if *section == "tier" { "tier.ram" } else { section };
        keys.iter().map(move |(key, _)| (*key, format!("{section}.{key}")))
    });
    let names = SECTIONS
        .iter()
        .map(|(section, _)| *section)
        .chain(WORDS.iter().map(|(word, _)| *word));
    let meant = paths.clone().find(|(known, _)| *known == key).map(|(_, path)| path);
    let section = || nearest(key, names).map(str::to_owned);
    let misspelt = || {
        let known: Vec<_> = paths.clone().collect();
        let near = nearest(key, known.iter().map(|(known, _)| *known))?;
        known
            .iter()
            .find(|(known, _)| *known == near)
            .map(|(_, path)| path.clone())
    };
    Error::UnknownKey {
        key: key.to_owned(),
        section: "the scenario".to_owned(),
        nearest: meant.or_else(section).or_else(misspelt),
    }
}

fn check_value(path: &str, value: &mut Value, kind: Kind) -> Result<(), Error> {
    match kind {
        Kind::Word | Kind::OneOf(_) => word(path, value, kind),
        Kind::Count(least, most) => {
            if let Value::Float(number) = value
                && number.fract() == 0.0
                && number.abs() < 2f64.powi(53)
            {
                *value = Value::Integer(*number as i64);
            }
            count(path, value, least, most)
        }
        Kind::Number(least, most) => number(path, value, least, most),
        Kind::Curve => {
            if matches!(value, Value::Integer(_) | Value::Float(_)) {
                number(path, value, 1e-6, 1e12)?;
                let point = std::mem::replace(value, Value::Boolean(false));
                *value = Value::Table(std::iter::once(("1".to_owned(), point)).collect());
            }
            let points = value.as_table().ok_or_else(|| {
                Error::invalid(
                    path,
                    "is a throughput, or throughputs by number of readers such as { 1 = 66, 4 = 146 }",
                )
            })?;
            points
                .iter()
                .try_for_each(|(readers, point)| number(&format!("{path}.{readers}"), point, 1e-6, 1e12))
        }
    }
}

fn word(path: &str, value: &Value, kind: Kind) -> Result<(), Error> {
    let Some(word) = value.as_str() else {
        return Err(Error::invalid(
            path,
            format!("{value} is not a word; write it in quotes"),
        ));
    };
    match kind {
        Kind::OneOf(known) if !known.contains(&word) => Err(Error::invalid(path, not_one_of(word, known))),
        _ => Ok(()),
    }
}

/// What is wrong with a word that is none of `known`.
pub fn not_one_of(word: &str, known: &[&str]) -> String {
    let meant = nearest(word, known.iter().copied()).map(|n| format!("; did you mean {n:?}?"));
    format!(
        "{word:?} is not one of {}{}",
        known.join(", "),
        meant.unwrap_or_default()
    )
}

fn count(path: &str, value: &Value, least: u64, most: u64) -> Result<(), Error> {
    let number = match value {
        Value::Integer(number) => i128::from(*number),
        Value::Float(number) if number.is_finite() && number.abs() >= 2f64.powi(53) => *number as i128,
        _ => return Err(Error::invalid(path, format!("{value} is not a whole number"))),
    };
    let problem = match number {
        n if n < i128::from(least) && least > 0 => format!("{value} must be positive"),
        n if n < i128::from(least) => format!("{value} must not be negative"),
        n if n > i128::from(most) => format!("{value} is more than {most}, the most that can be simulated"),
        _ => return Ok(()),
    };
    Err(Error::invalid(path, problem))
}

fn number(path: &str, value: &Value, least: f64, most: f64) -> Result<(), Error> {
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        _ => return Err(Error::invalid(path, format!("{value} is not a number"))),
    };
    let problem = match number {
        n if !n.is_finite() => format!("{value} is not finite; leave the key out where there is no limit"),
        n if n < 0.0 && least == 0.0 => format!("{value} must not be negative"),
        n if n <= 0.0 && least > 0.0 => format!("{value} must be positive"),
        n if n < least || n > most => {
            format!(
                "{value} is not between {} and {}, which hold anything real",
                plain(least),
                plain(most)
            )
        }
        _ => return Ok(()),
    };
    Err(Error::invalid(path, problem))
}

/// A bound as people write it: 3, 1e-7.
fn plain(number: f64) -> String {
    match number == 0.0 || (1e-3..1e6).contains(&number) {
        true => number.to_string(),
        false => format!("{number:e}"),
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
        let near = |word, keys: Keys| nearest(word, keys.iter().map(|(key, _)| *key));
        assert_eq!(near("latency", SOURCE), Some("latency_s"));
        assert_eq!(near("epoch", TRAINING), Some("epochs"));
        assert_eq!(near("colour", TRAINING), None);
    }

    #[test]
    fn a_key_without_its_section_is_told_where_it_belongs() {
        for (key, path) in [
            ("nodes", "cluster.nodes"),
            ("capacity_mb", "tier.ram.capacity_mb"),
            ("latency", "source.latency_s"),
            ("cluter", "cluster"),
        ] {
            let message = unknown_section(key).to_string();
            assert!(message.ends_with(&format!("did you mean {path:?}?")), "{message}");
        }
    }
}
