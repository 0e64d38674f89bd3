//! `slowfs SRC MNT`: a directory as a slow file system, until SIGTERM.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use foreload_testkit::slowfs::{Mount, Settings};
use foreload_testkit::{ending, human};

/// Mirrors a directory read-only with a delay per open and read and a rate for all reads together.
/// Unmounts on SIGTERM and SIGINT; after a SIGKILL, `umount -l MNT` cleans up.
#[derive(Parser)]
#[command(name = "slowfs")]
struct Cli {
    /// The directory to mirror.
    source: PathBuf,
    /// The directory to mount it at.
    target: PathBuf,
    /// Delay of each read request of the kernel (at most 128 KiB to 1 MiB each) in ms.
    #[arg(long, default_value_t = 5.0)]
    delay_ms: f64,
    /// Delay of each open in ms; that of reads unless given.
    #[arg(long)]
    open_delay_ms: Option<f64>,
    /// Bytes per second of each read request, in MB (10^6); 0: unlimited.
    #[arg(long, default_value = "0", value_parser = megabytes)]
    request_mb_s: u64,
    /// Bytes per second of all reads together, in MB (10^6); 0: unlimited.
    #[arg(long, default_value = "500", value_parser = megabytes)]
    mb_s: u64,
    /// Let the kernel keep what was read when a file is opened again.
    #[arg(long)]
    keep_cache: bool,
    /// Written once the file system is mounted.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// End when stdin is closed, so that the mount can't outlive its parent.
    #[arg(long)]
    until_eof: bool,
}

fn megabytes(text: &str) -> Result<u64, String> {
    human::bytes(&format!("{text}MB"))
}

fn delay(milliseconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(milliseconds / 1000.0).map_err(|_| format!("{milliseconds} ms is not a delay"))
}

fn run(cli: &Cli) -> Result<(), String> {
    let settings = Settings {
        open_delay: delay(cli.open_delay_ms.unwrap_or(cli.delay_ms))?,
        read_delay: delay(cli.delay_ms)?,
        request_bytes_per_s: cli.request_mb_s,
        bytes_per_s: cli.mb_s,
        keep_cache: cli.keep_cache,
    };
    let (source, target) = (cli.source.display(), cli.target.display());
    let failed = |error: std::io::Error| format!("can't mount {source} at {target}: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let mount = Mount::new(&cli.source, &cli.target, settings).map_err(failed)?;
    let mut begun = Ok(());
    let begin = || {
        if let Some(path) = &cli.ready_file {
            let text = format!(
                "{}\n",
                serde_json::json!({ "mount": cli.target, "pid": std::process::id() })
            );
            begun = ending::announce(path, &text).map_err(|error| format!("{}: {error}", path.display()));
        }
        begun.is_ok()
    };
    runtime.block_on(ending::requested(cli.until_eof, begin));
    begun?;
    mount
        .unmount()
        .map_err(|error| format!("can't unmount {target}: {error}"))
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slowfs: {error}");
            ExitCode::FAILURE
        }
    }
}
