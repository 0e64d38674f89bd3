//! Simulates a scenario file from the command line: the native face of [`foreload_sim::run`], for benchmarks and scripts.
//!
//! `--help` says how. It is a program of the build tree; the installed command is `foreload simulate`, which reads indexes, draws, and shows
//! how far it is.

use foreload_sim::analysis::{AccessCounts, PAPER_EXAMPLE};
use foreload_sim::cost::deli::TABLE_II;
use foreload_sim::{Error, Limits, POLICIES, Policy, Progress, Report, Scenario, Watch, policy, run_watched};
use std::process::ExitCode;

const HELP: &str = "\
Simulates a scenario file (docs/guide/simulate.md).

usage: foreload-sim SCENARIO [--policy NAME]... [--set KEY=VALUE]... [--json]
       foreload-sim --accesses    paper 001 sec. 3.2: access counts, expected and simulated, and Lemma 1, as JSON
       foreload-sim --table-ii    paper 000: Table II, printed and computed, as JSON

  --policy NAME      a policy; repeatable. Default: all
  --set KEY=VALUE    change a key, such as cluster.nodes=8; repeatable
  --json             the report as JSON, and no progress
  -h, --help         this

`foreload simulate` is the same in the installed package, with progress, plots and calibrations.";

#[derive(Default)]
struct Arguments {
    scenario: Option<String>,
    policies: Vec<String>,
    set: Vec<String>,
    json: bool,
    what: Option<String>,
}

fn main() -> ExitCode {
    match arguments(std::env::args().skip(1)).and_then(|a| act(&a)) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("foreload-sim: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut a = Arguments::default();
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--policy" => a.policies.push(value()?),
            "--set" => a.set.push(value()?),
            "--json" => a.json = true,
            "--accesses" | "--table-ii" => a.what = Some(argument),
            "-h" | "--help" => a.what = Some("--help".to_owned()),
            other if other.starts_with('-') => {
                return Err(format!("unknown option {other}; foreload-sim --help lists them"));
            }
            _ if a.scenario.is_some() => {
                return Err(format!("one scenario at a time, not {argument:?} as well"));
            }
            _ => a.scenario = Some(argument),
        }
    }
    Ok(a)
}

fn act(a: &Arguments) -> Result<String, String> {
    match (a.what.as_deref(), &a.scenario) {
        (Some("--help"), _) => Ok(HELP.to_owned()),
        (Some("--accesses"), _) => Ok(accesses()),
        (Some(_), _) => Ok(table_ii()),
        (None, Some(path)) => simulate(path, a),
        (None, None) => Err("name a scenario file; foreload-sim --help says how".to_owned()),
    }
}

fn simulate(path: &str, a: &Arguments) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let scenario = Scenario::parse(&text, &a.set).map_err(|e| e.to_string())?;
    let policies = policies(&a.policies).map_err(|e| e.to_string())?;
    let begins = |at: Progress| {
        if let (false, 0, Some(policy)) = (a.json, at.done, at.policy) {
            eprintln!("{}", policy.name());
        }
        true
    };
    let limits = Limits {
        memory_bytes: available_bytes(),
    };
    let report = run_watched(&scenario, &policies, limits, &Watch::new(&begins)).map_err(|e| e.to_string())?;
    match a.json {
        true => Ok(report.json()),
        false => Ok(table(&report)),
    }
}

/// Memory that the machine has left, where it says so.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

fn policies(names: &[String]) -> Result<Vec<Policy>, Error> {
    match names.is_empty() {
        true => Ok(POLICIES.to_vec()),
        false => names.iter().map(|n| policy::from_name(n)).collect(),
    }
}

fn table(report: &Report) -> String {
    let gb = |mb: f64| mb / 1024.0;
    let mut lines = vec![
        format!(
            "{}: {:.1} GB, lower bound {:.4} h",
            report.scenario,
            gb(report.dataset_mb),
            report.lower_bound_hours
        ),
        format!(
            "{:<18} {:>9} {:>7} {:>9} {:>10} {:>10} {:>10} {:>10} {:>12} {:>6} {:>6}",
            "policy",
            "hours",
            "/bound",
            "stall h",
            "ram GB",
            "disk GB",
            "peer GB",
            "source GB",
            "requests",
            "cover",
            "copies"
        ),
    ];
    for r in &report.results {
        if let Some(reason) = &r.reason {
            lines.push(format!("{:<18} {reason}", r.policy.name()));
            continue;
        }
        let mb = r.mb_by_source;
        lines.push(format!(
            "{:<18} {:>9.4} {:>7.3} {:>9.4} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>12} {:>6.3} {:>6.2}",
            r.policy.name(),
            r.hours,
            r.hours / report.lower_bound_hours,
            r.stall_hours,
            gb(mb.ram),
            gb(mb.disk),
            gb(mb.peer),
            gb(mb.source),
            r.requests,
            r.coverage,
            r.copies
        ));
        if let (Some(miss), Some(load)) = (&r.miss_rate, &r.load_s) {
            lines.push(format!("{:<18} miss rate {miss:.3?}, loading {load:.1?} s", ""));
        }
    }
    lines.join("\n")
}

fn accesses() -> String {
    let e = PAPER_EXAMPLE;
    let lemma: Vec<_> = [2, 4, 16]
        .into_iter()
        .map(|workers| {
            let counts = AccessCounts {
                workers,
                epochs: 100,
                samples: 10_000,
                delta: 0.1,
            };
            serde_json::json!({ "workers": workers, "pairs": counts.check_lemma_1(0).ok() })
        })
        .collect();
    serde_json::json!({
        "expected": e.expected(),
        "expected_as_printed": e.expected_as_printed(),
        "monte_carlo": (0..5).map(|seed| e.monte_carlo(seed)).collect::<Vec<_>>(),
        "lemma_1": lemma,
    })
    .to_string()
}

fn table_ii() -> String {
    let rows: Vec<_> = TABLE_II
        .iter()
        .map(|row| {
            serde_json::json!({
                "workload": row.workload, "method": row.method, "run_s": row.run_s,
                "printed": row.printed, "computed": row.computed(),
            })
        })
        .collect();
    serde_json::json!({ "columns": ["api", "storage", "compute", "total"], "rows": rows }).to_string()
}
