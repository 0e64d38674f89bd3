use super::*;
use proptest::prelude::*;

fn group(nodes: u32, tiers: &[u64], exchange: Exchange) -> Group {
    Group {
        nodes,
        tiers: tiers.to_vec(),
        copies: Some(0),
        copy_pays: vec![true; tiers.len()],
        exchange,
        epochs: 5,
        reads_all: true,
    }
}

/// Blocks of these sizes, read by node `first[k]` first; then by all others, in turn. Returns the table and each block's home.
fn fill(placement: &mut Placement, blocks: &[(u64, u32, bool)]) -> Vec<Option<(u32, usize)>> {
    let mut homes = Vec::new();
    for (number, &(bytes, reader, shared)) in (0..).zip(blocks) {
        let block = Block { number, bytes, shared };
        let home = placement.choose_home(reader, block, 0, || 4, |_, _| true);
        if home.is_some() {
            placement.present(number);
        }
        homes.push(home);
        for node in 0..placement.group.nodes {
            placement.consider_copy(node, block, 0, || 4);
        }
    }
    homes
}

prop_compose! {
    /// A cluster and the blocks it reads.
    fn cases()(nodes in 1u32..17, tiers in prop::collection::vec(0u64..4000, 1..3))(
        blocks in prop::collection::vec((1u64..400, 0..nodes, any::<bool>()), 1..120), nodes in Just(nodes), tiers in Just(tiers),
    ) -> (u32, Vec<u64>, Vec<(u64, u32, bool)>) {
        (nodes, tiers, blocks)
    }
}

proptest! {
    #[test]
    fn no_tier_holds_more_than_it_has_room_for((nodes, tiers, blocks) in cases(), poor in any::<bool>()) {
        let exchange = if poor { Exchange::Poor } else { Exchange::Good };
        let bytes = blocks.iter().map(|b| b.0).sum();
        let mut placement = Placement::new(group(nodes, &tiers, exchange), blocks.len() as u32, bytes);
        let homes = fill(&mut placement, &blocks);
        let mut held = vec![0; nodes as usize * tiers.len()];
        for (number, home) in (0..).zip(&homes) {
            if let Some((node, tier)) = home {
                held[*node as usize * tiers.len() + tier] += blocks[number as usize].0;
            }
            for node in 0..nodes {
                if placement.has_copy(node, number) {
                    held[node as usize * tiers.len()] += blocks[number as usize].0;
                }
            }
        }
        for (held, room) in held.iter().zip(tiers.repeat(nodes as usize)) {
            prop_assert!(*held <= room);
        }
    }

    #[test]
    fn while_any_block_lacks_a_home_there_is_no_copy((nodes, tiers, blocks) in cases()) {
        let bytes: u64 = blocks.iter().map(|b| b.0).sum();
        let room: u64 = tiers.iter().sum::<u64>() * u64::from(nodes);
        let mut placement = Placement::new(group(nodes, &tiers, Exchange::Good), blocks.len() as u32, bytes);
        for number in 0..blocks.len() {
            let (size, reader, shared) = blocks[number];
            let block = Block { number: number as u32, bytes: size, shared };
            placement.choose_home(reader, block, 0, || 4, |_, _| true);
            placement.present(block.number);
            for node in 0..nodes {
                placement.consider_copy(node, block, 0, || 4);
            }
            // Copies take only what all homes, those to come too, leave over.
            let (homes, all) = placement.coverage();
            let homeless: u64 = (0..blocks.len()).filter(|k| placement.home[*k] == NOWHERE).map(|k| blocks[k].0).sum();
            let free: u64 = placement.free.iter().sum();
            prop_assert!(homes == all || (room >= bytes && free >= homeless));
        }
    }

    #[test]
    fn an_object_s_home_is_its_first_reader_while_that_has_room((nodes, tiers, blocks) in cases()) {
        let objects: Vec<_> = blocks.iter().map(|&(bytes, reader, _)| (bytes, reader, false)).collect();
        let bytes = objects.iter().map(|b| b.0).sum();
        let mut placement = Placement::new(group(nodes, &tiers, Exchange::Good), objects.len() as u32, bytes);
        for (number, &(bytes, reader, shared)) in (0..).zip(&objects) {
            let fits = placement.room(reader).iter().any(|free| *free >= bytes);
            let home = placement.choose_home(reader, Block { number, bytes, shared }, 0, || 4, |_, _| true);
            prop_assert_eq!(home.is_some_and(|(node, _)| node == reader), fits);
        }
    }

    #[test]
    fn a_cell_has_one_home_whoever_reads_it_first((nodes, _, blocks) in cases(), readers in prop::collection::vec(0u32..1000, 120)) {
        let cells: Vec<_> = blocks.iter().map(|&(bytes, reader, _)| (bytes, reader, true)).collect();
        let others: Vec<_> = cells.iter().zip(&readers).map(|(cell, reader)| (cell.0, reader % nodes, true)).collect();
        let bytes = cells.iter().map(|b| b.0).sum();
        let roomy = group(nodes, &[bytes], Exchange::Good);
        let [homes, again] = [&cells, &others].map(|cells| fill(&mut Placement::new(roomy.clone(), cells.len() as u32, bytes), cells));
        prop_assert_eq!(homes, again);
    }

    #[test]
    fn what_is_found_is_where_it_was_put((nodes, tiers, blocks) in cases()) {
        let bytes = blocks.iter().map(|b| b.0).sum();
        let mut placement = Placement::new(group(nodes, &tiers, Exchange::Good), blocks.len() as u32, bytes);
        for block in 0..blocks.len() as u32 {
            prop_assert_eq!(placement.find(0, block, 0), Where::Nowhere);
            prop_assert_eq!(placement.find(0, block, 1), Where::Coming);
        }
        let homes = fill(&mut placement, &blocks);
        for (block, home) in (0..).zip(homes) {
            for node in 0..nodes {
                let found = placement.find(node, block, 1);
                match home {
                    None => prop_assert_eq!(found, Where::Nowhere),
                    Some((home, tier)) if home == node => prop_assert_eq!(found, Where::Own(tier)),
                    Some(_) if placement.has_copy(node, block) => prop_assert_eq!(found, Where::Own(0)),
                    Some((home, tier)) => prop_assert_eq!(found, Where::Peer(home, tier)),
                }
            }
        }
    }

    #[test]
    fn a_node_that_leaves_moves_only_its_own_blocks(nodes in 2u32..17, lost in 0u32..17, blocks in 1u64..2000) {
        let lost = lost % nodes;
        for block in 0..blocks {
            let before = hashed_home(block, 0..nodes).expect("a node");
            let after = hashed_home(block, (0..nodes).filter(|node| *node != lost)).expect("another");
            prop_assert!(before == after || before == lost);
        }
    }
}

#[test]
fn hashed_homes_are_spread_evenly() {
    for nodes in [2u32, 7, 16] {
        let mut held = vec![0u32; nodes as usize];
        (0..16_000).for_each(|block| held[hashed_home(block, 0..nodes).expect("a node") as usize] += 1);
        let mean = 16_000.0 / f64::from(nodes);
        // Five sigma of the binomial.
        assert!(
            held.iter()
                .all(|held| (f64::from(*held) - mean).abs() < 5.0 * mean.sqrt()),
            "{held:?}"
        );
    }
}

#[test]
fn hashed_homes_never_change() {
    let homes: Vec<_> = (0..12).filter_map(|block| hashed_home(block, 0..5)).collect();
    assert_eq!(homes, [3, 1, 0, 1, 3, 0, 1, 4, 1, 4, 4, 3]);
}

#[test]
fn where_the_network_is_poor_a_node_keeps_for_itself_what_it_reads_often() {
    let mut placement = Placement::new(group(4, &[1000], Exchange::Poor), 2, 2000);
    let block = |number| Block {
        number,
        bytes: 10,
        shared: false,
    };
    assert_eq!(placement.choose_home(1, block(0), 0, || 0, |_, _| true), None);
    assert_eq!(placement.choose_home(1, block(1), 0, || 4, |_, _| true), Some((1, 0)));
}
