//! What the server counts: requests by class and status, bytes, connections, objects.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// The classes of requests, as a bill would show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// GET of an object.
    Get,
    /// HEAD of an object.
    Head,
    /// A page of a listing.
    List,
    /// PUT of an object.
    Put,
    /// DELETE of one object or many.
    Delete,
    /// A copy inside the server.
    Copy,
    /// Any part of a multipart upload.
    Multipart,
    /// Anything about buckets.
    Bucket,
}

/// The counts of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerObject {
    /// GET requests.
    pub gets: u64,
    /// HEAD requests.
    pub heads: u64,
    /// Bytes of its content that were sent.
    pub bytes: u64,
}

/// Connections or requests: how many there were, are now, and were at most at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Since the last reset.
    pub total: u64,
    /// Now.
    pub now: u64,
    /// At most at once since the last reset.
    pub peak: u64,
}

impl Level {
    fn rise(&mut self) {
        self.total += 1;
        self.now += 1;
        self.peak = self.peak.max(self.now);
    }
}

/// All counts since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests by class, refused ones included.
    pub requests: BTreeMap<Class, u64>,
    /// Responses by status.
    pub status: BTreeMap<u16, u64>,
    /// Faults that hit, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Bytes of object content sent.
    pub bytes_sent: u64,
    /// Bytes of request bodies received.
    pub bytes_received: u64,
    /// Connections.
    pub connections: Level,
    /// Requests whose response was not complete.
    pub in_flight: Level,
    /// By `BUCKET/KEY`; only when asked for.
    #[serde(default)]
    pub objects: BTreeMap<String, PerObject>,
}

impl Counts {
    /// Requests of a class.
    #[must_use]
    pub fn of(&self, class: Class) -> u64 {
        self.requests.get(&class).copied().unwrap_or(0)
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}

#[derive(Default)]
struct Inner {
    counts: Counts,
    objects: HashMap<String, PerObject>,
    attempts: HashMap<u64, u64>,
}

/// The counters of a server.
#[derive(Default)]
pub struct Counters(Mutex<Inner>);

impl Counters {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the counts, with those of each object when asked for.
    #[must_use]
    pub fn snapshot(&self, objects: bool) -> Counts {
        let inner = self.lock();
        let mut counts = inner.counts.clone();
        if objects {
            counts.objects = inner.objects.iter().map(|(k, v)| (k.clone(), *v)).collect();
        }
        counts
    }

    /// Sets all to zero, attempts included; what is open now stays counted as open.
    pub fn reset(&self) {
        let mut inner = self.lock();
        let (connections, in_flight) = (inner.counts.connections.now, inner.counts.in_flight.now);
        *inner = Inner::default();
        inner.counts.connections = Level {
            total: 0,
            now: connections,
            peak: connections,
        };
        inner.counts.in_flight = Level {
            total: 0,
            now: in_flight,
            peak: in_flight,
        };
    }

    /// Counts a request and returns how many came before it with the same hash (attempts).
    pub fn request(&self, class: Class, name: &str, hash: u64) -> u64 {
        let mut inner = self.lock();
        *inner.counts.requests.entry(class).or_default() += 1;
        if matches!(class, Class::Get | Class::Head) {
            if !inner.objects.contains_key(name) {
                inner.objects.insert(name.to_owned(), PerObject::default());
            }
            if let Some(object) = inner.objects.get_mut(name) {
                object.gets += u64::from(class == Class::Get);
                object.heads += u64::from(class == Class::Head);
            }
        }
        let attempts = inner.attempts.entry(hash).or_default();
        *attempts += 1;
        *attempts - 1
    }

    /// Counts a response's status.
    pub fn status(&self, status: u16) {
        *self.lock().counts.status.entry(status).or_default() += 1;
    }

    /// Counts a fault that hit.
    pub fn fault(&self, kind: String) {
        *self.lock().counts.faults.entry(kind).or_default() += 1;
    }

    /// Counts bytes of an object that were sent.
    pub fn sent(&self, name: &str, bytes: u64) {
        let mut inner = self.lock();
        inner.counts.bytes_sent += bytes;
        if let Some(object) = inner.objects.get_mut(name) {
            object.bytes += bytes;
        }
    }

    /// Counts bytes of a request's body.
    pub fn received(&self, bytes: u64) {
        self.lock().counts.bytes_received += bytes;
    }

    /// Counts a connection's begin.
    pub fn connected(&self) {
        self.lock().counts.connections.rise();
    }

    /// Counts a connection's end.
    pub fn disconnected(&self) {
        let mut inner = self.lock();
        inner.counts.connections.now = inner.counts.connections.now.saturating_sub(1);
    }

    /// Counts a request in flight.
    pub fn began(&self) {
        self.lock().counts.in_flight.rise();
    }

    /// Counts the end of a request in flight.
    pub fn ended(&self) {
        let mut inner = self.lock();
        inner.counts.in_flight.now = inner.counts.in_flight.now.saturating_sub(1);
    }
}
