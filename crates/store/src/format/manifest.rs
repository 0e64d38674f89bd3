//! Manifests: a table (CSV, TSV, JSON lines, Parquet) with one row per sample.
//!
//! A row names an object and optionally a range of it, a label and a checksum. Columns are found by their usual names
//! ([`Columns`]) or named by the caller. Objects are keys relative to the manifest's directory or full URLs; all of them
//! must lie in one bucket, which becomes the root when they do not lie below the manifest.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Largest manifest read: 100 million rows of 20 bytes.
pub(crate) const MAX_BYTES: u64 = 2 << 30;

/// Names of a manifest's columns; where none is given, the usual names are tried.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Columns {
    /// Key or URL of the object. Tried: `object`, `key`, `url`, `uri`, `path`, `file_name`, `filename`, `file`, `image`.
    pub object: Option<String>,
    /// First byte. Tried: `offset`.
    pub offset: Option<String>,
    /// Bytes. Tried: `length`.
    pub length: Option<String>,
    /// Class name or number. Tried: `label`, `class`, `target`, `class_id`, `category`.
    pub label: Option<String>,
    /// CRC-32C as a number or eight hexadecimal digits. Tried: `crc32c`.
    pub crc32c: Option<String>,
    /// Size of the object. Tried: `object_size`, `size`.
    pub object_size: Option<String>,
    /// ETag of the object. Tried: `etag`.
    pub etag: Option<String>,
}

/// A row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Row {
    pub object: String,
    pub offset: Option<u64>,
    pub length: Option<u64>,
    pub label: Option<Label>,
    pub crc32c: Option<u32>,
    pub object_size: Option<u64>,
    pub etag: Option<String>,
}

/// A label is a number, or a class name that gets one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Label {
    Number(i64),
    Name(String),
}

/// Which column holds what.
struct Wanted {
    positions: [Option<usize>; 7],
}

const USUAL: [&[&str]; 7] = [
    &[
        "object",
        "key",
        "url",
        "uri",
        "path",
        "file_name",
        "filename",
        "file",
        "image",
    ],
    &["offset"],
    &["length"],
    &["label", "class", "target", "class_id", "category"],
    &["crc32c"],
    &["object_size", "size"],
    &["etag"],
];

impl Wanted {
    fn new(names: &[&str], columns: &Columns) -> Result<Self> {
        let given = [
            &columns.object,
            &columns.offset,
            &columns.length,
            &columns.label,
            &columns.crc32c,
            &columns.object_size,
            &columns.etag,
        ];
        let mut positions = [None; 7];
        for (i, position) in positions.iter_mut().enumerate() {
            let find = |wanted: &str| names.iter().position(|n| n.trim().eq_ignore_ascii_case(wanted));
            *position = match given[i] {
                Some(name) => Some(find(name).ok_or_else(|| {
                    Error::invalid(format!(
                        "the manifest has no column {name:?}, only {}",
                        names.join(", ")
                    ))
                })?),
                None => USUAL[i].iter().find_map(|n| find(n)),
            };
        }
        if positions[0].is_none() {
            let error = Error::invalid(format!(
                "no column of the manifest names objects: it has {}",
                names.join(", ")
            ));
            return Err(error.with_remedy("name the column, or call it `object`"));
        }
        Ok(Self { positions })
    }

    /// Makes a row of the values of a line.
    fn row<'a>(&self, line: usize, value: impl Fn(usize) -> Option<Cell<'a>>) -> Result<Row> {
        let get = |i: usize| self.positions[i].and_then(&value).filter(|c| !c.is_empty());
        let wrong = |what: &str| Error::invalid(format!("line {line} of the manifest: {what}"));
        let number = |i: usize, name: &str| {
            get(i)
                .map(|c| c.number().ok_or_else(|| wrong(&format!("{name} is no number"))))
                .transpose()
        };
        let object = get(0).map(|c| c.text()).ok_or_else(|| wrong("it names no object"))?;
        let crc32c = get(4)
            .map(|c| c.checksum().ok_or_else(|| wrong("crc32c is no checksum")))
            .transpose()?;
        Ok(Row {
            object,
            offset: number(1, "the offset")?,
            length: number(2, "the length")?,
            label: get(3).map(|c| c.label()),
            crc32c,
            object_size: number(5, "the object's size")?,
            etag: get(6).map(|c| c.text()),
        })
    }
}

/// A value of whatever type the format has.
enum Cell<'a> {
    Text(std::borrow::Cow<'a, str>),
    Integer(i64),
}

impl Cell<'_> {
    fn is_empty(&self) -> bool {
        matches!(self, Cell::Text(text) if text.is_empty())
    }

    fn text(self) -> String {
        match self {
            Cell::Text(text) => text.into_owned(),
            Cell::Integer(number) => number.to_string(),
        }
    }

    fn number(self) -> Option<u64> {
        match self {
            Cell::Text(text) => text.trim().parse().ok(),
            Cell::Integer(number) => u64::try_from(number).ok(),
        }
    }

    fn label(self) -> Label {
        match self {
            Cell::Integer(number) => Label::Number(number),
            Cell::Text(text) => text
                .trim()
                .parse()
                .map_or_else(|_| Label::Name(text.into_owned()), Label::Number),
        }
    }

    fn checksum(self) -> Option<u32> {
        match self {
            Cell::Integer(number) => u32::try_from(number).ok(),
            Cell::Text(text) if text.len() == 8 => u32::from_str_radix(&text, 16).ok(),
            Cell::Text(text) => text.trim().parse().ok(),
        }
    }
}

/// Reads a manifest; its name tells the format.
pub(crate) fn parse(name: &str, bytes: &bytes::Bytes, columns: &Columns) -> Result<Vec<Row>> {
    let extension = name.rsplit('.').next().unwrap_or("").to_ascii_lowercase();
    match extension.as_str() {
        "csv" => csv::parse(text(bytes)?, b',', columns),
        "tsv" => csv::parse(text(bytes)?, b'\t', columns),
        "jsonl" | "ndjson" => json_lines(text(bytes)?, columns),
        #[cfg(feature = "parquet")]
        "parquet" => parquet::parse(bytes, columns),
        #[cfg(not(feature = "parquet"))]
        "parquet" => Err(Error::invalid("this build reads no Parquet").with_remedy("convert the manifest to CSV")),
        other => Err(Error::invalid(format!("a manifest of kind {other:?} is not known"))
            .with_remedy("use .csv, .tsv, .jsonl or .parquet")),
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|_| Error::invalid("the manifest is not UTF-8"))
}

fn json_lines(text: &str, columns: &Columns) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let object: serde_json::Map<String, Value> = serde_json::from_str(line).map_err(|e| {
            Error::invalid(format!("line {} of the manifest is no JSON object: {e}", i + 1)).with_source(e)
        })?;
        let names: Vec<&str> = object.keys().map(String::as_str).collect();
        let values: Vec<&Value> = object.values().collect();
        // Lines may have different keys; an optional column that the caller named may be missing in some.
        let named = Columns {
            object: columns.object.clone(),
            offset: columns.offset.clone().filter(|n| object.contains_key(n)),
            length: columns.length.clone().filter(|n| object.contains_key(n)),
            label: columns.label.clone().filter(|n| object.contains_key(n)),
            crc32c: columns.crc32c.clone().filter(|n| object.contains_key(n)),
            object_size: columns.object_size.clone().filter(|n| object.contains_key(n)),
            etag: columns.etag.clone().filter(|n| object.contains_key(n)),
        };
        let row = Wanted::new(&names, &named)?.row(i + 1, |at| match values.get(at)? {
            Value::String(text) => Some(Cell::Text(text.as_str().into())),
            Value::Number(number) => Some(match number.as_i64() {
                Some(integer) => Cell::Integer(integer),
                None => Cell::Text(number.to_string().into()),
            }),
            Value::Bool(flag) => Some(Cell::Integer(i64::from(*flag))),
            _ => None,
        });
        rows.push(row?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(name: &str, text: &str) -> Result<Vec<Row>> {
        parse(
            name,
            &bytes::Bytes::copy_from_slice(text.as_bytes()),
            &Columns::default(),
        )
    }

    #[test]
    fn csv_and_json_lines_say_the_same() {
        let csv = read(
            "m.csv",
            "Path,label,offset,length,crc32c\n\"a, b.jpg\",cat,5,10,deadbeef\nc.jpg,3,,,\n",
        )
        .unwrap();
        let json = read(
            "m.jsonl",
            "{\"path\":\"a, b.jpg\",\"label\":\"cat\",\"offset\":5,\"length\":10,\"crc32c\":3735928559}\n\n{\"path\":\"c.jpg\",\"label\":3}\n",
        );
        assert_eq!(csv, json.unwrap());
        assert_eq!(csv[0].label, Some(Label::Name("cat".into())));
        assert_eq!((csv[0].offset, csv[0].crc32c), (Some(5), Some(0xdead_beef)));
    }

    #[test]
    fn errors_name_line_and_column() {
        assert!(read("m.csv", "a,b\n1,2\n").unwrap_err().to_string().contains("a, b"));
        assert!(
            read("m.csv", "path,offset\nx,-1\n")
                .unwrap_err()
                .to_string()
                .contains("line 2")
        );
        assert!(read("m.txt", "").is_err());
        let named = Columns {
            label: Some("tag".into()),
            ..Columns::default()
        };
        assert!(parse("m.csv", &"path\nx\n".into(), &named).is_err());
    }

    proptest! {
        #[test]
        fn proptest_no_text_panics(csv in "(path,label)?[a,\"\n\r0-9-]{0,60}", json in "[{}\":a0-9,\n]{0,60}") {
            let _ = (read("m.csv", &csv), read("m.jsonl", &json));
        }
    }
}
