//! How far a simulation is, for whoever started it, who may also end it.
//!
//! Every model says how many accesses it went through ([`Watch::did`]), and what works without going through any says that it is alive
//! ([`Watch::look`]). Every few thousand of these calls the caller's function is asked whether to go on; its no is [`Error::Interrupted`].
//! Nothing here knows the time: who wants to be told less often counts it himself.

use crate::{Error, Policy};
use std::cell::Cell;

/// Calls between two questions: well below a millisecond of simulating.
const PATIENCE: u32 = 4096;

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The policy that runs; none while sizes and order are prepared.
    pub policy: Option<Policy>,
    /// Accesses that it went through.
    pub done: u64,
    /// Of so many.
    pub total: u64,
}

/// The caller's ear, and its way to end a simulation.
pub struct Watch<'a> {
    tell: &'a dyn Fn(Progress) -> bool,
    at: Cell<Progress>,
    left: Cell<u32>,
}

impl<'a> Watch<'a> {
    /// Asks `tell`, which answers whether to go on, at the start and the end of each part and often in between.
    #[must_use]
    pub fn new(tell: &'a dyn Fn(Progress) -> bool) -> Self {
        Self {
            tell,
            at: Cell::default(),
            left: Cell::new(PATIENCE),
        }
    }

    /// Tells nobody, and goes on to the end.
    #[must_use]
    pub fn quiet() -> Self {
        Self::new(&|_| true)
    }

    /// A part of `total` accesses begins.
    pub(crate) fn begin(&self, policy: Option<Policy>, total: u64) -> Result<(), Error> {
        let done = 0;
        self.at.set(Progress { policy, done, total });
        self.ask()
    }

    /// The part is through.
    pub(crate) fn end(&self) -> Result<(), Error> {
        let at = self.at.get();
        self.at.set(Progress { done: at.total, ..at });
        self.ask()
    }

    /// `accesses` more are done.
    #[inline]
    pub(crate) fn did(&self, accesses: u64) -> Result<(), Error> {
        let mut at = self.at.get();
        at.done += accesses;
        self.at.set(at);
        self.look()
    }

    /// Something was done.
    #[inline]
    pub(crate) fn look(&self) -> Result<(), Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => self.ask(),
        }
    }

    /// Something was done that takes as long as `steps` others: the next look comes sooner.
    #[inline]
    pub(crate) fn tire(&self, steps: u32) {
        self.left.set(self.left.get().saturating_sub(steps));
    }

    /// Asks at once: after work that takes milliseconds.
    pub(crate) fn ask(&self) -> Result<(), Error> {
        self.left.set(PATIENCE);
        match (self.tell)(self.at.get()) {
            true => Ok(()),
            false => Err(Error::Interrupted),
        }
    }
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("at", &self.at.get())
            .finish_non_exhaustive()
    }
}
