//! Another process, as a client sees it: whether it still lives.
//!
//! A connection may end while the agent lives on and lends the same memory to others. Only the end of its process says that nobody will
//! write there any more. And only a client that lives is known to have held what it passed on until then.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// A process closes its sockets some microseconds before it counts as ended.
const PARTING: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A process that lived when this was made.
#[derive(Default)]
pub(super) struct Peer {
    /// None where the system has no such thing (before Linux 5.3), or the process is in another namespace.
    process: Option<OwnedFd>,
}

impl Peer {
    pub(super) fn of(pid: u32) -> Self {
        let process = Pid::from_raw(pid.cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Peer { process }
    }

    /// Whether it is known to live.
    pub(super) fn lives(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
        })
    }

    /// Whether it has ended; waits a moment for one that is about to.
    pub(super) fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            matches!(poll(&mut ended, Some(&PARTING)), Ok(1..))
        })
    }
}
