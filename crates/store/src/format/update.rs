//! Brings an index up to date with a data set that has grown or changed.
//!
//! Samples of unchanged objects stay in their order and come first, new ones follow; so what a run has learned about
//! samples stays true, and caches stay warm. Classes have the numbers that a new listing gives them, so that data sets with the same classes
//! agree, whichever was listed and whichever updated.

use super::build::{ClassNumbers, Found, add_objects, add_shards, classes_of, find, recorded};
use super::{BuildOptions, Format, Progress, Step, build, pattern};
use crate::index::ObjectRange;
use crate::source::{ObjectMeta, Source, SourceOptions};
use crate::{Index, IndexBuilder, ObjectRef, Result};
use rustc_hash::FxHashMap;

/// What an update found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Objects that are the same.
    pub unchanged: u64,
    /// Objects that were not there before.
    pub added: u64,
    /// Objects with other content.
    pub changed: u64,
    /// Objects that are gone.
    pub removed: u64,
}

/// Builds the index of `url` anew where it differs from `old`, with the options `old` was built with.
///
/// A manifest is read again as a whole: its order is the user's. So are LMDB files: their order is that of the keys.
///
/// # Errors
/// As [`build`].
pub async fn update(
    old: &Index,
    url: &str,
    source_options: &SourceOptions,
    report: &mut (dyn FnMut(&Step) + Send),
) -> Result<(Index, Changes)> {
    // All objects are gone through by their numbers.
    let old = &old.alone()?;
    let mut options: BuildOptions = serde_json::from_str(old.options()).unwrap_or_default();
    options.format = Some(old.format());
    let (root, names) = pattern::split(url);
    let source = Source::open(&root, source_options)?;
    let progress = &mut Progress::new(report);
    let found = match old.format() {
        Format::Manifest | Format::Lmdb => None,
        _ => Some(find(&source, &names, &options, progress).await?),
    };
    let (present, idx, mut notes) = match found {
        None | Some(Found::Manifest(_) | Found::Databases(_)) => {
            let new = build(url, source_options, &options, None, progress.report).await?;
            let changes = compare(old, &all_objects(&new)?)?.1;
            return Ok((new, changes));
        }
        Some(Found::Objects(_, objects, notes)) => (objects, FxHashMap::default(), notes),
        Some(Found::Shards(shards, idx)) => (shards, idx, Vec::new()),
    };
    let (same, changes) = compare(old, &present)?;
    let mut builder = IndexBuilder::new(source.root(), old.format());
    let classes = match old.format() {
        Format::Folder => classes_of(&present),
        _ => old.classes().into_iter().map(str::to_owned).collect(),
    };
    let classed = ClassNumbers::new(old.format(), &classes);
    builder.classes(classes.iter().map(String::as_str));
    // Objects that stay, with their new numbers; samples follow in their old order.
    let (mut numbers, mut labels) = (vec![None; same.len()], vec![None; same.len()]);
    let mut kept = rustc_hash::FxHashSet::default();
    for (o, is_same) in (0..).zip(&same) {
        if *is_same {
            let object = old.object(o)?;
            numbers[o as usize] = Some(builder.object((&object).into())?);
            labels[o as usize] = classed.of(&object.key);
            kept.insert(object.key);
        }
    }
    for i in 0..old.len() {
        let mut sample = old.sample(i)?;
        if old.format() == Format::Folder {
            sample.label = labels.get(sample.object as usize).copied().flatten();
        }
        let kept = sample.ranges().map(|range| {
            let object = numbers.get(range.object as usize).copied().flatten()?;
            Some(ObjectRange { object, ..range })
        });
        if let Some(ranges) = kept.collect::<Option<Vec<_>>>() {
            builder.copy(&sample, &ranges, sample.crc32c)?;
        }
    }
    let new: Vec<ObjectMeta> = present.into_iter().filter(|o| !kept.contains(&o.key)).collect();
    match old.format() {
        Format::Tar => notes = add_shards(&mut builder, &source, (new, &idx), &options, None, progress).await?,
        format => add_objects(&mut builder, format, &new, &classes)?,
    }
    builder.options(recorded(&options, None, &notes)?);
    Ok((builder.finish()?, changes))
}

/// Which objects of the index are still the same, and how many of each kind there are.
fn compare(old: &Index, present: &[ObjectMeta]) -> Result<(Vec<bool>, Changes)> {
    let by_key: FxHashMap<&str, &ObjectMeta> = present.iter().map(|o| (o.key.as_str(), o)).collect();
    let mut changes = Changes::default();
    let mut same = Vec::new();
    for o in 0..old.objects() {
        let object = old.object(o)?;
        let found = by_key.get(object.key.as_str());
        let is_same = found.is_some_and(|f| f.size == object.size && f.etag == object.etag);
        match (found, is_same) {
            (_, true) => changes.unchanged += 1,
            (Some(_), _) => changes.changed += 1,
            (None, _) => changes.removed += 1,
        }
        same.push(is_same);
    }
    changes.added = present.len() as u64 - changes.unchanged - changes.changed;
    Ok((same, changes))
}

fn all_objects(index: &Index) -> Result<Vec<ObjectMeta>> {
    let meta = |o| {
        let ObjectRef {
            key,
            size,
            etag,
            version,
        } = index.object(o)?;
        Ok(ObjectMeta {
            key,
            size,
            etag,
            version,
            modified: None,
        })
    };
    (0..index.objects()).map(meta).collect()
}
