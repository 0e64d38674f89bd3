//! Simulates a scenario file from the command line: the native face of [`foreload_sim::run`], for benchmarks and scripts.
//!
//! ```text
//! foreload-sim SCENARIO [--policy NAME]... [--set KEY=VALUE]... [--json]
//! foreload-sim --accesses        paper 001 sec. 3.2: access counts, expected and simulated, and Lemma 1, as JSON
//! foreload-sim --table-ii        paper 000: Table II, printed and computed, as JSON
//! ```

use foreload_plan::cost::deli::TABLE_II;
use foreload_sim::analysis::{AccessCounts, PAPER_EXAMPLE};
use foreload_sim::{Error, Policy, Report, Scenario, Sizes, run_with_sizes};
use std::process::ExitCode;

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
            other if other.starts_with("--") => return Err(format!("unknown option {other}")),
            _ => a.scenario = Some(argument),
        }
    }
    Ok(a)
}

fn act(a: &Arguments) -> Result<String, String> {
    match (a.what.as_deref(), &a.scenario) {
        (Some("--accesses"), _) => Ok(accesses()),
        (Some(_), _) => Ok(table_ii()),
        (None, Some(path)) => simulate(path, a),
        (None, None) => Err("usage: foreload-sim SCENARIO [--policy NAME]... [--set KEY=VALUE]... [--json]".to_owned()),
    }
}

fn simulate(path: &str, a: &Arguments) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let scenario = Scenario::parse(&text, &a.set).map_err(|e| e.to_string())?;
    let policies = policies(&a.policies).map_err(|e| e.to_string())?;
    let mut progress = |policy: Policy, done: usize| {
        if !a.json {
            eprintln!("{}/{} {}", done + 1, policies.len(), policy.name());
        }
    };
    let sizes = Sizes::new(&scenario.dataset).map_err(|e| e.to_string())?;
    let report = run_with_sizes(&scenario, sizes, &policies, &mut progress).map_err(|e| e.to_string())?;
    match a.json {
        true => serde_json::to_string(&report).map_err(|e| e.to_string()),
        false => Ok(table(&report)),
    }
}

fn policies(names: &[String]) -> Result<Vec<Policy>, Error> {
    match names.is_empty() {
        true => Ok(Policy::ALL.to_vec()),
        false => names.iter().map(|n| Policy::from_name(n)).collect(),
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
