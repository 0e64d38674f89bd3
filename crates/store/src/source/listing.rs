//! Walks a source in parallel.
//!
//! A listing is paged, and each page names the next, so one prefix cannot be listed faster than page after page. But
//! different prefixes can: one request tells the directories at the top, and these are listed side by side. Where the
//! top has more entries than a page, a fan-out could cost more requests than it saves, and pages follow one another.

use super::cloud::Bucket;
use super::cloud::listing::Page;
use super::file::{Directory, LIST_TIMEOUT};
use super::retry::retrying;
use super::{Entries, Listing, ObjectMeta, Retry, Store};
use crate::{Error, Result};
use futures::stream::{self, FuturesUnordered, StreamExt, TryStreamExt};
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

// A page takes 0.1-1 s; a store that needs longer for a request with its repetitions is not there.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether what lies below a directory, named with its trailing slash, is to be listed too.
pub(crate) type Enters = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What to list. What comes may be more than that, where a store can't be asked so.
#[derive(Clone)]
pub(crate) struct Wanted {
    /// The directory: empty, or with its trailing slash.
    pub directory: String,
    /// What names in it begin with.
    pub start: String,
    /// `None`: what lies directly in it.
    pub enters: Option<Enters>,
}

impl Wanted {
    /// Everything below a prefix.
    pub fn all(prefix: String) -> Self {
        Self {
            directory: prefix,
            start: String::new(),
            enters: Some(Arc::new(|_| true)),
        }
    }
}

/// Everything that is wanted, many prefixes at a time.
pub(crate) fn all(store: &Store, wanted: Wanted, retry: Retry, concurrency: usize) -> Listing {
    match store {
        Store::Directory(directory) => walk(directory.clone(), wanted, concurrency),
        Store::Bucket(bucket) => {
            let bucket = bucket.clone();
            stream::once(async move { fan_out(bucket, wanted, retry, concurrency).await })
                .try_flatten()
                .boxed()
        }
    }
}

/// One level: the objects and directories directly in `prefix`.
pub(crate) async fn level(store: &Store, prefix: &str, retry: Retry) -> Result<Entries> {
    match store {
        Store::Directory(directory) => directory.entries(prefix, Instant::now() + LIST_TIMEOUT).await,
        Store::Bucket(bucket) if !bucket.lists_pages() => {
            retrying(retry, Instant::now() + PAGE_TIMEOUT, || bucket.entries(prefix, true)).await
        }
        Store::Bucket(bucket) => {
            let (mut entries, mut token, mut course) = (Entries::default(), None, Course::default());
            loop {
                let page = page(bucket, prefix, true, token.as_deref(), retry).await?;
                course.goes_on(&page)?;
                entries.objects.extend(page.objects);
                entries.prefixes.extend(page.prefixes);
                token = page.next;
                if token.is_none() {
                    return Ok(entries);
                }
            }
        }
    }
}

/// Whether there is anything below `prefix`, which ends in a slash: an object, a mark that stands for the directory, or the directory itself.
pub(crate) async fn is_any(store: &Store, prefix: &str, retry: Retry) -> Result<bool> {
    let (mut token, mut course) = (None, Course::default());
    while let Store::Bucket(bucket) = store
        && bucket.lists_pages()
    {
        let page = page(bucket, prefix, false, token.as_deref(), retry).await?;
        course.goes_on(&page)?;
        if page.has_mark || !page.objects.is_empty() || page.next.is_none() {
            return Ok(page.has_mark || !page.objects.is_empty());
        }
        token = page.next;
    }
    let mut pages = all(store, Wanted::all(prefix.to_owned()), retry, 1);
    while let Some(page) = pages.next().await {
        if !page?.is_empty() {
            return Ok(true);
        }
    }
    match store {
        Store::Bucket(_) => Ok(false),
        // One without anything in it is there, too.
        Store::Directory(_) => level(store, prefix, retry).await.map(|_| true),
    }
}

/// Notices a listing that goes round, which would never end.
#[derive(Default)]
struct Course {
    /// Names of next pages.
    tokens: HashSet<u64>,
    /// What the page before had.
    before: Option<u64>,
}

impl Course {
    fn goes_on(&mut self, page: &Page) -> Result<()> {
        let Some(token) = &page.next else { return Ok(()) };
        let keys: Vec<&str> = page.objects.iter().map(|object| object.key.as_str()).collect();
        let has = Some(hash(&(&keys, &page.prefixes))).filter(|_| !keys.is_empty() || !page.prefixes.is_empty());
        let is_again = has.is_some() && has == std::mem::replace(&mut self.before, has);
        if is_again || !self.tokens.insert(hash(token)) {
            return Err(Error::corrupt(
                "the listing goes round: the store sends pages that it has sent before",
            ));
        }
        Ok(())
    }
}

fn hash(what: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(what)
}

async fn page(bucket: &Bucket, prefix: &str, by_directory: bool, token: Option<&str>, retry: Retry) -> Result<Page> {
    let deadline = Instant::now() + PAGE_TIMEOUT;
    retrying(retry, deadline, || bucket.page(prefix, by_directory, token, deadline)).await
}

async fn fan_out(bucket: Arc<Bucket>, wanted: Wanted, retry: Retry, concurrency: usize) -> Result<Listing> {
    if !bucket.lists_pages() {
        let deadline = Instant::now() + PAGE_TIMEOUT * 10;
        let is_level = wanted.enters.is_none();
        let entries = retrying(retry, deadline, || bucket.entries(&wanted.directory, is_level)).await?;
        return Ok(stream::iter([Ok(entries.objects)]).boxed());
    }
    let mut prefix = wanted.directory + &wanted.start;
    let Some(enters) = wanted.enters else {
        return Ok(pages(bucket, prefix, true, retry));
    };
    loop {
        let mut top = page(&bucket, &prefix, true, None, retry).await?;
        if top.next.is_some() {
            return Ok(pages(bucket, prefix, false, retry));
        }
        top.prefixes.retain(|directory| enters(directory));
        match top.prefixes.as_slice() {
            [] => return Ok(stream::iter([Ok(top.objects)]).boxed()),
            // One directory at the top (s3://bucket/imagenet/train/...): what is inside decides.
            [only] if top.objects.is_empty() && only.len() > prefix.len() => prefix = only.clone(),
            _ => {
                let below = stream::iter(top.prefixes.clone()).map(move |p| pages(bucket.clone(), p, false, retry));
                let objects = stream::iter([Ok(top.objects)]);
                return Ok(objects.chain(below.flatten_unordered(concurrency.max(1))).boxed());
            }
        }
    }
}

/// The pages of one prefix, one after the other; by directory, what lies directly in it.
fn pages(bucket: Arc<Bucket>, prefix: String, by_directory: bool, retry: Retry) -> Listing {
    let state = Some((bucket, prefix, None::<String>, Course::default()));
    stream::try_unfold(state, move |state| async move {
        let Some((bucket, prefix, token, mut course)) = state else {
            return Ok(None);
        };
        let page = page(&bucket, &prefix, by_directory, token.as_deref(), retry).await?;
        course.goes_on(&page)?;
        let next = page.next.map(|token| (bucket, prefix, Some(token), course));
        Ok(Some((page.objects, next)))
    })
    .boxed()
}

/// All directories that are wanted, several at a time, in no particular order.
fn walk(directory: Arc<Directory>, wanted: Wanted, concurrency: usize) -> Listing {
    let (waiting, running) = (VecDeque::from([wanted.directory]), FuturesUnordered::new());
    stream::try_unfold(
        (directory, wanted.enters, waiting, running),
        move |(directory, enters, mut waiting, mut running)| async move {
            loop {
                while running.len() < concurrency.max(1) {
                    let Some(prefix) = waiting.pop_front() else { break };
                    let directory = directory.clone();
                    running.push(async move { directory.entries(&prefix, Instant::now() + LIST_TIMEOUT).await });
                }
                let Some(entries) = running.next().await else {
                    return Ok(None);
                };
                let entries: Entries = entries?;
                let enters_it = |prefix: &String| enters.as_ref().is_some_and(|enters| enters(prefix));
                waiting.extend(entries.prefixes.into_iter().filter(enters_it));
                let objects: Vec<ObjectMeta> = entries.objects;
                if !objects.is_empty() {
                    return Ok(Some((objects, (directory, enters, waiting, running))));
                }
            }
        },
    )
    .boxed()
}
