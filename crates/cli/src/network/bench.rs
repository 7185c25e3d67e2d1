//! `gatestream bench` and `gatestream explain` of a whole graph.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::shares::Shares;
use super::{Arrays, Source, failed, first_run, open};
use crate::named::Named;
use gatestream_command::{Failure, Printer};
use gatestream_network::NetworkProfile;

/// Options of a measurement.
pub struct Timing {
    pub seconds: f64,
    /// Whether to print the share of each region.
    pub profile: bool,
    pub json: bool,
}

/// Runs at the least: enough for the 99th percentile to be one of them.
const MIN_RUNS: usize = 11;
/// Profiled runs at the most.
const MAX_PROFILED: usize = 1000;
/// Profiled runs of `explain`.
const EXPLAINED: usize = 11;

/// Times runs on some arrays, and prints the part of recurrent regions.
pub fn bench(
    source: Source<'_>,
    arrays: &[Named],
    plan: Option<&Path>,
    timing: &Timing,
) -> Result<(), Failure> {
    let model = source.model;
    let failed = failed(model);
    let network = open(source, plan)?;
    let arrays = Arrays::read(arrays)?;
    let inputs = arrays.borrowed();
    let budget = Duration::from_secs_f64(timing.seconds);
    first_run(&network, &inputs, plan).map_err(&failed)?;
    for _ in 0..2 {
        network.run(&inputs).map_err(&failed)?;
    }
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < MIN_RUNS || begin.elapsed() < budget {
        let start = Instant::now();
        network.run(&inputs).map_err(&failed)?;
        times.push(1e3 * start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let at = |fraction: f64| times[((times.len() - 1) as f64 * fraction).round() as usize];
    let (begin, mut profiles) = (Instant::now(), Vec::<NetworkProfile>::new());
    while profiles.len() < MIN_RUNS
        || (begin.elapsed() < budget / 4 && profiles.len() < MAX_PROFILED)
    {
        profiles.push(network.profile(&inputs).map_err(&failed)?.profile);
    }
    let shares = Shares::new(&profiles);
    let mut out = Printer::new(false);
    if timing.json {
        let mut row = serde_json::json!({
            "model": model.display().to_string(),
            "median_ms": at(0.5),
            "p99_ms": at(0.99),
            "recurrent_share": shares.recurrent(),
            "runs": times.len(),
        });
        if timing.profile {
            row["regions"] = shares.json();
        }
        writeln!(out, "{row}")?;
        return Ok(());
    }
    writeln!(
        out,
        "{}: median {:.4} ms, p99 {:.4} ms, {} runs; recurrent regions take {:.0} % of the time",
        model.display(),
        at(0.5),
        at(0.99),
        times.len(),
        100.0 * shares.recurrent()
    )?;
    if timing.profile {
        write!(out, "\n{shares}")?;
    }
    Ok(())
}

/// Prints the recurrent regions, their shares of the time, and their plans.
pub fn explain(
    source: Source<'_>,
    arrays: &[Named],
    plan: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let failed = failed(source.model);
    let network = open(source, plan)?;
    let arrays = Arrays::read(arrays)?;
    let inputs = arrays.borrowed();
    first_run(&network, &inputs, plan).map_err(&failed)?;
    let profiles = (0..EXPLAINED).map(|_| Ok(network.profile(&inputs).map_err(&failed)?.profile));
    let shares = Shares::new(&profiles.collect::<Result<Vec<_>, Failure>>()?);
    let mut out = Printer::new(false);
    if json {
        writeln!(out, "{}", serde_json::json!({ "regions": shares.json() }))?;
        return Ok(());
    }
    let origin = match plan {
        Some(path) => format!("those that {} has; others are estimated", path.display()),
        None => "estimated from arithmetic and bytes; `gatestream tune` times instead".into(),
    };
    write!(out, "{shares}\nplans ({origin})\n{}", shares.plans())?;
    Ok(())
}
