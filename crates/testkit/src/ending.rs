//! How the testkit's processes begin and end: a file that says "ready", and not outliving the
//! parent.

use std::io::{self, Read as _};
use std::path::Path;

use tokio::signal::unix::{SignalKind, signal};

/// Writes a file in one step, so that whoever waits for it never reads half of it.
///
/// # Errors
///
/// When the file can't be written.
pub fn announce(path: &Path, text: &str) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".draft");
    std::fs::write(&draft, text)?;
    std::fs::rename(&draft, path)
}

/// Completes on SIGTERM, SIGINT, or (when asked for) as soon as stdin is closed; at once when `begin` fails.
///
/// `begin` is called when a signal would be noticed: whoever hears from it that the process is ready may send one.
pub async fn requested(until_eof: bool, begin: impl FnOnce() -> bool) {
    let (eof, at_eof) = tokio::sync::oneshot::channel::<()>();
    if until_eof {
        // Stdin can't be polled when it is a file, so a thread blocks on it; it ends with us.
        std::thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            let mut buffer = [0; 4096];
            while matches!(stdin.read(&mut buffer), Ok(count) if count > 0) {}
            drop(eof);
        });
    } else {
        std::mem::forget(eof);
    }
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    if !begin() {
        return;
    }
    tokio::select! {
        _ = at_eof => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
