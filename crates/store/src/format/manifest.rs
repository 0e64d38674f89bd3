//! Manifests: a table (CSV, TSV, JSON lines, Parquet) with one row per sample.
//!
//! A row names an object and optionally a range of it, a label and a checksum; or, in the column `ranges`, several ranges
//! that are one sample ([`ranges`]). Columns are found by their usual names
//! ([`Columns`]) or named by the caller. Objects are keys relative to the manifest's directory or full URLs; all of them
//! must lie in one bucket, which becomes the root when they do not lie below the manifest.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;
mod ranges;

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Largest manifest read: 100 million rows of 20 bytes.
pub(crate) const MAX_BYTES: u64 = 2 << 30;

/// Longest name of an object, in bytes: S3 and Google take 1024, Linux 4096.
const MAX_KEY: usize = 16 << 10;

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
    /// Several ranges in place of object, offset and length. Tried: `ranges`.
    pub ranges: Option<String>,
}

/// Some bytes of an object, as a row names them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stretch {
    pub object: String,
    pub offset: Option<u64>,
    /// To the end of the object, if it isn't said.
    pub length: Option<u64>,
}

/// A row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Row {
    /// The first of its bytes, or all.
    pub first: Stretch,
    /// Where they go on, if they are several ranges.
    pub more: Vec<Stretch>,
    /// Its line in the manifest, or its number in a table that has no lines.
    pub line: usize,
    pub label: Option<Label>,
    pub crc32c: Option<u32>,
    pub object_size: Option<u64>,
    pub etag: Option<String>,
}

impl Row {
    pub fn stretches(&self) -> impl Iterator<Item = &Stretch> {
        std::iter::once(&self.first).chain(&self.more)
    }

    pub fn stretches_mut(&mut self) -> impl Iterator<Item = &mut Stretch> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }
}

/// A label as its row has it. Whether a column holds numbers or names is decided by all of it ([`Labels`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Label {
    Number(i64),
    Text(String),
}

impl Label {
    /// The whole number that it is or spells, `2.0` included: what tables write once a value is missing.
    fn number(&self) -> Option<i64> {
        match self {
            Label::Number(number) => Some(*number),
            Label::Text(text) => {
                let text = text.trim();
                text.parse().ok().or_else(|| whole(text.parse().ok()?))
            }
        }
    }

    fn name(&self) -> Cow<'_, str> {
        match self {
            Label::Number(number) => number.to_string().into(),
            Label::Text(text) => text.as_str().into(),
        }
    }

    fn is_fraction(&self) -> bool {
        matches!(self, Label::Text(text) if text.trim().parse::<f64>().is_ok_and(|number| number.fract() != 0.0))
    }
}

/// The labels of all rows: numbers if each is one, else names, which are numbered in their order.
pub(crate) struct Labels {
    /// None: they are numbers.
    names: Option<BTreeMap<String, i64>>,
}

impl Labels {
    /// # Errors
    /// When they are numbers, and not whole.
    pub(crate) fn new(rows: &[Row]) -> Result<Self> {
        let labels = || rows.iter().filter_map(|row| row.label.as_ref());
        if labels().all(|label| label.number().is_some()) {
            return Ok(Self { names: None });
        }
        if labels().all(|label| label.number().is_some() || label.is_fraction())
            && let Some(label) = labels().find(|label| label.is_fraction())
        {
            return Err(Error::invalid(format!("the label {} is no whole number", label.name()))
                .with_remedy("labels are classes; look up other targets by the sample's key in `decode`, and name another column or none"));
        }
        let names: BTreeSet<String> = labels().map(|label| label.name().into_owned()).collect();
        Ok(Self {
            names: Some(names.into_iter().zip(0..).collect()),
        })
    }

    /// The classes' names, in the order of their numbers.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &str> {
        self.names.iter().flatten().map(|(name, _)| name.as_str())
    }

    pub(crate) fn number(&self, label: &Label) -> Option<i64> {
        match &self.names {
            None => label.number(),
            Some(names) => names.get(label.name().as_ref()).copied(),
        }
    }
}

fn whole(number: f64) -> Option<i64> {
    // Beyond 2^53 a float is no exact count.
    (number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0).then_some(number as i64)
}

/// Which column holds what.
struct Wanted {
    positions: [Option<usize>; 8],
}

/// Where [`Wanted`] has the columns of labels and of ranges.
const LABEL: usize = 3;
const RANGES: usize = 7;

/// What columns that name objects are called.
const OBJECT: &[&str] = &[
    "object",
    "key",
    "url",
    "uri",
    "path",
    "file_name",
    "filename",
    "file",
    "image",
];

const USUAL: [&[&str]; 8] = [
    OBJECT,
    &["offset"],
    &["length"],
    &["label", "class", "target", "class_id", "category"],
    &["crc32c"],
    &["object_size", "size"],
    &["etag"],
    &["ranges"],
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
            &columns.ranges,
        ];
        let mut positions = [None; 8];
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
        if positions[0].is_none() && positions[RANGES].is_none() {
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
        let wrong = |what: &str| Error::invalid(format!("line {line} of the manifest: {what}"));
        let get = |i: usize, name: &str| match self.positions[i].and_then(&value).filter(|c| !c.is_empty()) {
            Some(Cell::Other(kind)) => Err(wrong(&format!("{name} is {kind}"))),
            Some(Cell::List(_)) if i != RANGES => Err(wrong(&format!("{name} is a list"))),
            Some(Cell::Flag(flag)) if i != LABEL => Err(wrong(&format!("{name} is {flag}"))),
            cell => Ok(cell),
        };
        let number = |i: usize, name: &str| {
            get(i, name)?
                .map(|c| c.number().ok_or_else(|| wrong(&format!("{name} is no whole number"))))
                .transpose()
        };
        let stretches = match get(RANGES, "`ranges`")? {
            None => {
                let object = get(0, "the object")?.map(|c| c.text());
                let only = Stretch {
                    object: object.ok_or_else(|| wrong("it names no object"))?,
                    offset: number(1, "the offset")?,
                    length: number(2, "the length")?,
                };
                vec![only]
            }
            Some(cell) => {
                for (i, name) in [
                    (0, "an object"),
                    (1, "an offset"),
                    (2, "a length"),
                    (5, "a size"),
                    (6, "an ETag"),
                ] {
                    if get(i, name)?.is_some() {
                        let error = wrong(&format!("it has `ranges` and {name}"));
                        return Err(error.with_remedy("leave one of the two out, or name the columns"));
                    }
                }
                ranges::read(cell).map_err(|what| wrong(&what).with_remedy(ranges::REMEDY))?
            }
        };
        if let Some(long) = stretches.iter().find(|it| it.object.len() > MAX_KEY) {
            let (len, start) = (long.object.len(), long.object.chars().take(80).collect::<String>());
            return Err(wrong(&format!(
                "an object's name has {len} bytes, and no store takes so long a one: {start:?}..."
            )));
        }
        let mut stretches = stretches.into_iter();
        let crc32c = get(4, "crc32c")?
            .map(|c| c.checksum().ok_or_else(|| wrong("crc32c is no checksum")))
            .transpose()?;
        Ok(Row {
            first: stretches.next().ok_or_else(|| wrong("it names no object"))?,
            more: stretches.collect(),
            line,
            label: get(LABEL, "the label")?.map(|c| c.label()),
            crc32c,
            object_size: number(5, "the object's size")?,
            etag: get(6, "the ETag")?.map(|c| c.text()),
        })
    }
}

/// A value of whatever type the format has.
enum Cell<'a> {
    Text(Cow<'a, str>),
    Integer(i64),
    Float(f64),
    /// What only a label can be.
    Flag(bool),
    /// What only `ranges` can be.
    List(Cow<'a, Value>),
    /// What no column of a manifest can be.
    Other(&'static str),
}

impl Cell<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Cell::Text(text) => text.is_empty(),
            // How tables of floats say that there is none.
            Cell::Float(number) => number.is_nan(),
            _ => false,
        }
    }

    fn text(self) -> String {
        match self {
            Cell::Text(text) => text.into_owned(),
            Cell::Integer(number) => number.to_string(),
            Cell::Float(number) => number.to_string(),
            Cell::Flag(flag) => flag.to_string(),
            Cell::List(list) => list.to_string(),
            Cell::Other(kind) => kind.to_owned(),
        }
    }

    fn number(self) -> Option<u64> {
        match self {
            Cell::Text(text) => text.trim().parse().ok(),
            Cell::Integer(number) => u64::try_from(number).ok(),
            Cell::Float(number) => u64::try_from(whole(number)?).ok(),
            Cell::Flag(_) | Cell::List(_) | Cell::Other(_) => None,
        }
    }

    fn label(self) -> Label {
        match self {
            Cell::Integer(number) => Label::Number(number),
            Cell::Flag(flag) => Label::Number(flag.into()),
            Cell::Float(number) => whole(number).map_or_else(|| Label::Text(number.to_string()), Label::Number),
            text => Label::Text(text.text()),
        }
    }

    fn checksum(self) -> Option<u32> {
        match self {
            Cell::Integer(number) => u32::try_from(number).ok(),
            Cell::Float(number) => u32::try_from(whole(number)?).ok(),
            Cell::Flag(_) | Cell::List(_) | Cell::Other(_) => None,
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
            object: columns
                .object
                .clone()
                .filter(|n| object.contains_key(n) || columns.ranges.is_none()),
            offset: columns.offset.clone().filter(|n| object.contains_key(n)),
            length: columns.length.clone().filter(|n| object.contains_key(n)),
            label: columns.label.clone().filter(|n| object.contains_key(n)),
            crc32c: columns.crc32c.clone().filter(|n| object.contains_key(n)),
            object_size: columns.object_size.clone().filter(|n| object.contains_key(n)),
            etag: columns.etag.clone().filter(|n| object.contains_key(n)),
            ranges: columns.ranges.clone().filter(|n| object.contains_key(n)),
        };
        let row = Wanted::new(&names, &named)?.row(i + 1, |at| match values.get(at)? {
            Value::String(text) => Some(Cell::Text(text.as_str().into())),
            Value::Number(number) => Some(match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => Cell::Integer(integer),
                (None, Some(float)) if number.is_f64() => Cell::Float(float),
                _ => Cell::Text(number.to_string().into()),
            }),
            Value::Bool(flag) => Some(Cell::Flag(*flag)),
            Value::Null => None,
            list @ Value::Array(_) => Some(Cell::List(Cow::Borrowed(list))),
            Value::Object(_) => Some(Cell::Other("an object")),
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
    fn a_flag_is_a_label_and_nothing_else() {
        let rows = read("m.jsonl", "{\"object\": \"a\", \"label\": true}").unwrap();
        assert_eq!(rows[0].label, Some(Label::Number(1)));
        for name in ["crc32c", "offset", "length", "object_size", "etag"] {
            let error = read("m.jsonl", &format!("{{\"object\": \"a\", \"{name}\": true}}")).unwrap_err();
            assert!(error.to_string().contains("is true"), "{error}");
        }
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
        let json = json.unwrap();
        for (csv, json) in csv.iter().zip(&json) {
            let plain = |row: &Row| Row {
                label: row.label.as_ref().map(|label| Label::Text(label.name().into_owned())),
                line: 0,
                ..row.clone()
            };
            assert_eq!(plain(csv), plain(json));
        }
        assert_eq!(csv[0].label, Some(Label::Text("cat".into())));
        assert_eq!((csv[0].first.offset, csv[0].crc32c), (Some(5), Some(0xdead_beef)));
        assert_eq!((csv[1].line, json[1].line), (3, 3));
    }

    fn labels(name: &str, text: &str) -> Result<(Vec<String>, Vec<Option<i64>>)> {
        let rows = read(name, text)?;
        let labels = Labels::new(&rows)?;
        let numbers = rows.iter().map(|row| labels.number(row.label.as_ref()?)).collect();
        Ok((labels.classes().map(str::to_owned).collect(), numbers))
    }

    #[test]
    fn a_column_of_labels_is_numbers_or_names_as_a_whole() {
        let (classes, numbers) = labels("m.csv", "path,label\na,0\nb,9\nc,\nd,2.0\n").unwrap();
        assert_eq!((classes.len(), numbers), (0, vec![Some(0), Some(9), None, Some(2)]));
        let (classes, numbers) = labels("m.csv", "path,label\na,0\nb,9\nc,A\nd,007\n").unwrap();
        assert_eq!(
            (classes, numbers),
            (
                ["0", "007", "9", "A"].map(String::from).to_vec(),
                vec![Some(0), Some(2), Some(3), Some(1)]
            )
        );
        let json =
            "{\"path\":\"a\",\"label\":3}\n{\"path\":\"b\",\"label\":\"cat\"}\n{\"path\":\"c\",\"label\":null}\n";
        let (classes, numbers) = labels("m.jsonl", json).unwrap();
        assert_eq!(
            (classes, numbers),
            (["3", "cat"].map(String::from).to_vec(), vec![Some(0), Some(1), None])
        );
        for (name, text) in [
            ("m.csv", "path,label\na,0.5\nb,1\n"),
            ("m.jsonl", "{\"path\":\"a\",\"label\":0.5}\n"),
        ] {
            assert!(labels(name, text).unwrap_err().to_string().contains("0.5"));
        }
    }

    #[test]
    fn values_that_no_column_can_have_are_refused() {
        for (value, text) in [
            ("\"label\":[1]", "the label is a list"),
            ("\"offset\":{}", "the offset is an object"),
            ("\"offset\":1.5", "the offset is no whole"),
        ] {
            let error = read("m.jsonl", &format!("{{\"path\":\"a\",{value}}}\n"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("line 1") && error.contains(text), "{error}");
        }
        let rows = read(
            "m.jsonl",
            "{\"path\":\"a\",\"offset\":5.0,\"length\":7.0,\"label\":2.0}\n",
        )
        .unwrap();
        assert_eq!(
            (rows[0].first.offset, rows[0].first.length, rows[0].label.clone()),
            (Some(5), Some(7), Some(Label::Number(2)))
        );
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
        fn proptest_no_text_panics(csv in "(path,label)?[a,\"\n\r0-9-]{0,60}", json in "[{}\":a0-9,\n]{0,60}", list in "[\\[\\]{}\",:a0-9.-]{0,40}") {
            let _ = (read("m.csv", &csv), read("m.jsonl", &json), read("m.jsonl", &format!("{{\"ranges\":[{list}]}}")));
        }
    }
}
