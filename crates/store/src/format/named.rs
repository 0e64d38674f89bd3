//! Looks up objects by name: one request each for a few, a listing for many or for globs.

use super::{Progress, pattern};
use crate::source::{ObjectMeta, Source};
use crate::{ErrorKind, Result};
use futures::{StreamExt, TryStreamExt, stream};
use rustc_hash::FxHashSet;
use std::time::Duration;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(60);

// A page of a listing tells of 1000 objects for the price of one HEAD, but may hold others as well.
const FEW: usize = 2000;

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
        let mut pages = source.list(prefix);
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
    if keys.len() > FEW {
        let wanted: FxHashSet<&str> = keys.iter().map(String::as_str).collect();
        match listed(source, &wanted, progress).await {
            Ok(objects) if objects.len() == keys.len() => return Ok(objects),
            // What cannot be listed (a web server), or what is missing, is asked for one by one.
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    progress.stage("looking up objects", keys.len() as u64);
    let mut heads = stream::iter(keys.to_vec())
        .map(|key| async move { source.head(&key, Instant::now() + TIMEOUT).await })
        .buffer_unordered(concurrency.max(1));
    let mut objects = Vec::with_capacity(keys.len());
    while let Some(meta) = heads.try_next().await? {
        objects.push(meta);
        progress.advance(0, 0);
    }
    Ok(objects)
}

async fn listed(source: &Source, wanted: &FxHashSet<&str>, progress: &mut Progress<'_>) -> Result<Vec<ObjectMeta>> {
    let mut objects = Vec::new();
    let mut pages = source.list("");
    while let Some(page) = pages.try_next().await? {
        objects.extend(page.into_iter().filter(|o| wanted.contains(o.key.as_str())));
        progress.listed(objects.len() as u64);
    }
    Ok(objects)
}
