//! The agent's post: the socket where clients find it, and the lock beside it that says whose that is.
//!
//! Whoever clears the directory up, as cleaners of `/tmp` do, takes the post from an agent that lives: nobody would find it, and while it has its caches
//! nobody else could serve. So it has the system tell it when something in the directory goes ([`Watch`]), which costs nothing while nothing does.

use super::AgentSettings;
use crate::client::own_directory;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;

/// A directory that is being cleared away is left alone for so long.
pub(super) const SETTLES: Duration = Duration::from_secs(1);
/// Where the system tells nothing, it is looked after so often.
const LOOK: Duration = Duration::from_secs(30);

/// Hears what goes in the directory of a post.
pub(super) struct Watch(Option<Receiver>);

impl Watch {
    /// Must run inside a runtime.
    pub fn of(post: &Post) -> Self {
        let gone = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let watched = || -> io::Result<Receiver> {
            let notices = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            inotify::add_watch(&notices, directory(&post.socket), gone)?;
            // It is no pipe, and read like one.
            Receiver::from_owned_fd_unchecked(notices)
        };
        Watch(watched().ok())
    }

    /// Something went, or nobody tells.
    pub async fn heard(&self) {
        let Some(notices) = &self.0 else {
            return tokio::time::sleep(LOOK).await;
        };
        let mut buffer = [0; 4096];
        if notices.readable().await.is_ok() {
            while notices.try_read(&mut buffer).is_ok_and(|n| n > 0) {}
        }
    }
}

fn directory(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}

/// A post that an agent has.
pub struct Post {
    socket: PathBuf,
    /// The kernel drops the lock with the process, however it ends: nothing to clean up.
    lock: File,
    /// The socket's file.
    node: (u64, u64),
    /// Another agent has it now.
    is_lost: bool,
}

/// Device and number of a file, which tell it from one that came after it under the same name.
fn node(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// The lock beside a socket; `None`: another agent has it.
fn lock(socket: &Path) -> io::Result<Option<File>> {
    let path = socket.with_extension("lock");
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let mut opening = OpenOptions::new();
    let opened = opening.create(true).truncate(false).write(true).open(&path);
    let mut file = opened.map_err(named)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // For whoever finds that nobody answers. An agent without it is better than none: the disk may be full.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(Some(file))
}

/// Takes clients at a socket; one that is there was left by an agent that has ended.
fn listen(socket: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    Ok((listener, node(socket)?))
}

impl Post {
    /// Takes a post.
    ///
    /// # Errors
    /// When its directory can't be used.
    pub fn take(settings: &AgentSettings) -> io::Result<Option<(Post, UnixListener)>> {
        let socket = settings.socket.clone();
        own_directory(directory(&socket))?;
        let Some(lock) = lock(&socket)? else {
            return Ok(None);
        };
        let (listener, node) = listen(&socket)?;
        let post = Post {
            socket,
            lock,
            node,
            is_lost: false,
        };
        Ok(Some((post, listener)))
    }

    /// Whether clients find it, or another agent.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.is_lost || node(&self.socket).is_ok_and(|node| node == self.node)
    }

    /// Whether another agent has it now.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Looks after it: a new socket where that was taken away.
    ///
    /// # Errors
    /// When its directory can't be used now.
    pub fn look_after(&mut self) -> io::Result<Option<UnixListener>> {
        if self.is_there() {
            return Ok(None);
        }
        own_directory(directory(&self.socket))?;
        let own = self.lock.metadata().map(|found| (found.dev(), found.ino()))?;
        if !node(&self.socket.with_extension("lock")).is_ok_and(|node| node == own) {
            let Some(lock) = lock(&self.socket)? else {
                self.is_lost = true;
                return Ok(None);
            };
            self.lock = lock;
        }
        let (listener, node) = listen(&self.socket)?;
        self.node = node;
        Ok(Some(listener))
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if node(&self.socket).is_ok_and(|node| node == self.node) {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn settings(directory: &Path) -> AgentSettings {
        AgentSettings {
            socket: directory.join("run").join("it.sock"),
            cache_dir: directory.to_owned(),
            linger: Duration::ZERO,
            record: false,
        }
    }

    #[test]
    fn a_post_that_was_cleared_away_is_taken_again_unless_another_has_it() {
        let directory = tempfile::tempdir().expect("directory");
        let runtime = directory.path().join("run");
        let settings = settings(directory.path());
        let (mut post, _first) = Post::take(&settings).expect("usable").expect("free");
        assert!(Post::take(&settings).expect("usable").is_none());
        assert!(post.look_after().expect("usable").is_none());
        std::fs::remove_file(&settings.socket).expect("there");
        assert!(UnixStream::connect(&settings.socket).is_err());
        let second = post.look_after().expect("usable").expect("a new one");
        let _client = UnixStream::connect(&settings.socket).expect("somebody listens");
        second.accept().expect("it came");
        // The directory goes with all that is in it.
        std::fs::remove_dir_all(&runtime).expect("there");
        let _third = post.look_after().expect("usable").expect("a new one");
        assert!(Post::take(&settings).expect("usable").is_none());
        std::fs::remove_dir_all(&runtime).expect("there");
        let (other, _fourth) = Post::take(&settings).expect("usable").expect("free");
        assert!(post.look_after().expect("usable").is_none() && post.is_lost());
        drop(post);
        let _client = UnixStream::connect(&settings.socket).expect("the other one's stays");
        drop(other);
        assert!(!settings.socket.exists());
    }

    #[test]
    fn what_goes_in_the_directory_of_a_post_is_heard_however_it_goes() {
        type Goes = fn(&Path) -> io::Result<()>;
        let ways: [(&str, Goes); 4] = [
            ("a file is removed", |it| std::fs::remove_file(it.join("it.sock"))),
            ("a file is moved", |it| {
                std::fs::rename(it.join("it.sock"), it.with_file_name("elsewhere"))
            }),
            ("it is moved", |it| std::fs::rename(it, it.with_file_name("other"))),
            ("it is removed", |it| std::fs::remove_dir_all(it)),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("runtime").block_on(async {
            for (way, go) in ways {
                let directory = tempfile::tempdir().expect("directory");
                let settings = settings(directory.path());
                let (post, _listener) = Post::take(&settings).expect("usable").expect("free");
                let watch = Watch::of(&post);
                let heard = async |time| tokio::time::timeout(time, watch.heard()).await.is_ok();
                assert!(!heard(Duration::from_millis(20)).await, "nothing went yet");
                go(&directory.path().join("run")).expect(way);
                assert!(heard(LOOK / 3).await, "{way}");
                assert!(!heard(Duration::from_millis(20)).await, "{way}: it was heard already");
            }
        });
    }

    #[test]
    fn a_socket_that_cannot_be_made_room_for_is_named_as_what_it_is() {
        let directory = tempfile::tempdir().expect("directory");
        let settings = settings(directory.path());
        std::fs::create_dir_all(settings.socket.join("inside")).expect("made");
        std::fs::set_permissions(
            directory.path().join("run"),
            std::os::unix::fs::PermissionsExt::from_mode(0o700),
        )
        .expect("ours");
        let error = Post::take(&settings).err().expect("a directory is in its place");
        assert_ne!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
    }
}
