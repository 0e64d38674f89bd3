//! Threads for what waits: made when they are needed, and no more than so many.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

type Work = Box<dyn FnOnce() + Send>;

/// A thread's stack: what waits is not deep.
const STACK: usize = 256 << 10;

/// Some threads.
pub struct Workers {
    queue: Mutex<Sender<Work>>,
    taken: Arc<Mutex<Receiver<Work>>>,
    /// Work that was given and not taken, less the threads that wait for it.
    lacking: Arc<AtomicUsize>,
    threads: AtomicUsize,
    most: usize,
}

/// Threads that wait count from here down.
const EVEN: usize = usize::MAX / 2;

impl Workers {
    /// No more than so many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let (queue, taken) = channel();
        Workers {
            queue: Mutex::new(queue),
            taken: Arc::new(Mutex::new(taken)),
            lacking: Arc::new(AtomicUsize::new(EVEN)),
            threads: AtomicUsize::new(0),
            most: most.max(1),
        }
    }

    /// Has a thread do this: one that has nothing to do, a new one, or the first that is done.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let lacking = self.lacking.fetch_add(1, Ordering::SeqCst) + 1;
        let sent = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(Box::new(work));
        // The receiver lives as long as this does.
        debug_assert!(sent.is_ok());
        if lacking > EVEN && self.threads.load(Ordering::Relaxed) < self.most {
            self.add();
        }
    }

    fn add(&self) {
        let (taken, lacking) = (Arc::clone(&self.taken), Arc::clone(&self.lacking));
        let thread = std::thread::Builder::new()
            .name("foreload-mount-read".into())
            .stack_size(STACK);
        let begun = thread.spawn(move || {
            loop {
                lacking.fetch_sub(1, Ordering::SeqCst);
                let work = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                match work {
                    Ok(work) => work(),
                    Err(_) => return,
                }
            }
        });
        match begun {
            Ok(_) => drop(self.threads.fetch_add(1, Ordering::Relaxed)),
            // Those that there are do it; the first one there must be.
            Err(error) => crate::log::line(format_args!("no thread for a read: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::Duration;

    #[test]
    fn as_many_wait_at_once_as_there_may_be_threads() {
        let workers = Workers::new(8);
        for _ in 0..3 {
            let all = Arc::new(Barrier::new(9));
            for _ in 0..8 {
                let all = Arc::clone(&all);
                workers.run(move || {
                    all.wait();
                });
            }
            all.wait();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(workers.threads.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn what_is_too_much_waits_its_turn() {
        let (workers, done) = (Workers::new(2), Arc::new(AtomicUsize::new(0)));
        for _ in 0..100 {
            let done = Arc::clone(&done);
            workers.run(move || {
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        while done.load(Ordering::SeqCst) < 100 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(workers.threads.load(Ordering::Relaxed) <= 2);
    }
}
