//! `gatestream tune`: finds the fastest plan of a model on this machine and writes it to a file.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::memory::afford_run;
use super::model::ModelOrShape;
#[cfg(feature = "network")]
use super::network;
use super::precision::{self, MeasuredPrecision, Purpose};
use gatestream::model::Model;
use gatestream::plan::{Cost, Entry, Plan, PlanFileError};
use gatestream::tune::{Effort, Options, Progress, Tuned, tune};
use gatestream_command::interrupt::{self, flow};
use gatestream_command::{Failure, Printer, in_existing_directory, seconds, threads};
use gatestream_serve::cell_graph::BatchSizes;

/// Finds the fastest plan of a model on this machine and writes it to a file.
///
/// Each candidate (number of cores, partition of the weights, products computed ahead of the steps,
/// order of panels) is compared with the reference bit for bit, then timed in rounds. Slow
/// candidates are dropped early; of candidates within the noise, the one with the fewest cores is
/// chosen.
///
/// Requests vary in size, so one tuning covers a grid: each --batch with each --steps. A session
/// uses the entry nearest to its request. If the sequences of a request differ in length, --lengths
/// describes them: it decides whether they are split among the cores or run together.
///
/// Existing entries of the plan file are kept for other sizes, and for sizes that --seconds did not
/// suffice for, unless they are estimates and the new ones are measured. Ctrl-C ends the tuning,
/// keeps the best result so far in the same way, and is no error. A size with fewer than three
/// complete rounds keeps the estimate.
///
/// `run`, `bench` and `explain` read the file with --plan, the library with Plan::load_or_estimate.
///
/// With --array, the model is a whole graph (.onnx). Each of its recurrent regions is tuned for the
/// sizes that it has in a run on these arrays, and the file has a plan for each; the library reads
/// it with NetworkPlan::load.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: ModelOrShape,
    #[cfg(feature = "network")]
    #[command(flatten)]
    arrays: network::ArrayOptions,
    /// Sequences per request, one or several sizes
    #[arg(long, value_name = "B,…", value_delimiter = ',', default_value = "1,10",
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: Vec<u32>,
    /// Steps per sequence, one or several lengths
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_value = "10,100",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    steps: Vec<u32>,
    /// Steps of the sequences in a timed request, repeated in this order, at most --steps (default:
    /// all --steps)
    #[arg(long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    lengths: Vec<u32>,
    /// Use at most this many cores (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    #[command(flatten)]
    precision: MeasuredPrecision,
    /// Time for the whole tuning
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = seconds)]
    seconds: f64,
    /// Effort of the search
    #[arg(long, value_enum, default_value_t = EffortName::Measure)]
    effort: EffortName,
    /// Write the plan to this file
    #[arg(short, long, value_name = "PLAN")]
    output: Option<PathBuf>,
}

/// [`Effort`], as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EffortName {
    /// Time nothing: estimate from operations and bytes
    Estimate,
    /// Time one dimension after the other
    Measure,
    /// Time all combinations
    Exhaustive,
}

impl From<EffortName> for Effort {
    fn from(name: EffortName) -> Effort {
        match name {
            EffortName::Estimate => Effort::Estimate,
            EffortName::Measure => Effort::Measure,
            EffortName::Exhaustive => Effort::Exhaustive,
        }
    }
}

/// The part of the time for choosing precisions with `auto`.
const CHOOSING: f64 = 0.3;

/// Tunes, prints the chosen configurations, writes the plan.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    #[cfg(feature = "network")]
    if let (Some(arrays), Some(model)) = (arguments.arrays.given(), &arguments.source.model) {
        if !arguments.lengths.is_empty() {
            return Err(Failure::usage(
                "--lengths applies to a stack of layers; a graph has those of its arrays",
            ));
        }
        if let Some(path) = &arguments.output {
            writable(path, network::PLAN)?;
        }
        let source = network::Source {
            model,
            threads: arguments.threads,
            precision: arguments.precision.of_graph()?,
            clip_output: arguments.source.file.clip_output,
            unchecked: arguments.source.file.unchecked,
        };
        let tuning = network::Tuning {
            seconds: arguments.seconds,
            effort: arguments.effort.into(),
            output: arguments.output.as_deref(),
            bar: bar(),
        };
        return network::tune(source, arrays, &tuning);
    }
    let model = arguments.source.model()?;
    if let Some(path) = &arguments.output {
        writable(path, "gatestream plan ")?;
    }
    let longest = *arguments.steps.iter().max().unwrap_or(&0);
    if let Some(length) = arguments.lengths.iter().find(|&&length| length > longest) {
        return Err(Failure::usage(format!(
            "--lengths {length} is more than the steps of each request (--steps, at most {longest})"
        )));
    }
    let grid = arguments.batch.iter();
    let sizes: Vec<(usize, usize)> = grid
        .flat_map(|&batch| arguments.steps.iter().map(move |&steps| (batch, steps)))
        .map(|(batch, steps)| (batch as usize, steps as usize))
        .collect();
    for &(batch, steps) in &sizes {
        afford_run(&model, batch, steps, "--batch and --steps")?;
    }
    interrupt::catch()?;
    let (cores, budget) = (
        threads(arguments.threads),
        Duration::from_secs_f64(arguments.seconds),
    );
    let (bar, start) = (bar(), Instant::now());
    let purpose = Purpose {
        sizes: sizes.clone(),
        cores,
        budget: budget.mul_f64(CHOOSING),
    };
    let (model, choice) =
        arguments
            .precision
            .of(&arguments.source, model, purpose, |progress| {
                bar.set_position((1000.0 * CHOOSING * progress.fraction) as u64);
                bar.set_message(format!("precisions: {}", progress.stage));
                flow()
            })?;
    // The plan keeps its part of the time, even if choosing took longer than planned.
    let left = match choice {
        Some(_) => budget
            .saturating_sub(start.elapsed())
            .max(budget.mul_f64(1.0 - CHOOSING)),
        None => budget,
    };
    if let Some(path) = &arguments.output {
        not_of_another_model(path, &model)?;
    }
    let mut options = Options::new(sizes, cores, left);
    options.lengths = arguments.lengths.iter().map(|&l| l as usize).collect();
    options.effort = arguments.effort.into();
    if arguments.output.is_none() && !matches!(arguments.effort, EffortName::Estimate) {
        eprintln!("no -o PLAN: the plan will be printed, not written to a file");
    }
    let mut tuned = tune(&model, &options, |progress| {
        show(&bar, progress);
        flow()
    })?;
    bar.finish_and_clear();
    let mut out = Printer::new(arguments.output.is_some());
    if let Some(words) = &choice {
        writeln!(out, "{words}")?;
    }
    print(&mut out, &model, &tuned, &options)?;
    if model.is_forward()
        && let Some(rows) = BatchSizes::of_plan(&tuned.plan)
    {
        let most = rows.max;
        writeln!(
            out,
            "\nserving by single steps: batches of {most} rows come within 3 % of the best rate"
        )?;
    }
    if let Some(path) = &arguments.output {
        let kept = keep(&mut tuned, path, &model);
        tuned.plan.save(path, &model)?;
        writeln!(out, "\nwritten to {}{kept}", path.display())?;
        if choice.is_some() {
            let precision = precision::name(&model);
            writeln!(out, "it is for the model with --precision {precision}")?;
        }
    } else if options.effort != Effort::Estimate {
        writeln!(out, "\nno file was written; use -o PLAN to keep the plan")?;
    }
    Ok(())
}

/// Refuses, before any time is spent, a place that no plan can be written to, or an existing file
/// that is not a plan and should not be overwritten.
fn writable(path: &Path, first: &str) -> Result<(), Failure> {
    in_existing_directory(path, "-o")?;
    let mut start = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(64).read_to_end(&mut start)?,
        Err(_) => return Ok(()),
    };
    if start.is_empty() || start.starts_with(first.as_bytes()) {
        return Ok(());
    }
    if Plan::is_of_former_name(&start) {
        return Err(Failure::from(PlanFileError::FormerName).of(path));
    }
    Err(Failure::new("exists and is not a plan file; choose another name for -o").of(path))
}

/// Refuses to overwrite a plan of another model, or of this one in other precisions, whose
/// measurements may still be needed.
fn not_of_another_model(path: &Path, model: &Model) -> Result<(), Failure> {
    match Plan::load(path, model) {
        Err(why @ PlanFileError::Model { .. }) => {
            let why = Failure::from(why);
            Err(Failure::new(format!("{why}; choose another name for -o, or remove it")).of(path))
        }
        _ => Ok(()),
    }
}

/// Keeps entries of the existing plan that this tuning lacks: sizes that were not tuned, or not to
/// the end. Returns a text with their number and the sizes of the second kind.
fn keep(tuned: &mut Tuned, path: &Path, model: &Model) -> String {
    match Plan::load(path, model) {
        Ok(earlier) => {
            let kept = tuned.keep(earlier);
            let mut text = match kept.others + kept.instead.len() {
                0 => String::new(),
                1 => ", with an entry of the existing plan".into(),
                kept => format!(", with {kept} entries of the existing plan"),
            };
            if !kept.instead.is_empty() {
                let sizes = kept.instead.iter();
                let sizes: Vec<_> = sizes
                    .map(|(b, s)| format!("batch {b}, {s} steps"))
                    .collect();
                let sizes = sizes.join("; ");
                text += "\nkept from the existing plan, because its measurements are more \
                         complete: ";
                text += &sizes;
            }
            text
        }
        Err(PlanFileError::Io { .. } | PlanFileError::Empty) => String::new(),
        Err(why) => {
            let why = Failure::from(why);
            format!("; the entries of the existing plan could not be kept: {why}")
        }
    }
}

/// A bar on a terminal, nothing elsewhere.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}%  {wide_msg}");
    // An error drops the bar and is printed in its place.
    let bar = ProgressBar::new(1000).with_finish(ProgressFinish::AndClear);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: &Progress<'_>) {
    bar.set_position((1000.0 * progress.fraction) as u64);
    let (size, sizes) = progress.size;
    let of = match sizes {
        1 => String::new(),
        _ => format!("size {} of {sizes}, ", size + 1),
    };
    bar.set_message(format!(
        "{of}{}: {} left, best {}: {}",
        progress.stage,
        progress.standing,
        time(progress.best.1),
        progress.best.0
    ));
}

/// A median in µs or ms.
fn time(cost: Cost) -> String {
    match cost.median_ns {
        ns if ns < 1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        ns => format!("{:.2} ms", ns as f64 / 1e6),
    }
}

fn print(
    out: &mut impl Write,
    model: &Model,
    tuned: &Tuned,
    options: &Options,
) -> Result<(), Failure> {
    if options.effort == Effort::Estimate {
        writeln!(out, "estimated, nothing timed:")?;
    } else {
        let early = if tuned.interrupted {
            ", interrupted"
        } else {
            ""
        };
        writeln!(
            out,
            "{} candidates compared with the reference, {} timed runs{early}:",
            tuned.candidates, tuned.runs
        )?;
    }
    writeln!(
        out,
        "(a schedule has one character per gate, input products / products with the state: a = \
         ahead of the steps, in chunks of the given steps; 1, 2 = in that phase of the step)"
    )?;
    for (entry, finished) in tuned.plan.entries.iter().zip(&tuned.finished) {
        writeln!(out, "\nbatch {}, {} steps", entry.batch, entry.steps)?;
        print_entry(out, model, entry, options)?;
        if !finished && entry.measured.is_some() {
            writeln!(
                out,
                "  not finished: some comparisons were shortened or skipped; increase --seconds"
            )?;
        }
    }
    Ok(())
}

fn print_entry(
    out: &mut impl Write,
    model: &Model,
    entry: &Entry,
    options: &Options,
) -> Result<(), Failure> {
    let Some(measured) = &entry.measured else {
        let why = match options.effort {
            Effort::Estimate => "not timed",
            // One round has no spread, which would look like a perfect measurement.
            _ => "too few timed runs",
        };
        writeln!(out, "  estimate   {why:>22}  {}", entry.configuration)?;
        return Ok(());
    };
    let cost = |cost: Cost| match cost.spread_ns {
        0 => format!("{:>11}       ", time(cost)),
        _ => format!("{:>11} ±{:>4.1} %", time(cost), spread(cost)),
    };
    writeln!(
        out,
        "  chosen     {:>22}  {}",
        cost(measured.cost),
        entry.configuration
    )?;
    if let Some((words, second)) = &measured.runner_up {
        writeln!(out, "  runner-up  {:>22}  {words}", cost(*second))?;
    }
    let estimate = Plan::estimate(model, entry.batch, entry.steps, options.cores);
    if estimate.entries[0].configuration == entry.configuration {
        writeln!(
            out,
            "  equal to the estimate; another candidate must be faster in every final comparison"
        )?;
    }
    Ok(())
}

/// Half the distance between the quartiles, in per cent of the median.
fn spread(cost: Cost) -> f64 {
    50.0 * cost.spread_ns as f64 / cost.median_ns.max(1) as f64
}
