//! `gatestream quantize`: writes a model in another precision; reports its error, size and time.

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::model::{CellName, FileOptions, open};
use super::plan::{PlanOption, plan_for};
#[cfg(feature = "network")]
use super::precision::Precisions;
use super::precision::{self, Asked, Purpose, choose};
use super::sample::Sample;
use gatestream::execute::Session;
use gatestream::machine::Machine;
use gatestream::model::{ArrayMap, Matrix, Model, OwnedInput, OwnedOutput, Precision};
use gatestream_command::{Failure, keep_originals, threads};

/// Writes a model in another precision to a safetensors file, and reports its error, size and time.
///
/// `run` on the file computes the same bits as `run --precision` on the original, with the same
/// names of inputs and outputs.
///
/// The report: bytes of both files and of the weights; the error of each weight matrix, as a
/// fraction of its root mean square; the error of the output over the sample, against the same
/// weights in f32; and the time of such a run in both precisions, predicted (the bound of the
/// machine's ceilings, which are measured first, one to two seconds) and measured (medians over
/// about half a second, alternating, with the estimated plan on all cores). For an ONNX file with
/// 8-bit weights (DynamicQuantizeLSTM) it also lists which matrices kept their values and scales
/// when the file was read, and which were quantised again; errors are then against the weights as
/// read.
///
/// If OUT ends in .onnx, the model is a whole graph: the weights of its recurrent nodes are stored
/// in int8, as inputs of DequantizeLinear, which other runtimes read, too. `run --precision int8`
/// on that file computes with these integers.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Model file: .safetensors, .onnx or .pt
    model: PathBuf,
    /// Precision of weights and products: bf16, int8, f32; one for each layer, as in int8,bf16; or
    /// auto:ERR, the fastest mix, at the sample's size, whose output over the sample differs by at
    /// most ERR from that in f32
    #[arg(long, value_name = "P")]
    precision: Asked,
    /// Input in the layout of `run`; states start from zero (default: 64 steps of random values)
    #[arg(long, value_name = "X.npy")]
    sample: Option<PathBuf>,
    /// Write the model to this .safetensors file, or a whole graph to this .onnx file
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    file: FileOptions,
    /// Kind of cell, if the tensors do not determine it (default: from their shapes)
    #[arg(long, value_name = "CELL")]
    cell: Option<CellName>,
}

/// Time for the choice of `auto`.
const CHOOSING: Duration = Duration::from_secs(10);
/// Time for both precisions together, and for one of them before the other.
const TIMED: Duration = Duration::from_millis(500);
const LAP: Duration = Duration::from_millis(20);

/// Converts, measures, writes, reports.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (path, output) = (&arguments.model, &arguments.output);
    check_output(path, output)?;
    #[cfg(feature = "network")]
    if is_onnx(output) {
        let is_int8 = arguments.precision == Asked::For(Precisions::Same(Precision::Int8));
        let is_plain = arguments.sample.is_none()
            && arguments.cell.is_none()
            && arguments.file == FileOptions::default();
        if !is_plain || !is_int8 {
            return Err(Failure::usage(
                "an .onnx file is written with --precision int8 and no option but -o",
            ));
        }
        return super::network::quantize(path, output);
    }
    let loaded = open(path, &arguments.file, arguments.cell)?;
    let bytes_before = loaded.weight_bytes();
    let of_original = quantised(&loaded)?;
    let sample = Sample::new(&loaded, arguments.sample.as_deref())?;
    let Sample { input, what } = &sample;
    let (batch, steps) = (input.batch, input.steps);
    let choice;
    let reduced = match &arguments.precision {
        Asked::Within(most_error) => {
            let purpose = Purpose {
                sizes: vec![(batch, steps)],
                cores: threads(None),
                budget: CHOOSING,
            };
            let go_on = |_: &_| ControlFlow::Continue(());
            let (chosen, words) = choose(&loaded, *most_error, &sample, purpose, go_on)?;
            choice = format!("{words}\n");
            chosen
        }
        Asked::For(asked) => {
            choice = String::new();
            asked.of(&loaded).map_err(|f| f.of(path))?
        }
    };

    // Values as they were read: the error of a file that is reduced already is not this one's.
    let exact = loaded.into_precision(Precision::F32)?;

    let mut machine = Machine::detect()?;
    machine.measure()?;
    let mut of_exact = Timed::new(&exact, input, &machine)?;
    let mut of_reduced = Timed::new(&reduced, input, &machine)?;
    let error = Errors::of([(of_reduced.output(), of_exact.output())]);
    race(&mut of_exact, &mut of_reduced, input)?;

    reduced.save_safetensors(output)?;
    let name = precision::name(&reduced);
    // A name for each layer may be longer than the figures.
    let (column, row) = (name.len().max(12), name.len().max(10));
    let file = |path: &Path| -> Result<u64, Failure> { Ok(std::fs::metadata(path)?.len()) };
    let mut text = choice;
    let lines = &mut text;
    writeln!(
        lines,
        "{:<10} {:>12} {name:>column$} {:>7}",
        "bytes", "original", "ratio"
    )?;
    let sizes = [
        ("file", file(path)?, file(output)?),
        (
            "weights",
            bytes_before as u64,
            reduced.weight_bytes() as u64,
        ),
    ];
    for (what, before, after) in sizes {
        let ratio = after as f64 / before as f64;
        writeln!(
            lines,
            "{what:<10} {before:>12} {after:>column$} {ratio:>7.3}"
        )?;
    }
    lines.push_str(&of_original);
    weight_errors(lines, &exact, &reduced)?;
    writeln!(lines, "\noutput error against f32, over {what}")?;
    let of_output = "root mean square of the output";
    writeln!(
        lines,
        "max {:.3e}   rms {:.3e}   {of_output} {:.3e}",
        error.most, error.rms, error.of
    )?;

    let threads = [&of_exact, &of_reduced].map(|timed| timed.threads);
    writeln!(lines, "\ntime at batch {batch}, {steps} steps, in ms")?;
    writeln!(
        lines,
        "{:<row$} {:>12} {:>12} {:>7}",
        "", "predicted", "measured", "threads"
    )?;
    let (before, after) = (
        [of_exact.bound, of_exact.median()],
        [of_reduced.bound, of_reduced.median()],
    );
    for (name, [predicted, measured], threads) in
        [("f32", before, threads[0]), (&name, after, threads[1])]
    {
        let (predicted, measured) = (1e3 * predicted, 1e3 * measured);
        writeln!(
            lines,
            "{name:<row$} {predicted:>12.4} {measured:>12.4} {threads:>7}"
        )?;
    }
    let [predicted, measured] = [0, 1].map(|at| before[at] / after[at]);
    writeln!(
        lines,
        "{:<row$} {predicted:>12.2} {measured:>12.2}",
        "times"
    )?;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Whether a file of this name is written as ONNX.
fn is_onnx(output: &Path) -> bool {
    let ending = output.extension();
    ending.is_some_and(|ending| ending.eq_ignore_ascii_case("onnx"))
}

/// Refuses a name whose ending is not that of the format written, and that of the original.
fn check_output(model: &Path, output: &Path) -> Result<(), Failure> {
    let ending = output.extension().unwrap_or_default();
    let is_graph = cfg!(feature = "network") && is_onnx(output);
    if !ending.eq_ignore_ascii_case("safetensors") && !is_graph {
        let line = "a model is written as safetensors; end the name in .safetensors";
        return Err(Failure::new(line).of(output));
    }
    if output.is_dir() {
        return Err(Failure::new("is a folder; name a file").of(output));
    }
    // Before anything is measured: the last word is the system's, when the file is written.
    let folder = output.parent().filter(|f| !f.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(Failure::new("its folder is not there; make it first").of(output));
    }
    keep_originals(output, &[(Some(model), "the model")])
}

/// A model at work: its output over the sample, and times.
struct Timed {
    session: Session,
    results: OwnedOutput,
    threads: usize,
    /// In seconds.
    bound: f64,
    times: Vec<f64>,
}

impl Timed {
    fn new(model: &Model, input: &OwnedInput, machine: &Machine) -> Result<Timed, Failure> {
        let size = (input.batch, input.steps);
        let (plan, _) = plan_for(model, size, None, &PlanOption::default())?;
        let ceilings = machine.ceilings.as_ref();
        let ceilings =
            ceilings.ok_or_else(|| Failure::new("the machine's ceilings are not known"))?;
        let bound = plan.entries[0].bound(model, &machine.topology, ceilings)?;
        let mut session = Session::new(model, &plan)?;
        session.pin_caller();
        let mut results = ArrayMap::new(model).output_buffers(input);
        session.run(&input.borrow(), &mut results.borrow())?;
        Ok(Timed {
            session,
            results,
            threads: plan.threads(),
            bound: bound.seconds,
            times: Vec::new(),
        })
    }

    fn output(&self) -> &[f32] {
        &self.results.values
    }

    fn time(&mut self, input: &OwnedInput) -> Result<f64, Failure> {
        let start = Instant::now();
        self.session
            .run(&input.borrow(), &mut self.results.borrow())?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Some runs in a row, after one that brings the weights back into the caches.
    fn lap(&mut self, input: &OwnedInput) -> Result<(), Failure> {
        self.time(input)?;
        let start = Instant::now();
        loop {
            let time = self.time(input)?;
            self.times.push(time);
            if start.elapsed() >= LAP {
                return Ok(());
            }
        }
    }

    fn median(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

/// Times two in turns, so that a slow moment hits both.
fn race(a: &mut Timed, b: &mut Timed, input: &OwnedInput) -> Result<(), Failure> {
    let start = Instant::now();
    while a.times.len() < 3 || start.elapsed() < TIMED {
        a.lap(input)?;
        b.lap(input)?;
    }
    Ok(())
}

/// Errors of values against exact ones.
struct Errors {
    most: f64,
    rms: f64,
    /// Root mean square of the exact values.
    of: f64,
}

impl Errors {
    /// From pairs of a row and its exact values.
    fn of<Row: AsRef<[f32]>>(rows: impl IntoIterator<Item = (Row, Row)>) -> Errors {
        let (mut most, mut squares, mut of, mut count) = (0.0f64, 0.0f64, 0.0f64, 0usize);
        for (found, exact) in rows {
            let (found, exact) = (found.as_ref(), exact.as_ref());
            count += exact.len();
            for (&found, &exact) in found.iter().zip(exact) {
                let (error, exact) = (f64::from(found) - f64::from(exact), f64::from(exact));
                // Where both are the same infinity there is no error.
                let error = if f64::from(found) == exact {
                    0.0
                } else {
                    error.abs()
                };
                // `max` would pass over NaN.
                most = if error > most || error.is_nan() {
                    error
                } else {
                    most
                };
                squares += error * error;
                of += exact * exact;
            }
        }
        let mean = |sum: f64| (sum / count.max(1) as f64).sqrt();
        Errors {
            most,
            rms: mean(squares),
            of: mean(of),
        }
    }
}

/// A line for each matrix that the original holds in 8 bits; nothing if there is none.
fn quantised(model: &Model) -> Result<String, Failure> {
    let mut text = String::new();
    let lines = &mut text;
    if model.quantised().is_empty() {
        return Ok(text);
    }
    writeln!(lines, "\n8-bit weights of the original, as they were read")?;
    writeln!(
        lines,
        "{:<6} {:<9} {:<10} {:<12} tensor",
        "layer", "direction", "matrix", "numbers"
    )?;
    for matrix in model.quantised() {
        let (numbers, why) = match matrix.requantised {
            None => ("kept", String::new()),
            Some(why) => ("requantised", format!(": {why}")),
        };
        writeln!(
            lines,
            "{:<6} {:<9} {:<10} {numbers:<12} {:?}{why}",
            matrix.layer,
            way(matrix.reverse),
            matrix.matrix.to_string(),
            matrix.tensor,
        )?;
    }
    Ok(text)
}

fn way(reverse: bool) -> &'static str {
    if reverse { "reverse" } else { "forward" }
}

/// A line for each matrix.
fn weight_errors(lines: &mut String, exact: &Model, reduced: &Model) -> Result<(), Failure> {
    writeln!(
        lines,
        "\nweight error, as a fraction of the matrix's root mean square"
    )?;
    writeln!(
        lines,
        "{:<6} {:<9} {:<10} {:>9} {:>9}",
        "layer", "direction", "matrix", "max", "rms"
    )?;
    for (index, (exact, reduced)) in exact.layers().iter().zip(reduced.layers()).enumerate() {
        for (exact, reduced) in exact.directions().iter().zip(reduced.directions()) {
            let way = way(exact.is_reverse());
            let (exact, reduced) = (exact.weights(), reduced.weights());
            let pairs: [(&str, Option<(&Matrix, &Matrix)>); 3] = [
                ("input", Some((&exact.input, &reduced.input))),
                ("recurrent", Some((&exact.recurrent, &reduced.recurrent))),
                (
                    "projection",
                    exact.projection.as_ref().zip(reduced.projection.as_ref()),
                ),
            ];
            for (name, pair) in pairs {
                let Some((exact, reduced)) = pair else {
                    continue;
                };
                let rows = (0..exact.rows()).map(|row| (reduced.row(row), exact.row(row)));
                let error = Errors::of(rows);
                // All zero is exact in every precision.
                let of = if error.of == 0.0 { 1.0 } else { error.of };
                let (most, rms) = (error.most / of, error.rms / of);
                writeln!(
                    lines,
                    "{index:<6} {way:<9} {name:<10} {most:>9.2e} {rms:>9.2e}"
                )?;
            }
        }
    }
    Ok(())
}
