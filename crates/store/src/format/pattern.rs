//! Data-set URLs with patterns: `s3://b/train-{000000..000019}.tar`, `gs://b/shards/*.tar`.
//!
//! Braces are expanded first (`{a,b}`, `{000..019}`), as shells and WebDataset do; `*`, `?` and `[...]` are then matched
//! against a listing, where `*` stays inside one directory and `**` does not.

use crate::source::{Wanted, without_slash};
use crate::{Error, Result};
use percent_encoding::percent_decode_str;
use std::path::Path;
use std::sync::Arc;

/// More names than any data set has shards; bounds what a typing error can cost.
const MAX_NAMES: usize = 1_000_000;

/// Splits a URL into the root to open and the names or patterns below it (empty: everything). The root stays as the URL writes it; of the names
/// the percent-encoding is undone, where the scheme has one.
pub fn split(url: &str) -> (String, String) {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let special = url[after_scheme..]
        .find(['*', '?', '[', '{'])
        .map(|at| at + after_scheme);
    let is_called_so = FILE_EXTENSIONS.iter().any(|e| url.to_ascii_lowercase().ends_with(e));
    let is_single_file = special.is_none() && is_called_so && !is_directory(url);
    let end = special.unwrap_or(url.len());
    let cut = if special.is_some() || is_single_file {
        url[after_scheme..end].rfind('/')
    } else {
        None
    };
    match cut {
        Some(at) => (
            directory(&url[..after_scheme + at]),
            decoded(url, &url[after_scheme + at + 1..]),
        ),
        None if special.is_some() || is_single_file => (".".to_owned(), url.to_owned()),
        None => (without_slash(url).to_owned(), String::new()),
    }
}

/// Splits the URL of one file into its directory, as the URL writes it, and its name.
pub fn split_file(url: &str) -> (String, String) {
    let (before, name) = url.rsplit_once('/').unwrap_or((".", url));
    (directory(before), decoded(url, name))
}

/// What stands before a name's slash, which of a path may be all that there is.
fn directory(before: &str) -> String {
    if before.is_empty() { "/" } else { before }.to_owned()
}

/// Whether a directory is called like a file (`x.parquet/`).
fn is_directory(url: &str) -> bool {
    match url.split_once("://") {
        None => Path::new(url).is_dir(),
        Some((scheme, path)) if scheme.eq_ignore_ascii_case("file") => Path::new(&decoded(url, path)).is_dir(),
        Some(_) => false,
    }
}

/// Whether URLs like this one are percent-encoded.
fn is_encoded(url: &str) -> bool {
    ["http://", "https://", "file://"]
        .iter()
        .any(|scheme| url.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme)))
}

/// Splits the URL of one object into its bucket or host, as the URL writes it, and its key.
pub(crate) fn split_object(url: &str) -> (&str, String) {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let end = url[after_scheme..].find('/').map_or(url.len(), |at| after_scheme + at);
    let key = url[end..].strip_prefix('/').unwrap_or_default();
    let plain = percent_decode_str(key).decode_utf8().ok().filter(|_| is_encoded(url));
    (&url[..end], plain.map_or_else(|| key.to_owned(), Into::into))
}

/// A part of a URL, as keys are written.
fn decoded(url: &str, part: &str) -> String {
    let marks = |text: &str| text.matches(['*', '?', '[', '{']).count();
    match percent_decode_str(part).decode_utf8() {
        // A star that was encoded is none of a pattern, and can't be told from one then.
        Ok(plain) if is_encoded(url) && marks(&plain) == marks(part) => plain.into_owned(),
        _ => part.to_owned(),
    }
}

/// What makes a URL name one file rather than a directory.
const FILE_EXTENSIONS: &[&str] = &[
    ".tar", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".json", ".mdb", ".lmdb",
];

/// Expands braces.
///
/// # Errors
/// `Invalid` for more than a million names.
pub fn expand(text: &str) -> Result<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = text;
    while let Some((head, inside, tail)) = next_brace(rest) {
        let choices = match range(inside) {
            Some(range) => range?,
            None => inside.split(',').map(str::to_owned).collect(),
        };
        if names.len().saturating_mul(choices.len()) > MAX_NAMES {
            return Err(Error::invalid(format!(
                "{text:?} stands for more than {MAX_NAMES} names"
            )));
        }
        let extend = |name: &String| choices.iter().map(|c| format!("{name}{head}{c}")).collect::<Vec<_>>();
        names = names.iter().flat_map(extend).collect();
        rest = tail;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// Whether `key` is one of those that `names` stands for.
///
/// # Errors
/// As [`expand`].
pub fn stands_for(names: &str, key: &str) -> Result<bool> {
    let fits = |name: &String| if is_glob(name) { matches(name, key) } else { name == key };
    Ok(expand(names)?.iter().any(fits))
}

/// The text before, inside and behind the first braces that stand for something.
fn next_brace(text: &str) -> Option<(&str, &str, &str)> {
    let (head, behind) = text.split_once('{')?;
    let (inside, tail) = behind.split_once('}')?;
    Some((head, inside, tail))
}

/// `000..019`, with the width of the first number.
fn range(inside: &str) -> Option<Result<Vec<String>>> {
    let (first, last) = inside.split_once("..")?;
    let width = if first.starts_with('0') { first.len() } else { 0 };
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    if last.saturating_sub(first) >= MAX_NAMES as u64 {
        return Some(Err(Error::invalid(format!(
            "{{{inside}}} stands for more than {MAX_NAMES} names"
        ))));
    }
    Some(Ok((first..=last).map(|n| format!("{n:0width$}")).collect()))
}

/// Whether `text` has to be matched against a listing.
pub fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The directory that all matches of a glob lie in: what comes before its first special character, up to a slash.
pub fn fixed_prefix(glob: &str) -> &str {
    let end = glob.find(['*', '?', '[']).unwrap_or(glob.len());
    glob[..end].rfind('/').map_or("", |at| &glob[..=at])
}

/// What to list for globs whose matches lie in one directory: of it and of the directories below it, no more than may hold any.
pub fn wanted(directory: &str, globs: &[&String]) -> Wanted {
    let rests = || globs.iter().map(|glob| &glob[directory.len()..]);
    let literal = |rest: &&str| rest.find(['*', '?', '[', '/']).unwrap_or(rest.len());
    let first = rests().next().unwrap_or_default();
    let shared = |rest: &str| first.bytes().zip(rest.bytes()).take_while(|(a, b)| a == b).count();
    let mut start = rests().map(|rest| shared(rest).min(literal(&rest))).min().unwrap_or(0);
    while !first.is_char_boundary(start) {
        start -= 1;
    }
    let owned: Vec<String> = globs.iter().map(|&glob| glob.clone()).collect();
    let below = rests().any(|rest| rest.contains('/') || rest.contains("**"));
    Wanted {
        directory: directory.to_owned(),
        start: first[..start].to_owned(),
        enters: below.then(|| Arc::new(move |inner: &str| owned.iter().any(|glob| leads(glob, inner))) as _),
    }
}

/// Whether something in `directory`, which is named with its slash, may match `glob`.
fn leads(glob: &str, directory: &str) -> bool {
    run(glob, directory, true)
}

/// Whether `name` matches `glob`. Takes time proportional to the product of their lengths at most.
pub fn matches(glob: &str, name: &str) -> bool {
    run(glob, name, false)
}

/// Whether the glob, or with `partly` the beginning of it, matches the name.
fn run(glob: &str, name: &str, partly: bool) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    // reachable[j]: glob[..i] matches name[..j].
    let mut reachable = vec![false; name.len() + 1];
    reachable[0] = true;
    let mut i = 0;
    while i < glob.len() {
        if partly && reachable[name.len()] {
            return true;
        }
        let mut next = vec![false; name.len() + 1];
        let step = match glob[i] {
            '*' => {
                let crosses = glob.get(i + 1) == Some(&'*');
                let mut open = false;
                for j in 0..=name.len() {
                    open = reachable[j] || (open && j > 0 && (crosses || name[j - 1] != '/'));
                    next[j] = open;
                }
                if crosses { 2 } else { 1 }
            }
            other => {
                let class = if other == '[' { class(&glob[i..]) } else { None };
                for j in 0..name.len() {
                    let fits = match (&class, other) {
                        (Some((test, _)), _) => test(name[j]),
                        (None, '?') => name[j] != '/',
                        (None, literal) => name[j] == literal,
                    };
                    next[j + 1] = reachable[j] && fits;
                }
                class.map_or(1, |(_, length)| length)
            }
        };
        reachable = next;
        i += step;
    }
    reachable[name.len()]
}

/// `[abc]`, `[a-z]`, `[!a]` at the start of `glob`: the test and its length; `None` without a closing bracket.
#[allow(clippy::type_complexity)]
fn class(glob: &[char]) -> Option<(Box<dyn Fn(char) -> bool>, usize)> {
    let negated = matches!(glob.get(1), Some('!' | '^'));
    let start = 1 + usize::from(negated);
    let end = start + 1 + glob.get(start + 1..)?.iter().position(|&c| c == ']')?;
    let members = glob[start..end].to_vec();
    let test = move |c: char| {
        let mut found = false;
        let mut k = 0;
        while k < members.len() {
            if k + 2 < members.len() && members[k + 1] == '-' {
                found |= (members[k]..=members[k + 2]).contains(&c);
                k += 3;
            } else {
                found |= members[k] == c;
                k += 1;
            }
        }
        found != negated && c != '/'
    };
    Some((Box::new(test), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn braces_stand_for_numbers_and_choices() {
        assert_eq!(expand("a-{08..10}.tar").unwrap(), ["a-08.tar", "a-09.tar", "a-10.tar"]);
        assert_eq!(expand("{x,y}/{1..2}").unwrap(), ["x/1", "x/2", "y/1", "y/2"]);
        assert_eq!(expand("plain").unwrap(), ["plain"]);
        assert!(expand("{0..99999999}").is_err());
        assert!(expand("{0..99999}{0..99999}").is_err());
    }

    #[test]
    fn globs_match_like_a_shell() {
        assert!(matches("*.tar", "a.tar") && !matches("*.tar", "d/a.tar") && matches("**.tar", "d/a.tar"));
        assert!(matches("s/**/x-?.tar", "s/a/b/x-1.tar"));
        assert!(matches("[a-c][!0-9]", "bx") && !matches("[a-c][!0-9]", "b1") && !matches("[a-c]", "d"));
        assert!(matches("a[b", "a[b"));
    }

    #[test]
    fn no_more_is_listed_than_may_match() {
        let of = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(|&glob| glob.to_owned()).collect();
            wanted("s/", &globs.iter().collect::<Vec<_>>())
        };
        let one = of(&["s/train-*.tar", "s/tr-?.tar"]);
        assert_eq!((one.start.as_str(), one.enters.is_none()), ("tr", true));
        let deep = of(&["s/a*/x/*.tar", "s/b/**.tar"]);
        assert_eq!(deep.start, "");
        let enters = deep.enters.expect("directories");
        let entered = ["s/a1/", "s/a1/x/", "s/a1/y/", "s/a1/x/z/", "s/b/", "s/b/c/d/", "s/c/"].map(|it| enters(it));
        assert_eq!(entered, [true, true, false, false, true, true, false]);
    }

    #[test]
    fn a_url_splits_at_its_first_special_character() {
        let split = |url| split(url);
        assert_eq!(
            split("s3://b/x/t-{0..3}.tar"),
            ("s3://b/x".into(), "t-{0..3}.tar".into())
        );
        assert_eq!(split("s3://b/x/*/y.tar"), ("s3://b/x".into(), "*/y.tar".into()));
        assert_eq!(split("s3://b/x/m.CSV"), ("s3://b/x".into(), "m.CSV".into()));
        assert_eq!(split("s3://b/x/"), ("s3://b/x".into(), String::new()));
        assert_eq!(split("m.csv"), (".".into(), "m.csv".into()));
        // As the scheme has it: in a bucket a key is what it is.
        assert_eq!(
            split("HTTPS://h/a%20b/c%2Bd.csv"),
            ("HTTPS://h/a%20b".into(), "c+d.csv".into())
        );
        assert_eq!(split("s3://b/c%2Bd.csv"), ("s3://b".into(), "c%2Bd.csv".into()));
        assert_eq!(split("file:///x/%2A.csv"), ("file:///x".into(), "%2A.csv".into()));
        assert_eq!(
            split_file("file:///x/a%20b.flx"),
            ("file:///x".into(), "a b.flx".into())
        );
        assert_eq!(fixed_prefix("a/b/c*/d"), "a/b/");
    }

    proptest! {
        #[test]
        fn proptest_any_pattern_is_handled(glob in "[a-c*?\\[\\]{}!,.0-9/-]{0,20}", name in "[a-c/]{0,10}") {
            let _ = (expand(&glob), matches(&glob, &name), split(&glob), fixed_prefix(&glob));
        }

        #[test]
        fn proptest_what_matches_is_listed(glob in "([a-c]|\\*|\\?|\\*\\*|\\[ab\\]|/){0,8}", name in "[a-c/]{0,8}") {
            let directory = fixed_prefix(&glob);
            let wanted = wanted(directory, &[&glob]);
            if matches(&glob, &name) {
                prop_assert!(name.starts_with(directory) && name[directory.len()..].starts_with(&wanted.start));
                for (slash, _) in name.match_indices('/').filter(|&(slash, _)| slash >= directory.len()) {
                    prop_assert!(wanted.enters.as_ref().is_some_and(|enters| enters(&name[..=slash])));
                }
            }
        }

        #[test]
        fn proptest_a_name_matches_itself(name in "[a-z0-9/.-]{0,20}") {
            prop_assert!(matches(&name, &name));
            prop_assert!(matches("**", &name));
        }
    }
}
