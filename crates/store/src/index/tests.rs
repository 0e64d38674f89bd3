use super::*;
use proptest::prelude::*;

/// Object, offset and length; label; checksum; fields; further ranges.
pub(super) type Row = (
    u64,
    u64,
    u64,
    Option<i64>,
    Option<u32>,
    Vec<(String, u64, u64)>,
    Vec<ObjectRange>,
);

fn etag() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        "\"[0-9a-f]{32}\"".prop_map(Some),
        "\"[0-9a-f]{32}-[0-9]{1,5}\"".prop_map(Some),
        "W/\"[0-9a-f]{32}\"".prop_map(Some),
        "\"[0-9A-F]{32}\"".prop_map(Some),
        "0x8D[0-9A-F]{12}".prop_map(Some),
    ]
}

fn object() -> impl Strategy<Value = ObjectRef> {
    let size = prop_oneof![0_u64..1000, 0_u64..1 << 40];
    (
        "[a-z/]{0,30}[a-zé]{1,10}",
        size,
        etag(),
        prop::option::of("[a-z0-9]{1,8}"),
    )
        .prop_map(|(key, size, etag, version)| ObjectRef {
            key,
            size,
            etag,
            version,
        })
}

pub(super) fn build(objects: &[ObjectRef], rows: &[Row], whole: bool) -> Index {
    let mut builder = IndexBuilder::new("s3://bucket/data/", Format::Folder);
    builder.classes(["cat", "dog"]).options("{}");
    for object in objects {
        let new = NewObject {
            key: &object.key,
            size: object.size,
            etag: object.etag.as_deref(),
            version: object.version.as_deref(),
        };
        if whole {
            builder.whole_object(new, Some(1), None).unwrap();
        } else {
            builder.object(new).unwrap();
        }
    }
    for (object, offset, length, label, crc32c, fields, more) in rows {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, offset, length)| NewField {
                name,
                offset: *offset,
                length: *length,
            })
            .collect();
        let new = NewSample {
            object: *object,
            offset: *offset,
            length: *length,
            more,
            label: *label,
            crc32c: *crc32c,
            fields: &fields,
            name: "",
        };
        builder.sample(new).unwrap();
    }
    builder.finish().unwrap()
}

pub(super) fn data_set() -> impl Strategy<Value = (Vec<ObjectRef>, Vec<Row>)> {
    prop::collection::vec(object(), 1..40).prop_flat_map(|objects| {
        let count = objects.len();
        let fields = prop::collection::vec(("[a-z]{0,3}", 0.0..1.0_f64), 0..4);
        let more = prop::collection::vec((0..count, 0.0..=1.0_f64, 0.0..=1.0_f64), 0..4);
        let more = prop_oneof![Just(Vec::new()), more];
        let row = (
            0..count,
            0.0..=1.0_f64,
            0.0..=1.0_f64,
            prop::option::of(-5_i64..5),
            any::<Option<u32>>(),
            fields,
            more,
        );
        let sizes: Vec<u64> = objects.iter().map(|o| o.size).collect();
        let rows = prop::collection::vec(row, 0..60).prop_map(move |rows| {
            rows.into_iter()
                .map(|(object, at, share, label, crc, fields, more)| {
                    let range = |(object, at, share): (usize, f64, f64)| {
                        let offset = (sizes[object] as f64 * at) as u64;
                        let length = ((sizes[object] - offset) as f64 * share) as u64;
                        let object = object as u64;
                        ObjectRange { object, offset, length }
                    };
                    let ObjectRange { offset, length, .. } = range((object, at, share));
                    let more: Vec<ObjectRange> = more.into_iter().map(range).collect();
                    let all: u64 = length + more.iter().map(|range| range.length).sum::<u64>();
                    let field = |(name, at): (String, f64)| {
                        let start = (all as f64 * at) as u64;
                        (name, start, all - start)
                    };
                    (
                        object as u64,
                        offset,
                        length,
                        label,
                        crc,
                        fields.into_iter().map(field).collect(),
                        more,
                    )
                })
                .collect()
        });
        (Just(objects), rows)
    })
}

/// Calls every accessor, including with numbers that do not exist.
pub(super) fn read_everything(index: &Index) {
    let (samples, objects) = (index.len().min(300), index.objects().min(300));
    for i in (0..=samples).chain([u64::MAX]) {
        if let Ok(sample) = index.sample(i) {
            let _ = sample.fields().take(1000).count();
            let ranges: Vec<ObjectRange> = sample.ranges().collect();
            let size = |it: &ObjectRange| index.at(Section::Sizes, it.object);
            let inside = |it: &ObjectRange| size(it).is_some_and(|size| it.bytes().end <= size);
            assert!(!ranges.is_empty() && ranges.iter().all(inside));
            assert_eq!(ranges.iter().map(|it| it.length).sum::<u64>(), sample.length);
        }
        let _ = (
            index.length(i),
            index.label(i),
            index.object_of(i),
            index.is_several(i),
            index.crc32c(i),
            index.sample_key("", i),
        );
    }
    for o in (0..=objects).chain([u64::MAX]) {
        let _ = index.object(o);
    }
    let _ = (
        index.classes().len(),
        index.root(),
        index.options(),
        index.digest(),
        index.format(),
    );
}

proptest! {
    #[test]
    fn proptest_an_index_returns_what_was_added((objects, rows) in data_set()) {
        let index = build(&objects, &rows, false);
        let index = Index::from_bytes(index.as_bytes().clone()).unwrap();
        prop_assert_eq!(index.len(), rows.len() as u64);
        prop_assert_eq!(index.objects(), objects.len() as u64);
        prop_assert_eq!(index.classes(), vec!["cat", "dog"]);
        prop_assert_eq!(index.root(), "s3://bucket/data");
        for (o, object) in objects.iter().enumerate() {
            prop_assert_eq!(&index.object(o as u64).unwrap(), object);
        }
        let any_several = rows.iter().any(|row| !row.6.is_empty());
        prop_assert_eq!(index.as_bytes()[8], if any_several { 3 } else { 1 });
        for (i, (object, offset, length, label, crc, fields, more)) in rows.iter().enumerate() {
            let i = i as u64;
            let sample = index.sample(i).unwrap();
            let ranges: Vec<ObjectRange> = sample.ranges().collect();
            let first = ObjectRange { object: *object, offset: *offset, length: *length };
            prop_assert_eq!((ranges[0], &ranges[1..]), (first, more.as_slice()));
            prop_assert_eq!((sample.range(), index.is_several(i)), (first.bytes(), !more.is_empty()));
            let length = &ranges.iter().map(|range| range.length).sum();
            prop_assert_eq!((sample.object, sample.offset, sample.length), (*object, *offset, *length));
            prop_assert_eq!((sample.label, sample.crc32c), (*label, *crc));
            prop_assert_eq!((index.length(i), index.label(i), index.object_of(i)), (*length, *label, *object));
            let read: Vec<_> = sample.fields().map(|(n, o, l)| (n.to_owned(), o, l)).collect();
            let whole = vec![(String::new(), 0, *length)];
            prop_assert_eq!(&read, if fields.is_empty() { &whole } else { fields });
        }
    }

    #[test]
    fn proptest_whole_objects_need_no_ranges(objects in prop::collection::vec(object(), 0..40)) {
        let index = build(&objects, &[], true);
        for (i, object) in objects.iter().enumerate() {
            let sample = index.sample(i as u64).unwrap();
            prop_assert_eq!((sample.object, sample.range()), (i as u64, 0..object.size));
            prop_assert_eq!(sample.label, Some(1));
        }
        prop_assert!(index.inner.layout.column(Section::SampleLength).is_none());
        prop_assert!(index.inner.layout.column(Section::RangeStarts).is_none());
    }

    #[test]
    fn proptest_a_damaged_index_is_refused_and_never_panics(
        (objects, rows) in data_set(), at in any::<prop::sample::Index>(), flip in 1_u8.., cut in any::<prop::sample::Index>())
    {
        let good = build(&objects, &rows, false).as_bytes().to_vec();
        let mut flipped = good.clone();
        flipped[at.index(good.len())] ^= flip;
        prop_assert!(Index::from_bytes(flipped.clone().into()).is_err());
        prop_assert!(Index::from_bytes(good[..cut.index(good.len())].to_vec().into()).is_err());
        if let Ok(index) = Index::from_trusted_bytes(flipped.into()) {
            read_everything(&index);
        }
    }

    /// A hostile writer makes the checksums right: damage header and table, then sign them again.
    #[test]
    fn proptest_a_hostile_index_never_panics(
        (objects, rows) in data_set(), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6))
    {
        let mut file = build(&objects, &rows, false).as_bytes().to_vec();
        let sections = u32::from_le_bytes(file[12..16].try_into().unwrap()) as usize;
        let table_end = 72 + sections * 40;
        for (at, value) in edits {
            let at = at.index(table_end - 16) + 16;
            file[at] = value;
        }
        let body = layout::crc32c(&file[table_end..]);
        file[64..68].copy_from_slice(&body.to_le_bytes());
        file[68..72].fill(0);
        let head = layout::crc32c(&file[..table_end]);
        file[68..72].copy_from_slice(&head.to_le_bytes());
        if let Ok(index) = Index::from_bytes(file.into()) {
            read_everything(&index);
        }
    }

    #[test]
    fn proptest_noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Index::from_bytes(bytes.into()).is_err());
    }
}

#[test]
fn the_digest_covers_content_but_not_place() {
    let objects = [ObjectRef {
        key: "a/b".into(),
        size: 5,
        etag: Some("\"x\"".into()),
        version: None,
    }];
    let rows: Vec<Row> = vec![(0, 1, 2, Some(3), None, vec![], vec![])];
    let digest = build(&objects, &rows, false).digest();
    let mut moved = IndexBuilder::new("gs://elsewhere", Format::Manifest);
    moved
        .object(NewObject {
            key: "a/b",
            size: 5,
            etag: Some("\"x\""),
            version: None,
        })
        .unwrap();
    let sample = NewSample {
        object: 0,
        offset: 1,
        length: 2,
        more: &[],
        label: Some(3),
        crc32c: Some(9),
        fields: &[],
        name: "",
    };
    moved.sample(sample).unwrap();
    assert_eq!(moved.finish().unwrap().digest(), digest);
    let other: Vec<Row> = vec![(0, 1, 2, Some(4), None, vec![], vec![])];
    assert_ne!(build(&objects, &other, false).digest(), digest);
    let further = |offset, length| {
        let range = ObjectRange {
            object: 0,
            offset,
            length,
        };
        let rows: Vec<Row> = vec![(0, 1, 2, Some(3), None, vec![], vec![range])];
        build(&objects, &rows, false)
    };
    let [one, two, three] = [(3, 1), (4, 1), (3, 2)].map(|(offset, length)| further(offset, length));
    assert!(![one.digest(), two.digest(), three.digest()].contains(&digest));
    assert!(one.digest() != two.digest() && one.digest() != three.digest());
    assert!(one.sample_key("", 0).unwrap() != two.sample_key("", 0).unwrap());
}

#[test]
fn an_empty_index_and_shards_without_samples_open() {
    assert!(build(&[], &[], false).is_empty());
    let shard = ObjectRef {
        key: "a.tar".into(),
        size: 1024,
        etag: None,
        version: None,
    };
    assert_eq!(build(&[shard], &[], false).len(), 0);
}

#[test]
fn imagenet_fits_in_64_mb() {
    const OBJECTS: u64 = 64_000;
    let mut builder = IndexBuilder::new("s3://bucket/imagenet/train", Format::Folder);
    let mut random = 1_u64;
    for i in 0..OBJECTS {
        let class = i / 1300;
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let key = format!(
            "train/n{:08}/n{:08}_{}.JPEG",
            1_440_764 + class * 977,
            1_440_764 + class * 977,
            i * 37 % 30_000
        );
        let etag = format!("\"{:016x}{random:016x}\"", random.rotate_left(17));
        let new = NewObject {
            key: &key,
            size: 50_000 + (random >> 45),
            etag: Some(&etag),
            version: None,
        };
        builder
            .whole_object(new, Some(class as i64), Some(random as u32))
            .unwrap();
    }
    let bytes = builder.finish().unwrap().as_bytes().len() as u64;
    let imagenet = bytes * 1_281_167 / OBJECTS;
    println!("ImageNet: {:.1} MB with checksums", imagenet as f64 / 1e6);
    assert!(imagenet < 60_000_000, "{imagenet}");
}

#[test]
fn a_sample_has_no_range_outside_its_object_and_not_too_many() {
    let mut builder = IndexBuilder::new("s3://bucket", Format::Manifest);
    for (key, size) in [("a", 100), ("b", 50)] {
        let new = NewObject {
            key,
            size,
            ..NewObject::default()
        };
        builder.object(new).unwrap();
    }
    let mut add = |more: &[ObjectRange]| {
        builder.sample(NewSample {
            length: 100,
            more,
            ..NewSample::default()
        })
    };
    let range = |object, offset, length| ObjectRange { object, offset, length };
    let error = add(&[range(0, 0, 1), range(1, 40, 11)]).unwrap_err().to_string();
    assert!(error.contains("40+11") && error.contains("50 bytes"), "{error}");
    assert!(
        add(&[range(2, 0, 0)])
            .unwrap_err()
            .to_string()
            .contains("names object 2")
    );
    assert!(add(&[range(1, 1, u64::MAX)]).is_err());
    let many = vec![range(1, 0, 50); MAX_RANGES as usize];
    assert!(add(&many).unwrap_err().to_string().contains("16385 ranges"));
    assert_eq!(add(&many[1..]).unwrap(), 0);
    let index = builder.finish().unwrap();
    assert_eq!(index.length(0), 100 + 50 * (MAX_RANGES - 1));
    assert_eq!(index.sample(0).unwrap().ranges().len() as u64, MAX_RANGES);
}
