//! `testbucket serve`: the test bucket as a process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use foreload_testkit::bucket::server::Server;
use foreload_testkit::bucket::{Error, Fault, Keys, Profile, Rule, Settings};
use foreload_testkit::{ending, human};

/// An S3-compatible bucket on loopback for tests and benchmarks.
#[derive(Parser)]
#[command(name = "testbucket")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves until SIGTERM, SIGINT, or (with --until-eof) until stdin is closed.
    Serve(Box<Serve>),
}

#[derive(Args)]
struct Serve {
    /// The timing: `cloud` (30 ms to the first byte, 35 MB/s per connection, 1 GB/s in all,
    /// 30 ms to connect), `cloud-hard` (the same with slow start, connections that are closed after
    /// 100 requests, and a second more for one response of a thousand) or `fast` (nothing added).
    #[arg(long, default_value = "fast", value_parser = Profile::named)]
    profile: Profile,
    /// Median time to the first byte in ms; overrides the profile.
    #[arg(long)]
    first_byte_ms: Option<f64>,
    /// Sigma of its lognormal distribution; overrides the profile.
    #[arg(long)]
    first_byte_sigma: Option<f64>,
    /// Bytes per second on one connection (`35MB`; 0: unlimited); overrides the profile.
    #[arg(long, value_parser = human::bytes)]
    connection_rate: Option<u64>,
    /// Bytes per second on all connections together (0: unlimited); overrides the profile.
    #[arg(long, value_parser = human::bytes)]
    total_rate: Option<u64>,
    /// Delay of a new connection in ms; overrides the profile.
    #[arg(long)]
    connect_ms: Option<f64>,
    /// Most bytes of a body that leave at once; overrides the profile.
    #[arg(long, value_parser = human::bytes)]
    piece: Option<u64>,
    /// The port on loopback; 0: a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Threads that serve.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The address: a loopback address, or one of 198.18.0.0/15, the block for tests of networks.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Keep objects in this directory (its directories are buckets) instead of in memory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A set of synthetic objects: `w1:10000x110000` (bucket `bench`, keys `w1/00000000.bin`...),
    /// `w1:10000x60KB-160KB,classes=100,ext=jpg`, `//mine/big:5x200MB`, or tar shards of samples:
    /// `shards:20x900x110000,tar`. May be repeated.
    #[arg(long)]
    synthetic: Vec<Rule>,
    /// A bucket that exists from the start (`bench` always does). May be repeated.
    #[arg(long)]
    bucket: Vec<String>,
    /// A fault: `kind=truncate,share=0.1,at=0.5` or JSON. Kinds: status rate_limit slow hang
    /// truncate stall reset changed flip short whole. May be repeated.
    #[arg(long, value_parser = Fault::parse)]
    fault: Vec<Fault>,
    /// The access key.
    #[arg(long, default_value_t = Keys::default().access_key)]
    access_key: String,
    /// The secret key.
    #[arg(long, default_value_t = Keys::default().secret_key)]
    secret_key: String,
    /// A session token that must come along.
    #[arg(long)]
    session_token: Option<String>,
    /// Accept unsigned requests too.
    #[arg(long)]
    anonymous: bool,
    /// What all draws depend on: delays, faults, synthetic content.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Speak TLS with a certificate made at start; see --ca-file.
    #[arg(long)]
    tls: bool,
    /// Where to write the certificate to trust (PEM), with --tls.
    #[arg(long, requires = "tls")]
    ca_file: Option<PathBuf>,
    /// Where to write the endpoint and keys as JSON once the server accepts connections.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// End when stdin is closed, so that the server can't outlive its parent.
    #[arg(long)]
    until_eof: bool,
}

impl Serve {
    fn settings(&self) -> Settings {
        let mut profile = self.profile.clone();
        let set = |value: &mut f64, given: Option<f64>| *value = given.unwrap_or(*value);
        set(&mut profile.first_byte_ms, self.first_byte_ms);
        set(&mut profile.first_byte_sigma, self.first_byte_sigma);
        set(&mut profile.connect_ms, self.connect_ms);
        let set = |value: &mut u64, given: Option<u64>| *value = given.unwrap_or(*value);
        set(&mut profile.connection_bytes_per_s, self.connection_rate);
        set(&mut profile.total_bytes_per_s, self.total_rate);
        set(&mut profile.piece_bytes, self.piece);
        let mut settings = Settings {
            listen: SocketAddr::new(self.address, self.port),
            profile,
            keys: Keys {
                access_key: self.access_key.clone(),
                secret_key: self.secret_key.clone(),
                session_token: self.session_token.clone(),
                anonymous: self.anonymous,
                expired: Vec::new(),
            },
            seed: self.seed,
            directory: self.dir.clone(),
            synthetic: self.synthetic.clone(),
            faults: self.fault.clone(),
            tls: self.tls,
            ..Settings::default()
        };
        settings.buckets.extend(self.bucket.iter().cloned());
        settings
    }

    fn run(&self) -> Result<(), Error> {
        let server = Server::bind(self.settings())?;
        let scheme = if self.tls { "https" } else { "http" };
        let ready = serde_json::json!({
            "endpoint": format!("{scheme}://{}", server.address),
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "session_token": self.session_token,
            "region": "us-east-1",
            "bucket": "bench",
            "ca_file": self.ca_file,
            "pid": std::process::id(),
        });
        if let (Some(path), Some(pem)) = (&self.ca_file, &server.ca_pem) {
            announce(path, pem)?;
        }
        let mut begun = Ok(());
        let begin = || {
            if let Some(path) = &self.ready_file {
                begun = announce(path, &format!("{ready}\n"));
            }
            println!("{ready}");
            begun.is_ok()
        };
        let ran = server.run(self.threads, ending::requested(self.until_eof, begin));
        begun?;
        ran.map_err(|source| Error::Io {
            what: "its socket".into(),
            source,
        })
    }
}

fn announce(path: &Path, text: &str) -> Result<(), Error> {
    ending::announce(path, text).map_err(|source| Error::Io {
        what: path.display().to_string(),
        source,
    })
}

fn main() -> ExitCode {
    let Command::Serve(serve) = Cli::parse().command;
    match serve.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbucket: {error}");
            ExitCode::FAILURE
        }
    }
}
