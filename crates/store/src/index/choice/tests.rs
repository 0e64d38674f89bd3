use super::*;
use crate::format::Format;
use crate::index::tests::{build, data_set};
use crate::index::{NewObject, ObjectRef};
use bytes::Bytes;
use proptest::prelude::*;

/// What every accessor says of a sample, its objects by what they are.
fn said(index: &Index, i: u64) -> impl PartialEq + std::fmt::Debug {
    let sample = index.sample(i).unwrap();
    let object = |o: u64| -> ObjectRef { index.object(o).unwrap() };
    let ranges: Vec<_> = sample
        .ranges()
        .map(|range| (object(range.object), range.bytes()))
        .collect();
    // A field without a name beside others is no part that anybody made, and is not copied.
    let named = sample.fields().filter(|(name, ..)| !name.is_empty());
    let fields: Vec<_> = named.map(|(name, at, len)| (name.to_owned(), at, len)).collect();
    assert_eq!((sample.object, sample.length), (index.object_of(i), index.length(i)));
    assert_eq!(
        (sample.label, sample.crc32c, sample.name()),
        (index.label(i), index.crc32c(i), index.name(i))
    );
    (
        (
            object(sample.object),
            sample.range(),
            sample.length,
            index.is_several(i),
        ),
        (
            sample.label,
            sample.crc32c,
            sample.name(),
            index.sample_key("", i).unwrap(),
        ),
        (ranges, fields),
    )
}

/// A choice is what an index is that was made of its samples alone.
fn is_as_alone(choice: &Index) {
    let alone = choice.alone().unwrap();
    let alone = Index::from_bytes(alone.as_bytes().clone()).unwrap();
    assert!(alone.numbers().is_none());
    assert_eq!(
        (choice.digest(), choice.len(), choice.objects()),
        (alone.digest(), alone.len(), alone.objects())
    );
    assert_eq!(
        (choice.root(), choice.format(), choice.options()),
        (alone.root(), alone.format(), alone.options())
    );
    assert_eq!((choice.classes(), choice.notes()), (alone.classes(), alone.notes()));
    // What does not look may look for nothing, and not the other way round.
    assert!(choice.shares_objects() || !alone.shares_objects());
    for i in 0..choice.len() {
        assert_eq!(said(choice, i), said(&alone, i), "sample {i}");
    }
    for i in [choice.len(), u64::MAX] {
        assert_eq!((choice.length(i), choice.label(i), choice.crc32c(i)), (0, None, None));
        assert_eq!(
            choice.sample(i).unwrap_err().to_string(),
            alone.sample(i).unwrap_err().to_string()
        );
    }
}

fn list(numbers: &[u64]) -> Numbers {
    numbers.iter().copied().collect()
}

/// As [`list`], of 8 bytes each.
fn wide(numbers: &[u64]) -> Numbers {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Numbers::from_bytes(bytes.into(), numbers.len() as u64).unwrap()
}

/// Whole objects, with keys, ETags and labels.
fn folder(objects: u64) -> Index {
    let mut builder = IndexBuilder::new("s3://b/d", Format::Folder);
    builder.classes(["a", "b"]).options("{}");
    for i in 0..objects {
        let (key, etag) = (format!("{}/{i}.jpg", i / 70), format!("\"{i:032x}\""));
        let etag = [None, Some(etag.as_str()), Some("0x8D")][i as usize % 3];
        let new = NewObject {
            key: &key,
            size: 100 + i,
            etag,
            version: None,
        };
        builder.whole_object(new, Some((i % 2) as i64), Some(i as u32)).unwrap();
    }
    builder.finish().unwrap()
}

proptest! {
    #[test]
    fn proptest_a_choice_is_an_index_of_its_samples_alone(
        (objects, rows) in data_set(), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        sorted in any::<bool>(), again in prop::collection::vec(any::<prop::sample::Index>(), 0..10))
    {
        let index = build(&objects, &rows, false);
        let pick = |from: usize, picks: &[prop::sample::Index]| -> Vec<u64> {
            picks.iter().filter(|_| from > 0).map(|it| it.index(from) as u64).collect()
        };
        let mut numbers = pick(rows.len(), &picks);
        if sorted {
            numbers.sort_unstable();
            numbers.dedup();
        }
        let choice = index.choose(list(&numbers)).unwrap();
        is_as_alone(&choice);
        let one_each = !rows.iter().any(|row| !row.6.is_empty());
        if one_each {
            prop_assert_eq!(choice.shares_objects(), choice.objects() < choice.len());
        }
        for (i, &number) in (0..).zip(&numbers) {
            prop_assert_eq!(said(&choice, i), said(&index, number));
        }
        prop_assert_eq!(index.choose(wide(&numbers)).unwrap().digest(), choice.digest());
        // A choice of a choice is one of the whole.
        let again = pick(numbers.len(), &again);
        let part = choice.choose(list(&again)).unwrap();
        is_as_alone(&part);
        let composed: Vec<u64> = again.iter().map(|&i| numbers[i as usize]).collect();
        prop_assert_eq!(part.numbers().unwrap().iter().collect::<Vec<_>>(), composed);
        prop_assert_eq!(part.whole().digest(), index.digest());
    }

    #[test]
    fn proptest_objects_are_numbered_by_their_first_use(objects in prop::collection::vec(0_u64..300, 0..80), sorted in 0_usize..80) {
        let mut objects = objects;
        let sorted = sorted.min(objects.len());
        objects[..sorted].sort_unstable();
        let (mut used, mut known) = (Used::default(), Vec::new());
        for object in objects {
            let at = known.iter().position(|&other| other == object);
            let is_new = at.is_none();
            known.extend(is_new.then_some(object));
            let number = at.unwrap_or(known.len() - 1) as u64;
            prop_assert_eq!(used.number(object, 300), (number, is_new));
        }
        prop_assert_eq!(used.count, known.len() as u64);
    }

    #[test]
    fn proptest_damaged_numbers_never_panic(
        (objects, rows) in data_set(), bytes in prop::collection::vec(any::<u8>(), 0..64), digest in any::<[u8; 16]>(), needed in any::<u64>())
    {
        let index = build(&objects, &rows, false);
        for width in [4, 8] {
            let bytes = Bytes::copy_from_slice(&bytes[..bytes.len() / width * width]);
            let numbers = Numbers::from_bytes(bytes.clone(), (bytes.len() / width) as u64).unwrap();
            let choice = index.chosen(numbers.clone(), digest, needed);
            crate::index::tests::read_everything(&choice);
            for (i, number) in (0..).zip(numbers.iter()) {
                prop_assert_eq!(choice.sample(i).is_ok(), number < index.len());
            }
            let is_good = numbers.iter().all(|number| number < index.len());
            prop_assert_eq!(index.choose(numbers.clone()).is_ok(), is_good);
            prop_assert_eq!(choice.alone().is_ok(), is_good);
            let _ = (choice.choose(numbers), choice.notes(), choice.shares_objects());
        }
    }
}

#[test]
fn a_choice_keeps_ranges_labels_and_content_keys() {
    let whole = folder(200);
    for numbers in [
        &[7, 2, 2][..],
        &[],
        &[5],
        &[199, 0, 16, 15, 17, 1],
        &[3, 4, 5, 90, 91, 20, 4],
    ] {
        is_as_alone(&whole.choose(list(numbers)).unwrap());
    }
    let some = whole.choose(list(&[7, 2, 2])).unwrap();
    assert_eq!((some.len(), some.objects(), some.classes()), (3, 2, vec!["a", "b"]));
    assert!(some.shares_objects(), "one sample is there twice");
    assert_ne!(some.digest(), whole.digest());
    let all: Vec<u64> = (0..200).collect();
    let all = whole.choose(list(&all)).unwrap();
    assert!(!all.shares_objects());
    assert_eq!(all.digest(), whole.digest());
    let every = whole.choose((0..100_000).map(|i| i * 7 % 200).collect()).unwrap();
    assert_eq!((every.len(), every.objects()), (100_000, 200));
    assert_eq!(every.digest(), every.alone().unwrap().digest());
}

#[test]
fn a_number_that_is_no_sample_is_named() {
    let whole = folder(10);
    let error = whole.choose(list(&[3, 10])).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Invalid);
    assert!(
        error.to_string().contains("there is no sample 10: the data set has 10"),
        "{error}"
    );
    let error = whole.choose(wide(&[u64::MAX])).unwrap_err().to_string();
    assert!(error.contains("no sample 18446744073709551615"), "{error}");
    let some = whole.choose(list(&[9, 8])).unwrap();
    let error = some.choose(list(&[1, 2])).unwrap_err().to_string();
    assert!(error.contains("there is no sample 2: the data set has 2"), "{error}");
}

#[test]
fn a_choice_can_be_ended_early() {
    let whole = folder(10);
    let mut asked = Vec::new();
    let mut once = |done| {
        asked.push(done);
        asked.len() < 2
    };
    let many = list(&vec![0; 3 << 16]);
    assert!(whole.choose_while(many, &mut once).unwrap().is_none());
    assert_eq!(asked, [0, 1 << 16]);
}
