//! Patterns of paths: `*` and `?` for what is within a name, `**` for any directories, `[a-z]` for one of some characters.

/// Whether one of the patterns, which colons part, matches a path.
///
/// A pattern that doesn't begin with `/` matches below any directory: `*.mdb` matches all files that end so.
#[must_use]
pub fn any(patterns: &[u8], path: &[u8]) -> bool {
    patterns
        .split(|&byte| byte == b':')
        .filter(|pattern| !pattern.is_empty())
        .any(|pattern| one(pattern, path))
}

fn one(pattern: &[u8], path: &[u8]) -> bool {
    if pattern.first() == Some(&b'/') {
        return matches(pattern, path);
    }
    let mut rest = path;
    while let Some(at) = rest.iter().position(|&byte| byte == b'/') {
        rest = rest.get(at + 1..).unwrap_or(&[]);
        if matches(pattern, rest) {
            return true;
        }
    }
    false
}

/// Goes back to the last star only, and to the last double star: that is enough, and bounds what it takes.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut at, mut in_path) = (0, 0);
    let mut stars: [Option<(usize, usize)>; 2] = [None, None];
    loop {
        let rest = pattern.get(at..).unwrap_or(&[]);
        if rest.starts_with(b"**") {
            at += if rest.get(2) == Some(&b'/') { 3 } else { 2 };
            stars = [Some((at, in_path)), None];
            continue;
        }
        if rest.first() == Some(&b'*') {
            at += 1;
            stars[1] = Some((at, in_path));
            continue;
        }
        match path.get(in_path) {
            None if rest.is_empty() => return true,
            Some(&byte) => {
                if let Some(len) = fits(rest, byte) {
                    (at, in_path) = (at + len, in_path + 1);
                    continue;
                }
            }
            None => {}
        }
        // Another character for the last star, if it may have that one; else for the double star before it.
        let [double, single] = &mut stars;
        if let Some((behind, begin)) = single
            && path.get(*begin).is_some_and(|&byte| byte != b'/')
        {
            *begin += 1;
            (at, in_path) = (*behind, *begin);
            continue;
        }
        *single = None;
        let Some((behind, begin)) = double else { return false };
        if *begin >= path.len() {
            return false;
        }
        // A double star before a slash stands for whole directories.
        let is_directories = pattern.get(*behind - 1) == Some(&b'/');
        *begin += match path
            .get(*begin..)
            .and_then(|rest| rest.iter().position(|&byte| byte == b'/'))
        {
            Some(slash) if is_directories => slash + 1,
            None if is_directories => return false,
            _ => 1,
        };
        (at, in_path) = (*behind, *begin);
    }
}

/// How long what stands for a byte is at the beginning of a pattern, if it does.
fn fits(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => (byte != b'/').then_some(1),
        b'[' => {
            let end = 2 + pattern.get(2..)?.iter().position(|&byte| byte == b']')?;
            let set = pattern.get(1..end)?;
            let (set, is_not) = match set.split_first()? {
                (b'!' | b'^', rest) if !rest.is_empty() => (rest, true),
                _ => (set, false),
            };
            (byte != b'/' && is_in(set, byte) != is_not).then_some(end + 1)
        }
        same => (same == byte).then_some(1),
    }
}

fn is_in(mut set: &[u8], byte: u8) -> bool {
    loop {
        match *set {
            [first, b'-', last, ..] => {
                if (first..=last).contains(&byte) {
                    return true;
                }
                set = set.get(3..).unwrap_or(&[]);
            }
            [one, ..] => {
                if one == byte {
                    return true;
                }
                set = set.get(1..).unwrap_or(&[]);
            }
            [] => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_a_shell_s_do() {
        for (pattern, path, expected) in [
            ("*.mdb", "/data/train/data.mdb", true),
            ("*.mdb", "/data.mdb/other", false),
            ("data.mdb", "/data/train/data.mdb", true),
            ("train/*.mdb", "/data/train/data.mdb", true),
            ("rain/*.mdb", "/data/train/data.mdb", false),
            ("/data/*.mdb", "/data/train/data.mdb", false),
            ("/data/**/*.mdb", "/data/train/data.mdb", true),
            ("/data/**/*.mdb", "/data/data.mdb", true),
            ("/data/**/*.mdb", "/data/a/b/c.d/data.mdb", true),
            ("/data/**/b/*.mdb", "/data/a/b/x/b/data.mdb", true),
            ("/data/**b/*.mdb", "/data/a/xb/data.mdb", true),
            ("/data/**", "/data/a/b", true),
            ("**", "/data/a/b", true),
            ("/data/*", "/data/a/b", false),
            ("/data/?/b", "/data/a/b", true),
            ("/data/?/b", "/data//b", false),
            ("model-*-of-*.safetensors", "/m/model-1-of-22.safetensors", true),
            ("model-[0-9]*", "/m/model-1-of", true),
            ("model-[!0-9]*", "/m/model-1-of", false),
            ("a[]b]c", "/a]c", true),
            ("a[b", "/a[b", false),
            ("a*b*c", "/axxbyybzzc", true),
            ("a*b*c", "/axxbyybzz", false),
            ("", "/a", false),
            ("/", "/a", false),
        ] {
            assert_eq!(any(pattern.as_bytes(), path.as_bytes()), expected, "{pattern} {path}");
        }
        assert!(any(b"*.a:*.b", b"/x.b"));
        assert!(!any(b":", b"/x.b"));
    }

    #[test]
    fn a_pattern_that_is_all_stars_takes_no_time() {
        let (pattern, path) = ("*a".repeat(60), format!("/{}", "a".repeat(4000) + "b"));
        assert!(!any(pattern.as_bytes(), path.as_bytes()));
    }
}
