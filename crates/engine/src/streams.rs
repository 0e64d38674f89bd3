//! What a job reads: one data set or several, whose samples are numbered one data set after the other.
//!
//! The clients and everything that a job counts use the job's numbers; here they become a data set and its own number, wherever samples are measured
//! or named.

use crate::dataset::Dataset;
use foreload_plan::catalog::Spans;
use foreload_plan::{Digest, DigestBuilder};
use foreload_store::Index;
use rustix::process::{Resource, getrlimit};
use std::rc::Rc;
use std::sync::Arc;

/// The data sets of a job.
pub struct Streams {
    parts: Vec<Rc<Dataset>>,
    indexes: Indexes,
}

/// The indexes of a job's data sets, which other threads may use too.
#[derive(Clone)]
pub struct Indexes {
    parts: Vec<Index>,
    samples: Spans,
}

impl Indexes {
    /// Samples of all.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.samples.total()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of each sample, in the order of their numbers.
    pub fn lengths(&self) -> impl Iterator<Item = u64> {
        let of = |index: &'_ Index| {
            let index = index.clone();
            (0..index.len()).map(move |sample| index.length(sample))
        };
        self.parts.iter().flat_map(of)
    }
}

impl Streams {
    /// At least one data set; one may come several times.
    #[must_use]
    pub fn new(parts: Vec<Rc<Dataset>>) -> Self {
        let indexes = Indexes {
            parts: parts.iter().map(|part| part.index.clone()).collect(),
            samples: Spans::new(parts.iter().map(|part| part.index.len())),
        };
        Self { parts, indexes }
    }

    /// Samples of all.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.indexes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names one data set as its index does, and several together.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let digests: Vec<Digest> = self.parts.iter().map(|part| part.digest()).collect();
        digest_of(&digests)
    }

    /// Where they lie, for people.
    #[must_use]
    pub fn url(&self) -> String {
        let urls: Vec<&str> = self.parts.iter().map(|part| part.open.url.as_str()).collect();
        urls.join(", ")
    }

    /// What answers requests for them. Several endpoints count as one of their own: its limit is found for them together.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let mut endpoints: Vec<String> = self.parts.iter().map(|part| part.source.endpoint()).collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        endpoints.join(" ")
    }

    /// Requests that this process can have in flight to them: each holds a thread where they lie in a directory, and otherwise a connection, which may
    /// take half of the descriptors.
    #[must_use]
    pub fn most_requests(&self) -> u32 {
        let descriptors = getrlimit(Resource::Nofile)
            .current
            .map_or(u32::MAX, |n| u32::try_from(n / 2).unwrap_or(u32::MAX));
        let sources = self.parts.iter().map(|part| part.source.most_requests());
        sources.fold(descriptors, u32::min)
    }

    /// The data sets, in the order of their numbers.
    #[must_use]
    pub fn parts(&self) -> &[Rc<Dataset>] {
        &self.parts
    }

    /// Whether it is some of the samples of a data set that others may read more of.
    #[must_use]
    pub fn is_choice(&self) -> bool {
        self.parts.iter().any(|part| part.list.is_some())
    }

    /// What scans have read of them goes, where nearly all of it was taken.
    pub fn release_read_spools(&self) {
        let spools = self.parts.iter().filter_map(|part| part.spool.as_ref());
        spools.filter(|spool| spool.is_read()).for_each(|spool| spool.release());
    }

    /// Whether several samples lie in one object.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        self.parts.iter().map(|part| part.index.objects()).sum::<u64>() < self.len()
    }

    /// Bytes of their indexes: the agent's own, and those that it shares. Data sets that are choices of one index share it, and have a list each.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let is_first = |at: usize, is_same: fn(&Dataset, &Dataset) -> bool| {
            !self.parts[..at].iter().any(|part| is_same(part, &self.parts[at]))
        };
        let mut bytes = 0;
        for (at, part) in self.parts.iter().enumerate() {
            if is_first(at, |one, other| Arc::ptr_eq(&one.shared, &other.shared)) {
                bytes += 2 * part.index.as_bytes().len();
            }
            if is_first(at, |one, other| std::ptr::eq(one, other)) {
                bytes += part.index.numbers().map_or(0, |numbers| numbers.as_bytes().len());
            }
        }
        bytes as u64
    }

    /// Their indexes.
    #[must_use]
    pub fn indexes(&self) -> Indexes {
        self.indexes.clone()
    }

    /// A sample's data set, and its number there.
    fn find(&self, sample: u64) -> Option<(&Dataset, u64)> {
        self.indexes
            .samples
            .find(sample)
            .map(|(part, sample)| (&*self.parts[part], sample))
    }

    /// A sample's bytes; 0 when there is no such sample.
    #[must_use]
    pub fn length(&self, sample: u64) -> u64 {
        self.find(sample).map_or(0, |(part, sample)| part.index.length(sample))
    }

    /// A sample's label, as its data set numbers it.
    #[must_use]
    pub fn label(&self, sample: u64) -> Option<i64> {
        self.find(sample).and_then(|(part, sample)| part.index.label(sample))
    }

    /// The URL of a sample's object, the first one of several.
    #[must_use]
    pub fn url_of(&self, sample: u64) -> String {
        let found = self.find(sample).and_then(|(part, sample)| {
            let object = part.index.object(part.index.object_of(sample)).ok()?;
            Some(part.source.url_of(&object.key))
        });
        found.unwrap_or_default()
    }

    /// Whether a sample lies in a directory, and not in a bucket.
    #[must_use]
    pub fn is_local(&self, sample: u64) -> bool {
        self.find(sample).is_some_and(|(part, _)| part.source.is_local())
    }

    /// A sample, as messages name it.
    #[must_use]
    pub fn name(&self, sample: u64) -> String {
        let found = self.find(sample).and_then(|(part, sample)| {
            let named = part.index.name(sample);
            let named = named.map_or_else(String::new, |name| format!(", {name:?}"));
            let found = part.index.sample(sample).ok()?;
            let more = match found.ranges().len() - 1 {
                0 => String::new(),
                1 => " and 1 more range".into(),
                more => format!(" and {more} more ranges"),
            };
            Some((found.range(), more + &named))
        });
        match found {
            Some((range, named)) => format!(
                "sample {sample} ({} [bytes {}..{}]{named})",
                self.url_of(sample),
                range.start,
                range.end
            ),
            None => format!("sample {sample}"),
        }
    }
}

/// Names data sets that are read together: one as it is, several by all of theirs in their order.
#[must_use]
pub fn digest_of(digests: &[Digest]) -> Digest {
    match digests {
        [one] => *one,
        several => several
            .iter()
            .fold(DigestBuilder::new("streams/1"), DigestBuilder::digest)
            .finish(),
    }
}
