//! Looks up objects by name: one request each for a few, listings of the directories that they lie in for many, and for globs.
//!
//! Directories are listed side by side, each only as long as its pages tell of enough that was asked for.

use super::{Progress, pattern};
use crate::source::{ObjectMeta, Source};
use crate::{ErrorKind, Result};
use futures::{StreamExt, TryStreamExt, stream};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Up to as many are asked for one by one, without a look at where they lie.
const FEW: usize = 200;

/// Requests for single objects that are as much as a page of a listing: pages follow one another and cost twelve times as much, single requests
/// go side by side.
const PAGE: usize = 20;

/// Pages of a listing before it is judged: what was asked for may lie at its end.
const FIRST_PAGES: usize = 4;

/// Objects that the names (some of them globs) stand for; an object that is named and missing is an error.
pub(crate) async fn look_up(
    source: &Source,
    names: &[String],
    concurrency: usize,
    progress: &mut Progress<'_>,
) -> Result<Vec<ObjectMeta>> {
    let (globs, plain): (Vec<_>, Vec<_>) = names.iter().cloned().partition(|n| pattern::is_glob(n));
    let mut objects = look_up_all(source, &plain, concurrency, progress).await?;
    let mut by_prefix: Vec<(&str, Vec<&String>)> = Vec::new();
    for glob in &globs {
        let prefix = pattern::fixed_prefix(glob);
        match by_prefix.iter_mut().find(|(p, _)| *p == prefix) {
            Some((_, globs)) => globs.push(glob),
            None => by_prefix.push((prefix, vec![glob])),
        }
    }
    let mut seen: FxHashSet<String> = objects.iter().map(|o| o.key.clone()).collect();
    for (prefix, globs) in by_prefix {
        let mut pages = source.list_wanted(pattern::wanted(prefix, &globs));
        while let Some(page) = pages.try_next().await? {
            let fits = |o: &ObjectMeta| globs.iter().any(|glob| pattern::matches(glob, &o.key));
            for object in page.into_iter().filter(fits) {
                if seen.insert(object.key.clone()) {
                    objects.push(object);
                }
            }
            progress.listed(objects.len() as u64);
        }
    }
    Ok(objects)
}

/// Metadata of all these objects, in any order.
pub(crate) async fn look_up_all(
    source: &Source,
    keys: &[String],
    concurrency: usize,
    progress: &mut Progress<'_>,
) -> Result<Vec<ObjectMeta>> {
    let mut objects = Vec::with_capacity(keys.len());
    let (directories, mut single) = shared_out(keys);
    let mut listings = stream::iter(directories)
        .map(|(prefix, keys)| async move { listed(source, prefix, keys).await })
        .buffer_unordered(concurrency.max(1));
    while let Some((found, rest)) = listings.try_next().await? {
        objects.extend(found);
        single.extend(rest);
        progress.listed(objects.len() as u64);
    }
    progress.stage("looking up objects", single.len() as u64);
    let mut heads = stream::iter(single)
        .map(|key| async move { source.head(key, Instant::now() + TIMEOUT).await })
        .buffer_unordered(concurrency.max(1));
    while let Some(meta) = heads.try_next().await? {
        objects.push(meta);
        progress.advance(0, 0);
    }
    Ok(objects)
}

/// The directories worth listing with the keys asked for in them, and the keys that are better asked for one by one.
fn shared_out(keys: &[String]) -> (BTreeMap<&str, FxHashSet<&str>>, Vec<&str>) {
    if keys.len() <= FEW {
        return (BTreeMap::new(), keys.iter().map(String::as_str).collect());
    }
    let directory = |path: &str| path.trim_end_matches('/').rfind('/').map_or(0, |at| at + 1);
    let mut shares: BTreeMap<&str, FxHashSet<&str>> = BTreeMap::new();
    for key in keys {
        shares.entry(&key[..directory(key)]).or_default().insert(key);
    }
    // Few in each of many directories may be many in the directory above: the deepest first.
    let mut prefixes: Vec<&str> = shares.keys().copied().collect();
    prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.matches('/').count()));
    let mut next = std::collections::VecDeque::from(prefixes);
    while let Some(prefix) = next.pop_front() {
        if !prefix.is_empty() && shares.get(prefix).is_some_and(|keys| keys.len() < PAGE) {
            let above = &prefix[..directory(prefix)];
            let few = shares.remove(prefix).unwrap_or_default();
            if !shares.contains_key(above) {
                let depth = above.matches('/').count();
                let at = next.iter().position(|other| other.matches('/').count() <= depth);
                next.insert(at.unwrap_or(next.len()), above);
            }
            shares.entry(above).or_default().extend(few);
        }
    }
    let few = shares.values().filter(|keys| keys.len() < PAGE);
    let single = few.flatten().copied().collect();
    shares.retain(|_, keys| keys.len() >= PAGE);
    (shares, single)
}

/// Lists a directory for some keys below it: the objects found, and the keys that are left.
async fn listed<'a>(
    source: &Source,
    prefix: &str,
    mut wanted: FxHashSet<&'a str>,
) -> Result<(Vec<ObjectMeta>, Vec<&'a str>)> {
    let (mut objects, mut pages) = (Vec::with_capacity(wanted.len()), source.list(prefix));
    for page in 1.. {
        match pages.try_next().await {
            Ok(Some(found)) => objects.extend(found.into_iter().filter(|o| wanted.remove(o.key.as_str()))),
            Ok(None) => break,
            // What cannot be listed (a web server) is asked for one by one.
            Err(e) if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::NotFound) => break,
            Err(e) => return Err(e),
        }
        if wanted.is_empty() || page >= FIRST_PAGES && objects.len() < page * PAGE {
            break;
        }
    }
    Ok((objects, wanted.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_keys_of_a_directory_are_listed_and_strays_are_asked_for() {
        let mut keys: Vec<String> = (0..300).map(|i| format!("a/b/{i}")).collect();
        // One in each of thirty directories is worth a listing of the directory above them.
        keys.extend((0..30).map(|i| format!("c/{i}/x")));
        keys.extend(["a/y", "z", "d/e/f/g"].map(String::from));
        let (directories, single) = shared_out(&keys);
        let counts: Vec<_> = directories.iter().map(|(prefix, keys)| (*prefix, keys.len())).collect();
        assert_eq!(counts, [("a/b/", 300), ("c/", 30)]);
        assert_eq!(single.len(), 3);
        assert!(shared_out(&keys[..FEW]).0.is_empty());
    }
}
