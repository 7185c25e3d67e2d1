//! `cellstream bench`: how long a model takes here, and how near that is to the machine's bound.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Failure;
use super::memory::afford_run;
use super::model::{FileOptions, Precision, Shape, open, threads};
use crate::execute::Session;
use crate::machine::{BoundBy, Machine};
use crate::model::{Input, Model, Output};
use crate::plan::{Plan, flops};
use crate::reference;

/// How long a model takes here, as a fraction of what the machine allows.
///
/// Takes a model file, a shape with random weights (--cell, --input, --hidden, …), or --suite. The
/// machine's ceilings are measured first (one to two seconds). Runs are warm, on full-length sequences
/// of random values.
///
/// Before a case is timed, a short run is held against the reference, bit for bit: 7 sequences (or B)
/// of two steps more than the longest chunk of steps that the plan computes together (or T). Where
/// that takes over 2*10^8 multiply-adds the steps are cut first, then the sequences, but not below 3
/// and 2. Longer runs and other values are not checked.
///
/// With --json, one object a line: cell, input, hidden, layers, bidirectional, batch, steps, threads,
/// precision, plan, median_ms, p99_ms, gflops, bound_ms, bound_by, fraction_of_bound, runs.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Model file: .safetensors or .onnx
    model: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    file: FileOptions,
    /// Sequences per run
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Steps per sequence
    #[arg(long, value_name = "T", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    steps: u32,
    /// A list of shapes instead
    #[arg(long, conflicts_with_all = [
        "model", "cell", "input", "hidden", "layers", "bidirectional", "batch", "steps", "prefix",
        "batch_first",
    ])]
    suite: Option<Suite>,
    /// Use at most this many cores; the plan may use fewer, and never more than there are (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Precision of weights and products
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// Time each case for about this long
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("expected seconds above 0, at most 3600".into()),
    }
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
    precision: &'static str,
    plan: &'static str,
    median_ms: f64,
    p99_ms: f64,
    gflops: f64,
    bound_ms: f64,
    bound_by: BoundBy,
    fraction_of_bound: f64,
    runs: usize,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
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
        match arguments.json {
            true => writeln!(out, "{}", serde_json::to_string(&row)?)?,
            false => writeln!(out, "{}", text(&row))?,
        }
        out.flush()?;
    }
    Ok(())
}

/// A model made when its turn comes, so that a suite holds one at a time.
enum Case {
    Loaded(Model, usize, usize),
    Shaped(Shape, usize, usize),
}

fn cases(arguments: &Arguments) -> Result<Vec<Case>, Failure> {
    let (batch, steps) = (arguments.batch as usize, arguments.steps as usize);
    if arguments.suite.is_some() {
        use super::model::CellName::{Gru, Lstm};
        let shapes = [Lstm, Gru].into_iter().flat_map(|cell| {
            TABLE1
                .into_iter()
                .map(move |(input, hidden, batch, steps)| {
                    let shape = Shape {
                        cell: Some(cell),
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
    let model = match &arguments.model {
        None if arguments.file.prefix.is_some() || arguments.file.batch_first => {
            return Err(Failure::usage(
                "--prefix and --batch-first say how a model file is read; give one",
            ));
        }
        None => arguments.shape.model()?,
        Some(path) => {
            let shape = &arguments.shape;
            let sizes = [shape.input, shape.hidden, shape.layers];
            if sizes.iter().any(Option::is_some) || shape.bidirectional {
                return Err(Failure::usage(
                    "--input, --hidden, --layers and --bidirectional describe a shape; a model file \
                     has its own",
                ));
            }
            open(path, &arguments.file, shape.cell)?
        }
    };
    afford_run(&model, batch, steps, "--batch and --steps")?;
    Ok(vec![Case::Loaded(model, batch, steps)])
}

fn measure(case: &Case, arguments: &Arguments, machine: &Machine) -> Result<Row, Failure> {
    let shaped;
    let (model, batch, steps) = match case {
        Case::Loaded(model, batch, steps) => (model, *batch, *steps),
        Case::Shaped(shape, batch, steps) => {
            shaped = shape.model()?;
            afford_run(&shaped, *batch, *steps, "another --suite")?;
            (&shaped, *batch, *steps)
        }
    };
    let plan = Plan::estimate(model, batch, steps, threads(arguments.threads));
    let mut session = Session::new(model, &plan)?;
    session.pin_caller();
    check(model, &plan, &mut session, batch, steps)?;

    let signature = model.signature();
    let mut random = fastrand::Rng::with_seed(1);
    let values: Vec<f32> = (0..steps * batch * signature.input)
        .map(|_| 2.0 * random.f32() - 1.0)
        .collect();
    let mut results = vec![0.0; steps * batch * signature.output];
    let mut time = || -> Result<Duration, Failure> {
        let start = Instant::now();
        session.run(
            &Input::new(&values, steps, batch),
            &mut Output::new(&mut results),
        )?;
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
    let bound = plan.bound(model, &machine.topology, ceilings)?;
    let first = &model.layers()[0];
    Ok(Row {
        cell: first.kind().to_string(),
        input: signature.input,
        hidden: first.hidden_size(),
        layers: model.layers().len(),
        bidirectional: first.directions().len() == 2,
        batch,
        steps,
        threads: plan.threads,
        precision: arguments.precision.name(),
        plan: "estimate",
        median_ms: 1e3 * median,
        p99_ms: 1e3 * p99,
        gflops: flops(model, batch, steps) / median / 1e9,
        bound_ms: 1e3 * bound.seconds,
        bound_by: bound.by,
        fraction_of_bound: bound.seconds / median,
        runs: times.len(),
    })
}

/// Runs of a case at the least: enough for its 99th percentile to be one of them.
const MIN_RUNS: usize = 11;

/// Sequences that are checked: more than any kernel takes at once, and no multiple of what it does.
const CHECKED_BATCH: usize = 7;

/// Multiply-adds of a check: the reference takes its time, about a second for these.
const CHECKED_PRODUCTS: usize = 200_000_000;

/// The steps and sequences to check of a run of `steps` and `batch`, where the longest chunk is of
/// `chunk` steps and a step of one sequence takes `products` multiply-adds.
fn checked(chunk: usize, products: usize, batch: usize, steps: usize) -> (usize, usize) {
    const FEWEST: (usize, usize) = (3, 2);
    // Over the boundary of a chunk, with a step whose state comes from beyond it.
    let steps = steps.min(chunk.saturating_add(2).max(FEWEST.0));
    let rows = CHECKED_PRODUCTS / products.max(1);
    let batch = batch.min(CHECKED_BATCH);
    let batch = batch.min((rows / steps.min(FEWEST.0).max(1)).max(FEWEST.1));
    let steps = steps.min((rows / batch.max(1)).max(FEWEST.0));
    (steps, batch)
}

/// Compares a short run with the reference, bit for bit.
fn check(
    model: &Model,
    plan: &Plan,
    session: &mut Session,
    batch: usize,
    steps: usize,
) -> Result<(), Failure> {
    let chunk = plan.layers.iter().map(|layer| layer.chunk_steps).max();
    let products = model.weight_bytes() / 4;
    let (steps, batch) = checked(chunk.unwrap_or(1), products, batch, steps);
    let signature = model.signature();
    let mut random = fastrand::Rng::with_seed(2);
    let values: Vec<f32> = (0..steps * batch * signature.input)
        .map(|_| 2.0 * random.f32() - 1.0)
        .collect();
    let input = Input::new(&values, steps, batch);
    let mut expected = vec![0.0; steps * batch * signature.output];
    let mut found = expected.clone();
    reference::run(model, &input, &mut Output::new(&mut expected))?;
    session.run(&input, &mut Output::new(&mut found))?;
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    match found.iter().zip(&expected).all(same) {
        true => Ok(()),
        false => Err(Failure::new(
            "the answer differs from the reference; this is a defect of cellstream, please report it",
        )),
    }
}

const HEADING: &str = "cell  input hidden layers batch steps threads   median ms      p99 ms  \
                       GFLOP/s    bound ms  bound by  of bound";

fn text(row: &Row) -> String {
    let both = if row.bidirectional { "x2" } else { "  " };
    format!(
        "{:<5} {:>5} {:>6} {:>4}{both} {:>5} {:>5} {:>7} {:>11.4} {:>11.4} {:>8.1} {:>11.4} {:>9} {:>8.1}%",
        row.cell,
        row.input,
        row.hidden,
        row.layers,
        row.batch,
        row.steps,
        row.threads,
        row.median_ms,
        row.p99_ms,
        row.gflops,
        row.bound_ms,
        format!("{:?}", row.bound_by).to_lowercase(),
        100.0 * row.fraction_of_bound,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_cross_a_chunk_where_the_cost_allows() {
        // Everything of a small run; over a chunk of a long one.
        assert_eq!(checked(10, 1000, 1, 5), (5, 1));
        assert_eq!(checked(10, 1000, 64, 100), (12, 7));
        assert_eq!(checked(1, 1000, 64, 100), (3, 7));
        // 40 rows of 5 million products: steps give way before sequences.
        assert_eq!(checked(10, 5_000_000, 64, 100), (5, 7));
        // 10 rows: then sequences, to a floor of both.
        assert_eq!(checked(10, 20_000_000, 64, 100), (3, 3));
        assert_eq!(checked(10, usize::MAX, 64, 100), (3, 2));
        assert_eq!(checked(10, usize::MAX, 1, 1), (1, 1));
    }
}
