//! Builds an index from a URL.

use super::manifest::{self, Labels, Row, Stretch};
use super::notes::{self, Note};
use super::tar::{self, Scanned};
use super::{BuildOptions, Format, Progress, Step, folder, listed, lmdb, named, pattern, wids};
use crate::index::bare_etag;
use crate::index::{IndexBuilder, NewObject, NewSample, ObjectRange};
use crate::source::{ObjectMeta, Source, SourceOptions};
use crate::{Error, ErrorKind, Index, Result, Spool};
use futures::{StreamExt, TryStreamExt, stream};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Parts of shards under way at a time: 64 connections of 35 MB/s carry 2 GB/s, more than one thread takes in.
const PARTS: usize = 64;

/// Builds the index of the data set at `url`: a directory or bucket prefix, shards with `{000..019}` and `*`, or a
/// manifest. What has to be read of shards goes to `spool`, if there is one. `report` is called with every step.
///
/// # Errors
/// `Invalid` when there is nothing, or nothing that fits the format; the source's errors.
pub async fn build(
    url: &str,
    source_options: &SourceOptions,
    options: &BuildOptions,
    spool: Option<&Spool>,
    report: &mut (dyn FnMut(&Step) + Send),
) -> Result<Index> {
    let progress = &mut Progress::new(report);
    let (root, names) = pattern::split(url);
    let source = Source::open(&root, source_options)?;
    let found = find(&source, &names, options, progress).await?;
    let index = match found {
        Found::Manifest(key) => from_manifest(&source, &key, source_options, options, progress).await?,
        Found::Shards(shards, idx) => {
            let mut builder = IndexBuilder::new(source.root(), Format::Tar);
            let notes = add_shards(&mut builder, &source, (shards, &idx), options, spool, progress).await?;
            builder.options(recorded(options, None, &notes)?);
            builder.finish()?
        }
        Found::Databases(files) => {
            let mut builder = IndexBuilder::new(source.root(), Format::Lmdb);
            add_databases(&mut builder, &source, files, options, progress).await?;
            builder.options(recorded(options, None, &[])?);
            builder.finish()?
        }
        Found::Objects(format, objects, notes) => {
            let mut builder = IndexBuilder::new(source.root(), format);
            builder.options(recorded(options, None, &notes)?);
            let classes = if format == Format::Folder {
                classes_of(&objects)
            } else {
                Vec::new()
            };
            builder.classes(classes.iter().map(String::as_str));
            add_objects(&mut builder, format, &objects, &classes)?;
            builder.finish()?
        }
    };
    if index.is_empty() {
        return Err(Error::invalid("there are no samples")
            .with_object(url)
            .with_remedy("check URL, format and extensions"));
    }
    if let Some(path) = &options.checkpoint {
        // It has served; a leftover would only be read again.
        let _ = std::fs::remove_file(path);
    }
    Ok(index)
}

/// What lies at a URL.
pub(super) enum Found {
    Manifest(String),
    /// Shards by key, and the `.idx` files beside them by shard.
    Shards(Vec<ObjectMeta>, FxHashMap<String, String>),
    /// LMDB files.
    Databases(Vec<ObjectMeta>),
    /// Those that are samples, and what there is to tell of the others.
    Objects(Format, Vec<ObjectMeta>, Vec<Note>),
}

/// How an index was built, as it says itself ([`Index::options`], [`Index::manifest`], [`Index::notes`]).
pub(super) fn recorded(
    options: &BuildOptions,
    manifest: Option<(&str, Option<&str>)>,
    notes: &[Note],
) -> Result<String> {
    serde_json::to_string(&Built {
        options,
        manifest: manifest.map(|(url, _)| url),
        manifest_etag: manifest.and_then(|(_, etag)| etag),
        notes,
    })
    .map_err(|e| Error::new(ErrorKind::Bug, "the options cannot be written").with_source(e))
}

#[derive(Serialize)]
struct Built<'a> {
    #[serde(flatten)]
    options: &'a BuildOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest_etag: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Note]>::is_empty")]
    notes: &'a [Note],
}

/// Lists what `names` stands for and decides on the format.
pub(super) async fn find(
    source: &Source,
    names: &str,
    options: &BuildOptions,
    progress: &mut Progress<'_>,
) -> Result<Found> {
    let is_manifest = |name: &str| {
        ["csv", "tsv", "jsonl", "ndjson", "parquet"]
            .iter()
            .any(|e| has_extension(name, e))
    };
    if !names.is_empty() && !pattern::is_glob(names) && (options.format == Some(Format::Manifest) || is_manifest(names))
    {
        return Ok(Found::Manifest(names.to_owned()));
    }
    if has_extension(names, "json") && !pattern::is_glob(names) && options.format.is_none_or(|f| f == Format::Tar) {
        return shard_list(source, names, options, progress).await;
    }
    let objects = if names.is_empty() {
        listed::list(source, "", options.checkpoint.as_deref(), options.concurrency, progress).await?
    } else {
        named::look_up(source, &pattern::expand(names)?, options.concurrency, progress).await?
    };
    if objects.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "nothing is there")
            .with_object(source.url_of(names))
            .with_remedy("the place was reached and holds no object: check its name"));
    }
    if names.is_empty() && options.format.is_none_or(|f| f == Format::Manifest) {
        let own = |o: &&ObjectMeta| o.key.starts_with("manifest.") && is_manifest(&o.key);
        if let Some(manifest) = objects.iter().find(own) {
            return Ok(Found::Manifest(manifest.key.clone()));
        }
    }
    let shards = objects.iter().filter(|o| has_extension(&o.key, "tar")).count();
    let is_packed = |o: &&ObjectMeta| [".tar.gz", ".tgz", ".tar.zst"].iter().any(|e| o.key.ends_with(e));
    let packed = objects.iter().filter(is_packed).count();
    // One beside other data is what that was unpacked from, or a sample; many are shards.
    let are_shards = match options.format {
        None => packed * 3 >= objects.len(),
        Some(format) => format == Format::Tar,
    };
    if let (Some(packed), 0, true) = (objects.iter().find(is_packed), shards, are_shards) {
        return Err(Error::invalid("compressed archives cannot be read in random order")
            .with_object(source.url_of(&packed.key))
            .with_remedy("store them uncompressed: images hardly shrink anyway"));
    }
    if let (None, Some((shard, name))) = (options.format, objects.iter().find_map(foreign_shard)) {
        return Err(Error::invalid(format!("shards of {name} are not read"))
            .with_object(source.url_of(&shard.key))
            .with_remedy("store the samples as files or in tar shards; format='flat' takes each shard as one sample"));
    }
    let is_database =
        |o: &&ObjectMeta| ["mdb", "lmdb"].iter().any(|e| has_extension(&o.key, e)) && !lmdb::is_lock(&o.key);
    let databases = objects.iter().filter(is_database).count();
    // Sidecars (.idx, .json) may be as many as the shards, and locks as the databases.
    let format = options.format.unwrap_or(if shards * 3 >= objects.len() {
        Format::Tar
    } else if databases * 3 >= objects.len() {
        Format::Lmdb
    } else if objects.iter().any(|o| folder::class(&o.key).is_some()) {
        Format::Folder
    } else {
        Format::Flat
    });
    match format {
        Format::Tar => Ok(shards_of(objects)),
        Format::Lmdb => {
            // What is named is one, whatever it is called.
            let is_meant = |o: &ObjectMeta| is_database(&o) || !names.is_empty() && !lmdb::is_lock(&o.key);
            let mut files: Vec<_> = objects.into_iter().filter(is_meant).collect();
            files.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            Ok(Found::Databases(files))
        }
        Format::Manifest => Err(Error::invalid("there is no manifest").with_object(source.url_of(names))),
        Format::Folder | Format::Flat => {
            let is_sample = |o: &ObjectMeta| {
                folder::is_data(&o.key, &options.extensions)
                    && (format == Format::Flat || folder::class(&o.key).is_some())
            };
            let notes = notes::left_out(&objects, format == Format::Folder, options);
            let mut objects: Vec<_> = objects.into_iter().filter(is_sample).collect();
            match format {
                Format::Folder => folder::sort(&mut objects),
                _ => objects.sort_unstable_by(|a, b| a.key.cmp(&b.key)),
            }
            if let Some(pair) = objects.windows(2).find(|pair| pair[0].key == pair[1].key) {
                return Err(Error::corrupt("the listing names it twice").with_object(source.url_of(&pair[0].key)));
            }
            Ok(Found::Objects(format, objects, notes))
        }
    }
}

/// An object that is a shard in somebody else's format, and whose: its samples would be taken for one.
fn foreign_shard(object: &ObjectMeta) -> Option<(&ObjectMeta, &'static str)> {
    let known = [
        ("mds", "MosaicML Streaming (MDS)"),
        ("tfrecord", "TensorFlow (TFRecord)"),
        ("tfrecords", "TensorFlow (TFRecord)"),
        ("beton", "FFCV"),
        ("lance", "Lance"),
    ];
    let key = object.key.strip_suffix(".zstd").unwrap_or(&object.key);
    known
        .iter()
        .find(|(extension, _)| has_extension(key, extension))
        .map(|(_, name)| (object, *name))
}

/// The shards that a wids index names, in its order.
async fn shard_list(source: &Source, name: &str, options: &BuildOptions, progress: &mut Progress<'_>) -> Result<Found> {
    let (bytes, _) = source.read(name, wids::MAX_BYTES, Instant::now() + TIMEOUT).await?;
    let keys = wids::shards(&bytes, source.root()).map_err(|e| e.with_object(source.url_of(name)))?;
    let found = named::look_up_all(source, &keys, options.concurrency, progress).await?;
    let mut by_key: FxHashMap<String, ObjectMeta> = found.into_iter().map(|o| (o.key.clone(), o)).collect();
    let shards = keys.iter().filter_map(|key| by_key.remove(key)).collect();
    Ok(Found::Shards(shards, FxHashMap::default()))
}

fn shards_of(objects: Vec<ObjectMeta>) -> Found {
    let all: FxHashSet<&str> = objects.iter().map(|o| o.key.as_str()).collect();
    let mut idx = FxHashMap::default();
    for shard in objects.iter().filter(|o| has_extension(&o.key, "tar")) {
        // wds2idx writes train-0.idx beside train-0.tar.
        let beside = format!("{}.idx", &shard.key[..shard.key.len() - 4]);
        if all.contains(beside.as_str()) {
            idx.insert(shard.key.clone(), beside);
        }
    }
    let mut shards: Vec<_> = objects.into_iter().filter(|o| has_extension(&o.key, "tar")).collect();
    shards.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Found::Shards(shards, idx)
}

fn has_extension(key: &str, extension: &str) -> bool {
    key.rsplit_once('.')
        .is_some_and(|(_, e)| e.eq_ignore_ascii_case(extension))
}

/// The classes of a folder, in the order of their names, as a listing of today has them.
pub(super) fn classes_of(objects: &[ObjectMeta]) -> Vec<String> {
    let found: BTreeSet<&str> = objects.iter().filter_map(|o| folder::class(&o.key)).collect();
    found.into_iter().map(str::to_owned).collect()
}

pub(super) fn new_object(meta: &ObjectMeta) -> NewObject<'_> {
    NewObject {
        key: &meta.key,
        size: meta.size,
        etag: meta.etag.as_deref(),
        version: meta.version.as_deref(),
    }
}

pub(super) fn add_objects(
    builder: &mut IndexBuilder,
    format: Format,
    objects: &[ObjectMeta],
    classes: &[String],
) -> Result<()> {
    let numbers = ClassNumbers::new(format, classes);
    for object in objects {
        builder.whole_object(new_object(object), numbers.of(&object.key), None)?;
    }
    Ok(())
}

/// The numbers of a folder's classes; other formats have none.
pub(super) struct ClassNumbers<'a>(FxHashMap<&'a str, i64>);

impl<'a> ClassNumbers<'a> {
    pub(super) fn new(format: Format, classes: &'a [String]) -> Self {
        let named = classes.iter().filter(|_| format == Format::Folder);
        Self(named.map(String::as_str).zip(0..).collect())
    }

    /// That of the object with this key.
    pub(super) fn of(&self, key: &str) -> Option<i64> {
        self.0.get(folder::class(key)?).copied()
    }
}

/// Scans shards side by side and adds them in order; what is odd about them.
pub(super) async fn add_shards(
    builder: &mut IndexBuilder,
    source: &Source,
    (shards, idx): (Vec<ObjectMeta>, &FxHashMap<String, String>),
    options: &BuildOptions,
    spool: Option<&Spool>,
    progress: &mut Progress<'_>,
) -> Result<Vec<Note>> {
    let all = shards.len();
    let spool = spool.map(|spool| (spool, (PARTS / all.clamp(1, options.concurrency.max(1))).max(2)));
    let (mut empty, mut unended) = (Vec::new(), Vec::new());
    progress.stage("reading shards", all as u64);
    let scans = stream::iter(shards).map(|shard| async move {
        let scanned = tar::scan(source, &shard, idx.get(&shard.key).map(String::as_str), spool).await?;
        Ok::<_, Error>((shard, scanned))
    });
    let mut scans = scans.buffered(options.concurrency.max(1));
    while let Some((shard, Scanned { samples, is_ended })) = scans.try_next().await? {
        let object = builder.object(new_object(&shard))?;
        tar::add(builder, object, &samples)?;
        progress.advance(samples.len() as u64, 0);
        if samples.is_empty() {
            empty.push(shard.key);
        } else if !is_ended {
            unended.push(shard.key);
        }
    }
    Ok(notes::of_shards(all, &empty, &unended))
}

/// Walks the trees of LMDB files side by side and adds their values in order.
async fn add_databases(
    builder: &mut IndexBuilder,
    source: &Source,
    files: Vec<ObjectMeta>,
    options: &BuildOptions,
    progress: &mut Progress<'_>,
) -> Result<()> {
    progress.stage("reading trees", files.len() as u64);
    let scans = stream::iter(files).map(|file| async move {
        let entries = lmdb::scan(source, &file, &options.database).await?;
        Ok::<_, Error>((file, entries))
    });
    let mut scans = scans.buffered(options.concurrency.max(1));
    while let Some((file, entries)) = scans.try_next().await? {
        let object = builder.object(new_object(&file))?;
        for (key, offset, length) in entries.iter() {
            builder.sample(NewSample {
                object,
                offset,
                length,
                name: &lmdb::name_of(key),
                ..NewSample::default()
            })?;
        }
        progress.advance(entries.len() as u64, 0);
    }
    Ok(())
}

async fn from_manifest(
    source: &Source,
    key: &str,
    source_options: &SourceOptions,
    options: &BuildOptions,
    progress: &mut Progress<'_>,
) -> Result<Index> {
    progress.stage("reading the manifest", 1);
    let (bytes, meta) = source.read(key, manifest::MAX_BYTES, Instant::now() + TIMEOUT).await?;
    let url = source.url_of(key);
    let mut rows = parse(key, bytes, options).await.map_err(|e| e.with_object(&url))?;
    progress.advance(0, meta.size);
    let root = rebase(source.root(), &mut rows)?;
    let source = if root == source.root() {
        source.clone()
    } else {
        Source::open(&root, source_options)?
    };
    let known = known_objects(&source, &rows, options, progress).await?;
    let mut builder = IndexBuilder::new(source.root(), Format::Manifest);
    builder.options(recorded(options, Some((&url, meta.etag.as_deref())), &[])?);
    let labels = Labels::new(&rows).map_err(|e| e.with_object(&url))?;
    builder.classes(labels.classes());
    let mut objects: FxHashMap<&str, (u64, u64)> = FxHashMap::default();
    let mut ranges = Vec::new();
    for row in &rows {
        ranges.clear();
        for stretch in row.stretches() {
            let url = || source.url_of(&stretch.object);
            let (object, size) = match objects.get(stretch.object.as_str()) {
                Some(&known) => known,
                None => {
                    let missing = || Error::new(ErrorKind::NotFound, "the manifest names it, but it is not there");
                    let meta = known.get(stretch.object.as_str());
                    let meta = meta.ok_or_else(|| missing().with_object(url()))?;
                    let added = (builder.object(new_object(meta))?, meta.size);
                    objects.insert(&stretch.object, added);
                    added
                }
            };
            let range = located(stretch, object, size, row.line).map_err(|e| e.with_object(url()))?;
            ranges.push(range);
        }
        let (first, more) = (ranges[0], &ranges[1..]);
        let sample = NewSample {
            object: first.object,
            offset: first.offset,
            length: first.length,
            more,
            label: row.label.as_ref().and_then(|label| labels.number(label)),
            crc32c: row.crc32c,
            ..NewSample::default()
        };
        builder
            .sample(sample)
            .map_err(|e| e.with_object(source.url_of(&row.first.object)))?;
    }
    builder.finish()
}

/// The bytes that a line names, of an object of this number and size.
fn located(stretch: &Stretch, object: u64, size: u64, line: usize) -> Result<ObjectRange> {
    let offset = stretch.offset.unwrap_or(0);
    let length = stretch.length.unwrap_or_else(|| size.saturating_sub(offset));
    let end = offset.saturating_add(length);
    if end > size {
        let what =
            format!("line {line} of the manifest: bytes {offset}..{end} lie outside the object, which has {size}");
        return Err(
            Error::invalid(what).with_remedy("correct the line; if the object has changed, write the manifest anew")
        );
    }
    Ok(ObjectRange { object, offset, length })
}

/// Parses on another thread: it may take seconds, and a decoder that panics on a damaged file ends there.
async fn parse(key: &str, bytes: bytes::Bytes, options: &BuildOptions) -> Result<Vec<Row>> {
    let (key, columns) = (key.to_owned(), options.columns.clone());
    let rows = tokio::task::spawn_blocking(move || manifest::parse(&key, &bytes, &columns)).await;
    rows.map_err(|e| Error::invalid("the manifest is damaged").with_source(e))?
}

/// Brings all objects under one root: the manifest's directory, or the bucket when they lie elsewhere in it.
fn rebase(root: &str, rows: &mut [Row]) -> Result<String> {
    let (bucket, prefix) = pattern::split_object(root);
    let below = if prefix.is_empty() { prefix } else { prefix + "/" };
    let is_path = |object: &str| root.starts_with("file://") && object.starts_with('/');
    for row in rows.iter() {
        let has_query = |it: &&Stretch| {
            it.object.starts_with("http") && it.object.contains("://") && it.object.contains(['?', '#'])
        };
        if let Some(it) = row.stretches().find(has_query) {
            // Shown without the query, which may be a signature.
            let shown = it.object.split(['?', '#']).next().unwrap_or_default();
            let what = format!(
                "line {} of the manifest: {shown} has a query, and no URL with one can be read",
                row.line
            );
            return Err(Error::invalid(what)
                .with_remedy("name objects without a query, and give credentials as storage options"));
        }
    }
    let mut place = None;
    let mut is_inside = true;
    for Stretch { object, .. } in rows.iter_mut().flat_map(Row::stretches_mut) {
        let (found, key) = match object.as_str() {
            url if url.contains("://") => pattern::split_object(url),
            path if is_path(path) => (bucket, path.trim_start_matches('/').to_owned()),
            key => (bucket, format!("{below}{}", key.trim_start_matches("./"))),
        };
        let first = place.get_or_insert_with(|| found.to_owned());
        if found != *first {
            let what = format!("the manifest names objects in several places: {first} and {object}");
            return Err(Error::invalid(what).with_remedy("make one manifest per bucket"));
        }
        is_inside &= found == bucket && key.starts_with(&below);
        *object = key;
    }
    match place {
        Some(place) if !is_inside => Ok(place),
        _ => {
            for Stretch { object, .. } in rows.iter_mut().flat_map(Row::stretches_mut) {
                object.drain(..below.len());
            }
            Ok(root.to_owned())
        }
    }
}

/// Size and ETag of every object named: from the rows where they say it, otherwise from the store.
async fn known_objects(
    source: &Source,
    rows: &[Row],
    options: &BuildOptions,
    progress: &mut Progress<'_>,
) -> Result<FxHashMap<String, ObjectMeta>> {
    let mut known: FxHashMap<String, ObjectMeta> = FxHashMap::default();
    let mut unknown = BTreeSet::new();
    // Of an object whose size alone is said, nobody knows which version this manifest is of: what was kept of it by another index may be an older one.
    let of_this_index = format!("i-{:08x}", RandomState::new().build_hasher().finish() as u32);
    for row in rows {
        match row.object_size {
            Some(size) => {
                let before = known.entry(row.first.object.clone()).or_insert_with(|| ObjectMeta {
                    key: row.first.object.clone(),
                    size,
                    etag: None,
                    version: None,
                    modified: None,
                });
                let is_other =
                    matches!((&before.etag, &row.etag), (Some(one), Some(other)) if bare_etag(one) != bare_etag(other));
                if before.size != size || is_other {
                    let what = format!(
                        "line {} of the manifest says of the object what an earlier line contradicts: {size} bytes, ETag {}; {} bytes, ETag {}",
                        row.line,
                        row.etag.as_deref().unwrap_or("none"),
                        before.size,
                        before.etag.as_deref().unwrap_or("none"),
                    );
                    return Err(Error::invalid(what)
                        .with_object(source.url_of(&row.first.object))
                        .with_remedy("write the manifest anew, or without sizes and ETags"));
                }
                if before.etag.is_none() {
                    before.etag.clone_from(&row.etag);
                }
                before.version = before.etag.is_none().then(|| of_this_index.clone());
            }
            None => unknown.extend(row.stretches().map(|stretch| stretch.object.as_str())),
        }
    }
    let unknown = unknown.into_iter().filter(|key| !known.contains_key(*key));
    let unknown: Vec<String> = unknown.map(str::to_owned).collect();
    for meta in named::look_up_all(source, &unknown, options.concurrency, progress).await? {
        known.insert(meta.key.clone(), meta);
    }
    for row in rows.iter().filter(|row| row.object_size.is_none()) {
        let (Some(said), Some(found)) = (&row.etag, known.get(&row.first.object)) else {
            continue;
        };
        let is = found.etag.as_deref();
        if is.map(bare_etag) != Some(bare_etag(said)) {
            let what = format!(
                "the object has ETag {}, and the manifest says {said}",
                is.unwrap_or("none")
            );
            return Err(Error::new(ErrorKind::Changed, what)
                .with_object(source.url_of(&row.first.object))
                .with_remedy("write the manifest anew, or without ETags"));
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(objects: &[&str]) -> Vec<Row> {
        objects
            .iter()
            .map(|o| Row {
                first: Stretch {
                    object: (*o).to_owned(),
                    ..Stretch::default()
                },
                ..Row::default()
            })
            .collect()
    }

    #[test]
    fn objects_of_a_manifest_come_under_one_root() {
        let mut near = rows(&["a.jpg", "./b.jpg", "s3://b/x/c.jpg"]);
        assert_eq!(rebase("s3://b/x", &mut near).unwrap(), "s3://b/x");
        assert_eq!(
            near.iter().map(|r| r.first.object.as_str()).collect::<Vec<_>>(),
            ["a.jpg", "b.jpg", "c.jpg"]
        );
        let mut far = rows(&["a.jpg", "s3://b/y/c.jpg"]);
        assert_eq!(rebase("s3://b/x", &mut far).unwrap(), "s3://b");
        assert_eq!(
            far.iter().map(|r| r.first.object.as_str()).collect::<Vec<_>>(),
            ["x/a.jpg", "y/c.jpg"]
        );
        assert!(rebase("s3://b/x", &mut rows(&["s3://b/1", "s3://other/2"])).is_err());
        assert!(rebase("s3://b/x", &mut rows(&["1", "s3://other/2"])).is_err());
    }

    #[test]
    fn objects_of_a_manifest_are_named_as_urls_and_paths_are() {
        let keys = |root: &str, objects: &[&str]| {
            let mut named = rows(objects);
            let root = rebase(root, &mut named).unwrap();
            (root, named.into_iter().map(|r| r.first.object).collect::<Vec<_>>())
        };
        let (root, found) = keys(
            "https://h/x",
            &["https://h/x/a%20b.jpg", "c%20d.jpg", "https://h/x/100%.jpg"],
        );
        assert_eq!(
            (root.as_str(), found),
            (
                "https://h/x",
                vec!["a b.jpg".into(), "c%20d.jpg".into(), "100%.jpg".into()]
            )
        );
        let (root, found) = keys("s3://b/x%20y", &["s3://b/x%20y/a%20b.jpg", "/c.jpg"]);
        assert_eq!(
            (root.as_str(), found),
            ("s3://b/x%20y", vec!["a%20b.jpg".into(), "/c.jpg".into()])
        );
        let (root, found) = keys("file:///x y", &["file:///x%20y/a%2520b.jpg", "/x y/c.jpg", "d.jpg"]);
        assert_eq!(
            (root.as_str(), found),
            ("file:///x y", vec!["a%20b.jpg".into(), "c.jpg".into(), "d.jpg".into()])
        );
        let (root, found) = keys("file:///x%2520y", &["a.jpg", "/z/c%20.jpg"]);
        assert_eq!(
            (root.as_str(), found),
            ("file://", vec!["x%20y/a.jpg".into(), "z/c%20.jpg".into()])
        );
    }
}
