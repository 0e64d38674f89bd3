//! Finding the agent, or starting it.
//!
//! The agent's program, called with `start`, starts itself once more detached and ends, so that the user's process gets no child that it would have to
//! wait for. Of two that start at once one gets the lock beside the socket and the other ends quietly; both clients connect to the one that
//! lives.

use super::{ClientError, Pulse};
use crate::env;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long an agent may take until it answers; it takes 20 ms on an idle machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// An agent that has not answered by then gets company: the first may have ended between its last client and us.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// How long an ending agent may go on taking connections that it drops.
const PARTING: Duration = Duration::from_secs(2);

/// Where an agent is found, and how it is started.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its socket.
    pub socket: PathBuf,
    /// Its cache directory.
    pub cache_dir: PathBuf,
    /// Its program.
    pub program: PathBuf,
    /// How long it lives without clients.
    pub linger: Duration,
}

impl Place {
    /// The place for a cache directory: one socket each.
    #[must_use]
    pub fn of(cache_dir: PathBuf, program: PathBuf, linger: Duration) -> Self {
        let name = foreload_plan::Digest::of("socket", cache_dir.as_os_str().as_encoded_bytes()).to_string();
        Place {
            socket: env::runtime_dir().join(format!("{}.sock", &name[..16])),
            cache_dir,
            program: env::agent().unwrap_or(program),
            linger,
        }
    }

    /// The agent's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.cache_dir.join("agent.log")
    }
}

/// Makes a directory that only we can enter, or checks that it is one.
///
/// # Errors
/// When it belongs to somebody else or can't be made.
pub fn own_directory(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).recursive(true).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let found = std::fs::symlink_metadata(path)?;
    if found.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            "it is a file, and would be a directory",
        ));
    }
    if found.uid() != rustix::process::getuid().as_raw() || !found.is_dir() || found.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user or others can write to it",
        ));
    }
    Ok(())
}

/// Connects and greets; an agent that is just ending takes a connection and drops it, so that is tried again for a moment.
pub(super) fn greeted<T>(
    place: &Place,
    pulse: Pulse<'_>,
    greet: impl Fn(UnixStream, Pulse<'_>) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let begun = Instant::now();
    loop {
        match greet(connect(place, pulse)?, pulse) {
            Err(ClientError::Closed(_)) if begun.elapsed() < PARTING => std::thread::sleep(Duration::from_millis(10)),
            answer => return answer,
        }
        if !pulse() {
            return Err(ClientError::Interrupted);
        }
    }
}

/// Connects, starting an agent if there is none.
fn connect(place: &Place, pulse: Pulse<'_>) -> Result<UnixStream, ClientError> {
    if let Ok(stream) = UnixStream::connect(&place.socket) {
        return Ok(stream);
    }
    let explain =
        |what: &str, path: &Path, e: io::Error| ClientError::NoAgent(format!("{what} {}: {e}", path.display()));
    if let Some(directory) = place.socket.parent() {
        own_directory(directory).map_err(|e| explain("the socket's directory", directory, e))?;
    }
    std::fs::create_dir_all(&place.cache_dir).map_err(|e| explain("the cache directory", &place.cache_dir, e))?;
    let begun = Instant::now();
    let mut started: Option<Instant> = None;
    let mut nap = Duration::from_micros(500);
    loop {
        if started.is_none_or(|at| at.elapsed() > TRY_AGAIN) {
            start(place)?;
            started = Some(Instant::now());
        }
        match UnixStream::connect(&place.socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if begun.elapsed() > PATIENCE => {
                let holder = holder(&place.socket).map_or_else(String::new, |process| {
                    format!("; process {process} has its place and doesn't serve it: end it (kill -9 {process})")
                });
                return Err(ClientError::NoAgent(format!(
                    "{} doesn't answer ({error}){holder}; its log {} ends: {}",
                    place.program.display(),
                    place.log().display(),
                    tail(&place.log())
                )));
            }
            Err(_) => {}
        }
        if !pulse() {
            return Err(ClientError::Interrupted);
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(10));
    }
}

/// The process that has the place of an agent's socket, as its lock says.
fn holder(socket: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(socket.with_extension("lock")).ok()?;
    let process = text.trim().parse().ok()?;
    Path::new("/proc").join(text.trim()).exists().then_some(process)
}

fn start(place: &Place) -> Result<(), ClientError> {
    let failed = |e: io::Error| ClientError::NoAgent(format!("starting {}: {e}", place.program.display()));
    // An agent without a log is better than none: the cache directory may be read-only, or its disk full.
    let mut appending = std::fs::OpenOptions::new();
    appending.create(true).append(true);
    let log = appending
        .open(place.log())
        .or_else(|_| appending.open("/dev/null"))
        .map_err(failed)?;
    let status = Command::new(&place.program)
        .arg("start")
        .arg(&place.socket)
        .arg(&place.cache_dir)
        .arg(place.linger.as_secs_f64().to_string())
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .status()
        .map_err(failed)?;
    if status.success() {
        Ok(())
    } else {
        Err(ClientError::NoAgent(format!(
            "{} ended with {status}: {}",
            place.program.display(),
            tail(&place.log())
        )))
    }
}

/// The last lines of a log.
fn tail(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = std::fs::File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(500)))?;
        let mut text = Vec::new();
        file.take(500).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        // From the first whole line on.
        let whole = if len > 500 {
            text.split_once('\n').map(|(_, rest)| rest)
        } else {
            None
        };
        Ok(whole.unwrap_or(&text).trim().to_owned())
    };
    read().unwrap_or_else(|e| format!("(unreadable: {e})"))
}
