//! The program behind `foreload mount`, which writes its settings.
//!
//! `foreload-mount DIRECTORY SETTINGS` serves until it is unmounted, and says `mounted` on its standard output when it is there. `foreload-mount http://ADDRESS:PORT SETTINGS` is an S3
//! endpoint, and says its address. The settings are the JSON of [`Settings`](foreload_mount::settings::Settings).

use foreload_mount::log;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// This process is told to end when the one that has started it ends, however that ends; false: it has ended already.
fn ends_with(parent: i32) -> bool {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let is_set = set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
    is_set && getppid().is_some_and(|now| now.as_raw_nonzero().get() == parent)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, target, settings] = arguments.as_slice() else {
        log::line(format_args!(
            "usage: foreload-mount DIRECTORY SETTINGS (`foreload mount` calls it)"
        ));
        return ExitCode::from(2);
    };
    let settings: foreload_mount::settings::Settings = match serde_json::from_str(settings) {
        Ok(settings) => settings,
        Err(error) => {
            log::line(format_args!("the settings can't be read: {error}"));
            return ExitCode::from(2);
        }
    };
    if settings.parent.is_some_and(|parent| !ends_with(parent)) {
        return ExitCode::FAILURE;
    }
    // Whoever has started it may have gone.
    let say = |line: &str| drop(writeln!(io::stdout(), "{line}"));
    let served = match target.strip_prefix("http://").map(str::parse) {
        None => foreload_mount::run(&settings, Path::new(target), || say("mounted")),
        Some(Ok(address)) => foreload_mount::serve::run(&settings, address, |at| say(&format!("http://{at}"))),
        Some(Err(_)) => {
            log::line(format_args!("{target}: give http://127.0.0.1:PORT"));
            return ExitCode::from(2);
        }
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(format_args!("{error}"));
            ExitCode::from(error.code())
        }
    }
}
