//! What a job reads: one data set or several, whose samples and objects are numbered one data set after the other.
//!
//! The plan, the clients and everything that a job counts use the job's numbers; here they become a data set and its own number, wherever bytes are
//! fetched, checked, named or looked up on disk. A block's key in the disk tiers is that of its own data set, so that a mixture finds what a job over
//! one of its streams has kept, and the other way round.

use crate::dataset::{Dataset, IndexCatalog, trouble};
use crate::protocol::Trouble;
use foreload_plan::catalog::{self, Place, Spans};
use foreload_plan::{Digest, DigestBuilder};
use foreload_store::Index;
use foreload_store::index::{ObjectRef, content_key};
use std::rc::Rc;

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
    objects: Spans,
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

    /// The key of a block in the disk tiers, the first sample of which is this one.
    #[must_use]
    pub fn key(&self, first: u64, block: Place) -> Option<[u8; 16]> {
        let (part, sample) = self.samples.find(first)?;
        if self.parts[part].is_several(sample) {
            return self.parts[part].sample_key(sample).ok();
        }
        let (part, object) = self.objects.find(block.object)?;
        let index = &self.parts[part];
        let range = block.offset..block.offset + block.len;
        Some(content_key(index.root(), &index.object(object).ok()?, range))
    }
}

impl Streams {
    /// At least one data set; one may come several times.
    #[must_use]
    pub fn new(parts: Vec<Rc<Dataset>>) -> Self {
        let indexes = Indexes {
            parts: parts.iter().map(|part| part.index.clone()).collect(),
            samples: Spans::new(parts.iter().map(|part| part.index.len())),
            objects: Spans::new(parts.iter().map(|part| part.index.objects())),
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

    /// The plan's view of them.
    #[must_use]
    pub fn catalog(&self, most_bytes: u64) -> catalog::Streams<IndexCatalog> {
        let part = |part: &Rc<Dataset>| {
            let index = part.index.clone();
            let objects = index.objects();
            (IndexCatalog { index, most_bytes }, objects)
        };
        catalog::Streams::new(self.parts.iter().map(part).collect())
    }

    /// Whether several samples lie in one object.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        self.indexes.objects.total() < self.len()
    }

    /// Bytes of their indexes: the agent's own, and those that it shares.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let is_first = |at: &usize| !self.parts[..*at].iter().any(|part| Rc::ptr_eq(part, &self.parts[*at]));
        let own = (0..self.parts.len()).filter(is_first);
        own.map(|at| 2 * self.parts[at].index.as_bytes().len() as u64).sum()
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

    /// A sample's checksum, where the index has it.
    #[must_use]
    pub fn crc32c(&self, sample: u64) -> Option<u32> {
        self.find(sample).and_then(|(part, sample)| part.index.crc32c(sample))
    }

    /// The key of a block in the disk tiers, the first sample of which is this one.
    #[must_use]
    pub fn key(&self, first: u64, block: Place) -> Option<[u8; 16]> {
        self.indexes.key(first, block)
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

    /// Whether the index places a sample.
    ///
    /// # Errors
    /// Why it doesn't.
    pub fn placed(&self, sample: u64) -> Result<(), Trouble> {
        let Some((part, sample)) = self.find(sample) else {
            return Ok(());
        };
        part.index.sample(sample).map(drop).map_err(|error| trouble(&error))
    }

    /// An object and the data set that it belongs to.
    ///
    /// # Errors
    /// What the index says of an object that it doesn't have.
    pub fn object(&self, object: u64) -> Result<(&Dataset, ObjectRef), Trouble> {
        // One that no data set has is for the last one's index to refuse.
        let last = self.parts.len() - 1;
        let (part, object) = self.indexes.objects.find(object).unwrap_or((last, u64::MAX));
        let part = &self.parts[part];
        let found = part.index.object(object).map_err(|error| trouble(&error))?;
        Ok((part, found))
    }

    /// Looks after the credentials of each; what goes wrong is told by the fetch that needs them.
    pub async fn warm_credentials(&self) {
        for part in &self.parts {
            let _ = part.source.warm_credentials().await;
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
