//! CSV as RFC 4180 has it: quoted fields may hold separators, quotes and line ends.

use super::{Cell, Columns, Row, Wanted};
use crate::{Error, Result};
use std::borrow::Cow;

/// Reads a table whose first line names the columns.
pub(super) fn parse(text: &str, separator: u8, columns: &Columns) -> Result<Vec<Row>> {
    let mut lines = Lines {
        text,
        at: 0,
        line: 0,
        separator,
    };
    let mut fields = Vec::new();
    if !lines.next(&mut fields)? {
        return Err(Error::invalid("the manifest is empty"));
    }
    let names: Vec<&str> = fields.iter().map(|f| f.as_ref()).collect();
    let wanted = Wanted::new(&names, columns)?;
    let mut rows = Vec::new();
    let mut fields = Vec::new();
    while lines.next(&mut fields)? {
        if fields.len() > 1 || fields.first().is_some_and(|f| !f.trim().is_empty()) {
            check_width(lines.line, &fields, names.len())?;
            rows.push(wanted.row(lines.line, |i| fields.get(i).map(|f| Cell::Text(f.as_ref().into())))?);
        }
    }
    Ok(rows)
}

/// A row with fewer fields than the header was cut off, and what is missing would be taken for not given; with more, some stand in wrong columns.
fn check_width(line: usize, fields: &[Cow<'_, str>], columns: usize) -> Result<()> {
    let is_right = fields.len() >= columns && fields[columns..].iter().all(|field| field.trim().is_empty());
    if is_right {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "line {line} of the manifest has {} fields, and its header {columns}",
        fields.len()
    ))
    .with_remedy("was it cut off? A field that isn't given is left empty"))
}

struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    separator: u8,
}

impl<'a> Lines<'a> {
    /// Reads the fields of the next record; `false` at the end.
    fn next(&mut self, fields: &mut Vec<Cow<'a, str>>) -> Result<bool> {
        fields.clear();
        if self.at >= self.text.len() {
            return Ok(false);
        }
        self.line += 1;
        loop {
            fields.push(self.field()?);
            match self.text.as_bytes().get(self.at) {
                Some(&byte) if byte == self.separator => self.at += 1,
                Some(b'\r') => self.at += 1 + usize::from(self.text.as_bytes().get(self.at + 1) == Some(&b'\n')),
                Some(_) => self.at += 1,
                None => return Ok(true),
            }
            if self.text.as_bytes()[self.at - 1] != self.separator {
                return Ok(true);
            }
        }
    }

    fn field(&mut self) -> Result<Cow<'a, str>> {
        let rest = &self.text[self.at..];
        let ends = |b: &u8| *b == self.separator || *b == b'\n' || *b == b'\r';
        let Some(quoted) = rest.strip_prefix('"') else {
            let length = rest.bytes().position(|b| ends(&b)).unwrap_or(rest.len());
            self.at += length;
            return Ok(Cow::Borrowed(&rest[..length]));
        };
        let (mut value, mut from) = (String::new(), 0);
        loop {
            let quote = quoted[from..].find('"').map(|at| from + at);
            let quote = quote
                .ok_or_else(|| Error::invalid(format!("line {} of the manifest: a quote is not closed", self.line)))?;
            value.push_str(&quoted[from..quote]);
            self.line += quoted[from..quote].matches('\n').count();
            from = quote + 1;
            if quoted.as_bytes().get(from) != Some(&b'"') {
                break;
            }
            value.push('"');
            from += 1;
        }
        if quoted.as_bytes().get(from).is_some_and(|b| !ends(b)) {
            return Err(Error::invalid(format!(
                "line {} of the manifest: text behind a closing quote",
                self.line
            )));
        }
        self.at += 1 + from;
        Ok(Cow::Owned(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_row_of_another_width_than_the_header_is_refused() {
        let parse = |rows: &str| {
            parse(
                &format!("object,offset,length,label\n{rows}"),
                b',',
                &Columns::default(),
            )
        };
        let whole = "a,0,5,1\nb,5,5,1";
        assert_eq!(parse(whole).unwrap().len(), 2);
        assert_eq!(parse("a,,,\nb,5,5,1,,\n\n").unwrap().len(), 2);
        // Wherever before the label it is cut off.
        for cut in 9..whole.len() - 1 {
            let read = parse(&whole[..cut]);
            assert!(read.is_err(), "{:?}", &whole[..cut]);
        }
        assert!(parse("a,0,5,1,7").is_err());
    }

    proptest! {
        #[test]
        fn proptest_what_is_quoted_comes_back(table in prop::collection::vec(prop::collection::vec("[a,\"\n\r ;é]{0,8}", 2..4), 1..5)) {
            let quote = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let text: String = table.iter().map(|r| r.iter().map(quote).collect::<Vec<_>>().join(",") + "\r\n").collect();
            let mut lines = Lines { text: &text, at: 0, line: 0, separator: b',' };
            let mut fields = Vec::new();
            for row in &table {
                prop_assert!(lines.next(&mut fields).unwrap());
                prop_assert_eq!(&fields, row);
            }
            prop_assert!(!lines.next(&mut fields).unwrap());
        }
    }
}
