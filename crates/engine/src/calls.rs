//! The calls of the protocol: what a client asks once per data set or job, and the answers, as JSON.
//!
//! Lists of samples are as long as data sets are, and no JSON: they travel beside it ([`List`]).

use crate::list::{List, take_up};
use foreload_plan::Digest;
use foreload_plan::action::Load;
use foreload_plan::deal::Deal;
use foreload_plan::flow::ConcurrencySettings;
use foreload_plan::model::Pinned;
use foreload_plan::policy::Policy;
use foreload_plan::scheduler::Gauges;
use foreload_plan::spec::{OrderKind, OrderSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// What a client can call.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Call {
    /// The first call of a connection.
    Hello {
        /// The client's [`VERSION`](crate::protocol::VERSION).
        version: u32,
        /// Its process, for messages.
        pid: u32,
    },
    /// For a sign of life: answered at once.
    Ping,
    /// Opens a data set; the answer carries its index as a memfd.
    Open(Open),
    /// Some samples of a data set as a data set of its own; answered like [`Call::Open`].
    Subset {
        /// The data set's id.
        dataset: u32,
        /// Its samples, in their new order.
        #[serde(skip)]
        samples: List,
    },
    /// This connection's process has a data set that another one opened, its parent; it stays open for it.
    Hold {
        /// The data set's id.
        dataset: u32,
    },
    /// This connection has a data set no longer: it stays open for those jobs and connections that have it.
    LetGo {
        /// The data set's id.
        dataset: u32,
    },
    /// Joins or starts a job; the answer carries its two arenas.
    Attach(Box<Attach>),
    /// New credentials for a data set, from the client's provider.
    Credentials {
        /// The data set's id.
        dataset: u32,
        /// As in [`Open::storage_options`].
        storage_options: BTreeMap<String, String>,
    },
    /// The samples of an epoch, for orders that are supplied.
    Supply {
        /// The job.
        job: u32,
        /// The epoch.
        epoch: u32,
        /// Samples by position.
        #[serde(skip)]
        samples: Vec<u64>,
    },
    /// Answers other nodes from now on, on an address of this machine and with a secret that they share.
    Listen {
        /// The job that they are to share the caches of.
        job: u32,
        /// The address, which the others can reach.
        host: IpAddr,
        /// What they sign with; at least 16 characters.
        secret: String,
        /// Whether what is sent is encrypted.
        #[serde(default)]
        tls: bool,
    },
    /// The nodes of a job that share their caches from now on, this one among them; none, or this one alone: it keeps all for itself.
    Peers {
        /// The job.
        job: u32,
        /// This node's [`PeerAt::id`].
        me: u64,
        /// All of them.
        members: Vec<PeerAt>,
        /// Those that share with each other, at most: neighbours by their ids; 0: all.
        #[serde(default)]
        group: u32,
        /// What they sign with.
        secret: String,
        /// Whether they encrypt what they send.
        #[serde(default)]
        tls: bool,
    },
    /// Asks each node that a job's shares with for nothing in particular, so that connections are there before anything waits for them.
    Reach {
        /// The job.
        job: u32,
    },
    /// Whether the first rank of this node has met the other nodes, or will go on without them; or that it has. It is so for as long as that rank is connected: what ranks of before had met says nothing of those that have come since.
    Met {
        /// The job.
        job: u32,
        /// It has.
        #[serde(default)]
        has: bool,
    },
    /// What happened in a job so far.
    Stats {
        /// The job.
        job: u32,
    },
    /// The same on all its nodes, also those of other groups.
    Group {
        /// The job.
        job: u32,
    },
    /// What the agent is doing.
    Status,
    /// Ends the agent once nobody is attached any more, without lingering.
    Retire,
}

impl Call {
    /// Whether a list travels beside the JSON.
    #[must_use]
    pub fn has_list(&self) -> bool {
        match self {
            Call::Subset { .. } | Call::Supply { .. } => true,
            Call::Attach(attach) => matches!(attach.order.kind, OrderKind::Explicit { .. }),
            _ => false,
        }
    }

    /// Lays down what travels beside the JSON.
    ///
    /// # Errors
    /// As [`List::new`].
    pub fn list(&self) -> io::Result<Option<List>> {
        match self {
            Call::Subset { samples, .. } if samples.fd().is_some() => Ok(Some(samples.clone())),
            Call::Subset { .. } => List::new(&[]).map(Some),
            Call::Supply { samples, .. } => List::new(samples).map(Some),
            Call::Attach(attach) => match &attach.order.kind {
                OrderKind::Explicit { list } => List::new(list).map(Some),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// The same call with the list of `count` numbers that came beside it.
    ///
    /// # Errors
    /// As [`List::of`].
    pub fn with(mut self, fd: OwnedFd, count: u64) -> io::Result<Self> {
        match &mut self {
            Call::Subset { samples, .. } => *samples = List::of(fd, count)?,
            Call::Supply { samples, .. } => *samples = take_up(&fd, count)?,
            Call::Attach(attach) => {
                if let OrderKind::Explicit { list } = &mut attach.order.kind {
                    *list = take_up(&fd, count)?.into();
                }
            }
            _ => {}
        }
        Ok(self)
    }

    /// As JSON, without the list.
    ///
    /// # Errors
    /// What the values can't be written for.
    pub fn body(&self) -> serde_json::Result<String> {
        match self {
            Call::Attach(attach) if self.has_list() => {
                let mut attach = attach.clone();
                attach.order.kind = OrderKind::Explicit { list: [].into() };
                serde_json::to_string(&Call::Attach(attach))
            }
            _ => serde_json::to_string(self),
        }
    }
}

/// A data set to open.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Open {
    /// `s3://bucket/prefix` and so on.
    pub url: String,
    /// `auto`, `folder`, `flat`, `tar`, `manifest`.
    pub format: String,
    /// Endpoint, region, credentials and other options of the store.
    pub storage_options: BTreeMap<String, String>,
    /// A saved index: a local path or a URL. Default: the one saved in the cache directory, then a listing.
    pub index: Option<String>,
    /// List again even if an index is saved.
    pub refresh: bool,
    /// Bring the saved index up to date: samples that are unchanged keep their numbers.
    pub update: bool,
    /// Read everything once and add a checksum for each sample, if one has none; with `update` in any case.
    pub checksum: bool,
    /// Which files are samples, as suffixes (`jpg`); empty: all.
    pub extensions: Vec<String>,
    /// Of LMDB files the database with this name; empty: the one without.
    pub database: String,
    /// Take it as it was listed, though it may be another by now: for who brings it up to date.
    pub stale: bool,
    /// What the index' digest must be: of the data set that this client, or the one it works for, opened before.
    pub digest: Option<String>,
}

/// A disk tier of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskShare {
    /// Its directory.
    pub directory: PathBuf,
    /// Bytes it may use.
    pub capacity_bytes: u64,
    /// Speeds to assume instead of measuring.
    #[serde(default)]
    pub pinned: Option<Pinned>,
}

/// A job to join or start. Clients with equal values join the same job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The data set's id.
    pub dataset: u32,
    /// Those of further data sets: their samples are numbered after its own, one data set after the other.
    #[serde(default)]
    pub more: Vec<u32>,
    /// Tells two jobs with equal plans apart; the ranks of one job use the same word. A job that nobody is attached to is taken over whatever its word, and has that of the new client from then on.
    pub session: String,
    /// The order.
    pub order: OrderSpec,
    /// Data ranks in the run.
    pub world: u32,
    /// Those of this node.
    pub ranks: Vec<u32>,
    /// Share short batches unequally.
    pub uneven: bool,
    /// By rank: the [`PeerAt::id`] of its node, where samples go to the ranks of the nodes that keep them. Only for data sets of one sample an object.
    #[serde(default)]
    pub deal: Option<Deal>,
    /// By rank: the same, where each node keeps what it reads most often. `None`: this node is told from all others only.
    #[serde(default)]
    pub nodes: Option<Vec<u64>>,
    /// The policy.
    #[serde(default)]
    pub policy: Policy,
    /// Memory of the job: RAM tier, staging and batches together.
    pub ram_bytes: u64,
    /// Of it, for collated batches.
    pub batch_bytes: u64,
    /// Whether samples that don't fit the memory are left out by the client: asked for, they are refused, and the job is none the worse. Otherwise
    /// such a job isn't started.
    #[serde(default)]
    pub skip_large: bool,
    /// Of it, for what passes through; `None`: the plan's default.
    #[serde(default)]
    pub staging_bytes: Option<u64>,
    /// Disk tiers, fastest first.
    #[serde(default)]
    pub disks: Vec<DiskShare>,
    /// Requests in flight.
    #[serde(default)]
    pub concurrency: ConcurrencySettings,
    /// Threads that fetch; the agent has as many as the job that asks for most. 1: the agent's own.
    #[serde(default)]
    pub io_threads: Option<u32>,
    /// Twins per hundred requests.
    #[serde(default = "hedges")]
    pub hedge_per_cent: u32,
    /// Each request is for one sample, or for a part of so many bytes of a longer one: neighbours aren't fetched together. `None`: as the plan's defaults have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<u64>,
    /// Longest time of a load, retries included, in seconds.
    #[serde(default = "timeout")]
    pub timeout_s: f64,
    /// Waiting longer than this is reported, in seconds.
    #[serde(default = "stall")]
    pub stall_s: f64,
    /// Epochs in the run, if known.
    #[serde(default)]
    pub epochs: Option<u32>,
    /// Speeds of the bucket to assume instead of measuring.
    #[serde(default)]
    pub bucket: Option<Pinned>,
    /// Writes one line of JSON per second of activity to this file.
    #[serde(default)]
    pub metrics_log: Option<PathBuf>,
}

fn hedges() -> u32 {
    5
}

// Half a minute outlives a bucket's usual hiccup and is still far below any collective's time-out.
fn timeout() -> f64 {
    30.0
}

/// Seconds of waiting that are reported. Ten without a sample never happen to a healthy run.
pub const STALL_S: f64 = 10.0;

fn stall() -> f64 {
    STALL_S
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// The agent's side of the handshake.
    Welcome {
        /// The agent's [`VERSION`](crate::protocol::VERSION).
        version: u32,
        /// Its process.
        pid: u32,
        /// This connection's id, which hand-overs name.
        connection: u64,
    },
    /// An opened data set. Carries an fd, the index, and of a choice a second one, its list.
    Opened {
        /// Its id.
        dataset: u32,
        /// Bytes of the index.
        index_bytes: u64,
        /// Which samples of the index it is, if not all of them.
        chosen: Option<Chosen>,
        /// Where the index came from: `listed`, `cache`, `saved`, `updated`, `subset`.
        origin: String,
        /// What an update found: objects unchanged, added, changed, removed.
        changes: Option<[u64; 4]>,
    },
    /// A job. Carries two fds: cache arena, batch arena.
    Attached {
        /// Its id.
        job: u32,
        /// Bytes of the cache arena.
        cache_bytes: u64,
        /// Bytes of the batch arena.
        batch_bytes: u64,
        /// Whether it was running already.
        joined: bool,
        /// Samples found in the disk tiers.
        found: u64,
        /// The plan's digest, which ranks compare.
        plan: Digest,
        /// What was wrong with the tiers and could be mended.
        warnings: Vec<String>,
    },
    /// Done, and nothing to say.
    Done,
    /// Other nodes are answered.
    Listening {
        /// Where.
        address: SocketAddr,
        /// Bytes that this node can keep, for [`PeerAt::keeps_bytes`].
        keeps_bytes: u64,
    },
    /// Other nodes were asked.
    Reached {
        /// Nodes that share with each other, with this one.
        nodes: u64,
        /// What they can keep together.
        keeps_bytes: u64,
        /// Of those, who gave no answer that a peer gives: [`PeerAt::id`], and why not.
        silent: Vec<(u64, String)>,
    },
    /// Whether the nodes of a job have met.
    Met {
        /// They have.
        has: bool,
    },
    /// Counters of a job.
    Stats(Box<Stats>),
    /// How the nodes of a job are, this one first.
    Group {
        /// Each of them.
        nodes: Vec<NodeReport>,
    },
    /// The agent's state.
    Status {
        /// Its process.
        pid: u32,
        /// Connections.
        connections: u64,
        /// Jobs.
        jobs: Vec<JobStatus>,
    },
    /// It failed.
    Failed(crate::protocol::Trouble),
}

/// A node of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAt {
    /// What tells it from the others, on all of them, now and after a restart.
    pub id: u64,
    /// Where it answers.
    pub address: SocketAddr,
    /// Bytes that it can keep.
    pub keeps_bytes: u64,
}

/// How a job does on one of its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// Where it answers; `None`: it is this node.
    pub address: Option<SocketAddr>,
    /// What it says.
    pub report: Option<Report>,
    /// Why it says nothing.
    pub silence: Option<String>,
}

/// What a node says of a job that it shares with others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The job's ranks there.
    pub ranks: Vec<u32>,
    /// Seconds since somebody there waits for samples; `None`: nobody does.
    pub waiting_s: Option<f64>,
    /// Its counters, but for what the other nodes gave.
    pub stats: Box<Stats>,
}

/// Some samples of an index, but for the list of their numbers there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// How many.
    pub samples: u64,
    /// Names them, as an index of these samples alone.
    pub digest: Digest,
    /// Objects that they lie in.
    pub objects: u64,
}

/// How far a long call is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it does: `listing`, `reading headers`, ...
    pub step: String,
    /// Done so far.
    pub done: u64,
    /// In all, when known.
    pub total: Option<u64>,
    /// Samples found so far.
    pub samples: u64,
    /// Bytes read so far, where reading is the work.
    pub bytes: Option<u64>,
}

/// A job, in the agent's status.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its id.
    pub job: u32,
    /// The data set's URL.
    pub url: String,
    /// Connections attached.
    pub clients: u64,
    /// Their processes, each once.
    pub processes: Vec<u32>,
    /// The order's kind.
    pub order: String,
    /// The order's seed.
    pub seed: u64,
    /// Ranks of this node.
    pub ranks: Vec<u32>,
    /// Of so many.
    pub world: u32,
    /// Memory that it brings.
    pub ram_bytes: u64,
    /// The pool that it is in: jobs of one pool share memory.
    pub pool: u32,
    /// Memory that all jobs of the pool bring.
    pub pool_bytes: u64,
}

/// Counters of a job since it started, or was taken over by another loader.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Samples delivered.
    pub samples: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Of the samples, found in memory.
    pub ram_hits: u64,
    /// Read from disk.
    pub disk_hits: u64,
    /// Fetched from the bucket.
    pub bucket_reads: u64,
    /// Had from other nodes.
    pub peer_hits: u64,
    /// Of what other nodes were asked for, what they hadn't got.
    pub peer_misses: u64,
    /// And what came too late, broken or not at all.
    pub peer_failures: u64,
    /// Bytes found in memory.
    pub ram_bytes: u64,
    /// Bytes read from disk.
    pub disk_bytes: u64,
    /// Bytes of delivered samples that were fetched for it.
    pub bucket_bytes: u64,
    /// Bytes had from other nodes.
    pub peer_bytes: u64,
    /// Ranged GETs sent, retries included.
    pub requests: u64,
    /// Bytes asked of the bucket.
    pub requested_bytes: u64,
    /// Bytes that a scan of shards had read already.
    pub spooled_bytes: u64,
    /// GETs repeated after a failure.
    pub retries: u64,
    /// Twins sent after late GETs.
    pub hedges: u64,
    /// Twins that came first.
    pub hedges_won: u64,
    /// Loads that failed for good.
    pub failures: u64,
    /// Samples written to a disk tier.
    pub written_samples: u64,
    /// Samples whose disk record failed its checksum and was fetched again.
    pub quarantined: u64,
    /// Seconds in which at least one consumer waited.
    pub waited_s: f64,
    /// Bytes of memory that the pool's arena and the job's batches have from the system now; what is reserved and not filled yet has none.
    pub memory_bytes: u64,
    /// Bytes of the lists that the order holds now, beside the memory budget.
    pub order_bytes: u64,
    /// Bytes of the data sets' indexes, beside it too and shared with other jobs.
    pub index_bytes: u64,
    /// Samples that other nodes had from this one, for all jobs of the pool.
    pub served: u64,
    /// The same in bytes.
    pub served_bytes: u64,
    /// The slowest loads: object and seconds.
    pub slowest: Vec<(String, f64)>,
    /// The other nodes of the group.
    pub nodes: Vec<NodeStats>,
    /// Where memory and requests stand.
    pub gauges: Option<GaugesOnWire>,
}

/// What another node has given to this one, for all jobs of the pool, and how it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Where it answers.
    pub address: SocketAddr,
    /// Requests to it; one may be for several samples.
    #[serde(default)]
    pub requests: u64,
    /// Samples had from it.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What it hadn't got.
    pub misses: u64,
    /// What came too late, broken or not at all.
    pub failures: u64,
    /// Loads under way.
    pub in_flight: u64,
    /// Whether it is left alone for now, after failures.
    pub is_avoided: bool,
    /// Mean seconds to the first byte of its answers.
    pub latency_s: f64,
    /// Bytes per second of one answer.
    pub bytes_per_s: f64,
}

/// [`Gauges`], as JSON.
pub type GaugesOnWire = serde_json::Value;

/// Loads remembered as the slowest.
const SLOWEST: usize = 10;

impl Stats {
    /// Notes that a load is sent to the bucket, or that it was not after all.
    pub fn note_load(&mut self, load: &Load, is_sent: bool) {
        let change = |count: &mut u64, by: u64| match is_sent {
            true => *count += by,
            // Another loader's counters may have begun meanwhile.
            false => *count = count.saturating_sub(by),
        };
        change(&mut self.requests, 1);
        change(&mut self.requested_bytes, load.len);
        change(&mut self.hedges, u64::from(load.hedge));
    }

    /// Notes how many requests went out for a load that has ended, well or not.
    pub fn note_requests(&mut self, load: &Load, requests: u32) {
        match requests {
            // Called off before it was its turn.
            0 => self.note_load(load, false),
            some => self.retries += u64::from(some - 1),
        }
    }

    /// Notes how long a load took, if it is among the slowest.
    pub fn note_speed(&mut self, took: Duration, url: impl FnOnce() -> String) {
        let (seconds, slowest) = (took.as_secs_f64(), &mut self.slowest);
        if slowest.len() < SLOWEST || slowest.last().is_some_and(|(_, least)| seconds > *least) {
            let at = slowest.partition_point(|(_, other)| *other >= seconds);
            slowest.insert(at, (url(), seconds));
            slowest.truncate(SLOWEST);
        }
    }

    /// Adds the gauges.
    #[must_use]
    pub fn with(mut self, gauges: &Gauges) -> Self {
        self.gauges = serde_json::to_value(gauges).ok();
        self
    }
}
