//! What building an index found worth telling: objects that were left out, shards that hold nothing.
//!
//! The index keeps it ([`Index::notes`](crate::Index::notes)), so that whoever opens it later hears of it too.

use super::{BuildOptions, folder};
use crate::source::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// In a sentence, without a full stop.
    pub text: String,
    /// Whether it probably isn't what the user wants.
    pub warns: bool,
}

/// Share of objects in no class directory, one of so many, from which a guess of class directories is doubtful: below it they are a README.
const DOUBTFUL: usize = 100;

/// Objects named in a note.
const NAMED: usize = 5;

/// What of a listing is no sample.
pub(super) fn left_out(objects: &[ObjectMeta], by_class: bool, options: &BuildOptions) -> Vec<Note> {
    let (mut classless, mut others) = (0, 0);
    for object in objects {
        if !folder::is_data(&object.key, &options.extensions) {
            others += 1;
        } else if by_class && folder::class(&object.key).is_none() {
            classless += 1;
        }
    }
    let all = objects.len();
    let mut notes = Vec::new();
    if classless > 0 {
        notes.push(Note {
            text: format!(
                "{classless} of {all} objects lie in no class directory and are left out; format='flat' takes them"
            ),
            warns: options.format.is_none() && classless * DOUBTFUL >= all,
        });
    }
    if others > 0 {
        let why = match options.extensions.as_slice() {
            [] => "hidden, or markers of other programs".to_owned(),
            wanted => format!("their names don't end in {}", wanted.join(", ")),
        };
        let text = format!("{others} of {all} objects are left out: {why}");
        notes.push(Note { text, warns: false });
    }
    notes
}

/// What is odd about shards, of so many: those without a sample, and those without tar's mark at the end.
pub(super) fn of_shards(all: usize, empty: &[String], unended: &[String]) -> Vec<Note> {
    let tell = |shards: &[String], what: &str| {
        let more = if shards.len() > NAMED { ", ..." } else { "" };
        let named = shards[..shards.len().min(NAMED)].join(", ");
        (!shards.is_empty()).then(|| Note {
            text: format!("{} of {all} shards {what}: {named}{more}", shards.len()),
            warns: true,
        })
    };
    let unended = tell(
        unended,
        "have no mark at their end, so they were cut off between two members, or their writer was not closed",
    );
    tell(empty, "hold no sample").into_iter().chain(unended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_file_is_told_and_most_of_the_data_is_warned_of() {
        let objects = |loose: usize, dealt: usize| {
            let key = |key| ObjectMeta {
                key,
                size: 1,
                etag: None,
                version: None,
                modified: None,
            };
            let loose = (0..loose).map(|i| key(format!("{i}.jpg")));
            loose
                .chain((0..dealt).map(|i| key(format!("a/{i}.jpg"))))
                .chain([key("a/.x".into())])
                .collect::<Vec<_>>()
        };
        let auto = BuildOptions::default();
        let told = left_out(&objects(500, 1), true, &auto);
        assert_eq!(
            told[0].text,
            "500 of 502 objects lie in no class directory and are left out; format='flat' takes them"
        );
        assert!(told[0].warns && !told[1].warns);
        assert_eq!(
            told[1].text,
            "1 of 502 objects are left out: hidden, or markers of other programs"
        );
        assert!(!left_out(&objects(1, 500), true, &auto)[0].warns);
        let asked = BuildOptions {
            format: Some(super::super::Format::Folder),
            ..auto
        };
        assert!(!left_out(&objects(500, 1), true, &asked)[0].warns);
        assert_eq!(left_out(&objects(500, 1), false, &asked).len(), 1);
    }
}
