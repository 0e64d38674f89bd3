//! What is told of several objects, whole, cut anywhere, altered and made up.

use super::super::seal::Caller;
use super::*;
use proptest::prelude::*;

const SECRET: &str = "known to these two only";
const HOST: &str = "10.0.0.7:4001";
const PATH: &str = "/peer/ab/1-2-3";

/// A request that was let in.
struct Asked {
    sealed: Sealed,
    gate: Gate,
    seal: Seal,
}

fn asked() -> Asked {
    let (caller, gate) = (Caller::new(SECRET).expect("drawn"), Gate::new(SECRET, HOST));
    let sealed = caller.seal("GET", HOST, PATH);
    let seal = gate.admit("GET", PATH, &sealed.field).expect("let in");
    Asked { sealed, gate, seal }
}

impl Asked {
    /// A table with what it tells of; `None`: that is missing.
    fn tell(&self, told: &[(usize, Option<&[u8]>)]) -> Vec<u8> {
        let verdict = |bytes: Option<&[u8]>| match bytes {
            None => Verdict::Missing,
            Some(bytes) => Verdict::Here {
                len: bytes.len() as u32,
                crc: bytes.len() as u32 * 7,
                was_fetched: bytes.len().is_multiple_of(2),
            },
        };
        let entries: Vec<_> = told.iter().map(|&(at, bytes)| (at, verdict(bytes))).collect();
        let mut all = Vec::new();
        write_table(&self.gate, &self.seal, &entries, &mut all);
        told.iter().for_each(|(_, bytes)| all.extend(bytes.unwrap_or_default()));
        all
    }
}

/// What came of each object.
#[derive(Debug, Default, PartialEq)]
struct Got {
    told: Vec<Option<Verdict>>,
    bytes: Vec<Vec<u8>>,
    ended: Vec<bool>,
    refused: Option<usize>,
}

impl Got {
    fn of(count: usize) -> Self {
        Got {
            told: vec![None; count],
            bytes: vec![Vec::new(); count],
            ended: vec![false; count],
            refused: None,
        }
    }
}

impl Parts for Got {
    fn told(&mut self, at: usize, verdict: Verdict) -> bool {
        assert_eq!(self.told[at].replace(verdict), None, "twice");
        verdict != Verdict::Missing && self.refused != Some(at)
    }

    fn write(&mut self, at: usize, from: u64, frame: &[u8]) -> Result<()> {
        assert_eq!(self.bytes[at].len() as u64, from);
        self.bytes[at].extend_from_slice(frame);
        Ok(())
    }

    fn ended(&mut self, at: usize) {
        assert!(!std::mem::replace(&mut self.ended[at], true));
    }
}

/// Reads an answer in pieces of these lengths: what came, and whether all did.
fn read(asked: &Asked, count: usize, answer: &[u8], steps: &[usize], refused: Option<usize>) -> (Got, Result<bool>) {
    let mut got = Got {
        refused,
        ..Got::of(count)
    };
    let mut reader = Reader::new(asked.sealed.clone(), count);
    let (mut left, mut step) = (answer, steps.iter().cycle());
    while !left.is_empty() {
        let (piece, rest) = left.split_at(step.next().copied().unwrap_or(left.len()).clamp(1, left.len()));
        if let Err(error) = reader.take(piece, &mut got) {
            return (got, Err(error));
        }
        left = rest;
    }
    (got, Ok(reader.is_whole()))
}

#[test]
fn what_is_said_in_any_number_of_tables_is_read_however_it_is_cut() {
    let asked = asked();
    let (long, short) = (vec![3; 5000], [1, 2, 3]);
    let first = asked.tell(&[(2, Some(&short)), (0, None)]);
    let second = asked.tell(&[(3, Some(&[])), (1, Some(&long))]);
    let answer = [asked.tell(&[]), first, asked.tell(&[]), asked.tell(&[]), second].concat();
    for step in [1, 2, 41, 60, 1000, answer.len()] {
        let (got, ended) = read(&asked, 4, &answer, &[step], None);
        assert!(ended.expect("right"), "{step}");
        assert_eq!(got.told[0], Some(Verdict::Missing));
        let here = |len, was_fetched| Verdict::Here {
            len,
            crc: len * 7,
            was_fetched,
        };
        assert_eq!(
            got.told[1..],
            [Some(here(5000, true)), Some(here(3, false)), Some(here(0, true))]
        );
        assert_eq!(got.bytes, [vec![], long.clone(), short.to_vec(), vec![]]);
        assert_eq!(got.ended, [false, true, true, true]);
    }
}

#[test]
fn bytes_of_what_is_not_wanted_are_passed_over() {
    let asked = asked();
    let answer = asked.tell(&[(0, Some(&[9; 100])), (1, Some(&[8; 100]))]);
    let (got, ended) = read(&asked, 2, &answer, &[7], Some(0));
    assert!(ended.expect("right"));
    assert_eq!((got.bytes, got.ended), (vec![vec![], vec![8; 100]], vec![false, true]));
}

#[test]
fn an_answer_that_tells_of_something_twice_or_of_what_there_is_not_counts_for_nothing_from_there_on() {
    let asked = asked();
    let well = asked.tell(&[(0, Some(&[1]))]);
    for bad in [
        asked.tell(&[(0, Some(&[2]))]),
        asked.tell(&[(1, None), (1, None)]),
        asked.tell(&[(3, None)]),
        asked.tell(&[(1, None), (2, None), (0, None)]),
        vec![0; 1 + SEAL_BYTES],
    ] {
        let (got, ended) = read(&asked, 3, &[well.clone(), bad].concat(), &[], None);
        assert_eq!(ended.expect_err("refused").kind(), ErrorKind::Corrupt);
        assert!(got.ended[0] && got.bytes[0] == [1]);
    }
}

#[test]
fn a_table_is_told_by_who_knows_the_secret_to_this_request_only() {
    let (asked, other) = (asked(), asked());
    let answer = other.tell(&[(0, Some(&[1; 20]))]);
    let (got, ended) = read(&asked, 1, &answer, &[], None);
    assert_eq!(ended.expect_err("another request's").kind(), ErrorKind::Corrupt);
    assert_eq!(got, Got::of(1));
    let stranger = Asked {
        gate: Gate::new("guessed by somebody", HOST),
        sealed: asked.sealed.clone(),
        seal: asked.seal,
    };
    let (got, ended) = read(&asked, 1, &stranger.tell(&[(0, Some(&[1; 20]))]), &[], None);
    assert!(ended.is_err() && got == Got::of(1));
}

proptest! {
    #[test]
    fn proptest_a_table_in_which_one_byte_is_another_tells_nothing(byte in 0usize..53, with in 1u8..) {
        let asked = asked();
        let mut answer = asked.tell(&[(0, Some(&[5; 30])), (1, None)]);
        answer[byte] ^= with;
        let (got, ended) = read(&asked, 2, &answer, &[], None);
        // A table may seem to go on behind its end.
        prop_assert!(!ended.unwrap_or(false));
        prop_assert_eq!(got, Got::of(2));
    }

    #[test]
    fn proptest_any_bytes_are_refused_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..400), count in 1usize..=MOST_PARTS) {
        let asked = asked();
        let (got, ended) = read(&asked, count, &bytes, &[], None);
        prop_assert!(!ended.unwrap_or(false));
        prop_assert_eq!(got, Got::of(count));
    }

    #[test]
    fn proptest_any_parts_in_any_order_and_pieces(
        lens in prop::collection::vec(prop::option::of(0usize..2000), 1..20),
        turn in 0usize..20,
        cuts in prop::collection::vec(any::<bool>(), 20),
        steps in prop::collection::vec(1usize..3000, 1..9),
        end in prop::option::of(0usize..40_000),
    ) {
        let asked = asked();
        let bodies: Vec<Option<Vec<u8>>> = lens.iter().enumerate().map(|(at, len)| len.map(|len| vec![at as u8; len])).collect();
        let mut told: Vec<(usize, Option<&[u8]>)> = bodies.iter().map(Option::as_deref).enumerate().collect();
        told.rotate_left(turn % lens.len());
        let mut answer = Vec::new();
        for some in told.chunk_by(|(at, _), _| cuts[*at]) {
            answer.extend(asked.tell(some));
        }
        let end = end.map_or(answer.len(), |end| end.min(answer.len()));
        let (got, whole) = read(&asked, lens.len(), &answer[..end], &steps, None);
        prop_assert_eq!(whole.expect("right"), end == answer.len());
        for (at, body) in bodies.iter().enumerate() {
            prop_assert!(!got.ended[at] || body.as_ref() == Some(&got.bytes[at]));
            prop_assert!(end < answer.len() || got.ended[at] == body.is_some());
        }
    }

    #[test]
    fn proptest_entries_of_any_table(table in prop::collection::vec(any::<u8>(), 0..100)) {
        let found = entries(&table);
        let is_short = |(_, verdict): &(usize, Verdict)| !matches!(verdict, Verdict::Here { len, .. } if u64::from(*len) > MOST_PART_BYTES);
        prop_assert!(found.is_none_or(|found| found.iter().all(is_short)));
    }
}
