//! What agent and clients say to each other over the Unix socket.
//!
//! A message is a frame: its length (u32), its kind (one byte), its body; little-endian. What happens per batch is binary and small; what happens once per
//! job ([`Call`](crate::calls::Call), [`Reply`](crate::calls::Reply)) is JSON, so that it can be read in a trace. Bodies are parsed with bounds: a frame
//! of a broken or hostile client is an error of that connection and of nothing else.

use foreload_plan::action::{Handle, Via};
use serde::{Deserialize, Serialize};

/// Changes with every incompatible change of the messages; both sides compare it first.
pub const VERSION: u32 = 14;
/// Frames above this are refused: 64 MiB is a batch of two million samples.
pub const MAX_FRAME: usize = 64 << 20;
/// More samples are not delivered at once: a frame has no room for them.
pub const MAX_ITEMS: usize = (MAX_FRAME - 32) / ITEM_BYTES;
/// A delivered sample in a frame.
const ITEM_BYTES: usize = 41;

/// From client to agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// A call, as JSON; answered by a [`Say::Reply`] with this id.
    Call {
        /// Chosen by the client.
        id: u64,
        /// [`Call`](crate::calls::Call) as JSON.
        body: String,
    },
    /// A call with a list of any length: a descriptor with so many numbers, of 4 or of 8 bytes each, comes with the frame.
    CallWith {
        /// As of a [`Ask::Call`].
        id: u64,
        /// Numbers in the list.
        count: u64,
        /// [`Call`](crate::calls::Call) as JSON, but for the list.
        body: String,
    },
    /// A rank starts at a batch.
    Start {
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// The epoch.
        epoch: u32,
        /// The batch.
        batch: u64,
    },
    /// A rank's batch is wanted.
    WantBatch {
        /// Answered under this id.
        id: u64,
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// The epoch.
        epoch: u32,
        /// The batch.
        batch: u64,
    },
    /// Reads of the plan are wanted, by their names.
    WantReads {
        /// Answered under this id.
        id: u64,
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// Epochs and positions.
        reads: Vec<(u32, u64)>,
    },
    /// A rank reads no more, until it starts again.
    Leave {
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
    },
    /// Samples are wanted, by number and outside the plan.
    WantSamples {
        /// Answered under this id.
        id: u64,
        /// The job.
        job: u32,
        /// The rank.
        rank: u32,
        /// The samples.
        samples: Vec<u64>,
    },
    /// The asker does nothing but wait for this.
    Await {
        /// The job.
        job: u32,
        /// The id of the want.
        id: u64,
    },
    /// Nobody waits for this any more.
    Withdraw {
        /// The job.
        job: u32,
        /// The id of the want.
        id: u64,
    },
    /// Leases given back: of samples, and of batch slots.
    Release {
        /// The job.
        job: u32,
        /// Samples.
        handles: Vec<Handle>,
        /// Batch slots.
        slots: Vec<u64>,
    },
    /// A slot of the batch arena is wanted.
    WantSlot {
        /// Answered under this id.
        id: u64,
        /// The job.
        job: u32,
        /// Bytes.
        len: u64,
    },
    /// One attachment of this connection to a job is over.
    Detach {
        /// The job.
        job: u32,
    },
    /// Leases that another connection of this session holds shall be ours.
    Adopt {
        /// Answered under this id.
        id: u64,
        /// The job.
        job: u32,
        /// The connection that holds them.
        from: u64,
        /// Samples.
        handles: Vec<Handle>,
        /// Batch slots.
        slots: Vec<u64>,
    },
}

/// One delivered sample on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// The sample.
    pub sample: u64,
    /// Its lease.
    pub handle: Handle,
    /// Where it lies in the cache arena.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// Its label; `i64::MIN`: none.
    pub label: i64,
    /// Where it was found.
    pub via: Via,
}

/// From agent to client.
#[derive(Clone, Debug, PartialEq)]
pub enum Say {
    /// The answer to a call.
    Reply {
        /// The call's id.
        id: u64,
        /// [`Reply`](crate::calls::Reply) as JSON.
        body: String,
    },
    /// How far a long call is.
    Progress {
        /// The call's id.
        id: u64,
        /// [`Progress`](crate::calls::Progress) as JSON.
        body: String,
    },
    /// Samples.
    Deliver {
        /// The want's id.
        id: u64,
        /// Copy them and give the leases back at once.
        copy: bool,
        /// In the order asked for.
        items: Vec<Sent>,
    },
    /// A want can't be served; a [`Trouble`] as JSON.
    Refuse {
        /// The want's id.
        id: u64,
        /// [`Trouble`] as JSON.
        body: String,
    },
    /// A slot of the batch arena; `len` 0: there is none now, use your own memory.
    Slot {
        /// The want's id.
        id: u64,
        /// To give back.
        slot: u64,
        /// Where it lies in the batch arena.
        offset: u64,
        /// Its bytes.
        len: u64,
    },
    /// Whether an adoption went well.
    Adopted {
        /// The want's id.
        id: u64,
        /// All of it, or nothing.
        whole: bool,
    },
    /// Something that whoever looks after the run should read.
    Notice {
        /// A [`Trouble`] as JSON.
        body: String,
    },
}

/// Why something can't be served, for a person and for an exception's type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// `invalid`, `not-found`, `denied`, `unavailable`, `corrupt`, `changed`, `timeout`, `no-memory`, `cancelled`, `closed`, `stalled`, `starved` (stalled,
    /// and only leases that come back would help), `bug`.
    pub kind: String,
    /// What failed, with object, step and remedy.
    pub message: String,
    /// The sample, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u64>,
}

impl Trouble {
    /// A trouble without a sample.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Trouble {
            kind: kind.into(),
            message: message.into(),
            sample: None,
        }
    }
}

impl From<foreload_plan::Error> for Trouble {
    /// What can be wrong with a plan is the call's.
    fn from(error: foreload_plan::Error) -> Self {
        Trouble::new("invalid", error.to_string())
    }
}

/// A frame that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("malformed message of kind {kind} ({len} bytes)")]
pub struct Malformed {
    kind: u8,
    len: usize,
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Writer(vec![0, 0, 0, 0, kind])
    }
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn text(mut self, value: &str) -> Self {
        self.0.extend_from_slice(value.as_bytes());
        self
    }
    fn handles(self, handles: &[Handle]) -> Self {
        handles
            .iter()
            .fold(self.u32(handles.len() as u32), |w, h| w.u32(h.index).u32(h.generation))
    }
    fn numbers(self, numbers: &[u64]) -> Self {
        numbers.iter().fold(self.u32(numbers.len() as u32), |w, &n| w.u64(n))
    }
    fn reads(self, reads: &[(u32, u64)]) -> Self {
        reads
            .iter()
            .fold(self.u32(reads.len() as u32), |w, &(epoch, position)| {
                w.u32(epoch).u64(position)
            })
    }
    fn done(mut self) -> Vec<u8> {
        let len = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

struct Reader<'a> {
    kind: u8,
    len: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(frame: &'a [u8]) -> Result<Self, Malformed> {
        match frame.split_first() {
            Some((&kind, rest)) => Ok(Reader {
                kind,
                len: rest.len(),
                rest,
            }),
            None => Err(Malformed { kind: 0, len: 0 }),
        }
    }
    fn bad(&self) -> Malformed {
        Malformed {
            kind: self.kind,
            len: self.len,
        }
    }
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.bad())?;
        self.rest = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }
    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    fn text(&mut self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.rest).map_err(|_| self.bad())?.to_owned();
        self.rest = &[];
        Ok(text)
    }
    /// A count of things of `size` bytes each, which must all be there.
    fn count(&mut self, size: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count.checked_mul(size).is_none_or(|bytes| bytes > self.rest.len()) {
            Err(self.bad())
        } else {
            Ok(count)
        }
    }
    fn handles(&mut self) -> Result<Vec<Handle>, Malformed> {
        (0..self.count(8)?)
            .map(|_| {
                Ok(Handle {
                    index: self.u32()?,
                    generation: self.u32()?,
                })
            })
            .collect()
    }
    fn numbers(&mut self) -> Result<Vec<u64>, Malformed> {
        (0..self.count(8)?).map(|_| self.u64()).collect()
    }
    fn reads(&mut self) -> Result<Vec<(u32, u64)>, Malformed> {
        (0..self.count(12)?).map(|_| Ok((self.u32()?, self.u64()?))).collect()
    }
    fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.rest.is_empty() {
            Ok(value)
        } else {
            Err(self.bad())
        }
    }
}

impl Ask {
    /// What it is and how much of it, for messages.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Ask::Call { body, .. } | Ask::CallWith { body, .. } => {
                let begin: String = body.chars().take(40).collect();
                format!("a call ({begin}...)")
            }
            Ask::WantSamples { samples, .. } => format!("a request for {} samples", samples.len()),
            Ask::WantReads { reads, .. } => format!("a request for {} reads", reads.len()),
            Ask::Release { handles, slots, .. } => format!("the return of {} leases", handles.len() + slots.len()),
            Ask::Adopt { handles, slots, .. } => format!("a hand-over of {} leases", handles.len() + slots.len()),
            _ => "a message".to_owned(),
        }
    }

    /// The frame, its length included.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Ask::Call { id, body } => Writer::new(1).u64(*id).text(body),
            Ask::CallWith { id, count, body } => Writer::new(12).u64(*id).u64(*count).text(body),
            Ask::Start {
                job,
                rank,
                epoch,
                batch,
            } => Writer::new(2).u32(*job).u32(*rank).u32(*epoch).u64(*batch),
            Ask::WantBatch {
                id,
                job,
                rank,
                epoch,
                batch,
            } => Writer::new(3).u64(*id).u32(*job).u32(*rank).u32(*epoch).u64(*batch),
            Ask::WantSamples { id, job, rank, samples } => {
                Writer::new(4).u64(*id).u32(*job).u32(*rank).numbers(samples)
            }
            Ask::WantReads { id, job, rank, reads } => Writer::new(10).u64(*id).u32(*job).u32(*rank).reads(reads),
            Ask::Leave { job, rank } => Writer::new(11).u32(*job).u32(*rank),
            Ask::Withdraw { job, id } => Writer::new(5).u32(*job).u64(*id),
            Ask::Await { job, id } => Writer::new(13).u32(*job).u64(*id),
            Ask::Release { job, handles, slots } => Writer::new(6).u32(*job).handles(handles).numbers(slots),
            Ask::Detach { job } => Writer::new(9).u32(*job),
            Ask::WantSlot { id, job, len } => Writer::new(7).u64(*id).u32(*job).u64(*len),
            Ask::Adopt {
                id,
                job,
                from,
                handles,
                slots,
            } => Writer::new(8)
                .u64(*id)
                .u32(*job)
                .u64(*from)
                .handles(handles)
                .numbers(slots),
        }
        .done()
    }

    /// Reads a frame without its length.
    ///
    /// # Errors
    /// [`Malformed`] for anything that [`Ask::encode`] doesn't write.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(frame)?;
        let ask = match r.kind {
            1 => Ask::Call {
                id: r.u64()?,
                body: r.text()?,
            },
            12 => Ask::CallWith {
                id: r.u64()?,
                count: r.u64()?,
                body: r.text()?,
            },
            2 => Ask::Start {
                job: r.u32()?,
                rank: r.u32()?,
                epoch: r.u32()?,
                batch: r.u64()?,
            },
            3 => Ask::WantBatch {
                id: r.u64()?,
                job: r.u32()?,
                rank: r.u32()?,
                epoch: r.u32()?,
                batch: r.u64()?,
            },
            4 => Ask::WantSamples {
                id: r.u64()?,
                job: r.u32()?,
                rank: r.u32()?,
                samples: r.numbers()?,
            },
            10 => Ask::WantReads {
                id: r.u64()?,
                job: r.u32()?,
                rank: r.u32()?,
                reads: r.reads()?,
            },
            11 => Ask::Leave {
                job: r.u32()?,
                rank: r.u32()?,
            },
            13 => Ask::Await {
                job: r.u32()?,
                id: r.u64()?,
            },
            5 => Ask::Withdraw {
                job: r.u32()?,
                id: r.u64()?,
            },
            6 => Ask::Release {
                job: r.u32()?,
                handles: r.handles()?,
                slots: r.numbers()?,
            },
            9 => Ask::Detach { job: r.u32()? },
            7 => Ask::WantSlot {
                id: r.u64()?,
                job: r.u32()?,
                len: r.u64()?,
            },
            8 => Ask::Adopt {
                id: r.u64()?,
                job: r.u32()?,
                from: r.u64()?,
                handles: r.handles()?,
                slots: r.numbers()?,
            },
            _ => return Err(r.bad()),
        };
        r.end(ask)
    }
}

impl Say {
    /// The frame, its length included.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Say::Reply { id, body } => Writer::new(1).u64(*id).text(body),
            Say::Progress { id, body } => Writer::new(2).u64(*id).text(body),
            Say::Deliver { id, copy, items } => {
                let mut w = Writer::new(3);
                w.0.reserve(32 + ITEM_BYTES * items.len());
                items
                    .iter()
                    .fold(w.u64(*id).u8(u8::from(*copy)).u32(items.len() as u32), |w, item| {
                        let via = match item.via {
                            Via::Ram => 0,
                            Via::Disk => 1,
                            Via::Bucket => 2,
                            Via::Peer => 3,
                        };
                        let w = w.u64(item.sample).u32(item.handle.index).u32(item.handle.generation);
                        w.u64(item.offset).u64(item.len).u64(item.label as u64).u8(via)
                    })
            }
            Say::Refuse { id, body } => Writer::new(4).u64(*id).text(body),
            Say::Slot { id, slot, offset, len } => Writer::new(5).u64(*id).u64(*slot).u64(*offset).u64(*len),
            Say::Adopted { id, whole } => Writer::new(6).u64(*id).u8(u8::from(*whole)),
            Say::Notice { body } => Writer::new(7).text(body),
        }
        .done()
    }

    /// Reads a frame without its length.
    ///
    /// # Errors
    /// [`Malformed`] for anything that [`Say::encode`] doesn't write.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(frame)?;
        let say = match r.kind {
            1 => Say::Reply {
                id: r.u64()?,
                body: r.text()?,
            },
            2 => Say::Progress {
                id: r.u64()?,
                body: r.text()?,
            },
            3 => {
                let (id, copy, count) = (r.u64()?, r.u8()? != 0, r.count(ITEM_BYTES)?);
                let mut items = Vec::with_capacity(count);
                for _ in 0..count {
                    items.push(Sent {
                        sample: r.u64()?,
                        handle: Handle {
                            index: r.u32()?,
                            generation: r.u32()?,
                        },
                        offset: r.u64()?,
                        len: r.u64()?,
                        label: r.u64()? as i64,
                        via: match r.u8()? {
                            0 => Via::Ram,
                            1 => Via::Disk,
                            2 => Via::Bucket,
                            3 => Via::Peer,
                            _ => return Err(r.bad()),
                        },
                    });
                }
                Say::Deliver { id, copy, items }
            }
            4 => Say::Refuse {
                id: r.u64()?,
                body: r.text()?,
            },
            5 => Say::Slot {
                id: r.u64()?,
                slot: r.u64()?,
                offset: r.u64()?,
                len: r.u64()?,
            },
            6 => Say::Adopted {
                id: r.u64()?,
                whole: r.u8()? != 0,
            },
            7 => Say::Notice { body: r.text()? },
            _ => return Err(r.bad()),
        };
        r.end(say)
    }
}

/// Cuts frames out of a stream of bytes.
#[derive(Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Calls `take` with each whole frame, its length cut off.
    ///
    /// # Errors
    /// What `take` returns, or [`Malformed`] for a frame above [`MAX_FRAME`].
    pub fn drain<E: From<Malformed>>(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut at = 0;
        while let Some(head) = self.0[at..].first_chunk::<4>() {
            let len = u32::from_le_bytes(*head) as usize;
            if len == 0 || len > MAX_FRAME {
                return Err(Malformed { kind: 0, len }.into());
            }
            let Some(frame) = self.0[at + 4..].get(..len) else {
                break;
            };
            take(frame)?;
            at += 4 + len;
        }
        self.0.drain(..at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asks() -> Vec<Ask> {
        let handles = vec![
            Handle {
                index: 1,
                generation: 2,
            },
            Handle {
                index: 3,
                generation: 4,
            },
        ];
        vec![
            Ask::Call {
                id: 1,
                body: "{}".into(),
            },
            Ask::CallWith {
                id: 2,
                count: 3,
                body: "{}".into(),
            },
            Ask::Start {
                job: 1,
                rank: 2,
                epoch: 3,
                batch: 4,
            },
            Ask::WantBatch {
                id: 9,
                job: 1,
                rank: 2,
                epoch: 3,
                batch: 4,
            },
            Ask::WantSamples {
                id: 9,
                job: 1,
                rank: 2,
                samples: vec![5, 6],
            },
            Ask::WantReads {
                id: 9,
                job: 1,
                rank: 2,
                reads: vec![(3, 4), (3, 5)],
            },
            Ask::Leave { job: 1, rank: 2 },
            Ask::Withdraw { job: 1, id: 9 },
            Ask::Await { job: 1, id: 9 },
            Ask::Release {
                job: 1,
                handles: handles.clone(),
                slots: vec![7],
            },
            Ask::WantSlot { id: 1, job: 2, len: 3 },
            Ask::Detach { job: 4 },
            Ask::Adopt {
                id: 1,
                job: 2,
                from: 3,
                handles,
                slots: vec![],
            },
        ]
    }

    fn says() -> Vec<Say> {
        let sent = Sent {
            sample: 1,
            handle: Handle {
                index: 2,
                generation: 3,
            },
            offset: 4,
            len: 5,
            label: -6,
            via: Via::Disk,
        };
        vec![
            Say::Reply {
                id: 1,
                body: "x".into(),
            },
            Say::Progress {
                id: 1,
                body: String::new(),
            },
            Say::Deliver {
                id: 1,
                copy: true,
                items: vec![sent, sent],
            },
            Say::Refuse {
                id: 1,
                body: "y".into(),
            },
            Say::Slot {
                id: 1,
                slot: 2,
                offset: 3,
                len: 4,
            },
            Say::Adopted { id: 1, whole: false },
            Say::Notice { body: "z".into() },
        ]
    }

    #[test]
    fn every_message_comes_back_as_it_was() {
        for ask in asks() {
            assert_eq!(Ask::decode(&ask.encode()[4..]).expect("decodes"), ask);
        }
        for say in says() {
            assert_eq!(Say::decode(&say.encode()[4..]).expect("decodes"), say);
        }
    }

    #[test]
    fn the_protocols_page_has_this_version_and_every_message() {
        let page = include_str!("../../../docs/reference/protocol.md");
        assert!(
            page.contains(&format!("Version {VERSION},")),
            "the page is of another version"
        );
        let frames = asks()
            .iter()
            .map(|ask| (ask.encode()[4], format!("{ask:?}")))
            .collect::<Vec<_>>();
        let answers = says()
            .iter()
            .map(|say| (say.encode()[4], format!("{say:?}")))
            .collect::<Vec<_>>();
        for (kind, message) in frames.into_iter().chain(answers) {
            let name = message.split([' ', '(']).next().unwrap_or_default();
            let row = format!("| {kind} `{name}` |");
            assert!(page.contains(&row), "the page has no row {row}");
        }
    }

    /// Feeds bytes in; the frames that were cut out, or the length of the one that was refused.
    fn cut(frames: &mut Frames, bytes: &[u8]) -> Result<Vec<Vec<u8>>, usize> {
        let mut cut = Vec::new();
        frames.feed(bytes);
        let take = |frame: &[u8]| -> Result<(), Malformed> {
            cut.push(frame.to_vec());
            Ok(())
        };
        frames.drain(take).map_err(|malformed| malformed.len)?;
        Ok(cut)
    }

    #[test]
    fn a_frame_that_is_empty_or_too_long_is_refused_before_its_body_comes() {
        let head = |len: usize| (len as u32).to_le_bytes();
        assert_eq!(cut(&mut Frames::default(), &head(0)), Err(0));
        assert_eq!(cut(&mut Frames::default(), &head(MAX_FRAME + 1)), Err(MAX_FRAME + 1));
        let mut frames = Frames::default();
        assert_eq!(cut(&mut frames, &head(MAX_FRAME)), Ok(vec![]), "this one is waited for");
        assert_eq!(cut(&mut frames, &[0; 100]), Ok(vec![]));
    }

    #[test]
    fn what_follows_a_frame_is_the_next_one() {
        let mut frames = Frames::default();
        assert_eq!(cut(&mut frames, &[2, 0, 0, 0, 7, 8, 1, 0, 0, 0]), Ok(vec![vec![7, 8]]));
        assert_eq!(cut(&mut frames, &[9, 1]), Ok(vec![vec![9]]));
        assert_eq!(cut(&mut frames, &[0, 0, 0, 5, 3]), Ok(vec![vec![5]]));
    }

    #[test]
    fn a_message_of_another_length_than_it_says_is_malformed() {
        for frame in asks().iter().map(Ask::encode) {
            let is_text = matches!(frame[4], 1 | 12);
            assert!(Ask::decode(&frame[4..frame.len() - 1]).is_err() || is_text);
            assert!(Ask::decode(&[&frame[4..], &[0]].concat()).is_err() || is_text);
        }
        for frame in says().iter().map(Say::encode) {
            let is_text = matches!(frame[4], 1 | 2 | 4 | 7);
            assert!(Say::decode(&frame[4..frame.len() - 1]).is_err() || is_text);
            assert!(Say::decode(&[&frame[4..], &[0]].concat()).is_err() || is_text);
        }
        // A count of what isn't there takes no memory.
        let many = Writer::new(4).u64(1).u32(2).u32(3).u32(u32::MAX).done();
        assert!(Ask::decode(&many[4..]).is_err());
        let no_text = [&Writer::new(1).u64(1).done()[4..], &[0xff]].concat();
        assert!(Ask::decode(&no_text).is_err() && Ask::decode(&[]).is_err() && Ask::decode(&[99]).is_err());
    }

    #[test]
    fn the_largest_delivery_is_a_frame_that_is_taken() {
        let item = Sent {
            sample: 1,
            handle: Handle {
                index: 2,
                generation: 3,
            },
            offset: 4,
            len: 5,
            label: -6,
            via: Via::Disk,
        };
        let of = |items: usize| Say::Deliver {
            id: 1,
            copy: true,
            items: vec![item; items],
        };
        let (empty, one) = (of(0).encode().len(), of(1).encode().len());
        assert_eq!(one - empty, ITEM_BYTES);
        assert!(empty - 4 + MAX_ITEMS * ITEM_BYTES <= MAX_FRAME);
    }

    proptest! {
        #[test]
        fn hostile_frames_are_errors_and_nothing_else(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Ask::decode(&bytes);
            let _ = Say::decode(&bytes);
        }

        #[test]
        fn frames_survive_any_cut(cuts in proptest::collection::vec(1usize..20, 1..60)) {
            let stream: Vec<u8> = asks().iter().flat_map(Ask::encode).collect();
            let (mut frames, mut got, mut at) = (Frames::default(), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                if at == stream.len() { break; }
                let end = (at + cut).min(stream.len());
                frames.feed(&stream[at..end]);
                frames.drain(|frame| { got.push(Ask::decode(frame)?); Ok::<_, Malformed>(()) }).expect("whole frames");
                at = end;
            }
            prop_assert_eq!(got, asks());
        }
    }
}
