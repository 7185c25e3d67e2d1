//! `gatestream run`: runs a model on arrays from files.

use std::path::PathBuf;

use super::memory::afford_run;
use super::model::{CellName, FileOptions, open};
use super::named::Named;
#[cfg(feature = "network")]
use super::network;
use super::npy;
use super::plan::{PlanOption, plan_for};
use super::precision::{Precisions, in_precisions};
use super::profile::{self, Profile};
#[cfg(feature = "cuda")]
use gatestream::execute::Backend;
use gatestream::execute::Session;
use gatestream::model::{Array, ArrayMap, OwnedInput, OwnedOutput};
#[cfg(feature = "cuda")]
use gatestream::plan::Plan;
use gatestream_command::{Failure, in_existing_directory, keep_originals};

/// Runs a model on .npy arrays, and writes .npy arrays.
///
/// An ONNX file may be any graph: its recurrent and dense layers run here, all else on tract. The
/// names are the graph's own, and arrays have the types that it declares. For files of tensors
/// (.safetensors, .pt, …) the inputs are input [steps, batch, features], lengths [batch], h0 and c0
/// [layers*directions, batch, size]; only input is required. The outputs are output, hn and cn
/// (shapes and meanings as in PyTorch). Omitted states are zero, also if only one of h0 and c0 is
/// omitted. If one output cannot be written, none is.
///
/// With GATESTREAM_TRACE=1 in the environment, the times of the run's activities are printed to
/// standard error.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Model file: .safetensors, .onnx, or a checkpoint of PyTorch (.pt)
    model: PathBuf,
    /// An input array; may be repeated; a = within NAME is written \=
    #[arg(long, value_name = "NAME=X.npy", required = true)]
    input: Vec<Named>,
    /// File for an output; may be repeated; a = within NAME is written \=
    #[arg(long, value_name = "NAME=Y.npy", required = true)]
    output: Vec<Named>,
    #[command(flatten)]
    file: FileOptions,
    /// Kind of cell, if the tensors do not determine it (default: from their shapes)
    #[arg(long, value_name = "CELL")]
    cell: Option<CellName>,
    /// Use at most this many cores (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Precision of weights and products: f32, bf16, int8, or one for each layer, as in int8,bf16
    /// (default: that of the model)
    #[arg(long, value_name = "P")]
    precision: Option<Precisions>,
    #[command(flatten)]
    plan: PlanOption,
    /// Run on this CUDA device, 0 if the option has no value; a stack of layers only
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "0",
        require_equals = true, conflicts_with_all = ["threads", "plan"])]
    cuda: Option<usize>,
}

/// Loads, runs, writes.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let is_traced = profile::is_asked()?;
    check_outputs(arguments)?;
    let opened = open(&arguments.model, &arguments.file, arguments.cell);
    #[cfg(feature = "cuda")]
    if arguments.cuda.is_some() {
        let is_graph = is_network(arguments, opened.is_ok());
        check_cuda(arguments, is_graph, is_traced)?;
    }
    #[cfg(feature = "network")]
    if is_network(arguments, opened.is_ok()) {
        let source = network::Source {
            model: &arguments.model,
            threads: arguments.threads,
            precision: super::precision::of_graph(arguments.precision.as_ref())?,
            clip_output: arguments.file.clip_output,
            unchecked: arguments.file.unchecked,
        };
        let (input, output) = (&arguments.input, &arguments.output);
        return network::run(source, input, output, arguments.plan.path());
    }
    let model = opened?;
    #[cfg(feature = "cuda")]
    let gpu = arguments
        .cuda
        .map(gatestream_cuda::Cuda::open)
        .transpose()?;
    let model = in_precisions(model, arguments.precision.as_ref());
    let model = model.map_err(|f| f.of(&arguments.model))?;
    let map = ArrayMap::new(&model);
    for output in &arguments.output {
        map.check_output(&output.name)?;
    }
    let arrays: Vec<(String, Array)> = (arguments.input.iter())
        .map(|input| Ok((input.name.clone(), npy::read(&input.path)?)))
        .collect::<Result<_, Failure>>()?;
    let input = map.input(&arrays)?;
    let borrowed = input.borrow();
    let names: Vec<&str> = arguments.input.iter().map(|i| i.name.as_str()).collect();
    let given = format!("--input {}", names.join(", "));
    afford_run(&model, input.batch, input.steps, &given)?;
    let size = (input.batch, input.steps);
    #[cfg(feature = "cuda")]
    if let Some(gpu) = gpu {
        let room = Plan::estimate(&model, size.0, size.1, 1);
        let mut prepared = gpu.prepare(&model, &room)?;
        let mut results = map.output_buffers(&input);
        prepared.run(&borrowed, &mut results.borrow())?;
        return write_outputs(arguments, &map, &input, &results);
    }
    let (plan, _) = plan_for(&model, size, arguments.threads, &arguments.plan)?;
    let mut session = Session::new(&model, &plan)?;
    drop(model);
    let mut results = map.output_buffers(&input);
    if is_traced {
        let trace = session.run_traced(&borrowed, &mut results.borrow())?;
        eprint!("{}", Profile::new(vec![trace], input.steps));
    } else {
        session.run(&borrowed, &mut results.borrow())?;
    }
    write_outputs(arguments, &map, &input, &results)
}

/// Refuses what `--cuda` does not do.
#[cfg(feature = "cuda")]
fn check_cuda(arguments: &Arguments, is_graph: bool, is_traced: bool) -> Result<(), Failure> {
    if is_traced {
        return Err(Failure::new(
            "GATESTREAM_TRACE tells of runs on cores; unset it or leave out --cuda",
        ));
    }
    if is_graph {
        return Err(Failure::new(format!(
            "{}: --cuda runs stacks of layers; run a whole graph without it",
            arguments.model.display()
        )));
    }
    Ok(())
}

/// Writes all outputs or none.
fn write_outputs(
    arguments: &Arguments,
    map: &ArrayMap,
    input: &OwnedInput,
    results: &OwnedOutput,
) -> Result<(), Failure> {
    // All are complete before the first is in its place.
    let pending = (arguments.output.iter())
        .map(|output| {
            let array = map.output(&output.name, input, results)?;
            npy::write(&output.path, &array)
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    pending.into_iter().try_for_each(|file| {
        let path = file.path().to_path_buf();
        let committed = file.commit();
        committed.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    })
}

/// Checks where the outputs are to be written.
fn check_outputs(arguments: &Arguments) -> Result<(), Failure> {
    for (index, output) in arguments.output.iter().enumerate() {
        in_existing_directory(&output.path, "--output")?;
        let originals = [
            (Some(arguments.model.as_path()), "the model"),
            (arguments.plan.path(), "the plan"),
        ];
        keep_originals(&output.path, &originals)?;
        let before = &arguments.output[..index];
        // Without a look at the disk: y.npy and ./y.npy are one.
        let place = |named: &Named| std::path::absolute(&named.path);
        let same =
            |other: &&Named| matches!((place(other), place(output)), (Ok(a), Ok(b)) if a == b);
        if let Some(other) = before.iter().find(same) {
            return Err(Failure::new(format!(
                "{}: {:?} and {:?} would be written to the same file; give each its own",
                output.path.display(),
                other.name,
                output.name
            )));
        }
    }
    Ok(())
}

/// Whether the model is run as a graph: it may be one, and it is no stack of layers, or the plan is
/// that of a graph.
#[cfg(feature = "network")]
fn is_network(arguments: &Arguments, is_stack: bool) -> bool {
    let has_plan = || arguments.plan.path().is_some_and(network::is_plan);
    arguments.cell.is_none() && network::is_candidate(&arguments.model) && (!is_stack || has_plan())
}

/// Without the runner of graphs no model is one.
#[cfg(all(feature = "cuda", not(feature = "network")))]
fn is_network(_: &Arguments, _: bool) -> bool {
    false
}
