//! An agent in a test's hand: no socket and no thread of its own, clients that are one end of a pair, and files for a bucket.

use super::{Agent, AgentSettings, CURRENT};
use crate::calls::{Attach, Open, Reply};
use crate::connection::Connection;
use crate::dataset::{Dataset, shared};
use crate::job::Job;
use crate::protocol::{Ask, Frames, Malformed, Say, Trouble};
use crate::scatter::crc32c;
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::policy::Policy;
use foreload_plan::spec::{OrderKind, OrderSpec, Tail};
use foreload_store::format::Format;
use foreload_store::index::{IndexBuilder, NewObject};
use foreload_store::{Source, SourceOptions};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) struct Node {
    pub agent: Rc<Agent>,
    pub directory: tempfile::TempDir,
}

/// A client's end.
pub(crate) struct Client {
    pub connection: Rc<Connection>,
    stream: UnixStream,
    frames: Frames,
    heard: VecDeque<Say>,
}

/// Runs a test beside an agent whose jobs wait so long for somebody else. At its end the agent has obeyed its plan.
pub(crate) fn run<T: Future<Output = ()>>(linger: Duration, test: impl FnOnce(Rc<Node>) -> T) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let directory = tempfile::tempdir().expect("directory");
    let settings = AgentSettings {
        socket: directory.path().join("socket"),
        cache_dir: directory.path().to_owned(),
        linger,
        record: true,
    };
    tokio::task::LocalSet::new().block_on(&runtime.expect("runtime"), async {
        let agent = Agent::new(settings);
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&agent)));
        let node = Rc::new(Node { agent, directory });
        test(Rc::clone(&node)).await;
        node.agent.replay_all().expect("it obeyed its plan");
        node.agent.end_jobs();
        CURRENT.with(|current| current.borrow_mut().take());
    });
}

/// Lets everybody go on until something is so.
pub(crate) async fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "nothing came for a minute");
        tokio::task::yield_now().await;
    }
}

/// The bytes of a sample.
pub(crate) fn bytes(sample: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (sample * 31 + at) as u8).collect()
}

/// Leases that the clients of a job's pool hold.
pub(crate) fn leases(job: &Job) -> u64 {
    job.pool.look(|plan| plan.gauges().leases)
}

/// Asks for samples, whoever's turn it is.
pub(crate) fn want(id: u64, job: u32, samples: Vec<u64>) -> Ask {
    Ask::WantSamples {
        id,
        job,
        rank: 0,
        samples,
    }
}

impl Node {
    /// A data set of files of these lengths, with their checksums.
    pub fn dataset(&self, name: &str, lengths: &[u64]) -> u32 {
        let directory = self.directory.path().join(name);
        std::fs::create_dir_all(&directory).expect("made");
        let root = format!("file://{}", directory.display());
        let mut builder = IndexBuilder::new(root, Format::Folder);
        for (sample, &len) in (0..).zip(lengths) {
            let (key, contents) = (format!("{sample:03}"), bytes(sample, len));
            std::fs::write(directory.join(&key), &contents).expect("written");
            let object = NewObject {
                key: &key,
                size: len,
                ..NewObject::default()
            };
            builder
                .whole_object(object, None, Some(crc32c(&contents)))
                .expect("added");
        }
        let index = builder.finish().expect("built");
        self.agent.add(Rc::new(Dataset {
            open: Open {
                url: name.to_owned(),
                ..Open::default()
            },
            source: Source::open(index.root(), &SourceOptions::default()).expect("a source"),
            shared: Arc::new(shared(&index).expect("shared")),
            list: None,
            index,
            origin: "listed",
            changes: None,
            index_etag: None,
            kept: std::cell::RefCell::default(),
            spool: None,
            seen: std::cell::Cell::new(None),
            pins: Arc::default(),
        }))
    }

    /// Reads a data set in its order, in batches of four by one rank, with a mebibyte.
    pub fn attachment(&self, dataset: u32) -> Attach {
        let opened = self.opened(dataset);
        Attach {
            dataset,
            more: vec![],
            session: "first".into(),
            order: OrderSpec {
                dataset: opened.digest(),
                samples: opened.index.len(),
                kind: OrderKind::Sequential,
                seed: 3,
                global_batch: 4,
                tail: Tail::Uneven,
            },
            world: 1,
            ranks: vec![0],
            uneven: true,
            deal: None,
            nodes: None,
            policy: Policy::Foreload,
            ram_bytes: 1 << 20,
            batch_bytes: 1 << 16,
            skip_large: false,
            staging_bytes: None,
            disks: vec![],
            concurrency: ConcurrencySettings::default(),
            io_threads: None,
            hedge_per_cent: 0,
            request_bytes: None,
            timeout_s: 20.0,
            stall_s: 10.0,
            epochs: None,
            bucket: None,
            metrics_log: None,
        }
    }

    pub fn client(&self) -> Client {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let id = self.agent.next.replace(self.agent.next.get() + 1);
        let connection = Rc::new(Connection::new(id, ours));
        let known = Rc::clone(&connection);
        self.agent.connections.borrow_mut().insert(id, known);
        Client {
            connection,
            stream: theirs,
            frames: Frames::default(),
            heard: VecDeque::new(),
        }
    }

    /// The job, and whether it was there.
    pub async fn attach(&self, client: &Client, attach: Attach) -> Result<(Rc<Job>, bool), Trouble> {
        match self.agent.attach(&client.connection, 1, attach).await? {
            (Reply::Attached { job, joined, .. }, _) => Ok((self.agent.job(job)?, joined)),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// The numbers of all jobs.
    pub fn jobs(&self) -> Vec<u32> {
        self.agent.jobs.borrow().keys().copied().collect()
    }

    /// A client's process ends.
    pub fn leave(&self, client: &Client) {
        self.agent.part(&client.connection);
    }

    /// The last data set that was opened.
    pub fn newest(&self) -> Option<u32> {
        self.agent.known(|_| true)
    }

    pub fn opened(&self, dataset: u32) -> Rc<Dataset> {
        self.agent.dataset(dataset).expect("it is open")
    }

    /// Ends a job, as what makes room for another one.
    pub fn end(&self, job: &Rc<Job>) {
        self.agent.drop_job(job);
    }

    /// A client is gone before anybody has noticed.
    pub fn lose(&self, client: Client) {
        self.agent.connections.borrow_mut().remove(&client.connection.id);
    }
}

impl Client {
    /// The next message of the agent but for notes of progress.
    pub async fn hear(&mut self) -> Say {
        loop {
            self.take_in();
            if let Some(say) = self.heard.pop_front() {
                return say;
            }
            self.stream.readable().await.expect("readable");
        }
    }

    /// Whether nothing has come that wasn't heard, but for notes of progress.
    pub fn is_quiet(&mut self) -> bool {
        self.take_in();
        self.heard.is_empty()
    }

    /// Takes in what has come.
    fn take_in(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => panic!("the agent left"),
                Ok(n) => self.frames.feed(&buffer[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let take = |frame: &[u8]| -> Result<(), Malformed> {
            let say = Say::decode(frame)?;
            let is_progress = matches!(say, Say::Progress { .. });
            self.heard.extend((!is_progress).then_some(say));
            Ok(())
        };
        self.frames.drain(take).expect("well-formed");
    }

    /// The kind of trouble that the next message tells.
    pub async fn trouble(&mut self) -> (u64, Trouble) {
        match self.hear().await {
            Say::Refuse { id, body } => (id, serde_json::from_str(&body).expect("JSON")),
            other => panic!("{other:?}"),
        }
    }
}
