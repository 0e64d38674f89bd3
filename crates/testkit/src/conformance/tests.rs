//! A carrier that keeps every promise, and one for each promise that is broken.

use super::*;
use std::cell::Cell;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breaks {
    Nothing,
    /// Ranges that begin behind a megabyte are a byte off.
    Offset,
    /// The last byte of more than a megabyte is missing.
    Short,
    /// A read that meets another one has its bytes.
    Mixed,
    /// An unknown name is empty.
    Unknown,
    /// What ends behind the end is cut.
    Behind,
    /// After someone gave up, the next one reads nothing.
    Left,
    /// It doesn't look.
    Blind(Spoil),
}

struct Memory {
    breaks: Breaks,
    /// By name: what was put, and what is there.
    held: HashMap<String, (Vec<u8>, Vec<u8>)>,
    under_way: Cell<u64>,
    given_up: Cell<bool>,
}

impl Memory {
    fn new(breaks: Breaks) -> Self {
        Self {
            breaks,
            held: HashMap::new(),
            under_way: Cell::new(0),
            given_up: Cell::new(false),
        }
    }
}

impl Carrier for Memory {
    async fn put(&mut self, name: &str, bytes: &[u8]) {
        self.held.insert(name.into(), (bytes.to_vec(), bytes.to_vec()));
    }

    async fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, String> {
        let Some((put, there)) = self.held.get(name) else {
            return match self.breaks {
                Breaks::Unknown => Ok(Vec::new()),
                _ => Err("unknown".into()),
            };
        };
        self.under_way.set(self.under_way.get() + 1);
        tokio::task::yield_now().await;
        let meets = self.under_way.get() > 1;
        self.under_way.set(self.under_way.get() - 1);
        let blind = match self.breaks {
            Breaks::Blind(Spoil::Gone) => there.is_empty(),
            Breaks::Blind(Spoil::Cut) => !there.is_empty() && there.len() < put.len(),
            Breaks::Blind(_) => there.len() == put.len(),
            _ => false,
        };
        if put != there && !blind {
            return Err("changed".into());
        }
        let mut from = range.start as usize;
        let mut to = range.end as usize;
        if self.breaks == Breaks::Behind {
            (from, to) = (from.min(there.len()), to.min(there.len()));
        }
        if self.breaks == Breaks::Offset && range.start > MIB {
            (from, to) = (from - 1, to - 1);
        }
        if self.breaks == Breaks::Left && self.given_up.take() {
            to = from;
        }
        let mut bytes = there.clone();
        if blind {
            bytes.resize(put.len(), 0);
        }
        let mut bytes = bytes.get(from..to).ok_or("behind the end")?.to_vec();
        if self.breaks == Breaks::Short && bytes.len() as u64 > MIB {
            bytes.pop();
        }
        if self.breaks == Breaks::Mixed && meets {
            bytes.fill(0);
        }
        Ok(bytes)
    }

    async fn give_up(&self, _name: &str) {
        self.given_up.set(true);
    }

    async fn spoil(&mut self, name: &str, how: Spoil) -> bool {
        let there = &mut self.held.get_mut(name).expect("it was put").1;
        let half = there.len() / 2;
        match how {
            Spoil::Gone => there.clear(),
            Spoil::Exchanged => there.iter_mut().for_each(|byte| *byte ^= 1),
            Spoil::Cut => there.truncate(half),
            Spoil::Altered => there[half] ^= 1,
        }
        true
    }
}

fn tries(breaks: Breaks, notices: &[Spoil]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(obeys(&mut Memory::new(breaks), notices));
}

#[test]
fn a_carrier_that_keeps_its_promises_obeys() {
    tries(Breaks::Nothing, &SPOILS);
}

#[test]
fn each_broken_promise_is_found() {
    let blind = SPOILS.map(|how| (Breaks::Blind(how), "all of it was read"));
    let broken = [
        (Breaks::Offset, "other bytes"),
        (Breaks::Short, "other bytes"),
        (Breaks::Mixed, "other bytes"),
        (Breaks::Unknown, "an unknown name"),
        (Breaks::Behind, "of 777 bytes was read"),
        (Breaks::Left, "other bytes"),
    ];
    for (breaks, says) in broken.into_iter().chain(blind) {
        let panic = std::panic::catch_unwind(|| tries(breaks, &SPOILS)).expect_err("it obeys");
        let said = panic.downcast_ref::<String>().map_or_else(
            || (*panic.downcast_ref::<&str>().expect("a text")).to_owned(),
            Clone::clone,
        );
        assert!(said.contains(says), "{breaks:?}: {said}");
    }
}

#[test]
#[should_panic(expected = "the carrier says true, its test false")]
fn what_a_carrier_notices_is_named_by_its_test() {
    tries(Breaks::Nothing, &SPOILS[..3]);
}
