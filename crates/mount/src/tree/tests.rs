use super::*;

const TTL: Duration = Duration::from_secs(60);

fn file(size: u64, etag: &str) -> Kind {
    Kind::File(Object {
        size,
        etag: Some(etag.into()),
        version: None,
        modified: None,
    })
}

fn tree(most: usize) -> (Tree, Instant) {
    let now = Instant::now();
    (Tree::new(most, TTL, now), now)
}

#[test]
fn what_is_listed_is_found_and_all_else_is_missing_until_its_time_is_over() {
    let (mut tree, now) = tree(100);
    assert_eq!(tree.look(ROOT, "a", now), Look::Unknown);
    tree.list(
        ROOT,
        vec![("b".into(), file(1, "x")), ("a".into(), Kind::Directory)],
        now,
        now,
    );
    let names = |tree: &Tree, now| -> Option<Vec<String>> {
        let listing = tree.listing(ROOT, now)?;
        Some(listing.into_iter().map(|listed| listed.name.to_string()).collect())
    };
    assert_eq!(names(&tree, now), Some(vec!["a".into(), "b".into()]));
    let Look::Found(a) = tree.look(ROOT, "a", now) else {
        panic!("it is there")
    };
    assert_eq!(tree.look(ROOT, "c", now), Look::Missing);
    assert_eq!(tree.look(a, "c", now), Look::Unknown);
    assert_eq!(tree.look(ROOT, "a", now + TTL), Look::Unknown);
    assert_eq!(tree.listing(ROOT, now + TTL), None);
    // Listed again: the same entries, but for what has gone.
    tree.list(ROOT, vec![("a".into(), Kind::Directory)], now + TTL, now + TTL);
    assert_eq!(tree.look(ROOT, "a", now + TTL), Look::Found(a));
    assert_eq!(tree.look(ROOT, "b", now + TTL), Look::Missing);
    assert_eq!(tree.len(), 1);
}

#[test]
fn what_is_missing_is_known_to_be_so_for_a_while() {
    let (mut tree, now) = tree(100);
    tree.put(ROOT, "a", Kind::Missing, now);
    assert_eq!(tree.look(ROOT, "a", now), Look::Missing);
    assert_eq!(tree.look(ROOT, "b", now), Look::Unknown);
    assert_eq!(tree.look(ROOT, "a", now + TTL), Look::Unknown);
    let ino = tree.put(ROOT, "a", file(3, "x"), now + TTL).expect("there is a root");
    assert_eq!(tree.look(ROOT, "a", now + TTL), Look::Found(ino));
    assert_eq!(tree.listing(ROOT, now + TTL), None);
}

#[test]
fn another_object_by_the_same_name_is_another_entry_and_who_has_the_first_one_keeps_it() {
    let (mut tree, now) = tree(100);
    let first = tree.put(ROOT, "a", file(3, "x"), now).expect("there is a root");
    let Some((Kind::File(object), _)) = tree.kind(first, now) else {
        panic!("a file")
    };
    let spot = Spot { shelf: 7, first: 8 };
    tree.set_spot(first, &object, spot, now);
    tree.refer(first);
    assert!(!tree.keep(first) && tree.keep(first));
    assert_eq!(tree.put(ROOT, "a", file(3, "x"), now), Some(first));
    assert_eq!((tree.spot(first, &object), tree.keep(first)), (Some(spot), true));
    let mut before = first;
    for (size, etag) in [(3, "y"), (4, "y")] {
        let next = tree.put(ROOT, "a", file(size, etag), now).expect("there is a root");
        assert_ne!(next, before);
        assert_eq!(tree.look(ROOT, "a", now), Look::Found(next));
        let Some((Kind::File(other), _)) = tree.kind(next, now) else {
            panic!("a file")
        };
        assert_eq!((tree.spot(next, &other), tree.keep(next)), (None, false));
        // Nor is it where the first one is, whoever asks.
        assert_eq!(tree.spot(first, &other), None);
        before = next;
    }
    assert!(tree.is_linked(before) && !tree.is_linked(first));
    let Some((Kind::File(kept), _)) = tree.kind(first, now) else {
        panic!("it is open")
    };
    assert_eq!((kept, tree.spot(first, &object)), (object.clone(), Some(spot)));
    tree.forget(first, 1);
    assert!(tree.kind(first, now).is_none());
}

#[test]
fn what_got_another_name_while_it_was_placed_has_no_place() {
    let (mut tree, now) = tree(100);
    let ino = tree.put(ROOT, "a", file(3, "x"), now).expect("there is a root");
    let Some((Kind::File(object), _)) = tree.kind(ino, now) else {
        panic!("a file")
    };
    let (begun, spot) = (now + Duration::from_secs(1), Spot { shelf: 7, first: 8 });
    tree.renamed(ino, ROOT, "b", Some(object.clone()), now + Duration::from_secs(2));
    tree.set_spot(ino, &object, spot, begun);
    assert_eq!((tree.key(ino).as_deref(), tree.spot(ino, &object)), (Some("b"), None));
    tree.set_spot(ino, &object, spot, now + Duration::from_secs(3));
    assert_eq!(tree.spot(ino, &object), Some(spot));
}

#[test]
fn an_object_that_was_written_once_more_with_the_same_bytes_is_the_same_and_newer() {
    let (mut tree, now) = tree(100);
    let at = |seconds: u64, more: u32| {
        let Kind::File(object) = file(3, "x") else {
            panic!("a file")
        };
        let modified = SystemTime::UNIX_EPOCH + Duration::new(seconds, more);
        Kind::File(Object {
            modified: Some(modified),
            ..object
        })
    };
    let ino = tree.put(ROOT, "a", at(100, 500_000_000), now).expect("there is a root");
    for (seconds, more, expected) in [(100, 0, (100, 500_000_000)), (200, 0, (200, 0)), (150, 0, (200, 0))] {
        assert_eq!(tree.put(ROOT, "a", at(seconds, more), now), Some(ino));
        assert_eq!(
            tree.kind(ino, now).map(|(kind, _)| kind),
            Some(at(expected.0, expected.1))
        );
    }
}

#[test]
fn what_was_asked_before_a_change_from_here_knows_nothing_of_it() {
    let (mut tree, asked) = tree(100);
    let now = asked + Duration::from_secs(1);
    let Kind::File(object) = file(3, "x") else {
        panic!("a file")
    };
    let old = tree.put(ROOT, "old", file(3, "x"), asked).expect("there is a root");
    let gone = tree.put(ROOT, "gone", file(3, "x"), asked).expect("there is a root");
    tree.renamed(old, ROOT, "new", Some(object.clone()), now);
    tree.deleted(gone, now);
    let made = tree.make(ROOT, "made", file(0, "y"), now).expect("there is a root");
    tree.landed(ROOT, &"made".into(), made, object, now);
    let all = vec![("old".into(), file(3, "x")), ("gone".into(), file(3, "x"))];
    tree.list(ROOT, all.clone(), asked, now);
    let look = |tree: &Tree, name| tree.look(ROOT, name, now);
    assert_eq!(
        (look(&tree, "new"), look(&tree, "made")),
        (Look::Found(old), Look::Found(made))
    );
    assert_eq!(
        (look(&tree, "old"), look(&tree, "gone")),
        (Look::Missing, Look::Missing)
    );
    tree.put_asked(ROOT, "new", Kind::Missing, asked, now);
    assert_eq!(look(&tree, "new"), Look::Found(old));
    // What is asked afterwards does.
    tree.list(ROOT, all, now + TTL, now + TTL);
    assert_eq!(tree.look(ROOT, "new", now + TTL), Look::Missing);
    assert!(matches!(tree.look(ROOT, "gone", now + TTL), Look::Found(_)));
}

#[test]
fn who_asked_before_the_first_file_of_a_directory_landed_knows_nothing_of_the_directory() {
    for is_listing in [true, false] {
        let (mut tree, now) = tree(100);
        let (asked, later) = (now + Duration::from_secs(1), now + Duration::from_secs(2));
        let directory = tree.make(ROOT, "made", Kind::Directory, now).expect("there is a root");
        let ino = tree.make(directory, "file", file(0, "new"), now).expect("it is there");
        let Kind::File(object) = file(7, "landed") else {
            unreachable!()
        };
        tree.landed(directory, &"file".into(), ino, object, later);
        // The bucket had nothing then.
        if is_listing {
            tree.list(ROOT, Vec::new(), asked, later);
        } else {
            tree.put_asked(ROOT, "made", Kind::Missing, asked, later);
        }
        assert_eq!(tree.look(ROOT, "made", later), Look::Found(directory));
        assert_eq!(tree.look(directory, "file", later), Look::Found(ino));
    }
}

#[test]
fn what_the_kernel_refers_to_stays_when_it_is_unlinked() {
    let (mut tree, now) = tree(100);
    let directory = tree.put(ROOT, "d", Kind::Directory, now).expect("there is a root");
    let ino = tree
        .put(directory, "a", file(3, "x"), now)
        .expect("there is a directory");
    tree.refer(ino);
    tree.refer(ino);
    tree.list(ROOT, vec![("d".into(), file(1, "z"))], now, now);
    assert_eq!(tree.look(directory, "a", now), Look::Missing);
    assert!(tree.kind(ino, now).is_some());
    tree.forget(ino, 1);
    assert!(tree.kind(ino, now).is_some());
    tree.forget(ino, 1);
    assert!(tree.kind(ino, now).is_none());
}

#[test]
fn there_are_no_more_entries_than_may_be_and_none_is_taken_for_missing() {
    let (mut tree, now) = tree(50);
    let directory = tree.put(ROOT, "d", Kind::Directory, now).expect("there is a root");
    tree.refer(directory);
    let found = (0..200).map(|n| (format!("{n:03}"), file(n, "x"))).collect();
    tree.list(directory, found, now, now);
    // A directory is known as a whole.
    assert_eq!(tree.listing(directory, now).map(|listing| listing.len()), Some(200));
    let other = tree.put(ROOT, "e", Kind::Directory, now).expect("there is a root");
    for more in [20, 30, 40] {
        tree.list(
            other,
            (0..more).map(|n| (format!("{n:03}"), file(n, "x"))).collect(),
            now,
            now,
        );
    }
    assert!(tree.len() <= 52, "{}", tree.len());
    assert_eq!(tree.listing(other, now).map(|listing| listing.len()), Some(40));
    for n in 0..200 {
        let look = tree.look(directory, &format!("{n:03}"), now);
        assert_ne!(look, Look::Missing);
    }
}

#[test]
fn the_kernel_is_told_to_let_go_of_what_is_too_much() {
    let (mut tree, now) = tree(10);
    for n in 0..30 {
        let ino = tree
            .put(ROOT, &n.to_string(), file(n, "x"), now)
            .expect("there is a root");
        tree.refer(ino);
    }
    assert_eq!(tree.len(), 30);
    let unwanted = tree.unwanted();
    assert!(unwanted.iter().any(|(parent, name)| *parent == ROOT && &**name == "0"));
    for n in 2..32 {
        tree.forget(n, 1);
    }
    for n in 100..120 {
        tree.put(ROOT, &n.to_string(), file(n, "x"), now);
    }
    assert!(tree.len() <= 11, "{}", tree.len());
}

#[test]
fn files_without_a_place_are_named_by_their_keys() {
    let (mut tree, now) = tree(100);
    let directory = tree.put(ROOT, "d", Kind::Directory, now).expect("there is a root");
    let deep = tree.put(directory, "e", Kind::Directory, now).expect("a directory");
    let one = tree.put(deep, "one", file(1, "x"), now).expect("a directory");
    let two = tree.put(ROOT, "two", file(2, "x"), now).expect("a directory");
    let keys = |tree: &Tree, good| -> Vec<(Ino, String)> {
        let found = tree.unplaced(10, |spot| spot.shelf >= good);
        found.into_iter().map(|(ino, key, _)| (ino, key)).collect()
    };
    assert_eq!(keys(&tree, 0), [(two, "two".into()), (one, "d/e/one".into())]);
    let Some((Kind::File(object), _)) = tree.kind(two, now) else {
        panic!("a file")
    };
    tree.set_spot(two, &object, Spot { shelf: 3, first: 0 }, now);
    assert_eq!(keys(&tree, 0), [(one, "d/e/one".into())]);
    assert_eq!(keys(&tree, 4).len(), 2);
}

#[test]
fn names_that_no_file_system_has_are_told() {
    assert!(["", ".", "..", "a/b", "a\0b"].iter().all(|part| !is_name(part)));
    assert!(!is_name(&"x".repeat(256)) && is_name(&"x".repeat(255)) && is_name("...") && is_name("ä b"));
}
