//! The subcommand `load`.

mod arguments;
mod machines;
mod outputs;
mod policy_option;
mod progress;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io::Write;
use std::ops::ControlFlow;

pub use arguments::Arguments;

use crate::candidate::{Candidate, Launch};
use crate::drive::priority;
use crate::in_process::Engines;
use crate::policy::ComparedPolicy;
use crate::record::{ErrorKind, Recording};
use crate::report::{Context, Printer, Row, calibration};
use crate::sweep::{Measurement, NextRun, Trial, compare, highest_peaks, peak_of_baselines, sweep};
use crate::workload::Arrivals;
use gatestream_command::{Failure, Printer as Output, interrupt};
use progress::Progress;

/// The stage of progress in which each cell is timed.
const CALIBRATION: &str = "measuring the times of batches of each cell";

/// Serves and measures as `arguments` say.
///
/// # Errors
/// Arguments or files are invalid; the machine has too little memory; a file cannot be written.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    // All checks come before weights are made.
    arguments.check_outputs()?;
    #[cfg(feature = "wire")]
    if let Some(model) = arguments.wire_model()? {
        arguments.measures_peaks()?;
        interrupt::catch()?;
        let out = &mut Output::new(arguments.writes_files());
        let mut context = arguments.context();
        if let Some(inputs) = model.inputs()? {
            context.requests = format!("{}, inputs {inputs}", context.requests);
        }
        return measure(arguments, &context, &model, interrupt::flow, out);
    }
    let workload = arguments.workload()?;
    arguments.policies(&workload)?;
    let grid = arguments.grid()?;
    arguments.measures_peaks()?;
    arguments.check_machines()?;
    let engines = Engines::new(&arguments.engine_spec(), &workload)?;
    let out = &mut Output::new(arguments.writes_files());
    if arguments.calibrate {
        let mut progress = Progress::new(1);
        progress.say(CALIBRATION);
        let found = engines.calibrate(&grid.calibration_rows())?;
        drop(progress);
        return calibration::print(&found, arguments.json, out);
    }
    interrupt::catch()?;
    if !arguments.machines.is_empty() {
        return machines::run(arguments, &engines, out);
    }
    if !priority::is_allowed() {
        writeln!(std::io::stderr(), "gatestream: {}", priority::REFUSED)?;
    }
    measure(
        arguments,
        &arguments.context(),
        &engines,
        interrupt::flow,
        out,
    )
}

/// Measures targets of `launch`, prints to `out` and writes files. If `flow` breaks off, no further
/// run starts, and the results so far are reported.
fn measure<L: Launch>(
    arguments: &Arguments,
    context: &Context,
    launch: &L,
    flow: impl Fn() -> ControlFlow<()>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    arguments.check_outputs()?;
    let mut grid = arguments.grid()?;
    let trace = arguments.trace.as_deref();
    let trace = trace.map(Arrivals::read_trace).transpose()?;
    let workload = arguments.workload()?;
    let policies: Vec<Option<ComparedPolicy>> = if launch.has_policies() {
        let policies = arguments.policies(&workload)?;
        policies.into_iter().map(Some).collect()
    } else {
        vec![None]
    };
    let conditions = arguments.conditions(workload);
    let printer = Printer {
        json: arguments.json,
        context,
    };
    printer.title(out)?;
    if grid.needs_calibration() {
        let mut progress = Progress::new(1);
        progress.say(CALIBRATION);
        let found = launch.calibrate(&grid.calibration_rows())?;
        drop(progress);
        calibration::print(&found, arguments.json, out)?;
        let rows = grid.add_calibrated(&found);
        if !arguments.json {
            writeln!(out, "calibrated: batch {rows}\n")?;
        }
    }
    let candidates = if launch.has_policies() {
        grid.candidates(&policies.iter().copied().flatten().collect::<Vec<_>>())
    } else {
        vec![Candidate::default()]
    };
    let measures_peaks = arguments.measures_peaks()?;
    let point_count = arguments.point_count();
    // The best of each policy is measured again after a sweep; skipped runs are unknown yet.
    let again = if candidates.len() > policies.len() {
        point_count * policies.len()
    } else {
        0
    };
    let runs = (usize::from(measures_peaks) + point_count) * candidates.len() + again;
    let progress = RefCell::new(Progress::new(runs * conditions.rounds));
    let mut next = |next: NextRun<'_>| {
        flow()?;
        progress.borrow_mut().show(next);
        ControlFlow::Continue(())
    };

    let mut peaks = Vec::new();
    if measures_peaks {
        let closed = [arguments.saturation(&grid, context.machines.unwrap_or(1))];
        peaks = compare(launch, &candidates, &closed, &conditions, &mut next)?;
        if peaks.is_empty() {
            return Err(Failure::new("interrupted before all peaks were measured"));
        }
    }
    let peak_rows = peak_rows(context, &policies, &candidates, &peaks);
    progress
        .borrow()
        .suspend(|| printer.peaks(&peak_rows, out))?;
    let points = match trace {
        Some(trace) => vec![trace],
        None if arguments.is_by_load() => {
            let Some((baseline, peak)) = peak_of_baselines(&peaks) else {
                let measured = peaks.iter().flat_map(|peak| &peak.rounds);
                let reason = reason(&Recording::merged(measured)).unwrap_or_else(|| {
                    "give --rates, longer --seconds or a shorter --warm-up".into()
                });
                return Err(Failure::new(format!(
                    "nothing was answered where the peak was to be measured: {reason}"
                )));
            };
            if !arguments.json {
                let name = &baseline.about.name;
                progress.borrow().suspend(|| {
                    writeln!(
                        out,
                        "loads are fractions of the peak of {name}: {peak:.0} a second\n"
                    )
                })?;
            }
            arguments.loads_of(peak)
        }
        None => arguments.points(),
    };
    let result = sweep(launch, &candidates, &peaks, points, &conditions, &mut next)?;
    drop(progress);
    if result.trials.is_empty() {
        return Err(Failure::new("interrupted before a load was measured"));
    }
    let row = |trial: &Trial| Row {
        best: trial.best,
        ..Row::new(context, &trial.measurement)
    };
    let rows: Vec<_> = result.trials.iter().map(row).collect();
    let best = result.best();
    // Files are written before results are printed, because the reader may have closed the pipe.
    // If a file cannot be written, the table is printed nevertheless.
    let all: Vec<_> = peak_rows.iter().chain(&rows).collect();
    let written = arguments.write_files(&context.title(), &all, &best, policies.len());
    printer.measured(&rows, arguments.sweep.then_some(&result), out)?;
    let loads = best.len() / policies.len();
    let rounds = best[best.len() - 1].rounds.len();
    if loads < point_count || rounds < conditions.rounds {
        writeln!(
            std::io::stderr(),
            "interrupted: {loads} of {point_count} loads, the last in {rounds} of {} rounds",
            conditions.rounds
        )?;
    }
    written?;
    let measured = result
        .trials
        .iter()
        .flat_map(|trial| &trial.measurement.rounds);
    no_answer(measured).map_or(Ok(()), Err)
}

/// The failure of a measurement in which all requests ended without an answer.
fn no_answer<'a>(all: impl IntoIterator<Item = &'a Recording>) -> Option<Failure> {
    let all = Recording::merged(all);
    if all.due == 0 || all.unanswered() < all.due {
        return None;
    }
    let kinds = || {
        let counts = ErrorKind::ALL.iter().zip(all.errors);
        let kinds = counts.filter(|(_, count)| *count > 0);
        let kinds: Vec<_> = kinds.map(|(kind, _)| kind.name()).collect();
        kinds.join(", ")
    };
    let reason = reason(&all).unwrap_or_else(kinds);
    Some(Failure::new(format!(
        "none of {} requests was answered: {reason}",
        all.due
    )))
}

/// The most frequent message of requests without an answer.
fn reason(all: &Recording) -> Option<String> {
    let all = all.reasons.most_frequent();
    all.first().map(|(reason, _)| (*reason).to_owned())
}

/// The peaks by policy; the highest of each policy is marked.
fn peak_rows<'a>(
    context: &'a Context,
    policies: &[Option<ComparedPolicy>],
    candidates: &[Candidate],
    peaks: &[Measurement],
) -> Vec<Row<'a>> {
    let highest = highest_peaks(candidates, peaks);
    let row = |measured: &Measurement| Row {
        kind: "peak",
        best: highest.contains(&measured.candidate),
        ..Row::new(context, measured)
    };
    let of_policy = |&policy: &Option<ComparedPolicy>| {
        let peaks = peaks.iter();
        peaks.filter(move |measured| measured.candidate.policy == policy)
    };
    policies.iter().flat_map(of_policy).map(row).collect()
}
