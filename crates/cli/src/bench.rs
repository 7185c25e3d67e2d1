//! `gatestream bench`: the time of a model, compared with the bound of the machine.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::memory::afford_run;
use super::model::{CellName, ModelOrShape, Shape};
#[cfg(feature = "network")]
use super::network;
use super::plan::{Origin, PlanOption, plan_for, tuned};
use super::precision::{self, MeasuredPrecision, Purpose};
use super::profile::Profile;
use gatestream::execute::Session;
use gatestream::machine::{BoundBy, Level, Machine};
use gatestream::model::{Cell, Input, Model, Output};
use gatestream::plan::{Plan, flops, operations};
use gatestream::tune::Check;
use gatestream_command::{Failure, seconds, threads};

/// Times a model, and compares it with the lower bound set by the machine's measured ceilings.
///
/// The model is a file, a shape with random weights (--cell, --input, --hidden, …), or --suite. The
/// machine's ceilings are measured first (one to two seconds). Runs are warm, on full-length
/// sequences of random values.
///
/// Before timing, a short run is compared with the reference bit for bit. It has at most 7
/// sequences, and 2 steps more than the longest chunk of the plan. Above 2*10^8 multiply-adds it
/// has fewer steps, then fewer sequences, but at least 3 and 2.
///
/// With --profile, traced runs follow the timed ones, and a table shows their time: one line per
/// activity, its mean over the workers and each worker's share of the wall time. Each activity
/// includes the time since the previous one; "other" is the time to wake the team and to wait for
/// its last worker. Reading the clock makes traced runs slightly longer.
///
/// With --json, one object per line: cell, input, hidden, layers, bidirectional, batch, steps,
/// threads, precision, plan, median_ms, p99_ms, gflops, bound_ms, bound_by, fraction_of_bound,
/// runs; with --profile also profile.
///
/// With --array, the model is a whole graph (.onnx), which is timed on these arrays; there is no
/// bound. The part of its recurrent regions is printed, with --profile that of each. The JSON
/// object has: model, median_ms, p99_ms, recurrent_share, runs; with --profile also regions.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: ModelOrShape,
    #[cfg(feature = "network")]
    #[command(flatten)]
    arrays: network::ArrayOptions,
    /// Sequences per run
    #[arg(long, value_name = "B", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Steps per sequence
    #[arg(long, value_name = "T", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    steps: u32,
    /// A list of shapes instead of one model
    #[arg(long, conflicts_with_all = [
        "model", "cell", "input", "hidden", "layers", "bidirectional", "batch", "steps", "prefix",
        "batch_first", "plan",
    ])]
    suite: Option<Suite>,
    /// Use at most this many cores; the plan may use fewer (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    #[command(flatten)]
    precision: MeasuredPrecision,
    #[command(flatten)]
    plan: PlanOption,
    /// Tune each case first, for S seconds; if that is too short, the estimate is used and named
    #[arg(long, value_name = "S", num_args = 0..=1, default_missing_value = "20",
        conflicts_with = "plan", value_parser = seconds)]
    tune: Option<f64>,
    /// Time each case for about this long
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Also trace some runs and print the time of each activity
    #[arg(long)]
    profile: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Lists of shapes that have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// The 15 shapes of DeepCPU's Table 1, each as LSTM and GRU
    Table1,
}

/// DeepCPU, Table 1: input, hidden, batch, steps.
const TABLE1: [(u32, u32, u32, u32); 15] = [
    (64, 64, 1, 100),
    (256, 64, 1, 100),
    (1024, 64, 1, 100),
    (64, 256, 1, 100),
    (64, 1024, 1, 100),
    (1024, 1024, 1, 100),
    (256, 256, 1, 1),
    (256, 256, 1, 10),
    (256, 256, 1, 100),
    (64, 64, 10, 100),
    (64, 64, 20, 100),
    (256, 256, 10, 100),
    (256, 256, 20, 100),
    (1024, 1024, 10, 100),
    (1024, 1024, 20, 100),
];

/// One line of results.
#[derive(Debug, serde::Serialize)]
struct Row {
    cell: String,
    input: usize,
    hidden: usize,
    layers: usize,
    bidirectional: bool,
    batch: usize,
    steps: usize,
    threads: usize,
    precision: String,
    plan: Origin,
    median_ms: f64,
    p99_ms: f64,
    gflops: f64,
    bound_ms: f64,
    bound_by: BoundBy,
    fraction_of_bound: f64,
    runs: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<serde_json::Value>,
    /// The profile, for a person.
    #[serde(skip)]
    table: String,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    #[cfg(feature = "network")]
    if let (Some(arrays), Some(model)) = (arguments.arrays.given(), &arguments.source.model) {
        if arguments.tune.is_some() {
            return Err(Failure::usage(
                "--tune applies to a stack of layers; of a graph, use `gatestream tune --array …` \
                 with -o PLAN, then --plan PLAN here",
            ));
        }
        let source = network::Source {
            model,
            threads: arguments.threads,
            precision: arguments.precision.of_graph()?,
            clip_output: arguments.source.file.clip_output,
            unchecked: arguments.source.file.unchecked,
        };
        let timing = network::Timing {
            seconds: arguments.seconds,
            profile: arguments.profile,
            json: arguments.json,
        };
        return network::bench(source, arrays, arguments.plan.path(), &timing);
    }
    let mut out = std::io::stdout().lock();
    let cases = cases(arguments)?;
    let progress = std::io::stderr().is_terminal();
    if progress {
        eprint!("measuring the machine's ceilings …\r");
    }
    let mut machine = Machine::detect()?;
    machine.measure()?;
    if !arguments.json {
        writeln!(out, "{HEADING}")?;
    }
    for case in cases {
        let row = measure(&case, arguments, &machine)?;
        if arguments.json {
            writeln!(out, "{}", serde_json::to_string(&row)?)?
        } else {
            write!(out, "{}\n{}", text(&row), row.table)?
        }
        if row.fraction_of_bound > NEXT_TO_BOUND {
            let of = 100.0 * row.fraction_of_bound;
            eprintln!(
                "{} {} to {}, batch {}: {of:.0} % of the bound. The machine was slower during the \
                 measurement of its ceilings, or caches keep some weights between runs",
                row.cell, row.input, row.hidden, row.batch
            );
        }
        out.flush()?;
    }
    Ok(())
}

/// The model in the precisions of the command line. The choice of `auto` goes to standard error:
/// results may be read by programs.
fn in_precisions(
    model: Model,
    arguments: &Arguments,
    size: (usize, usize),
) -> Result<Model, Failure> {
    let purpose = Purpose {
        sizes: vec![size],
        cores: threads(arguments.threads),
        budget: CHOOSING,
    };
    let go_on = |_: &_| ControlFlow::Continue(());
    let (model, choice) = arguments
        .precision
        .of(&arguments.source, model, purpose, go_on)?;
    eprint!("{}", choice.unwrap_or_default());
    Ok(model)
}

/// Time for the choice of `auto`.
const CHOOSING: Duration = Duration::from_secs(10);

/// A model made when its turn comes, so that a suite holds one at a time.
enum Case {
    /// With its plan, unless it is to be tuned: a file that is refused is so before anything is
    /// measured.
    Loaded(Model, usize, usize, Option<(Plan, Origin)>),
    Shaped(Shape, usize, usize),
}

fn cases(arguments: &Arguments) -> Result<Vec<Case>, Failure> {
    let (batch, steps) = (arguments.batch as usize, arguments.steps as usize);
    if arguments.suite.is_some() {
        let shapes = [Cell::LSTM, Cell::GRU].into_iter().flat_map(|cell| {
            TABLE1
                .into_iter()
                .map(move |(input, hidden, batch, steps)| {
                    let shape = Shape {
                        cell: CellName::of(cell),
                        input: Some(input),
                        hidden: Some(hidden),
                        layers: None,
                        bidirectional: false,
                    };
                    Case::Shaped(shape, batch as usize, steps as usize)
                })
        });
        return Ok(shapes.collect());
    }
    let model = in_precisions(arguments.source.model()?, arguments, (batch, steps))?;
    afford_run(&model, batch, steps, "--batch and --steps")?;
    let plan = match arguments.tune {
        Some(_) => None,
        None => Some(plan_for(
            &model,
            (batch, steps),
            arguments.threads,
            &arguments.plan,
        )?),
    };
    Ok(vec![Case::Loaded(model, batch, steps, plan)])
}

fn measure(case: &Case, arguments: &Arguments, machine: &Machine) -> Result<Row, Failure> {
    let shaped;
    let (model, batch, steps, planned) = match case {
        Case::Loaded(model, batch, steps, plan) => (model, *batch, *steps, plan.clone()),
        Case::Shaped(shape, batch, steps) => {
            shaped = in_precisions(shape.model()?, arguments, (*batch, *steps))?;
            afford_run(&shaped, *batch, *steps, "another --suite")?;
            (&shaped, *batch, *steps, None)
        }
    };
    let (plan, origin) = match (planned, arguments.tune) {
        (Some(planned), _) => planned,
        (None, Some(seconds)) => tuned(model, (batch, steps), arguments.threads, seconds)?,
        (None, None) => plan_for(model, (batch, steps), arguments.threads, &arguments.plan)?,
    };
    let mut session = Session::new(model, &plan)?;
    session.pin_caller();
    let configuration = plan.entries[0].configuration.clone();
    let check = Check::new(model, &[configuration], (batch, steps), Check::THOROUGH);
    check?.hold(&mut session)?;

    let signature = model.signature();
    let mut random = fastrand::Rng::with_seed(1);
    let values: Vec<f32> = (0..steps * batch * signature.input)
        .map(|_| 2.0 * random.f32() - 1.0)
        .collect();
    let mut results = vec![0.0; steps * batch * signature.output];
    let input = Input::new(&values, steps, batch);
    let mut time = || -> Result<Duration, Failure> {
        let start = Instant::now();
        session.run(&input, &mut Output::new(&mut results))?;
        Ok(start.elapsed())
    };
    for _ in 0..3 {
        time()?;
    }
    let budget = Duration::from_secs_f64(arguments.seconds);
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < MIN_RUNS || begin.elapsed() < budget {
        times.push(time()?.as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let at = |fraction: f64| times[((times.len() - 1) as f64 * fraction).round() as usize];
    let (median, p99) = (at(0.5), at(0.99));
    let ceilings = machine.ceilings.as_ref();
    let ceilings = ceilings.ok_or_else(|| Failure::new("the machine's ceilings are not known"))?;
    let bound = plan.entries[0].bound(model, &machine.topology, ceilings)?;
    let (mut profile, mut table) = (None, String::new());
    if arguments.profile {
        let (begin, mut traces) = (Instant::now(), Vec::new());
        while traces.len() < MIN_RUNS || (begin.elapsed() < budget / 4 && traces.len() < MAX_TRACED)
        {
            traces.push(session.run_traced(&input, &mut Output::new(&mut results))?);
        }
        let found = Profile::new(traces, steps);
        let work = operations(model, batch, steps);
        let at_peak = 1e3 * (ceilings.bound(work, 0.0, Level::L1, plan.threads())).seconds;
        table = format!("\n{found}{}\n\n", found.products_beside_peak(at_peak));
        profile = Some(found.json(at_peak));
    }
    let first = &model.layers()[0];
    Ok(Row {
        cell: first.kind().to_string(),
        input: signature.input,
        hidden: first.hidden_size(),
        layers: model.layers().len(),
        bidirectional: first.directions().len() == 2,
        batch,
        steps,
        threads: plan.threads(),
        precision: precision::name(model),
        plan: origin,
        median_ms: 1e3 * median,
        p99_ms: 1e3 * p99,
        gflops: flops(model, batch, steps) / median / 1e9,
        bound_ms: 1e3 * bound.seconds,
        bound_by: bound.by,
        fraction_of_bound: bound.seconds / median,
        runs: times.len(),
        profile,
        table,
    })
}

/// Runs of a case at the least: enough for its 99th percentile to be one of them.
const MIN_RUNS: usize = 11;

/// Traced runs at the most: their traces are kept until all are done.
const MAX_TRACED: usize = 1000;

/// Beyond that a run has beaten its bound by more than both were measured with.
const NEXT_TO_BOUND: f64 = 1.02;

const HEADING: &str = "cell  input hidden layers batch steps threads     plan   median ms  \
                      \x20   p99 ms  GFLOP/s    bound ms  bound by  of bound";

fn text(row: &Row) -> String {
    let both = if row.bidirectional { "x2" } else { "  " };
    format!(
        "{:<5} {:>5} {:>6} {:>4}{both} {:>5} {:>5} {:>7} {:>8} {:>11.4} {:>11.4} {:>8.1} {:>11.4} \
         {:>9} {:>8.1}%",
        row.cell,
        row.input,
        row.hidden,
        row.layers,
        row.batch,
        row.steps,
        row.threads,
        row.plan.name(),
        row.median_ms,
        row.p99_ms,
        row.gflops,
        row.bound_ms,
        format!("{:?}", row.bound_by).to_lowercase(),
        100.0 * row.fraction_of_bound,
    )
}
