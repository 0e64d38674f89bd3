//! `bare`: the yardstick as a process; prints one JSON object per run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use foreload_testkit::bare::{self, Error, Range, Report, http, local};
use foreload_testkit::bucket::Rule;
use foreload_testkit::human;

/// Reads as fast as a client can that does nothing else.
#[derive(Parser)]
#[command(name = "bare")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Signed ranged GETs over kept-alive connections, one thread.
    Get(Get),
    /// Reads of files below a directory, with threads.
    Files(Files),
    /// Reads of ranges of one file with O_DIRECT, with threads.
    Direct(Direct),
}

/// What to read.
#[derive(Args)]
struct Which {
    /// The ranges, one per line: key or path, offset, size, separated by tabs.
    #[arg(long, required_unless_present = "synthetic")]
    ranges: Option<PathBuf>,
    /// All samples of a synthetic set of the server (the same rule and --seed as there).
    #[arg(long)]
    synthetic: Option<Rule>,
    /// The server's seed, on which sizes depend; also that of --shuffle.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Read in random order.
    #[arg(long)]
    shuffle: bool,
    /// Split ranges into parts of this size (`8MiB`).
    #[arg(long, value_parser = human::bytes)]
    part: Option<u64>,
    /// Read only so many ranges.
    #[arg(long)]
    limit: Option<usize>,
}

impl Which {
    fn ranges(&self) -> Result<Vec<Range>, Error> {
        let mut ranges = match (&self.ranges, &self.synthetic) {
            (Some(path), _) => bare::from_file(path)?,
            (None, Some(rule)) => bare::synthetic(rule, self.seed),
            (None, None) => Vec::new(),
        };
        if let Some(part) = self.part {
            ranges = bare::split(ranges, part.max(1));
        }
        if self.shuffle {
            bare::shuffle(&mut ranges, self.seed);
        }
        ranges.truncate(self.limit.unwrap_or(usize::MAX));
        if ranges.is_empty() {
            return Err(Error::Setting("there is nothing to read".into()));
        }
        Ok(ranges)
    }
}

#[derive(Args)]
struct Get {
    /// The file that `testbucket serve --ready-file` wrote; gives endpoint, keys and certificate.
    #[arg(long, required_unless_present = "endpoint")]
    ready_file: Option<PathBuf>,
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    #[arg(long)]
    endpoint: Option<String>,
    /// The access key.
    #[arg(long)]
    access_key: Option<String>,
    /// The secret key.
    #[arg(long)]
    secret_key: Option<String>,
    /// The certificate to trust (PEM), for https.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// The bucket; that of the synthetic set, or `bench`, unless given.
    #[arg(long)]
    bucket: Option<String>,
    /// The region.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// How many connections; several numbers make several runs (`16,32,64,128,256`).
    #[arg(long, value_delimiter = ',', default_value = "64")]
    connections: Vec<usize>,
    /// How much memory the bodies go to in turn.
    #[arg(long, value_parser = human::bytes, default_value = "256MiB")]
    memory: u64,
    /// Read into memory that nobody has written yet, pages of which the kernel has to find and clear.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    which: Which,
}

impl Get {
    fn settings(&self) -> Result<http::Settings, Error> {
        let ready = match &self.ready_file {
            Some(path) => serde_json::from_str(&read(path)?)
                .map_err(|error| Error::Setting(format!("{}: {error}", path.display())))?,
            None => serde_json::Value::Null,
        };
        let field = |given: &Option<String>, name: &str| {
            let known = given.clone().or_else(|| ready[name].as_str().map(str::to_owned));
            known.ok_or_else(|| Error::Setting(format!("--{} is missing", name.replace('_', "-"))))
        };
        let rule = self.which.synthetic.as_ref().map(|rule| rule.bucket.clone());
        let bucket = self.bucket.clone().or(rule).unwrap_or_else(|| "bench".into());
        let ca = self.ca.clone().or_else(|| ready["ca_file"].as_str().map(PathBuf::from));
        let mut settings = http::Settings::new(
            &field(&self.endpoint, "endpoint")?,
            &bucket,
            &field(&self.access_key, "access_key")?,
            &field(&self.secret_key, "secret_key")?,
        );
        settings.region.clone_from(&self.region);
        settings.ca_pem = ca.map(|path| read(&path)).transpose()?;
        settings.memory_bytes = self.memory as usize;
        settings.fresh = self.fresh;
        Ok(settings)
    }
}

#[derive(Args)]
struct Files {
    /// The directory that the paths begin at.
    #[arg(long)]
    root: PathBuf,
    /// How many threads; several numbers make several runs.
    #[arg(long, value_delimiter = ',', default_value = "64")]
    threads: Vec<usize>,
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
struct Direct {
    /// The file.
    #[arg(long)]
    file: PathBuf,
    /// How many reads at a time; several numbers make several runs.
    #[arg(long, value_delimiter = ',', default_value = "32")]
    depth: Vec<usize>,
    #[command(flatten)]
    which: Which,
}

fn read(path: &Path) -> Result<String, Error> {
    let what = path.display().to_string();
    std::fs::read_to_string(path).map_err(|source| Error::Io { what, source })
}

fn print(report: &Report) -> Result<(), Error> {
    let text = serde_json::to_string(report).map_err(|error| Error::Setting(error.to_string()))?;
    println!("{text}");
    Ok(())
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Get(get) => {
            let (settings, ranges) = (get.settings()?, get.which.ranges()?);
            for connections in get.connections {
                let settings = http::Settings {
                    connections,
                    ..settings.clone()
                };
                print(&http::run(settings, ranges.clone())?)?;
            }
        }
        Command::Files(files) => {
            let ranges = files.which.ranges()?;
            for threads in files.threads {
                print(&local::files(&files.root, &ranges, threads.max(1))?)?;
            }
        }
        Command::Direct(direct) => {
            let ranges = direct.which.ranges()?;
            for depth in direct.depth {
                print(&local::direct(&direct.file, &ranges, depth.max(1))?)?;
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare: {error}");
            ExitCode::FAILURE
        }
    }
}
