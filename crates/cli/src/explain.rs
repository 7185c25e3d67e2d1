//! `gatestream explain`: the plan of a model, explained on one screen.

mod facts;
mod text;
mod words;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use super::model::ModelOrShape;
#[cfg(feature = "network")]
use super::network;
use super::plan::{PlanOption, entry_for};
use super::precision::{Precisions, in_precisions};
use facts::{Facts, Question};
use gatestream::graph::Graph;
use gatestream::machine::Machine;
use gatestream::model::Model;
use gatestream_command::{Failure, keep_originals, threads};

/// Explains the plan of a model: its matrix products, their possible schedules, the weights of each
/// core, the cache traffic, and the lower bound of the time.
///
/// The model is a file or a shape (--cell, --input, --hidden, …). Without --plan, the estimate is
/// explained. Nothing is run; the machine's ceilings are measured (one to two seconds) for the
/// bound.
///
/// With --json, one object: model, request, graph, schedules (all, and after each rule), plan,
/// layers (phases, and for each core its weights and traffic; equal layers are one entry), moved
/// (bytes per step into each core's private caches), bound, measured.
///
/// With --array, the model is a whole graph (.onnx). It is run on these arrays, and the plan and
/// the share of the time of each recurrent region are printed; the JSON object has: regions.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    source: ModelOrShape,
    #[cfg(feature = "network")]
    #[command(flatten)]
    arrays: network::ArrayOptions,
    /// Sequences per request
    #[arg(long, value_name = "B", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Steps per sequence
    #[arg(long, value_name = "T", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    steps: u32,
    /// Use at most this many cores (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Precision of weights and products: f32, bf16, int8, or one for each layer, as in int8,bf16
    /// (default: that of the model, of shapes f32)
    #[arg(long, value_name = "P")]
    precision: Option<Precisions>,
    #[command(flatten)]
    plan: PlanOption,
    /// Write the graph of products for Graphviz to FILE, of at most 8 steps; - is standard output,
    /// and nothing else is printed then
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
    /// Do not measure the machine, and leave out the bound
    #[arg(long)]
    no_measure: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Most steps that are still readable in a drawing, and as many as show the pattern where there are
/// more.
const DRAWN: (usize, usize) = (8, 3);

/// Gathers and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let to_stdout = arguments
        .dot
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "-");
    if to_stdout && arguments.json {
        return Err(Failure::usage(
            "--dot - and --json would both print on standard output; give --dot a file",
        ));
    }
    #[cfg(feature = "network")]
    if let (Some(arrays), Some(model)) = (arguments.arrays.given(), &arguments.source.model) {
        if arguments.dot.is_some() {
            return Err(Failure::usage("--dot applies to a stack of layers"));
        }
        let source = network::Source {
            model,
            threads: arguments.threads,
            precision: super::precision::of_graph(arguments.precision.as_ref())?,
            clip_output: arguments.source.file.clip_output,
            unchecked: arguments.source.file.unchecked,
        };
        return network::explain(source, arrays, arguments.plan.path(), arguments.json);
    }
    let (source, asked) = (&arguments.source, arguments.precision.as_ref());
    let model = in_precisions(source.sizes()?, asked).map_err(|f| source.failed(f))?;
    let (batch, steps) = (arguments.batch as usize, arguments.steps as usize);
    let mut drawn = None;
    if let Some(path) = &arguments.dot {
        let most = if steps <= DRAWN.0 { steps } else { DRAWN.1 };
        if to_stdout {
            if most < steps {
                eprintln!(
                    "gatestream: drawn for {most} steps; --steps up to {} draws all",
                    DRAWN.0
                );
            }
            let mut out = std::io::BufWriter::new(std::io::stdout().lock());
            draw(&model, most, &mut out)?;
            return Ok(());
        }
        let originals = [
            (arguments.source.model.as_deref(), "the model"),
            (arguments.plan.path(), "the plan"),
        ];
        keep_originals(path, &originals)?;
        let written = std::fs::File::create(path).map_err(Failure::from);
        let mut file = std::io::BufWriter::new(written.map_err(|failure| failure.of(path))?);
        draw(&model, most, &mut file).map_err(|failure| failure.of(path))?;
        drawn = Some((path.as_path(), most));
    }
    // Before anything is measured: a mistyped name should cost no time.
    let (entry, origin) = entry_for(&model, (batch, steps), arguments.threads, &arguments.plan)?;
    let mut machine = Machine::detect()?;
    if !arguments.no_measure {
        let progress = std::io::stderr().is_terminal();
        if progress {
            eprint!("measuring the machine's ceilings …\r");
        }
        machine.measure()?;
        if progress {
            eprint!("                                  \r");
        }
    }
    let question = Question {
        model: &model,
        size: (batch, steps),
        cores: threads(arguments.threads),
        entry: &entry,
        origin,
        file: arguments.plan.path(),
        machine: &machine,
    };
    let facts = Facts::gather(&question)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&facts)?)?
    } else {
        out.write_all(text::page(&facts, &model, drawn).as_bytes())?
    }
    Ok(())
}

fn draw(model: &Model, steps: usize, out: &mut impl Write) -> Result<(), Failure> {
    Graph::new(model, steps)?.dot(out)?;
    Ok(out.flush()?)
}
