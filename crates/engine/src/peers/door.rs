//! Where peers are let in: the port that listens, who may ask, and what is said of a sample.
//!
//! A [`Door`] listens on one address and hands each connection to a thread that fetches, where [`serve`] answers on it. What those threads share is the
//! [`House`]: the gate that seals, the queue to the thread that plans, and checksums that are known. It copies and sends nothing itself.

use super::request::{Part, Request};
use super::send::{Answer, Body, Finished, Status};
use super::serve::serve;
use super::{LEAST_RATE, Lent, PROGRESS, Question, SIGN, Said, Told, Trust, What, Wish, asked, written};
use crate::carriers::Carriers;
use crate::protocol::Trouble;
use crate::scatter::crc32c;
use foreload_plan::Digest;
use foreload_plan::action::Via;
use foreload_store::source::answering;
use foreload_store::source::parts::{Verdict, write_table};
use foreload_store::{Gate, Seal};
use rustc_hash::FxHashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Connections that are served at once; a peer keeps a few.
const MOST_CONNECTIONS: usize = 1024;
/// A connection that says nothing for so long is closed: longer than a client keeps one.
const SILENCE: Duration = Duration::from_secs(60);
/// Who takes nothing of an answer for so long gets no more of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long is waited for what; tests have less time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For a request, all of it.
    pub silence: Duration,
    /// For any part of an answer to be taken.
    pub patience: Duration,
    /// For a sign that an answer was read.
    pub progress: Duration,
    /// Until who asks is told once more that what it asked for isn't there yet.
    pub sign: Duration,
    /// Bytes per second that are taken at least.
    pub least_rate: u64,
    /// Bytes from which a body is sent where it lies.
    pub sendfile_from: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            silence: SILENCE,
            patience: PATIENCE,
            progress: PROGRESS,
            sign: SIGN,
            least_rate: LEAST_RATE,
            sendfile_from: super::send::SENDFILE_FROM,
        }
    }
}

impl Limits {
    /// What handing so many bytes over may take in all.
    pub fn handing_over(&self, len: u64) -> Duration {
        self.patience + 2 * self.progress + Duration::from_millis(len / (self.least_rate / 1000))
    }
}

/// What connections share.
pub(super) struct House {
    gate: Gate,
    questions: UnboundedSender<Question>,
    sums: Mutex<Sums>,
    /// How to encrypt, if that is done.
    pub tls: Option<TlsAcceptor>,
    /// What answers hold that are sent where they lie.
    pub finished: Arc<Finished>,
    pub limits: Limits,
}

/// CRC-32Cs of samples that were asked for, which stay what they are for as long as the data set is the same. So a byte that turns over in memory afterwards
/// is noticed by who gets it, too.
#[derive(Default)]
struct Sums(FxHashMap<(Digest, u64), u32>);

impl Sums {
    /// As many are remembered: 8 MB.
    const MOST: usize = 1 << 18;

    fn keep(&mut self, of: (Digest, u64), crc: u32) {
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(of, crc);
    }
}

/// A request that was let in.
pub(super) struct Wanted {
    seal: Seal,
    what: What,
    part: Part,
}

/// A question that was asked. Whoever lets it go withdraws it.
pub(super) struct Asked<'a> {
    house: &'a House,
    name: u64,
    answer: UnboundedReceiver<Told>,
    /// Samples that nothing is known of yet.
    open: Vec<bool>,
}

impl House {
    /// For who is sealed with a secret and asks for a host.
    pub fn new(secret: &str, host: &str, questions: UnboundedSender<Question>, limits: Limits) -> Self {
        House {
            gate: Gate::new(secret, host),
            questions,
            sums: Mutex::default(),
            tls: None,
            finished: Arc::default(),
            limits,
        }
    }

    /// What a request is for, if it is let in.
    ///
    /// # Errors
    /// The answer, where there is nothing to look for.
    pub fn admit(&self, request: &Request<'_>) -> Result<Wanted, Status> {
        let seal = self.gate.admit("GET", request.path, request.authorization);
        let seal = seal.ok_or(Status::Forbidden)?;
        let what = asked(request.path).ok_or(Status::Malformed)?;
        Ok(Wanted {
            seal,
            what,
            part: request.part,
        })
    }

    /// What was asked for; `None`: it isn't here, and isn't to be.
    pub async fn find(&self, wanted: &Wanted) -> Option<Body> {
        match wanted.what {
            What::Samples(_) => None,
            What::Sample(ref wish) => {
                let told = self.ask(wish, vec![wish.samples]).told().await;
                told.into_iter().next().and_then(|(_, lent)| lent).map(Body::Lent)
            }
            What::Report(plan) => {
                let (answer, told) = oneshot::channel();
                // An agent that ends answers nobody.
                let _ = self.questions.send(Question::Report { plan, answer });
                written(&told.await.ok().flatten()?).map(Body::Text)
            }
        }
    }

    /// Asks the thread that plans for several samples, if they are what a request is for.
    pub fn ask_all(&self, wanted: &Wanted) -> Option<Asked<'_>> {
        match &wanted.what {
            What::Samples(wish) if wanted.part == Part::All => Some(self.ask(wish, wish.samples.clone())),
            _ => None,
        }
    }

    /// Asks the thread that plans for samples.
    fn ask<S>(&self, wish: &Wish<S>, samples: Vec<u64>) -> Asked<'_> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = unbounded_channel();
        let open = vec![true; samples.len()];
        // An agent that ends answers nobody.
        let _ = self.questions.send(Question::Ask {
            name,
            dataset: wish.dataset,
            samples,
            steps: wish.steps,
            answer: sender,
        });
        Asked {
            house: self,
            name,
            answer,
            open,
        }
    }

    /// The head of the answer to a request for several samples.
    pub fn answer_parts(&self, wanted: &Wanted) -> Answer {
        self.sealed(Answer::of(Status::Parts), wanted)
    }

    /// What is said of some of the samples that a request is for, sealed: behind it come the bytes of those that are here, in this order.
    pub fn table(&self, wanted: &Wanted, told: &[Told], out: &mut Vec<u8>) {
        let What::Samples(Wish { dataset, samples, .. }) = &wanted.what else {
            return;
        };
        let verdict = |(at, lent): &Told| {
            let verdict = lent.as_ref().map_or(Verdict::Missing, |lent| Verdict::Here {
                len: lent.len as u32,
                crc: self.sum_of((*dataset, samples[*at]), lent),
                was_fetched: lent.via == Via::Bucket,
            });
            (*at, verdict)
        };
        let entries: Vec<_> = told.iter().map(verdict).collect();
        write_table(&self.gate, &wanted.seal, &entries, out);
    }

    /// The answer to a request, and the memory of its body.
    pub fn answer(&self, wanted: &Wanted, body: Option<Body>) -> (Answer, Option<Body>) {
        let Some(body) = body else {
            return (self.sealed(Answer::of(Status::Missing), wanted), None);
        };
        let status = match wanted.part {
            Part::All => Status::All,
            Part::To(last) if last == body.len().saturating_sub(1) => Status::Range,
            // No part of a sample is asked for.
            Part::To(_) | Part::Other => return (self.sealed(Answer::of(Status::Malformed), wanted), None),
        };
        let said = match (&body, &wanted.what) {
            (Body::Lent(lent), What::Sample(wish)) => Said {
                crc: self.sum_of((wish.dataset, wish.samples), lent),
                was_fetched: lent.via == Via::Bucket,
            },
            _ => Said {
                crc: crc32c(body.as_ref()),
                was_fetched: false,
            },
        };
        let answer = Answer {
            status,
            len: body.len(),
            etag: said.etag(),
            seal: String::new(),
        };
        (self.sealed(answer, wanted), Some(body))
    }

    /// An answer that nobody else could have given.
    fn sealed(&self, answer: Answer, wanted: &Wanted) -> Answer {
        let seal = self
            .gate
            .answer(&wanted.seal, answer.status.code(), &answer.etag, answer.len);
        Answer { seal, ..answer }
    }

    fn sum_of(&self, sample: (Digest, u64), lent: &Lent) -> u32 {
        let sums = || self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sums().0.get(&sample).copied();
        known.unwrap_or_else(|| {
            let crc = crc32c(lent.as_ref());
            sums().keep(sample, crc);
            crc
        })
    }
}

impl Asked<'_> {
    /// Whether there is more to be told.
    pub fn is_open(&self) -> bool {
        self.open.contains(&true)
    }

    /// What is known of more of the samples now; of none is told twice. Can be dropped at any time.
    pub async fn told(&mut self) -> Vec<Told> {
        let mut told = Vec::with_capacity(self.open.len());
        if self.answer.recv_many(&mut told, self.open.len()).await == 0 {
            // An agent that ends has nothing.
            told = (0..self.open.len()).map(|at| (at, None)).collect();
        }
        told.retain(|(at, _)| self.open.get_mut(*at).is_some_and(std::mem::take));
        told
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.is_open() {
            let _ = self.house.questions.send(Question::Withdraw(self.name));
        }
    }
}

/// Where peers are answered.
pub struct Door {
    trust: Trust,
    /// The address that peers reach it at.
    pub address: SocketAddr,
    receiving: JoinHandle<()>,
}

impl Door {
    /// Listens on an address of this machine, on any port, and answers whoever signs with the secret, until it is dropped. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// `invalid` for an address that isn't this machine's, or a secret that is too short to be one.
    pub async fn open(
        host: IpAddr,
        trust: Trust,
        carriers: Rc<Carriers>,
        questions: UnboundedSender<Question>,
    ) -> Result<Self, Trouble> {
        if trust.secret.len() < 16 {
            let message = "the secret of a group of nodes has fewer than 16 characters: anyone could guess it";
            return Err(Trouble::new("invalid", message));
        }
        if host.is_unspecified() {
            let message = format!(
                "peers aren't answered on {host}, which is every network of this machine: name an address with FORELOAD_HOST or Peers(host=...)"
            );
            return Err(Trouble::new("invalid", message));
        }
        let listening = async {
            let listener = TcpListener::bind((host, 0)).await?;
            let address = listener.local_addr()?;
            Ok::<_, io::Error>((listener, address))
        };
        let (listener, address) = listening.await.map_err(|error| {
            let remedy = "name an address of this machine, with FORELOAD_HOST or Peers(host=...)";
            Trouble::new("invalid", format!("can't answer peers on {host}: {error}; {remedy}"))
        })?;
        let mut house = House::new(&trust.secret, &address.to_string(), questions, Limits::default());
        if trust.tls {
            let config = answering(&trust.secret).map_err(|error| Trouble::new("bug", error.to_string()))?;
            house.tls = Some(TlsAcceptor::from(config));
        }
        Ok(Door {
            trust,
            address,
            receiving: tokio::task::spawn_local(receive(listener, Arc::new(house), carriers)),
        })
    }

    /// Whether it is the one for an address and a secret.
    #[must_use]
    pub fn is_for(&self, host: IpAddr, trust: &Trust) -> bool {
        self.address.ip() == host && self.trust == *trust
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

async fn receive(listener: TcpListener, house: Arc<House>, carriers: Rc<Carriers>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => {
                let house = Arc::clone(&house);
                carriers.host(Box::new(move || {
                    tokio::task::spawn_local(async move {
                        serve(stream, &house).await;
                        drop(place);
                    });
                }));
            }
            // Descriptors come back.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
