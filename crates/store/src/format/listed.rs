//! The whole listing of a data set, resumable.
//!
//! The prefixes of the first level are listed side by side; with a checkpoint file, each one that is complete is written
//! there, and a listing that was interrupted goes on with the rest. The file is a header line (root and version) and one
//! JSON line per prefix; a torn last line is ignored. It is deleted when the index is done.

use super::Progress;
use crate::source::{ObjectMeta, Source};
use crate::{Error, ErrorKind, Result};
use futures::{StreamExt, TryStreamExt, stream};
use rustc_hash::FxHashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

const VERSION: &str = "foreload listing 1";

/// All objects below `prefix`, in no particular order.
pub(crate) async fn list(
    source: &Source,
    prefix: &str,
    checkpoint: Option<&Path>,
    concurrency: usize,
    progress: &mut Progress<'_>,
) -> Result<Vec<ObjectMeta>> {
    let mut objects = Vec::new();
    let Some(path) = checkpoint else {
        let mut pages = source.list(prefix);
        while let Some(page) = pages.try_next().await? {
            objects.extend(page);
            progress.listed(objects.len() as u64);
        }
        return Ok(objects);
    };
    let mut top = source.list_level(prefix).await?;
    // s3://bucket/imagenet/ with nothing but train/: the parts are one level deeper.
    while let (true, [only]) = (top.objects.is_empty(), top.prefixes.as_slice()) {
        top = source.list_level(&only.clone()).await?;
    }
    let (mut file, finished) = resume(path, source.root(), &mut objects)?;
    objects.extend(top.objects);
    progress.listed(objects.len() as u64);
    let rest: Vec<String> = top.prefixes.into_iter().filter(|p| !finished.contains(p)).collect();
    let mut parts = stream::iter(rest)
        .map(|prefix| async move {
            let found: Vec<Vec<ObjectMeta>> = source.list(&prefix).try_collect().await?;
            Ok::<_, Error>((prefix, found.concat()))
        })
        .buffer_unordered(concurrency.max(1));
    while let Some((prefix, found)) = parts.try_next().await? {
        write(&mut file, &prefix, &found)?;
        objects.extend(found);
        progress.listed(objects.len() as u64);
    }
    Ok(objects)
}

type Row = (String, u64, Option<String>, Option<String>);

fn write(file: &mut File, prefix: &str, found: &[ObjectMeta]) -> Result<()> {
    let rows: Vec<Row> = found
        .iter()
        .map(|o| (o.key.clone(), o.size, o.etag.clone(), o.version.clone()))
        .collect();
    let mut line = serde_json::to_string(&(prefix, rows))
        .map_err(|e| Error::new(ErrorKind::Bug, "a listing cannot be written").with_source(e))?;
    line.push('\n');
    file.write_all(line.as_bytes()).map_err(|e| {
        Error::io(
            "noting how far the listing is, in the cache directory (FORELOAD_CACHE_DIR)",
            e,
        )
    })
}

/// Reads what an earlier run finished; starts anew when the file belongs to something else.
fn resume(path: &Path, root: &str, objects: &mut Vec<ObjectMeta>) -> Result<(File, FxHashSet<String>)> {
    let failed = |e| {
        Error::io(
            format!(
                "noting how far the listing is, in {} (FORELOAD_CACHE_DIR needs room, and to be writable)",
                path.display()
            ),
            e,
        )
    };
    let mut finished = FxHashSet::default();
    let head = format!("{VERSION} {root}");
    let mut end = 0;
    if let Ok(file) = File::open(path) {
        let mut lines = BufReader::new(file);
        let mut line = String::new();
        let mut is_first = true;
        while lines.read_line(&mut line).is_ok_and(|n| n > 0) && line.ends_with('\n') {
            if is_first && line.trim_end() != head {
                break;
            }
            if !is_first {
                let Ok((prefix, rows)) = serde_json::from_str::<(String, Vec<Row>)>(&line) else {
                    break;
                };
                finished.insert(prefix);
                objects.extend(rows.into_iter().map(|(key, size, etag, version)| ObjectMeta {
                    key,
                    size,
                    etag,
                    version,
                    modified: None,
                }));
            }
            end += line.len() as u64;
            is_first = false;
            line.clear();
        }
    }
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(failed)?;
    file.set_len(end).map_err(failed)?;
    if end == 0 {
        writeln!(file, "{head}").map_err(failed)?;
    }
    Ok((file, finished))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_checkpoint_is_resumed_and_a_foreign_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c");
        let object = |key: &str| ObjectMeta {
            key: key.into(),
            size: 7,
            etag: Some("\"e\"".into()),
            version: None,
            modified: None,
        };
        let (mut file, finished) = resume(&path, "s3://b", &mut Vec::new()).unwrap();
        assert!(finished.is_empty());
        write(&mut file, "a/", &[object("a/1"), object("a/2")]).unwrap();
        file.write_all(b"[\"b/\", [[\"b/1").unwrap();
        let mut objects = Vec::new();
        let (mut file, finished) = resume(&path, "s3://b", &mut objects).unwrap();
        assert_eq!(objects, [object("a/1"), object("a/2")]);
        assert!(finished.contains("a/") && finished.len() == 1);
        write(&mut file, "b/", &[object("b/1")]).unwrap();
        assert_eq!(resume(&path, "s3://b", &mut Vec::new()).unwrap().1.len(), 2);
        assert_eq!(resume(&path, "s3://other", &mut Vec::new()).unwrap().1.len(), 0);
    }
}
