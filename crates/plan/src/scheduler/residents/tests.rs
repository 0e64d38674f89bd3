use super::*;
use proptest::prelude::*;

/// What there is in memory of a policy that lets what passed through rest, and room for sixteen samples.
fn residents() -> (Residents, Arena) {
    (Residents::new(true), Arena::new(16 * 64))
}

/// A sample that is on its way.
fn loading(residents: &mut Residents, arena: &mut Arena, block: u64) -> u32 {
    let slot = arena.take(64, Stay::Short).expect("room");
    let id = residents.insert(Content::block(block), (1, 0), slot, Via::Bucket);
    residents.get_mut(id).parts = 1;
    id
}

fn arrive(residents: &mut Residents, id: u32) {
    let it = residents.get_mut(id);
    (it.parts, it.state) = (0, State::Ready);
}

/// A sample that is there, and that nothing holds.
fn ready(residents: &mut Residents, arena: &mut Arena, block: u64) -> u32 {
    let id = loading(residents, arena, block);
    arrive(residents, id);
    residents.let_go(id, arena);
    id
}

fn kept(residents: &mut Residents, arena: &mut Arena, block: u64) -> u32 {
    let id = loading(residents, arena, block);
    arrive(residents, id);
    residents.keep(id);
    id
}

fn lease(residents: &mut Residents, id: u32) -> Handle {
    let ready = residents.ready(id).expect("it is there");
    residents.lease(ready)
}

fn is_there(residents: &Residents, block: u64) -> bool {
    residents.find(Content::block(block)).is_some()
}

/// Blocks of what leaves, first to last.
fn leaving(residents: &mut Residents, arena: &mut Arena, among: &[u64]) -> Vec<u64> {
    let mut left = Vec::new();
    let there = |residents: &Residents| {
        let there = among.iter().copied().filter(|&block| is_there(residents, block));
        there.collect::<Vec<_>>()
    };
    loop {
        let before = there(residents);
        if !residents.drop_resting(true, arena) {
            return left;
        }
        let after = there(residents);
        left.extend(before.into_iter().filter(|block| !after.contains(block)));
    }
}

#[test]
fn only_what_is_all_there_can_be_delivered() {
    let (mut residents, mut arena) = residents();
    assert!(residents.ready(0).is_none(), "there is nothing");
    let id = loading(&mut residents, &mut arena, 1);
    assert!(residents.ready(id).is_none());
    residents.get_mut(id).state = State::Failed(Failure::Corrupt);
    assert!(residents.ready(id).is_none());
    arrive(&mut residents, id);
    assert_eq!(residents.ready(id).map(Ready::id), Some(id));
    residents.drop_if_idle(id, &mut arena);
    assert!(residents.ready(id).is_none(), "it has left");
    let again = loading(&mut residents, &mut arena, 2);
    assert_eq!(again, id, "the place is used again");
    assert!(residents.ready(id).is_none());
}

#[test]
fn a_handle_names_one_stay_and_not_the_next_in_its_place() {
    let (mut residents, mut arena) = residents();
    let first = loading(&mut residents, &mut arena, 1);
    let old = residents.handle(first);
    assert_eq!(residents.of(old), Some(first));
    arrive(&mut residents, first);
    residents.drop_if_idle(first, &mut arena);
    assert_eq!(residents.of(old), None);
    let second = loading(&mut residents, &mut arena, 1);
    assert_eq!((second, residents.of(old)), (first, None));
    assert_ne!(residents.handle(second), old);
    assert_eq!(
        residents.of(Handle {
            index: 9,
            generation: 0
        }),
        None
    );
}

#[test]
fn memory_goes_back_when_its_last_owner_lets_go() {
    let (mut residents, mut arena) = residents();
    let id = loading(&mut residents, &mut arena, 1);
    let is_held = |residents: &mut Residents, arena: &mut Arena| {
        residents.let_go(id, arena);
        assert!(!residents.drop_resting(true, arena));
        residents.drop_if_idle(id, arena);
        arena.used_bytes() == 64
    };
    assert!(is_held(&mut residents, &mut arena), "a load writes into it");
    residents.plan_use(id);
    arrive(&mut residents, id);
    assert!(is_held(&mut residents, &mut arena), "a read of it is planned");
    lease(&mut residents, id);
    residents.get_mut(id).uses -= 1;
    assert!(is_held(&mut residents, &mut arena), "a consumer has it");
    residents.get_mut(id).writes += 1;
    assert!(residents.unlease(id));
    assert!(is_held(&mut residents, &mut arena), "it is on its way to a disk");
    residents.get_mut(id).writes -= 1;
    residents.let_go(id, &mut arena);
    assert_eq!((arena.used_bytes(), residents.resting_bytes), (64, 64), "now it rests");
    assert!(residents.drop_resting(false, &mut arena));
    assert_eq!(
        (arena.used_bytes(), residents.resting_bytes, residents.count()),
        (0, 0, 0)
    );
}

#[test]
fn a_lease_is_given_back_once() {
    let (mut residents, mut arena) = residents();
    let id = ready(&mut residents, &mut arena, 1);
    assert!(!residents.unlease(id));
    lease(&mut residents, id);
    lease(&mut residents, id);
    assert_eq!(
        (residents.leases, residents.leased_bytes, residents.held_bytes),
        (2, 64, 64)
    );
    assert_eq!([(); 3].map(|()| residents.unlease(id)), [true, true, false]);
    assert_eq!(
        (residents.leases, residents.leased_bytes, residents.held_bytes),
        (0, 0, 0)
    );
}

#[test]
fn the_stretches_that_nobody_holds_a_part_of_are_told() {
    let (mut residents, mut arena) = residents();
    let unheld = |residents: &Residents| residents.unheld(1024).expect("few").collect::<Vec<u64>>();
    assert_eq!(unheld(&residents), [1024]);
    let ids: Vec<u32> = (0..4)
        .map(|at| {
            let slot = arena.take(128, Stay::Long).expect("room");
            let id = residents.insert(Content::block(at), (1, 0), slot, Via::Bucket);
            arrive(&mut residents, id);
            id
        })
        .collect();
    assert_eq!(unheld(&residents), [1024], "it is there, and nobody holds it");
    lease(&mut residents, ids[3]);
    assert_eq!(unheld(&residents), [384, 512]);
    lease(&mut residents, ids[1]);
    lease(&mut residents, ids[1]);
    assert_eq!(unheld(&residents), [128, 128, 512]);
    assert!(residents.unlease(ids[1]));
    assert_eq!(unheld(&residents), [128, 128, 512], "it was leased twice");
    assert!(residents.unlease(ids[1]) && residents.unlease(ids[3]));
    assert_eq!(unheld(&residents), [1024]);
}

#[test]
fn leases_of_a_block_hold_a_share_for_each_sample_and_never_more_than_all() {
    let (mut residents, mut arena) = residents();
    residents.share();
    let slot = arena.take(256, Stay::Short).expect("room");
    let id = residents.insert(Content::block(0), (4, 512), slot, Via::Bucket);
    arrive(&mut residents, id);
    assert_eq!((residents.samples(id), residents.offset(id)), (4, 512));
    let held: Vec<u64> = (0..6)
        .map(|_| {
            lease(&mut residents, id);
            residents.held_bytes
        })
        .collect();
    assert_eq!(held, [64, 128, 192, 256, 256, 256]);
    assert_eq!(residents.leased_bytes, 256, "its memory can't be planned with");
    (0..5).for_each(|_| assert!(residents.unlease(id)));
    assert_eq!((residents.held_bytes, residents.leased_bytes), (64, 256));
    residents.keep(id);
    assert_eq!(
        (residents.held_bytes, residents.leased_bytes),
        (64, 0),
        "it is kept anyway"
    );
    assert_eq!(residents.kept_samples, 4);
    residents.unkeep(id);
    assert_eq!((residents.leased_bytes, residents.kept_samples), (256, 0));
    assert!(residents.unlease(id));
    assert_eq!((residents.held_bytes, residents.leased_bytes), (0, 0));
}

#[test]
fn what_rests_leaves_in_the_order_in_which_its_last_read_was_planned() {
    let (mut residents, mut arena) = residents();
    let ids = [1, 2, 3].map(|block| loading(&mut residents, &mut arena, block));
    for id in [ids[0], ids[1], ids[2], ids[0]] {
        residents.plan_use(id);
    }
    for id in ids {
        arrive(&mut residents, id);
        residents.get_mut(id).uses = 0;
        residents.let_go(id, &mut arena);
    }
    assert_eq!(residents.resting_bytes, 3 * 64);
    assert_eq!(leaving(&mut residents, &mut arena, &[1, 2, 3]), [2, 3, 1]);
    assert_eq!((arena.used_bytes(), residents.resting_bytes), (0, 0));
}

#[test]
fn a_planned_read_wakes_what_rests() {
    let (mut residents, mut arena) = residents();
    let first = ready(&mut residents, &mut arena, 1);
    ready(&mut residents, &mut arena, 2);
    residents.plan_use(first);
    assert_eq!(residents.resting_bytes, 64);
    assert_eq!(leaving(&mut residents, &mut arena, &[1, 2]), [2]);
    assert!(is_there(&residents, 1));
}

#[test]
fn what_failed_does_not_rest() {
    let (mut residents, mut arena) = residents();
    let id = loading(&mut residents, &mut arena, 1);
    residents.get_mut(id).parts = 0;
    residents.get_mut(id).state = State::Failed(Failure::Final);
    residents.let_go(id, &mut arena);
    assert_eq!((arena.used_bytes(), residents.count()), (0, 0));
}

#[test]
fn a_kept_sample_that_failed_is_kept_no_more() {
    let (mut residents, mut arena) = residents();
    let id = kept(&mut residents, &mut arena, 1);
    residents.let_go(id, &mut arena);
    assert!(is_there(&residents, 1));
    residents.get_mut(id).state = State::Failed(Failure::Final);
    residents.let_go(id, &mut arena);
    assert_eq!(
        (arena.used_bytes(), residents.kept_bytes, residents.kept_samples),
        (0, 0, 0)
    );
}

#[test]
fn where_the_policy_keeps_nothing_a_sample_leaves_with_its_last_owner() {
    let (mut residents, mut arena) = (Residents::new(false), Arena::new(1024));
    let id = loading(&mut residents, &mut arena, 1);
    residents.plan_use(id);
    arrive(&mut residents, id);
    residents.let_go(id, &mut arena);
    assert!(is_there(&residents, 1));
    residents.get_mut(id).uses -= 1;
    residents.let_go(id, &mut arena);
    assert_eq!((arena.used_bytes(), residents.count()), (0, 0));
}

#[test]
fn what_is_on_its_way_to_a_disk_is_waited_for_unless_it_is_urgent() {
    let (mut residents, mut arena) = residents();
    let written = loading(&mut residents, &mut arena, 1);
    arrive(&mut residents, written);
    residents.get_mut(written).writes = 1;
    ready(&mut residents, &mut arena, 2);
    assert!(!residents.drop_resting(false, &mut arena));
    assert!(residents.drop_resting(true, &mut arena));
    assert!(is_there(&residents, 1) && !is_there(&residents, 2));
    // A consumer that holds something for long delays nobody.
    let held = loading(&mut residents, &mut arena, 3);
    residents.get_mut(written).writes = 0;
    residents.let_go(written, &mut arena);
    arrive(&mut residents, held);
    lease(&mut residents, held);
    assert!(residents.drop_resting(false, &mut arena));
    assert!(!is_there(&residents, 1) && is_there(&residents, 3));
}

#[test]
fn what_a_peer_is_to_bring_for_a_disk_holds_up_nobody_else() {
    let (mut residents, mut arena) = residents();
    let [bucket, peer] = [(1, Via::Bucket), (2, Via::Peer)].map(|(block, via)| {
        let id = loading(&mut residents, &mut arena, block);
        (residents.get_mut(id).via, residents.get_mut(id).to_tier) = (via, Some(0));
        id
    });
    ready(&mut residents, &mut arena, 3);
    assert!(!residents.drop_resting(false, &mut arena), "the bucket brings it soon");
    residents.get_mut(bucket).to_tier = None;
    arrive(&mut residents, bucket);
    residents.let_go(bucket, &mut arena);
    assert!(residents.drop_resting(false, &mut arena));
    assert!(residents.drop_resting(false, &mut arena));
    assert!(!is_there(&residents, 1) && is_there(&residents, 2) && !is_there(&residents, 3));
    // It is there, and being written.
    arrive(&mut residents, peer);
    residents.get_mut(peer).writes = 1;
    ready(&mut residents, &mut arena, 4);
    assert!(!residents.drop_resting(false, &mut arena));
}

#[test]
fn of_kept_ones_the_oldest_that_nothing_holds_is_evicted_and_using_one_makes_it_new() {
    let (mut residents, mut arena) = residents();
    let ids = [1, 2, 3, 4].map(|block| kept(&mut residents, &mut arena, block));
    residents.refresh(ids[0]);
    lease(&mut residents, ids[1]);
    residents.plan_use(ids[2]);
    let there = |residents: &Residents| [1, 2, 3, 4].map(|block| is_there(residents, block));
    assert!(residents.evict_one(&mut arena));
    assert_eq!(there(&residents), [true, true, true, false]);
    assert!(residents.evict_one(&mut arena));
    assert_eq!(there(&residents), [false, true, true, false]);
    assert!(!residents.evict_one(&mut arena), "the others are held");
    assert_eq!(
        (residents.kept_bytes, residents.kept_samples, arena.used_bytes()),
        (128, 2, 128)
    );
    residents.unlease(ids[1]);
    assert!(residents.evict_one(&mut arena));
    assert_eq!(there(&residents), [false, false, true, false]);
}

#[test]
fn a_kept_one_that_is_still_loading_is_not_evicted() {
    let (mut residents, mut arena) = residents();
    let id = loading(&mut residents, &mut arena, 1);
    residents.keep(id);
    assert!(!residents.evict_one(&mut arena));
    residents.get_mut(id).parts = 0;
    assert!(!residents.evict_one(&mut arena));
    arrive(&mut residents, id);
    assert!(residents.evict_one(&mut arena));
}

#[test]
fn what_came_along_is_held_until_its_read_is_planned_or_nothing_is_expected() {
    let (mut residents, mut arena) = residents();
    let ids = [1, 2].map(|block| {
        let id = loading(&mut residents, &mut arena, block);
        residents.expect(id);
        arrive(&mut residents, id);
        residents.let_go(id, &mut arena);
        id
    });
    assert_eq!((residents.expected_bytes, residents.resting_bytes), (128, 0));
    assert!(residents.get(ids[0]).is_wanted(), "its load is to fly");
    residents.plan_use(ids[0]);
    assert_eq!(residents.expected_bytes, 64);
    assert!(residents.forget_expected(&mut arena));
    assert_eq!((residents.expected_bytes, residents.resting_bytes), (0, 64));
    assert!(!residents.forget_expected(&mut arena), "nothing is");
    assert_eq!(leaving(&mut residents, &mut arena, &[1, 2]), [2]);
}

#[test]
fn a_request_is_told_once_and_not_after_it_has_stopped_waiting() {
    let (mut residents, mut arena) = residents();
    let id = loading(&mut residents, &mut arena, 1);
    for request in [7, 8, 9] {
        residents.wait(id, request);
    }
    residents.unwait(id, 7);
    assert!(residents.get(id).waiting);
    let mut told: Vec<u64> = residents.told(id).collect();
    told.sort_unstable();
    assert_eq!(told, [8, 9]);
    assert_eq!((residents.told(id).count(), residents.get(id).waiting), (0, false));
    residents.wait(id, 7);
    residents.unwait(id, 7);
    assert!(!residents.get(id).waiting);
    residents.unwait(id, 7);
    residents.unwait(NONE, 7);
    residents.wait(id, 5);
    arrive(&mut residents, id);
    residents.drop_if_idle(id, &mut arena);
    let next = loading(&mut residents, &mut arena, 2);
    assert_eq!(
        (next, residents.told(next).count()),
        (id, 0),
        "the next one in its place has no waiters"
    );
}

#[test]
fn the_first_use_of_each_loaded_sample_is_what_the_load_was_for() {
    let (mut residents, mut arena) = residents();
    residents.share();
    let slot = arena.take(128, Stay::Short).expect("room");
    let id = residents.insert(Content::block(0), (2, 0), slot, Via::Disk);
    let used = [(); 3].map(|()| residents.get_mut(id).used());
    assert_eq!(used, [Via::Disk, Via::Disk, Via::Ram]);
    residents.loads_from(id, Via::Bucket);
    assert_eq!(residents.get(id).state, State::Loading);
    assert_eq!(residents.get_mut(id).used(), Via::Bucket, "it is loaded again");
}

#[test]
fn what_is_kept_of_a_data_set_is_part_of_its_claim_and_the_rest_is_left_to_it() {
    let (mut residents, mut arena) = residents();
    residents.claims([(0, 0, 128)].into_iter());
    assert_eq!(residents.claimed_by_others(Content::block(3)), 0, "there are no others");
    // Blocks and samples 0..10 are one data set's, 10.. and 20.. the other's.
    residents.claims([(0, 0, 128), (10, 20, 192)].into_iter());
    let claimed = |residents: &Residents| {
        [
            Content::block(9),
            Content::block(10),
            Content::sample(19),
            Content::sample(20),
        ]
        .map(|content| residents.claimed_by_others(content))
    };
    assert_eq!(claimed(&residents), [192, 128, 192, 128]);
    kept(&mut residents, &mut arena, 9);
    let second = kept(&mut residents, &mut arena, 10);
    assert_eq!(claimed(&residents), [128, 64, 128, 64]);
    residents.claims([(0, 0, 32), (10, 20, 192)].into_iter());
    assert_eq!(claimed(&residents), [128, 0, 128, 0], "it keeps more than its claim");
    residents.unkeep(second);
    assert_eq!(claimed(&residents)[0], 192);
}

#[test]
fn what_nobody_reads_any_more_leaves_but_for_what_is_held() {
    let (mut residents, mut arena) = residents();
    let ids = [1, 2, 3, 4].map(|block| kept(&mut residents, &mut arena, block));
    let handle = lease(&mut residents, ids[1]);
    let gone = |content: Content| content != Content::block(4);
    residents.forget(&mut arena, gone);
    assert_eq!(
        [1, 2, 3, 4].map(|block| is_there(&residents, block)),
        [false, true, false, true]
    );
    assert_eq!((residents.kept_samples, arena.used_bytes()), (1, 128));
    assert!(residents.any(gone));
    assert_eq!(
        residents.of(handle),
        Some(ids[1]),
        "its bytes stay until it is given back"
    );
    residents.unlease(ids[1]);
    residents.forget(&mut arena, gone);
    assert!(!residents.any(gone) && residents.any(|_| true));
}

#[test]
fn what_is_expected_stays_unless_it_failed() {
    let (mut residents, mut arena) = residents();
    for (block, failed) in [(1, false), (2, true)] {
        let id = loading(&mut residents, &mut arena, block);
        residents.expect(id);
        arrive(&mut residents, id);
        if failed {
            residents.get_mut(id).state = State::Failed(Failure::Cancelled);
        }
        residents.drop_if_idle(id, &mut arena);
        assert_eq!(is_there(&residents, block), !failed);
    }
}

#[test]
fn a_limit_holds_for_the_whole_arena() {
    let mut arena = Arena::new(1024);
    let take = |arena: &mut Arena, len, limit| Residents::take(arena, len, Stay::Short, limit).is_some();
    assert!(take(&mut arena, 100, 128));
    assert!(!take(&mut arena, 1, 128), "rounded up it is all taken");
    assert!(!take(&mut arena, 65, 192));
    assert!(take(&mut arena, 64, 192));
    assert_eq!(arena.used_bytes(), 192);
}

/// What a resident's neighbours in the lists say, compared with the table.
fn check(residents: &Residents, arena: &Arena) -> Result<(), TestCaseError> {
    let there = || residents.table.iter().filter(|it| it.state != State::Vacant);
    let bytes = |is: &dyn Fn(&&Resident) -> bool| there().filter(is).map(|it| reserved_bytes(it.slot.len)).sum::<u64>();
    prop_assert_eq!(bytes(&|_| true), arena.used_bytes());
    prop_assert_eq!(bytes(&|it| it.is_kept()), residents.kept_bytes);
    prop_assert_eq!(bytes(&|it| it.stays == Stays::Rests), residents.resting_bytes);
    prop_assert_eq!(bytes(&|it| it.stays == Stays::Expected), residents.expected_bytes);
    prop_assert_eq!(bytes(&|it| it.leases > 0 && !it.is_kept()), residents.leased_bytes);
    prop_assert_eq!(bytes(&|it| it.leases > 0), residents.held_bytes);
    prop_assert_eq!(there().map(|it| u64::from(it.leases)).sum::<u64>(), residents.leases);
    prop_assert_eq!(there().count(), residents.count());
    for (ends, are_kept) in [(&residents.kept, true), (&residents.passing, false)] {
        let (mut previous, mut at, mut listed) = (NONE, ends.oldest, 0);
        while at != NONE {
            let it = residents.get(at);
            prop_assert!(it.is_kept() == are_kept && it.state != State::Vacant);
            prop_assert_eq!(it.previous, previous);
            prop_assert!(it.stays != Stays::Rests || !it.is_held(), "what is held doesn't rest");
            (previous, at, listed) = (at, it.next, listed + 1);
        }
        prop_assert_eq!(ends.newest, previous);
        prop_assert_eq!(there().filter(|it| it.is_kept() == are_kept).count(), listed);
    }
    Ok(())
}

proptest! {
    #[test]
    fn counts_and_lists_agree_with_the_table_whatever_happens(steps in proptest::collection::vec((0u8..12, 0u64..6), 1..200)) {
        let (mut residents, mut arena) = residents();
        for (step, block) in steps {
            let found = residents.find(Content::block(block));
            match (step, found) {
                (0, None) => drop(loading(&mut residents, &mut arena, block)),
                (1, None) => {
                    let id = loading(&mut residents, &mut arena, block);
                    residents.expect(id);
                }
                (1 | 2, Some(id)) if residents.get(id).state == State::Loading => {
                    arrive(&mut residents, id);
                    residents.let_go(id, &mut arena);
                }
                (3, Some(id)) => residents.plan_use(id),
                (4, Some(id)) if residents.get(id).uses > 0 => {
                    residents.get_mut(id).uses -= 1;
                    residents.let_go(id, &mut arena);
                }
                (5, Some(id)) if residents.ready(id).is_some() && residents.get(id).uses > 0 => drop(lease(&mut residents, id)),
                (6, Some(id)) if residents.unlease(id) => residents.let_go(id, &mut arena),
                (7, Some(id)) if !residents.get(id).is_kept() => residents.keep(id),
                (8, Some(id)) => residents.refresh(id),
                (9, _) => drop(residents.evict_one(&mut arena)),
                (10, _) => drop(residents.drop_resting(block % 2 == 0, &mut arena)),
                (11, _) => drop(residents.forget_expected(&mut arena)),
                _ => {}
            }
            check(&residents, &arena)?;
        }
    }
}
