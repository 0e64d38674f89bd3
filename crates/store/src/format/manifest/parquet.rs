//! Parquet manifests, read row by row through the `parquet` crate's record interface (no Arrow).
//!
//! Only the columns that are needed are decoded. The crate beats writing this: thrift, six encodings and four codecs.

use super::{Cell, Columns, Row, Wanted};
use crate::{Error, Result};
use bytes::Bytes;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;

/// Reads all rows.
pub(super) fn parse(bytes: &Bytes, columns: &Columns) -> Result<Vec<Row>> {
    let wrong =
        |e: parquet::errors::ParquetError| Error::invalid(format!("the manifest is not readable: {e}")).with_source(e);
    let reader = SerializedFileReader::new(bytes.clone()).map_err(wrong)?;
    check_size(reader.metadata(), bytes.len() as u64)?;
    let schema = reader.metadata().file_metadata().schema().clone();
    let names: Vec<&str> = schema.get_fields().iter().map(|f| f.name()).collect();
    let needed = Wanted::new(&names, columns)?;
    let chosen: Vec<Arc<Type>> = needed
        .positions
        .iter()
        .flatten()
        .map(|&i| schema.get_fields()[i].clone())
        .collect();
    let projection = Type::group_type_builder(schema.name())
        .with_fields(chosen)
        .build()
        .map_err(wrong)?;
    let mut rows = Vec::new();
    for row in reader.get_row_iter(Some(projection)).map_err(wrong)? {
        let row = row.map_err(wrong)?;
        let cells: Vec<(&str, &Field)> = row
            .get_column_iter()
            .map(|(name, field)| (name.as_str(), field))
            .collect();
        let find = |at: usize| {
            cells
                .iter()
                .find(|(name, _)| *name == names[at])
                .map(|(_, field)| *field)
        };
        rows.push(needed.row(rows.len() + 1, |at| find(at).and_then(cell))?);
    }
    Ok(rows)
}

/// A manifest may be so much larger than its file: paths pack well, but each row is another one.
const UNPACKED_TIMES: i64 = 100;
const UNPACKED_BYTES: i64 = 256 << 20;
const ROWS_PER_BYTE: i64 = 16;
const ROWS: i64 = 1 << 20;

/// Refuses a file that would take memory out of all proportion.
fn check_size(metadata: &ParquetMetaData, file_bytes: u64) -> Result<()> {
    let file = i64::try_from(file_bytes).unwrap_or(i64::MAX);
    let unpacked = metadata
        .row_groups()
        .iter()
        .flat_map(|group| group.columns())
        .fold(0_i64, |sum, column| {
            sum.saturating_add(column.uncompressed_size().max(0))
        });
    let rows = metadata.file_metadata().num_rows();
    let is_bomb = unpacked > UNPACKED_BYTES.saturating_add(file.saturating_mul(UNPACKED_TIMES))
        || rows > ROWS.saturating_add(file.saturating_mul(ROWS_PER_BYTE));
    if is_bomb {
        return Err(Error::invalid(format!(
            "the manifest of {file} bytes would unpack to {unpacked} bytes and {rows} rows: it is no list of objects"
        )));
    }
    Ok(())
}

fn cell(field: &Field) -> Option<Cell<'_>> {
    Some(match field {
        Field::Str(text) => Cell::Text(text.as_str().into()),
        Field::Bytes(bytes) => Cell::Text(String::from_utf8_lossy(bytes.data())),
        Field::Bool(flag) => Cell::Flag(*flag),
        Field::Byte(n) => Cell::Integer(i64::from(*n)),
        Field::Short(n) => Cell::Integer(i64::from(*n)),
        Field::Int(n) => Cell::Integer(i64::from(*n)),
        Field::Long(n) => Cell::Integer(*n),
        Field::UByte(n) => Cell::Integer(i64::from(*n)),
        Field::UShort(n) => Cell::Integer(i64::from(*n)),
        Field::UInt(n) => Cell::Integer(i64::from(*n)),
        Field::ULong(n) => i64::try_from(*n).map_or_else(|_| Cell::Text(n.to_string().into()), Cell::Integer),
        Field::Float16(n) => Cell::Float(f64::from(n.to_f32())),
        Field::Float(n) => Cell::Float(f64::from(*n)),
        Field::Double(n) => Cell::Float(*n),
        Field::Null => return None,
        Field::Group(_) => Cell::Other("a group of columns"),
        list @ Field::ListInternal(_) => Cell::List(Cow::Owned(value(list))),
        Field::MapInternal(_) => Cell::Other("a map"),
        Field::Decimal(_) => Cell::Other("a decimal"),
        _ => Cell::Other("a date or time"),
    })
}

/// A list and what is in it.
fn value(field: &Field) -> Value {
    match field {
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::Group(row) => row
            .get_column_iter()
            .map(|(name, field)| (name.clone(), value(field)))
            .collect(),
        other => match cell(other) {
            Some(Cell::Text(text)) => Value::from(text),
            Some(Cell::Integer(number)) => Value::from(number),
            Some(Cell::Float(number)) => Value::from(number),
            Some(Cell::Other(kind)) => Value::from(vec![kind]),
            Some(Cell::List(list)) => list.into_owned(),
            Some(Cell::Flag(flag)) => flag.into(),
            None => Value::Null,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::Label;
    use super::*;
    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use proptest::prelude::*;

    fn sample() -> Bytes {
        let schema = "message m { REQUIRED BYTE_ARRAY path (STRING); REQUIRED INT64 offset; OPTIONAL INT64 label; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let compression = parquet::basic::Compression::SNAPPY;
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let mut file = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut file, schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let paths = ["a.jpg", "b.jpg"].map(ByteArray::from);
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&paths, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[5, 6], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<Int64Type>()
            .write_batch(&[9], Some(&[1, 0]), None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        file.into()
    }

    #[test]
    fn rows_are_read_with_their_gaps() {
        let rows = parse(&sample(), &Columns::default()).unwrap();
        let read: Vec<_> = rows
            .iter()
            .map(|r| (r.first.object.as_str(), r.first.offset, r.label.clone()))
            .collect();
        assert_eq!(
            read,
            [("a.jpg", Some(5), Some(Label::Number(9))), ("b.jpg", Some(6), None)]
        );
        assert!(parse(&Bytes::from_static(b"PAR1"), &Columns::default()).is_err());
    }

    #[test]
    fn a_file_that_would_take_memory_out_of_all_proportion_is_refused() {
        let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY path (STRING); }").unwrap());
        let compression = parquet::basic::Compression::ZSTD(Default::default());
        let made = |name: &str, rows: usize| -> Bytes {
            let properties = WriterProperties::builder()
                .set_compression(compression)
                .set_dictionary_enabled(false);
            let mut file = Vec::new();
            let mut writer =
                SerializedFileWriter::new(&mut file, schema.clone(), Arc::new(properties.build())).unwrap();
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let names = vec![ByteArray::from(name); rows];
            column.typed::<ByteArrayType>().write_batch(&names, None, None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
            writer.close().unwrap();
            file.into()
        };
        let said = |bytes: &Bytes| parse(bytes, &Columns::default()).unwrap_err().to_string();
        assert!(said(&made(&"a".repeat(1 << 20), 300)).contains("would unpack to"));
        assert!(said(&made("a", 2 << 20)).contains("would unpack to"));
        let long = said(&made(&"a".repeat(20_000), 1));
        assert!(long.contains("has 20000 bytes") && long.len() < 300, "{long}");
        assert_eq!(
            parse(&made(&"a".repeat(1000), 1000), &Columns::default())
                .unwrap()
                .len(),
            1000
        );
    }

    #[test]
    fn ranges_are_a_list_of_groups() {
        let schema = "message m { OPTIONAL BYTE_ARRAY path (STRING); OPTIONAL GROUP ranges (LIST) { REPEATED GROUP list { \
                      REQUIRED GROUP element { REQUIRED BYTE_ARRAY object (STRING); OPTIONAL INT64 start; OPTIONAL INT64 end; } } } }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut file = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        // Two ranges, and then a row that has none.
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<ByteArrayType>();
        typed.write_batch(&[ByteArray::from("x")], Some(&[0, 1]), None).unwrap();
        column.close().unwrap();
        let objects = ["a", "b"].map(ByteArray::from);
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<ByteArrayType>();
        typed.write_batch(&objects, Some(&[2, 2, 0]), Some(&[0, 1, 0])).unwrap();
        column.close().unwrap();
        for (values, levels) in [([5], [3, 2, 0]), ([9], [3, 2, 0])] {
            let mut column = group.next_column().unwrap().unwrap();
            let typed = column.typed::<Int64Type>();
            typed.write_batch(&values, Some(&levels), Some(&[0, 1, 0])).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        let rows = parse(&file.into(), &Columns::default()).unwrap();
        let stretches = |row: &Row| -> Vec<_> {
            let all = row.stretches();
            all.map(|it| (it.object.clone(), it.offset, it.length)).collect()
        };
        assert_eq!(
            stretches(&rows[0]),
            [("a".to_owned(), Some(5), Some(4)), ("b".to_owned(), None, None)]
        );
        assert_eq!(stretches(&rows[1]), [("x".to_owned(), None, None)]);
    }

    #[test]
    fn floats_are_whole_numbers_or_refused() {
        let read = |offset: f64, label: Option<f32>| {
            let schema =
                "message m { REQUIRED BYTE_ARRAY path (STRING); REQUIRED DOUBLE offset; OPTIONAL FLOAT label; }";
            let schema = Arc::new(parse_message_type(schema).unwrap());
            let mut file = Vec::new();
            let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::default()).unwrap();
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column
                .typed::<ByteArrayType>()
                .write_batch(&[ByteArray::from("a")], None, None)
                .unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<DoubleType>().write_batch(&[offset], None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let levels = [i16::from(label.is_some())];
            column
                .typed::<FloatType>()
                .write_batch(label.as_slice(), Some(&levels), None)
                .unwrap();
            column.close().unwrap();
            group.close().unwrap();
            writer.close().unwrap();
            parse(&file.into(), &Columns::default()).map(|rows| (rows[0].first.offset, rows[0].label.clone()))
        };
        assert_eq!(read(7.0, Some(3.0)).unwrap(), (Some(7), Some(Label::Number(3))));
        assert_eq!(read(f64::NAN, None).unwrap(), (None, None));
        assert!(read(7.5, None).is_err());
    }

    proptest! {
        /// The crate may panic on damaged files; `manifest::parse` runs on a thread that turns this into an error.
        #[test]
        fn proptest_damage_is_contained(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = sample().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = std::panic::catch_unwind(|| parse(&bytes.into(), &Columns::default()).is_ok());
        }
    }
}
