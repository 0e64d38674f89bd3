//! The agent's program. Clients start it; nobody has to.
//!
//! `foreload-agent start SOCKET CACHE_DIR LINGER_S` starts a detached agent and ends; `serve` with the same arguments is that agent.

use foreload_engine::agent::{AgentSettings, Post, run};
use foreload_engine::log;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Whoever starts an agent looks so often, and with such pauses, whether it serves or has ended.
const START_LOOKS: u32 = 500;
const START_LOOK: Duration = Duration::from_millis(1);

/// Closes what whoever started this has open, but for the three standard streams. A trainer's sockets would stay open in the agent when the trainer dies: its peers
/// would wait for ever for somebody who is gone.
fn leave_behind() -> io::Result<()> {
    let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&number| number > 2)
        .collect();
    for number in numbers {
        // The list's own is closed already.
        if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok() {
            // SAFETY: it is open, and nothing has been opened here yet, so nobody here has it.
            #[allow(unsafe_code)]
            unsafe {
                rustix::io::close(number);
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    if let Err(error) = leave_behind() {
        log::line(format_args!("what was open before stays open: {error}"));
    }
    let arguments: Vec<String> = std::env::args().collect();
    let [_, verb, socket, cache_dir, linger_s] = arguments.as_slice() else {
        log::line(format_args!(
            "usage: foreload-agent start|serve SOCKET CACHE_DIR LINGER_S (clients start it by themselves)"
        ));
        return ExitCode::from(2);
    };
    let Some(linger) = linger_s.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()) else {
        log::line(format_args!("{linger_s} is no number of seconds"));
        return ExitCode::from(2);
    };
    let settings = AgentSettings {
        socket: PathBuf::from(socket),
        cache_dir: PathBuf::from(cache_dir),
        linger,
        record: foreload_engine::env::record(),
    };
    let ended = match verb.as_str() {
        "start" => detach(&arguments, Path::new(socket)),
        "serve" => serve(settings),
        _ => Err(io::Error::other(format!("unknown verb {verb}"))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// Starts the same program as `serve` in a session of its own: signals of the user's terminal don't reach it, and the user's process has no child.
///
/// One that ends before anybody can reach it has failed, and whoever waits for it need not wait on.
fn detach(arguments: &[String], socket: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let mut agent = Command::new(program)
        .arg("serve")
        .args(&arguments[2..])
        .current_dir("/")
        .spawn()?;
    for _ in 0..START_LOOKS {
        if let Some(status) = agent.try_wait()? {
            let why = || io::Error::other(format!("the agent ended with {status} before it served anybody"));
            return if status.success() { Ok(()) } else { Err(why()) };
        }
        if UnixStream::connect(socket).is_ok() {
            break;
        }
        std::thread::sleep(START_LOOK);
    }
    Ok(())
}

/// A panic ends the agent, whatever task or thread it is in. A runtime goes on without a task that panicked, and whoever waits for it would wait for
/// ever; of an agent that is gone all clients know, and start the next one.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Allows as many descriptors as the system does: the usual soft limit is for programs that still use select().
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::line(format_args!(
            "the limit on open files stays {:?}: {error}",
            limit.current
        ));
    }
}

fn serve(settings: AgentSettings) -> io::Result<()> {
    abort_on_panic();
    raise_descriptors();
    // Fails only for a process that leads a session already.
    let _ = rustix::process::setsid();
    std::fs::create_dir_all(&settings.cache_dir)?;
    // Who doesn't get it leaves the place to who has it.
    match Post::take(&settings)? {
        Some((post, listener)) => run(settings, post, listener),
        None => Ok(()),
    }
}
