//! The socket, the connections, and the state that they share.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::auth::{Keys, Verifier};
use super::content::Blob;
use super::counters::Counters;
use super::directory::Directory;
use super::fault::Faults;
use super::profile::{Line, Profile, SlowStart};
use super::service;
use super::storage::Storage;
use super::synthetic::Set;
use super::write::Uploads;
use super::{Error, Settings};
use crate::tls;

/// What all connections share.
pub struct State {
    /// The objects.
    pub storage: Storage,
    /// The counts.
    pub counters: Counters,
    /// The line that all connections share.
    pub line: Line,
    /// Checks signatures.
    pub verifier: Verifier,
    /// The multipart uploads under way.
    pub uploads: Uploads,
    /// What all draws depend on.
    pub seed: u64,
    /// When the server started.
    pub started: Instant,
    /// Numbers the requests.
    pub requests: AtomicU64,
    profile: Mutex<Profile>,
    keys: Mutex<Keys>,
    faults: Mutex<Faults>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The timing.
    #[must_use]
    pub fn profile(&self) -> Profile {
        lock(&self.profile).clone()
    }

    /// Changes the timing.
    pub fn set_profile(&self, profile: Profile) {
        *lock(&self.profile) = profile;
    }

    /// The keys.
    #[must_use]
    pub fn keys(&self) -> Keys {
        lock(&self.keys).clone()
    }

    /// Changes the keys.
    pub fn set_keys(&self, keys: Keys) {
        *lock(&self.keys) = keys;
    }

    /// The faults, locked.
    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }
}

/// A connection.
#[derive(Default)]
pub struct Connection {
    /// Its line.
    pub line: Line,
    /// How much of it may be sent at once.
    pub slow_start: SlowStart,
    served: AtomicU64,
    reset: AtomicBool,
}

impl Connection {
    /// Counts a request; whether it is the last one of `most` (0: there is no last one).
    pub fn is_last(&self, most: u64) -> bool {
        most > 0 && self.served.fetch_add(1, Ordering::Relaxed) + 1 >= most
    }

    /// Makes the connection end with a reset instead of an orderly close.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }
}

/// A bound server that does not run yet.
pub struct Server {
    /// What all connections share.
    pub state: Arc<State>,
    /// Where it listens.
    pub address: SocketAddr,
    /// The certificate to trust, with TLS.
    pub ca_pem: Option<String>,
    listener: TcpListener,
    tls: Option<tokio_rustls::TlsAcceptor>,
}

/// Whether an address is this machine's own, or of the block that is set aside for tests of networks (RFC 2544), 198.18.0.0/15.
fn is_for_tests(address: IpAddr) -> bool {
    address.is_loopback() || matches!(address, IpAddr::V4(v4) if matches!(v4.octets(), [198, 18 | 19, ..]))
}

impl Server {
    /// Binds the address and prepares the storage.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn bind(settings: Settings) -> Result<Self, Error> {
        if !is_for_tests(settings.listen.ip()) {
            return Err(Error::NotForTests(settings.listen));
        }
        settings.profile.check().map_err(Error::Setting)?;
        let io = |what: String| move |source| Error::Io { what, source };
        let listener = TcpListener::bind(settings.listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(io(settings.listen.to_string()))?;
        let address = listener.local_addr().map_err(io(settings.listen.to_string()))?;
        let identity = settings.tls.then(|| tls::Identity::new(&address)).transpose()?;
        let directory = match &settings.directory {
            Some(path) => Some(Directory::new(path).map_err(io(path.display().to_string()))?),
            None => None,
        };
        let sets = if settings.synthetic.is_empty() {
            Vec::new()
        } else {
            let blob = Blob::new(settings.seed);
            let set = |rule| Set::new(rule, blob.clone(), settings.seed);
            settings.synthetic.into_iter().map(set).collect()
        };
        let storage = Storage::new(directory, sets);
        for bucket in &settings.buckets {
            storage.create_bucket(bucket).map_err(io(bucket.clone()))?;
        }
        let mut faults = Faults::default();
        for fault in settings.faults {
            fault.check().map_err(Error::Setting)?;
            faults.add(fault);
        }
        let state = State {
            storage,
            counters: Counters::default(),
            line: Line::default(),
            verifier: Verifier::default(),
            uploads: Uploads::default(),
            seed: settings.seed,
            started: Instant::now(),
            requests: AtomicU64::new(0),
            profile: Mutex::new(settings.profile),
            keys: Mutex::new(settings.keys),
            faults: Mutex::new(faults),
        };
        let (ca_pem, tls) = match identity {
            Some(identity) => (Some(identity.ca_pem().to_owned()), Some(identity.acceptor()?)),
            None => (None, None),
        };
        Ok(Self {
            state: Arc::new(state),
            address,
            ca_pem,
            listener,
            tls,
        })
    }

    /// Serves on as many threads, each a runtime of its own, until `stop` completes; then all connections end.
    ///
    /// # Errors
    ///
    /// When a runtime can't be built or the listener fails for good.
    pub fn run(self, threads: usize, stop: impl Future<Output = ()>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The first thread accepts and serves; the others serve what it gives them.
        let mut others = Vec::new();
        for _ in 1..threads {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (give, given) = mpsc::unbounded_channel();
            let (state, tls) = (Arc::clone(&self.state), self.tls.clone());
            std::thread::spawn(move || runtime.block_on(serve_given(state, given, tls)));
            others.push(give);
        }
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let mut stop = pin!(stop);
            let mut connections = JoinSet::new();
            let mut turns = (0..threads.max(1)).cycle();
            loop {
                tokio::select! {
                    () = &mut stop => return Ok(()),
                    Some(_) = connections.join_next(), if !connections.is_empty() => {}
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => match turns.next().and_then(|turn| others.get(turn.checked_sub(1)?)) {
                            Some(other) => drop(stream.into_std().map(|stream| other.send(stream))),
                            None => drop(connections.spawn(connect(Arc::clone(&self.state), stream, self.tls.clone()))),
                        },
                        // For example too many open files: wait until some are closed.
                        Err(error) => {
                            eprintln!("testbucket: can't accept a connection: {error}");
                            sleep(Duration::from_millis(50)).await;
                        }
                    },
                }
            }
        })
    }
}

/// Serves the connections that the first thread gives, until it ends.
async fn serve_given(
    state: Arc<State>,
    mut given: mpsc::UnboundedReceiver<std::net::TcpStream>,
    tls: Option<tokio_rustls::TlsAcceptor>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            stream = given.recv() => match stream.map(TcpStream::from_std) {
                Some(Ok(stream)) => drop(connections.spawn(connect(Arc::clone(&state), stream, tls.clone()))),
                Some(Err(error)) => eprintln!("testbucket: can't serve a connection: {error}"),
                None => return,
            },
        }
    }
}

/// Counts a connection as open for as long as it exists.
struct Open(Arc<State>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counters.disconnected();
    }
}

async fn connect(state: Arc<State>, stream: TcpStream, tls: Option<tokio_rustls::TlsAcceptor>) {
    state.counters.connected();
    let _open = Open(Arc::clone(&state));
    let delay = state.profile().connect();
    if !delay.is_zero() {
        sleep(delay).await;
    }
    let connection = Arc::new(Connection::default());
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let stream = Resettable {
        stream,
        connection: Arc::clone(&connection),
    };
    match tls {
        None => serve(state, connection, stream).await,
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(state, connection, stream).await;
            }
        }
    }
}

async fn serve<S>(state: Arc<State>, connection: Arc<Connection>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request| service::handle(Arc::clone(&state), Arc::clone(&connection), request));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .keep_alive(true);
    // An error here is a client that went away, or a fault that broke the connection on purpose.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// A stream that closes with a reset when its connection was told to.
struct Resettable {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl Drop for Resettable {
    fn drop(&mut self) {
        if self.connection.reset.load(Ordering::Relaxed) {
            // Without lingering, closing sends RST and drops what is still queued.
            let _ = sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Resettable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Resettable {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.connection.reset.load(Ordering::Relaxed) {
            // An orderly shutdown would send FIN first.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
