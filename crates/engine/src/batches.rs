//! The batch arena: memory that clients collate into, leased exclusively.

use crate::slots::Shared;
use foreload_plan::arena::{Arena, Slot, Stay};
use rustc_hash::FxHashMap;
use std::io;
use std::sync::Arc;

/// Slots for batches, each held by one connection.
pub struct Batches {
    shared: Arc<Shared>,
    free: Arena,
    held: FxHashMap<u64, (Slot, u64)>,
    next: u64,
}

impl Batches {
    /// An arena of `len` bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(len: u64) -> io::Result<Self> {
        Ok(Batches {
            shared: Arc::new(Shared::new("foreload-batches", len, false)?),
            free: Arena::new(len),
            held: FxHashMap::default(),
            next: 0,
        })
    }

    /// The memory.
    #[must_use]
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Leases `len` bytes to a connection. `None`: there is no room now; the client uses its own memory.
    pub fn take(&mut self, len: u64, connection: u64) -> Option<(u64, Slot)> {
        let slot = self.free.take(len.max(1), Stay::Short)?;
        self.next += 1;
        self.held.insert(self.next, (slot, connection));
        Some((self.next, slot))
    }

    /// Takes a lease back from whoever holds it.
    pub fn give(&mut self, id: u64, connection: u64) {
        if self.held.get(&id).is_some_and(|(_, holder)| *holder == connection)
            && let Some((slot, _)) = self.held.remove(&id)
        {
            self.free.give(slot);
        }
    }

    /// Moves leases between connections: all or none.
    pub fn adopt(&mut self, ids: &[u64], from: u64, to: u64) -> bool {
        if !ids
            .iter()
            .all(|id| self.held.get(id).is_some_and(|(_, holder)| *holder == from))
        {
            return false;
        }
        for id in ids {
            if let Some((_, holder)) = self.held.get_mut(id) {
                *holder = to;
            }
        }
        true
    }

    /// Takes all leases of a connection back.
    pub fn reclaim(&mut self, connection: u64) {
        let ids: Vec<u64> = self
            .held
            .iter()
            .filter(|(_, (_, holder))| *holder == connection)
            .map(|(&id, _)| id)
            .collect();
        ids.into_iter().for_each(|id| self.give(id, connection));
    }

    /// Leases out.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_connections_slots_come_back_and_adopted_ones_stay() {
        let mut batches = Batches::new(1 << 16).expect("memfd");
        let (a, _) = batches.take(30_000, 1).expect("room");
        let (b, _) = batches.take(30_000, 1).expect("room");
        assert!(batches.take(30_000, 1).is_none());
        assert!(!batches.adopt(&[a, 99], 1, 2) && !batches.adopt(&[a], 3, 2));
        assert!(batches.adopt(&[a], 1, 2));
        batches.reclaim(1);
        assert_eq!(batches.leases(), 1);
        batches.give(a, 1);
        assert_eq!(batches.leases(), 1, "only the holder gives back");
        batches.give(a, 2);
        batches.give(b, 1);
        assert!(batches.take(60_000, 1).is_some());
    }
}
