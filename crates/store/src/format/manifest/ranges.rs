//! The column `ranges`: several ranges of objects that are one sample, in the order of its bytes.
//!
//! A list of `[object, first byte, end]`, where the end is the first byte behind the range. Without an end a range goes to
//! the end of its object, and without both, or as a text alone, it is all of it. Where a table's lists have one type, as in
//! Parquet, a range is a group: `{"object": ..., "start": ..., "end": ...}`. Where there are no lists, as in CSV, the column
//! holds the list as JSON.

use super::{Cell, OBJECT, Stretch, whole};
use crate::index::MAX_RANGES;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// What helps against all that can be wrong with it.
pub(super) const REMEDY: &str = "write each range as [object, first byte, end], or [object] for all of it: \"ranges\": [[\"a.mp4\", 0, 4096], [\"b.txt\"]]";

/// Reads the ranges of a row.
///
/// # Errors
/// What is wrong with them, in words that follow the line's number.
pub(super) fn read(cell: Cell<'_>) -> Result<Vec<Stretch>, String> {
    let list = match cell {
        Cell::List(list) => list,
        Cell::Text(text) => Cow::Owned(serde_json::from_str(&text).map_err(|e| format!("`ranges` is no JSON: {e}"))?),
        _ => return Err("`ranges` is no list".into()),
    };
    let Value::Array(ranges) = list.as_ref() else {
        return Err("`ranges` is no list".into());
    };
    if ranges.is_empty() || ranges.len() as u64 > MAX_RANGES {
        return Err(format!("`ranges` has {} ranges, not 1 to {MAX_RANGES}", ranges.len()));
    }
    let read = |(nth, range)| stretch(range).map_err(|what| format!("range {nth} of `ranges` {what}"));
    (1..).zip(ranges).map(read).collect()
}

fn stretch(range: &Value) -> Result<Stretch, String> {
    let (object, start, end) = match range {
        Value::String(_) => (Some(range), None, None),
        Value::Array(parts) if parts.len() <= 3 => (parts.first(), parts.get(1), parts.get(2)),
        Value::Array(parts) => return Err(format!("has {} parts", parts.len())),
        Value::Object(parts) => (named(parts, OBJECT), named(parts, &["start"]), named(parts, &["end"])),
        _ => return Err("is no range".into()),
    };
    let object = match object {
        Some(Value::String(object)) if !object.is_empty() => object.clone(),
        _ => return Err("names no object".into()),
    };
    let (start, end) = (number(start, "first byte")?, number(end, "end")?);
    let first = start.unwrap_or(0);
    let length = end.map(|end| {
        end.checked_sub(first)
            .ok_or_else(|| format!("ends at byte {end}, before it begins at {first}"))
    });
    Ok(Stretch {
        object,
        offset: start,
        length: length.transpose()?,
    })
}

fn named<'a>(parts: &'a Map<String, Value>, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| {
        let found = parts.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    })
}

fn number(value: Option<&Value>, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let float = || u64::try_from(whole(value.as_f64()?)?).ok();
    let number = value.as_u64().or_else(float);
    number
        .map(Some)
        .ok_or_else(|| format!("has the {name} {value}, which is no whole number"))
}

#[cfg(test)]
mod tests {
    use super::super::{Columns, Row, parse};
    use super::*;

    fn rows(name: &str, text: &str) -> crate::Result<Vec<Row>> {
        parse(
            name,
            &bytes::Bytes::copy_from_slice(text.as_bytes()),
            &Columns::default(),
        )
    }

    fn stretches(row: &Row) -> Vec<(&str, Option<u64>, Option<u64>)> {
        let stretch = |it: &'_ Stretch| (it.offset, it.length);
        row.stretches()
            .map(|it| (it.object.as_str(), stretch(it).0, stretch(it).1))
            .collect()
    }

    #[test]
    fn a_range_is_written_in_several_ways() {
        let list = r#"[["a", 5, 9], ["b", 2], ["c"], "d", {"object": "e", "start": 1.0, "end": 1}, {"key": "f", "start": null}]"#;
        let expected = [
            ("a", Some(5), Some(4)),
            ("b", Some(2), None),
            ("c", None, None),
            ("d", None, None),
            ("e", Some(1), Some(0)),
            ("f", None, None),
        ];
        let json = rows("m.jsonl", &format!("{{\"label\": 3, \"ranges\": {list}}}\n")).unwrap();
        assert_eq!(stretches(&json[0]), expected);
        let quoted = list.replace('"', "\"\"");
        let csv = rows("m.csv", &format!("label,path,ranges\n3,,\"{quoted}\"\n4,x,\n")).unwrap();
        assert_eq!(stretches(&csv[0]), expected);
        assert_eq!(stretches(&csv[1]), [("x", None, None)]);
        assert!(csv[1].more.is_empty());
    }

    #[test]
    fn what_is_wrong_with_ranges_is_told_with_its_line_and_range() {
        for (line, what) in [
            (r#"{"ranges": []}"#, "`ranges` has 0 ranges"),
            (r#"{"ranges": 5}"#, "`ranges` is no list"),
            (r#"{"ranges": {"a": 5}}"#, "`ranges` is an object"),
            (r#"{"ranges": "[[1"}"#, "`ranges` is no JSON"),
            (
                r#"{"ranges": [["a"], ["b", 9, 5]]}"#,
                "range 2 of `ranges` ends at byte 5, before it begins at 9",
            ),
            (
                r#"{"ranges": [["a", -1, 5]]}"#,
                "range 1 of `ranges` has the first byte -1",
            ),
            (
                r#"{"ranges": [["a", 1, "5"]]}"#,
                "range 1 of `ranges` has the end \"5\"",
            ),
            (r#"{"ranges": [[5, 1, 2]]}"#, "range 1 of `ranges` names no object"),
            (r#"{"ranges": [["a", 1, 2, 3]]}"#, "range 1 of `ranges` has 4 parts"),
            (r#"{"ranges": [7]}"#, "range 1 of `ranges` is no range"),
            (r#"{"ranges": [["a"]], "path": "b"}"#, "it has `ranges` and an object"),
            (r#"{"ranges": [["a"]], "size": 7}"#, "it has `ranges` and a size"),
            (r#"{"label": 7}"#, "no column of the manifest names objects"),
        ] {
            let error = rows("m.jsonl", &format!("{{\"path\": \"a\"}}\n{line}\n")).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(what), "{text}");
            assert!(text.contains("line 2") || line.contains("label"), "{text}");
        }
        let many = format!("{{\"ranges\": [{}]}}", vec!["\"a\""; MAX_RANGES as usize + 1].join(","));
        assert!(rows("m.jsonl", &many).unwrap_err().to_string().contains("16385 ranges"));
    }
}
