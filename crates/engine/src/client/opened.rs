//! An opened data set, as its client has it: the index, which is shared memory.

use super::{Client, ClientError, Pulse};
use crate::calls::{Call, Chosen, Progress, Reply};
use crate::list::List;
use crate::slots::Mapping;
use bytes::Bytes;
use foreload_store::Index;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A data set that a client has opened.
pub struct Opened {
    /// Its number.
    pub dataset: u32,
    /// Its index, mapped.
    pub index: Index,
    /// Where the index came from.
    pub origin: String,
}

impl Opened {
    /// Opens a data set, or some samples of one.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn new(
        client: &Client,
        call: &Call,
        pulse: Pulse<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, ClientError> {
        Self::of(client.call_with(call, pulse, progress)?)
    }

    /// What an answer brought.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when it is another answer, or its memory can't be mapped.
    pub fn of((reply, fds): (Reply, Vec<OwnedFd>)) -> Result<Self, ClientError> {
        let Reply::Opened {
            dataset,
            index_bytes,
            chosen,
            origin,
            ..
        } = reply
        else {
            return Err(ClientError::Closed(format!("unexpected answer {reply:?}")));
        };
        let mut fds = fds.into_iter();
        let mut mapped = || -> io::Result<Index> {
            let missing = || io::Error::other("the agent sent no memory");
            let map = Mapping::new(fds.next().ok_or_else(missing)?.as_fd(), index_bytes, false)?;
            // The agent has verified it.
            let whole = Index::from_trusted_bytes(Bytes::from_owner(map)).map_err(io::Error::other)?;
            let Some(Chosen {
                samples,
                digest,
                objects,
            }) = chosen
            else {
                return Ok(whole);
            };
            let list = List::of(fds.next().ok_or_else(missing)?, samples)?;
            Ok(whole.chosen(list.numbers().clone(), *digest.as_bytes(), objects))
        };
        let index = mapped().map_err(|e| ClientError::Closed(format!("mapping the index: {e}")))?;
        Ok(Self { dataset, index, origin })
    }
}
