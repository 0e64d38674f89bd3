//! Members to samples: neighbours whose path agrees up to the first dot of the file name belong together.

use crate::{Error, Result};

/// A part of a sample; `offset` counts from the start of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub name: String,
    pub offset: u64,
    pub length: u64,
}

/// Neighbouring members with one base name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Sample {
    pub base: String,
    pub offset: u64,
    pub length: u64,
    pub label: Option<i64>,
    pub fields: Vec<Field>,
}

/// Collects members in the order of the archive.
#[derive(Debug, Default)]
pub(crate) struct Grouper {
    done: Vec<Sample>,
    current: Option<Sample>,
}

/// Fields per sample: bounds what a hostile shard can make of one base name.
const MAX_FIELDS: usize = 1000;

impl Grouper {
    /// Adds a file at `offset`. Files that are hidden or have no extension belong to no sample.
    pub fn member(&mut self, path: &str, offset: u64, length: u64) -> Result<()> {
        let path = path.strip_prefix("./").unwrap_or(path);
        if path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(Error::corrupt(format!("the tar member {path:?} leaves the archive")));
        }
        let Some((base, name)) = split(path) else { return Ok(()) };
        let field = Field {
            name: name.to_ascii_lowercase(),
            offset,
            length,
        };
        match &mut self.current {
            Some(sample) if sample.base == base => {
                if sample.fields.len() >= MAX_FIELDS || sample.fields.iter().any(|f| f.name == field.name) {
                    return Err(
                        Error::corrupt(format!("the tar archive has {path:?} twice in one sample"))
                            .with_remedy("samples are neighbours with one base name: sort the members when packing"),
                    );
                }
                sample.length = offset + length - sample.offset;
                sample.fields.push(field);
            }
            _ => {
                self.done.extend(self.current.take());
                let fields = vec![field];
                self.current = Some(Sample {
                    base: base.to_owned(),
                    offset,
                    length,
                    label: None,
                    fields,
                });
            }
        }
        Ok(())
    }

    /// Sets the label of the sample being collected.
    pub fn label(&mut self, label: i64) {
        if let Some(sample) = &mut self.current {
            sample.label = Some(label);
        }
    }

    pub fn finish(mut self) -> Vec<Sample> {
        self.done.extend(self.current.take());
        self.done
    }
}

/// Base (with directory) and extension (all behind the first dot of the file name).
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let name_at = path.rfind('/').map_or(0, |at| at + 1);
    let dot = path[name_at..].find('.')?;
    let extension = &path[name_at + dot + 1..];
    (dot > 0 && !extension.is_empty()).then(|| (&path[..name_at + dot], extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_with_one_base_form_a_sample() {
        let mut grouper = Grouper::default();
        for (i, path) in ["./a/1.seg.PNG", "a/1.cls", "README", ".hidden", "a/2.jpg", "b/2.jpg"]
            .iter()
            .enumerate()
        {
            grouper.member(path, i as u64 * 1024 + 512, 100).unwrap();
        }
        let samples = grouper.finish();
        let bases: Vec<_> = samples.iter().map(|s| s.base.as_str()).collect();
        assert_eq!(bases, ["a/1", "a/2", "b/2"]);
        let names: Vec<_> = samples[0].fields.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["seg.png", "cls"]);
        assert_eq!((samples[0].offset, samples[0].length), (512, 1124));
    }

    #[test]
    fn paths_that_climb_and_double_members_are_refused() {
        for path in ["../x.jpg", "a/../../x.jpg", "/etc/x.conf"] {
            assert!(Grouper::default().member(path, 0, 1).is_err(), "{path}");
        }
        let mut grouper = Grouper::default();
        grouper.member("a.jpg", 0, 1).unwrap();
        assert!(grouper.member("a.jpg", 1024, 1).is_err());
    }
}
