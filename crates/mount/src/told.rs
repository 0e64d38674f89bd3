//! An order as it is told: paths, a line each. What they name is found together, directory by directory, and however many names are kept.

use crate::names::{Names, SEVERAL, joined};
use crate::tree::{Kind, Look, Object, is_name};
use fuser::Errno;
use futures::{StreamExt, TryStreamExt};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Instant;

/// Directories that are asked for at once.
const AT_ONCE: usize = 8;

/// Which of its orders a process tells, and the order: a first line that begins with a zero byte has its number. Without one it is 0.
///
/// # Errors
/// `EINVAL`: it is no number.
pub fn which(text: &[u8]) -> Result<(u64, &[u8]), Errno> {
    let Some(numbered) = text.strip_prefix(b"\0") else {
        return Ok((0, text));
    };
    let end = numbered
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(numbered.len());
    let number = std::str::from_utf8(&numbered[..end])
        .ok()
        .and_then(|number| number.parse().ok());
    let rest = numbered.get(end + 1..).unwrap_or(&[]);
    number.map(|number| (number, rest)).ok_or(Errno::EINVAL)
}

/// The files that are named, in their order, with their keys. A path begins where the mount does, with or without a slash or `./`.
///
/// # Errors
/// `EINVAL`: a line is no path. `ENOENT`: there is nothing by one of the names. `EISDIR`: it is a directory. Else what the bucket says. The log has the line.
pub async fn files(names: &Arc<Names>, text: &[u8]) -> Result<Vec<(String, Object)>, Errno> {
    let text = std::str::from_utf8(text).map_err(|error| {
        crate::log::line(format_args!("an order that isn't UTF-8: {error}"));
        Errno::EINVAL
    })?;
    let mut wanted: FxHashMap<String, Vec<Wanted>> = FxHashMap::default();
    let mut count = 0;
    for (nth, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let (directory, name) = parts(line).ok_or_else(|| refused(nth + 1, line, Errno::EINVAL))?;
        let place = count;
        count += 1;
        wanted.entry(directory).or_default().push(Wanted {
            name: name.to_owned(),
            place,
            line: nth + 1,
        });
    }
    let found = futures::stream::iter(wanted)
        .map(|(directory, wanted)| in_directory(names, directory, wanted))
        .buffer_unordered(AT_ONCE);
    let mut all: Vec<Option<(String, Object)>> = vec![None; count];
    let mut found = std::pin::pin!(found);
    while let Some(files) = found.try_next().await? {
        for (place, key, object) in files {
            all[place] = Some((key, object));
        }
    }
    Ok(all.into_iter().flatten().collect())
}

/// A name that an order has: where in the order, and in its text.
struct Wanted {
    name: String,
    place: usize,
    line: usize,
}

/// A path's directory and its name there.
fn parts(line: &str) -> Option<(String, &str)> {
    let (directory, name) = line.rsplit_once('/').unwrap_or(("", line));
    let kept: Vec<&str> = directory
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    (is_name(name) && kept.iter().all(|part| is_name(part))).then(|| (kept.join("/"), name))
}

fn refused(line: usize, path: &str, errno: Errno) -> Errno {
    let why = std::io::Error::from_raw_os_error(errno.code());
    crate::log::line(format_args!("line {line} of an order, {path:?}: {why}"));
    errno
}

async fn in_directory(
    names: &Arc<Names>,
    directory: String,
    wanted: Vec<Wanted>,
) -> Result<Vec<(usize, String, Object)>, Errno> {
    let first = wanted.first().map_or(0, |wanted| wanted.line);
    let of = |each: &Wanted, errno| refused(each.line, &joined(&directory, &each.name), errno);
    let at = names
        .directory(&directory)
        .map_err(|errno| refused(first, &directory, errno))?;
    let mut known: FxHashMap<&str, Kind> = FxHashMap::default();
    let mut unknown: Vec<&Wanted> = Vec::new();
    {
        let (tree, now) = (names.tree(), Instant::now());
        for each in &wanted {
            match tree.look(at, &each.name, now) {
                Look::Found(ino) => match tree.kind(ino, now) {
                    Some((kind, _)) => drop(known.insert(each.name.as_str(), kind)),
                    None => unknown.push(each),
                },
                Look::Missing => drop(known.insert(each.name.as_str(), Kind::Missing)),
                Look::Unknown => unknown.push(each),
            }
        }
    }
    // Few are asked for one by one.
    if unknown.len() > SEVERAL as usize {
        let listed = names
            .list(at)
            .await
            .map_err(|errno| refused(first, &directory, errno))?;
        let mut listed: FxHashMap<Arc<str>, Kind> = listed.into_iter().map(|each| (each.name, each.kind)).collect();
        for each in unknown {
            if let Some(kind) = listed.remove(each.name.as_str()) {
                known.insert(each.name.as_str(), kind);
            }
        }
    } else {
        for each in unknown {
            let ino = names.look_up(at, &each.name).await;
            let ino = ino.map_err(|errno| of(each, errno))?;
            if let Some((kind, _)) = names.tree().kind(ino, Instant::now()) {
                known.insert(each.name.as_str(), kind);
            }
        }
    }
    let file = |each: &Wanted| match known.get(each.name.as_str()) {
        Some(Kind::File(object)) => Ok((each.place, joined(&directory, &each.name), object.clone())),
        Some(Kind::Directory) => Err(of(each, Errno::EISDIR)),
        Some(Kind::Missing) | None => Err(of(each, Errno::ENOENT)),
    };
    wanted.iter().map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_may_have_a_number() {
        assert_eq!(which(b"a\nb"), Ok((0, &b"a\nb"[..])));
        assert_eq!(which(b"\x0017\na\nb"), Ok((17, &b"a\nb"[..])));
        assert_eq!(which(b"\x0017"), Ok((17, &b""[..])));
        assert_eq!(which(b"\x0017\n"), Ok((17, &b""[..])));
        for wrong in [&b"\0"[..], b"\0a\nb", b"\0-1\nb", b"\0\n"] {
            assert_eq!(which(wrong), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn paths_are_taken_as_programs_write_them() {
        let of = |line| parts(line).map(|(directory, name)| format!("{directory}|{name}"));
        assert_eq!(of("a"), Some("|a".into()));
        for line in ["a/b/c", "/a/b/c", "./a/b/c", "a//b/./c", "././/a/b/c"] {
            assert_eq!(of(line), Some("a/b|c".into()), "{line}");
        }
        for line in ["", "/", "a/", "a/..", "../a", "a/../b", "."] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
