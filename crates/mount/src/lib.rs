//! A bucket as a file system, local to the node: a FUSE view of the engine.
//!
//! [`names`] asks the bucket for names and keeps them in the [`tree`]; [`file`] reads open files by way of the node's agent, where they are data sets whose samples are chunks
//! ([`shelves`], [`layout`]), [`ahead`] says which chunks come next, and [`fs`] answers the kernel. What is read stays in the kernel's page cache for as long as the object is the same,
//! and in the agent's memory and on its disks, where the loader finds it, too.
//!
//! [`changes`] and [`writing`] make objects of files that are written. Nothing here fetches one: the agent's plan decides what is fetched when.

pub mod ahead;
pub mod changes;
pub mod copies;
pub mod failure;
pub mod file;
pub mod fs;
mod inner;
pub mod layout;
pub mod log;
pub mod names;
pub mod orders;
pub mod resident;
pub mod room;
pub mod serve;
pub mod settings;
pub mod shelves;
pub mod told;
pub mod tree;
pub mod unwanted;
pub mod workers;
pub mod writing;

use crate::copies::{Copies, Work};
use crate::file::{Shared, Tally};
use crate::fs::{Beside, View};
use crate::names::Names;
use crate::resident::Resident;
use crate::room::Room;
use crate::settings::Settings;
use crate::shelves::Shelves;
use crate::tree::Tree;
use crate::unwanted::Unwanted;
use crate::writing::Writing;
use foreload_engine::calls::DiskShare;
use foreload_engine::client::ClientError;
use foreload_store::source::Retry;
use foreload_store::{ErrorKind, Source, SourceOptions};
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the list of mounts has before the URL.
const FS_NAME: &str = "foreload:";
/// The kernel's read-ahead, in KiB, where it may be set.
const READ_AHEAD_KB: u32 = 1024;
/// How often it is tried to unmount what somebody has open, before it is only hidden.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// What is open when it is to end is closed so much later.
const GRACE: Duration = Duration::from_secs(2);
/// What is being written has so long. Those that stop programs wait thirty seconds, often.
const WRITTEN: Duration = Duration::from_secs(25);

/// What a lock keeps. Whoever has died with it has left it as it was: each change is one step.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often it is looked for what nobody needs, and each so many times the allocator is asked for it, too.
const TIDY: Duration = Duration::from_secs(2);
const TRIMS: u32 = 5;

/// Gives back what nobody needs, again and again until the end.
async fn tidy(shared: Weak<Shared>) {
    for nth in 1_u32.. {
        tokio::time::sleep(TIDY).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.tidy();
        if nth.is_multiple_of(TRIMS) {
            // It walks through all that is free.
            drop(tokio::task::spawn_blocking(trim).await);
        }
    }
}

/// After many files were written, or served, at once, the allocator would keep what they took.
fn trim() {
    // SAFETY: it may be called by any thread at any time.
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The process that a thread is of; 0 where that can't be seen, as in another namespace.
pub(crate) fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The bucket can't be opened.
    #[error("{0}")]
    Store(#[from] foreload_store::Error),
    /// It can't be listed.
    #[error("{0} can't be listed")]
    Unlisted(String, fuser::Errno),
    /// The agent can't be reached.
    #[error("{0}")]
    Agent(#[from] ClientError),
    /// The kernel doesn't mount it.
    #[error("mounting at {}: {why}{}", .target.display(), remedy(why))]
    Kernel {
        /// Where.
        target: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// The system refuses something else.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What to look at where something is denied.
fn remedy(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::PermissionDenied => {
            " (it needs /dev/fuse, and root or fusermount3: `foreload doctor` says what is missing)"
        }
        _ => "",
    }
}

impl MountError {
    /// The exit code, as all commands have them: 2 what was asked for can't work, 3 it isn't there, 4 it is denied, 5 it may be there later, 6 it is damaged, 1 the rest.
    #[must_use]
    pub fn code(&self) -> u8 {
        use ErrorKind as Kind;
        let of_kind = |kind| match kind {
            Kind::Invalid => 2,
            Kind::NotFound => 3,
            Kind::Denied => 4,
            Kind::Unavailable | Kind::Throttled | Kind::Timeout => 5,
            Kind::Corrupt | Kind::Changed => 6,
            _ => 1,
        };
        match self {
            MountError::Store(error) => of_kind(error.kind()),
            MountError::Unlisted(_, errno) => match rustix::io::Errno::from_raw_os_error(errno.code()) {
                rustix::io::Errno::INVAL => 2,
                rustix::io::Errno::NOENT => 3,
                rustix::io::Errno::ACCESS => 4,
                _ => 5,
            },
            MountError::Agent(ClientError::NoAgent(_) | ClientError::TimedOut(_)) => 5,
            MountError::Kernel { why, .. } | MountError::System(why) => match why.kind() {
                io::ErrorKind::InvalidInput => 2,
                io::ErrorKind::NotFound => 3,
                io::ErrorKind::PermissionDenied => 4,
                _ => 1,
            },
            MountError::Agent(_) => 1,
        }
    }
}

/// What answers from a bucket: names, and what is read by way of the agent.
struct Base {
    runtime: tokio::runtime::Runtime,
    names: Arc<Names>,
    shared: Arc<Shared>,
}

impl Base {
    fn open(settings: &Settings) -> Result<Self, MountError> {
        let options = SourceOptions {
            storage_options: settings.storage_options.clone(),
            // Whoever asks for a name waits as long as whoever reads.
            retry: Retry {
                patience: settings.timeout(),
                ..Retry::default()
            },
            ..SourceOptions::default()
        };
        let source = Source::open(&settings.url, &options)?;
        // One thread that hashes what is written keeps nobody from asking for names.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("foreload-mount-names")
            .enable_all()
            .build()?;
        let is_closing = Arc::new(AtomicBool::new(false));
        let tree = Tree::new(settings.most_entries, settings.ttl(), Instant::now());
        let room = Arc::new(Room::new(settings.most_ahead()));
        let shelves = Shelves::new(settings.clone(), &source, Arc::clone(&room), Arc::clone(&is_closing));
        shelves.connect()?;
        let names = Arc::new(Names::new(source, tree, settings.timeout()));
        let shared = Arc::new(Shared {
            shelves,
            names: Arc::clone(&names),
            room,
            most_held: settings.ram_bytes,
            held_bytes: AtomicU64::new(0),
            open: Mutex::default(),
            timeout: settings.timeout() + Duration::from_secs(5),
            is_closing,
            tally: Tally::default(),
        });
        runtime.spawn(tidy(Arc::downgrade(&shared)));
        // An URL that is wrong is better said now than by each program. The log says what is.
        runtime
            .block_on(names.list(tree::ROOT))
            .map_err(|errno| MountError::Unlisted(settings.url.clone(), errno))?;
        Ok(Base { runtime, names, shared })
    }
}

/// Mounts, says so, and serves until somebody unmounts it or a signal says so.
///
/// # Errors
/// [`MountError`]: there was no mount, or it ended badly.
pub fn run(settings: &Settings, target: &Path, ready: impl FnOnce()) -> Result<(), MountError> {
    let Base { runtime, names, shared } = Base::open(settings)?;
    let is_closing = Arc::clone(&shared.is_closing);
    // Where the bucket is was found out by listing it.
    let writing = settings.write.map(|write| {
        let writer = names.source().writer(settings.timeout())?;
        let writing = Writing::new(writer, Arc::clone(&names), write.part_bytes, write.most_parts);
        Ok::<_, foreload_store::Error>(Arc::new(writing))
    });
    let writing = writing.transpose()?;
    let copies = settings
        .copies
        .as_ref()
        .map(|share| copies_at(share, settings, target, &names));
    let copies = copies.transpose()?;
    let (unwanted, let_go) = Unwanted::new();
    let handle = runtime.handle().clone();
    let view = View::new(
        settings,
        Arc::clone(&names),
        Arc::clone(&shared),
        Beside {
            writing: writing.clone(),
            copies: copies.as_ref().map(|(copies, _)| Arc::clone(copies)),
            resident: (!is_descriptor(target)).then(|| Resident::new(target.to_owned())),
        },
        handle.clone(),
        unwanted,
    );
    let refused = |why| MountError::Kernel {
        target: target.to_owned(),
        why,
    };
    // Before anything is mounted: from then on a signal ends it, and doesn't leave it behind.
    let signals = {
        let _within = runtime.enter();
        Signals::new()?
    };
    let given = descriptor(target);
    let session = match given {
        Some(descriptor) => Session::from_fd(view, descriptor?, acl(settings), config(settings)),
        None => Session::new(view, target, &config(settings)),
    };
    let mut session = session.map_err(refused)?;
    let unmounter = Arc::new(Mutex::new(session.unmount_callable()));
    let_go.tell_to(session.notifier(), Arc::clone(&is_closing))?;
    let asking = ask(
        runtime,
        signals,
        unmounter,
        target.to_owned(),
        writing.clone(),
        Arc::clone(&is_closing),
    )?;
    if let Some((copies, work)) = copies {
        let seen = Resident::new(target.to_owned());
        work.begin(copies, names, seen, Arc::clone(&is_closing))?;
    }
    if !is_descriptor(target) {
        // Looking at it asks for an answer, so it is done aside.
        let place = target.to_owned();
        std::thread::Builder::new()
            .name("foreload-mount-window".into())
            .spawn(move || read_ahead(&place))?;
    }
    ready();
    let ended = session.run();
    let is_told = is_closing.swap(true, Ordering::Relaxed);
    if let Some(writing) = writing {
        handle.block_on(finish(&writing, true));
    }
    shared.shelves.close();
    asking.ends();
    match ended {
        // The kernel may have been quicker than whoever was told.
        Err(error) if is_told => log::line(format_args!("ending: {error}")),
        ended => ended?,
    }
    Ok(())
}

/// Where copies are kept, if they can be.
fn copies_at(share: &DiskShare, settings: &Settings, target: &Path, names: &Names) -> io::Result<(Arc<Copies>, Work)> {
    let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("--copies: {why}"));
    if is_descriptor(target) {
        return Err(refused(
            "they are made where the directory is seen, so it has to be mounted by name",
        ));
    }
    let may = rustix::thread::capabilities(None)?.effective;
    if !may.contains(rustix::thread::CapabilitySet::SYS_ADMIN) {
        return Err(refused(
            "only root (CAP_SYS_ADMIN) may give the kernel files to read by itself",
        ));
    }
    let endpoint = settings.storage_options.get("endpoint_url").map_or("", String::as_str);
    let opened = Copies::open_place(share, format!("{endpoint} {}", names.source().root()))?;
    if share.directory.canonicalize()?.starts_with(target.canonicalize()?) {
        return Err(refused("the directory lies where the bucket is to be seen"));
    }
    Ok(opened)
}

fn end(writing: Option<&Writing>) -> ! {
    if let Some(writing) = writing {
        tokio::runtime::Handle::current().block_on(finish(writing, false));
    }
    std::process::exit(0);
}

/// What is being written, or was closed just now, has so long to become objects; of the rest nothing is left. Where the kernel has gone nobody writes any more.
async fn finish(writing: &Writing, has_kernel_gone: bool) {
    if has_kernel_gone && !writing.done(GRACE).await {
        let _ = tokio::time::timeout(GRACE, writing.forget_unwritten()).await;
    }
    if !writing.done(WRITTEN).await {
        let _ = tokio::time::timeout(GRACE, writing.give_up()).await;
    }
}

fn config(settings: &Settings) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
        MountOption::FSName(format!("{FS_NAME}{}", settings.url)),
        MountOption::DefaultPermissions,
    ];
    config.acl = acl(settings);
    config.n_threads = Some(2);
    config.clone_fd = true;
    config
}

fn acl(settings: &Settings) -> SessionACL {
    match settings.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    }
}

/// What a descriptor is named by that somebody has mounted already, and given to this process.
const DESCRIPTORS: &str = "/dev/fd/";

fn is_descriptor(target: &Path) -> bool {
    target.starts_with(DESCRIPTORS)
}

/// A descriptor of `/dev/fuse` that was given for this, if the target is one.
fn descriptor(target: &Path) -> Option<io::Result<OwnedFd>> {
    let number = target.strip_prefix(DESCRIPTORS).ok()?;
    let number = number.to_str().and_then(|text| text.parse::<u32>().ok());
    let given = number.and_then(|number| RawFd::try_from(number).ok());
    let is_open = |given: &RawFd| Path::new(&format!("/proc/self/fd/{given}")).exists();
    Some(match given.filter(|given| *given > 2 && is_open(given)) {
        // SAFETY: it is open, and whoever began this process gave it for this and nothing else.
        #[allow(unsafe_code)]
        Some(given) => Ok(unsafe { OwnedFd::from_raw_fd(given) }),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no descriptor that was given to this process",
        )),
    })
}

/// The thread that asks for names, and listens to signals.
struct Asking(tokio::sync::oneshot::Sender<()>);

impl Asking {
    fn ends(self) {
        let _ = self.0.send(());
    }
}

/// What says that it is to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Of a terminal that is closed.
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

fn ask(
    runtime: tokio::runtime::Runtime,
    mut signals: Signals,
    unmounter: Arc<Mutex<SessionUnmounter>>,
    target: PathBuf,
    writing: Option<Arc<Writing>>,
    is_closing: Arc<AtomicBool>,
) -> io::Result<Asking> {
    let (end, ended) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("foreload-mount-names".into());
    thread.spawn(move || {
        runtime.block_on(async {
            let unmounts = async {
                signals.next().await;
                is_closing.store(true, Ordering::Relaxed);
                let (unmounter, target, writing) = (Arc::clone(&unmounter), target.clone(), writing.clone());
                tokio::task::spawn_blocking(move || unmount(&unmounter, &target, writing.as_deref()));
                // It ends by itself then, however often it is told to.
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = unmounts => {}
                _ = ended => {}
            }
        });
        // The program ends, and what is under way still with it: it is no error of anybody's.
        std::mem::forget(runtime);
    })?;
    Ok(Asking(end))
}

/// Unmounts; what somebody has open is hidden, and closed when the time of grace is over.
fn unmount(unmounter: &Mutex<SessionUnmounter>, target: &Path, writing: Option<&Writing>) {
    if is_descriptor(target) {
        // Whoever has mounted it unmounts it.
        end(writing);
    }
    let asked = locked(unmounter).unmount();
    // It answers for one try only.
    if asked.is_ok() {
        return;
    }
    for _ in 0..TRIES {
        std::thread::sleep(PAUSE);
        if rustix::mount::unmount(target, rustix::mount::UnmountFlags::empty()).is_ok() {
            return;
        }
    }
    let is_detached = rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH).is_ok();
    let by = |program: &str| {
        let mut command = std::process::Command::new(program);
        let status = command.args(["-u", "-z", "--"]).arg(target).status();
        status.is_ok_and(|status| status.success())
    };
    if !is_detached && !["fusermount3", "fusermount"].into_iter().any(by) {
        log::line(format_args!("{} could not be unmounted", target.display()));
    }
    // Without anybody who answers, what is open there fails and doesn't hang.
    std::thread::sleep(GRACE);
    end(writing);
}

/// Has the kernel read further ahead than its 128 KiB, where that may be set.
fn read_ahead(target: &Path) {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = std::fs::metadata(target) else { return };
    let device = found.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let _ = std::fs::write(
        format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
        READ_AHEAD_KB.to_string(),
    );
}
