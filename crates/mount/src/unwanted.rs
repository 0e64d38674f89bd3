//! Names that the kernel is to let go of, and who tells it so.
//!
//! A thread of its own does: not one that answers the kernel, which it may be waiting for with the same directory locked.

use crate::tree::Ino;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::sync::oneshot;

enum Tell {
    /// A directory, and a name in it.
    LetGo(Ino, Arc<str>),
    /// All before that was told.
    Told(oneshot::Sender<()>),
}

/// Where names go that the kernel is to let go of.
pub struct Unwanted(Sender<Tell>);

/// Names that are to be told.
pub struct Names(Receiver<Tell>);

impl Unwanted {
    /// The two ends.
    #[must_use]
    pub fn new() -> (Self, Names) {
        let (sender, receiver) = channel();
        (Unwanted(sender), Names(receiver))
    }

    /// These are told, soon.
    pub fn tell(&self, names: Vec<(Ino, Arc<str>)>) {
        for (parent, name) in names {
            // Whoever is gone hears nothing any more.
            let _ = self.0.send(Tell::LetGo(parent, name));
        }
    }

    /// It is waited for that the kernel has let go of what was told, for so long at most.
    pub async fn has_let_go(&self, patience: Duration) {
        let (told, is_told) = oneshot::channel();
        if self.0.send(Tell::Told(told)).is_ok() {
            let _ = tokio::time::timeout(patience, is_told).await;
        }
    }
}

impl Names {
    /// Has a thread tell the kernel, until the mount ends.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn tell_to(self, notifier: Notifier, is_closing: Arc<AtomicBool>) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("foreload-mount-forget".into());
        thread.spawn(move || {
            for tell in self.0 {
                // While it ends, the kernel would wait for ever.
                if is_closing.load(Ordering::Relaxed) {
                    return;
                }
                match tell {
                    Tell::LetGo(parent, name) => drop(notifier.inval_entry(INodeNo(parent), OsStr::new(&*name))),
                    Tell::Told(told) => drop(told.send(())),
                }
            }
        })?;
        Ok(())
    }
}
