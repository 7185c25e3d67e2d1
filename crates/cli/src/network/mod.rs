//! Commands on whole graphs, for ONNX files that are more than a stack of layers.

mod attempt;
mod bench;
mod quantize;
mod run;
mod shares;
mod tune;

use std::io::Read;
use std::path::Path;

pub use attempt::{NamedShape, Tried, attempt};
pub use bench::{Timing, bench, explain};
pub use quantize::quantize;
pub use run::run;
pub use tune::{Tuning, tune};

use crate::named::Named;
use crate::npy;
use gatestream::model::{FileKind, Precision};
use gatestream_command::{Failure, FailureKind};
use gatestream_network::{
    Inspection, NamedTensor, Network, NetworkError, NetworkOptions, NetworkPlan, NetworkPort,
    Tensor,
};

/// The arrays that a command runs a graph on.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ArrayOptions {
    /// An input array of a whole graph (.onnx), as `run --input`; repeat it for each input. The
    /// sizes of requests are those of the arrays
    #[arg(long = "array", value_name = "NAME=X.npy", requires = "model", conflicts_with_all = [
        "cell", "input", "hidden", "layers", "bidirectional", "prefix", "batch_first", "batch",
        "steps",
    ])]
    arrays: Vec<Named>,
}

impl ArrayOptions {
    /// The arrays, if there are any.
    pub fn given(&self) -> Option<&[Named]> {
        (!self.arrays.is_empty()).then_some(self.arrays.as_slice())
    }
}

/// The start of the plan of a graph.
pub const PLAN: &str = "gatestream network plan ";

/// Whether a file may be a graph that only a network runs.
pub fn is_candidate(model: &Path) -> bool {
    FileKind::of(model).is_ok_and(|kind| kind == FileKind::Onnx)
}

/// The failure of a graph as a stack of layers, with the way to use it as a whole.
pub fn with_arrays(model: &Path, why: Failure) -> Failure {
    // Of another failure, such as a missing file, there is nothing to add.
    let inspection = is_candidate(model).then(|| Inspection::open(model).ok());
    let Some(inspection) = inspection.flatten() else {
        return why;
    };
    if why.kind() == FailureKind::Usage || inspection.inputs.is_empty() {
        return why;
    }
    let cut = if inspection.recurrent.is_empty() {
        ""
    } else {
        "; `gatestream cut` writes its recurrent part to a file of its own"
    };
    if !inspection.unsupported.is_empty() {
        return Failure::new(format!("{why}{cut}"));
    }
    let inputs = inspection.inputs.iter();
    let arrays: Vec<String> = inputs
        .map(|input| format!("--array {}", array(input)))
        .collect();
    Failure::new(format!(
        "{why}; as a whole graph it needs an array of each input: {}, where ? is any size{cut}",
        arrays.join(" ")
    ))
}

/// The value of `--array` for an input, with the type and shape that its array has.
fn array(input: &NetworkPort) -> String {
    let name = input.name.replace('=', "\\=");
    format!("{name}=X.npy ({})", type_and_shape(input))
}

/// The type and shape of an input or output.
pub fn type_and_shape(port: &NetworkPort) -> String {
    let kind = port
        .element_type
        .map_or("?".to_owned(), |kind| kind.to_string());
    let shape = port.shape.as_ref().map_or("[...]".to_owned(), |axes| {
        let axes = axes.iter();
        let axes = axes.map(|axis| axis.map_or("?".to_owned(), |size| size.to_string()));
        format!("[{}]", axes.collect::<Vec<_>>().join(", "))
    });
    format!("{kind} {shape}")
}

/// A graph and the options of all commands.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub model: &'a Path,
    pub threads: Option<u32>,
    /// Of all recurrent regions; `None`: that of the file.
    pub precision: Option<Precision>,
    /// Whether the clip of LSTMs also bounds the input of their output activation.
    pub clip_output: bool,
    /// Whether operators run that have not passed ONNX's own test cases.
    pub unchecked: bool,
}

/// Loads a graph, with a plan if there is one.
fn open(source: Source<'_>, plan: Option<&Path>) -> Result<Network, Failure> {
    let Source {
        model,
        threads,
        precision,
        clip_output,
        unchecked,
    } = source;
    let options = NetworkOptions {
        threads: threads.map(|threads| threads as usize),
        precision,
        clips_outputs: clip_output,
        unchecked,
        ..NetworkOptions::default()
    };
    let network = Network::open_with(model, options).map_err(failed(model))?;
    if let Some(path) = plan {
        let used = NetworkPlan::load(path).and_then(|plan| network.use_plan(Some(plan)));
        used.map_err(failed(path))?;
    }
    Ok(network)
}

/// The line of a failure of a file that is known: without its name.
pub fn without_file(why: &Failure, file: &Path) -> String {
    let (line, file) = (why.to_string(), format!("{}: ", file.display()));
    line.strip_prefix(&file).unwrap_or(&line).to_owned()
}

/// The failure for an error of a file, which it names once.
fn failed(path: &Path) -> impl Fn(NetworkError) -> Failure {
    move |why| match why {
        NetworkError::Read { .. } => Failure::new(why.to_string()),
        NetworkError::Unsupported { .. } if has_core(path) => Failure::new(format!(
            "{why}; `gatestream cut` writes the recurrent part of the model as a file of its own"
        ))
        .of(path),
        why => Failure::new(why.to_string()).of(path),
    }
}

/// Whether a graph has recurrent nodes.
fn has_core(path: &Path) -> bool {
    Inspection::open(path).is_ok_and(|inspection| !inspection.recurrent.is_empty())
}

/// Whether a file holds the plan of a graph, not of a stack of layers.
pub fn is_plan(path: &Path) -> bool {
    let mut start = vec![0; PLAN.len()];
    let file = std::fs::File::open(path);
    file.is_ok_and(|mut file| file.read_exact(&mut start).is_ok() && start == PLAN.as_bytes())
}

/// The first run on some arrays. A plan that does not fit a region or this machine causes a
/// warning, and estimates are used from then on.
fn first_run(
    network: &Network,
    inputs: &[(&str, &Tensor)],
    plan: Option<&Path>,
) -> Result<Vec<NamedTensor>, NetworkError> {
    match (network.run(inputs), plan) {
        (Err(why), Some(path)) => {
            network.use_plan(None)?;
            // If the plan was not the reason, this fails, too.
            let outputs = network.run(inputs)?;
            let path = path.display();
            eprintln!(
                "gatestream: {path}: {why}; going on with estimates; `gatestream tune … -o \
                 {path}` makes a plan that fits"
            );
            Ok(outputs)
        }
        (ran, _) => ran,
    }
}

/// Arrays with the names of inputs.
struct Arrays(Vec<(String, Tensor)>);

impl Arrays {
    fn read(files: &[Named]) -> Result<Arrays, Failure> {
        let arrays = files.iter();
        let arrays = arrays.map(|file| Ok((file.name.clone(), npy::read_tensor(&file.path)?)));
        Ok(Arrays(arrays.collect::<Result<_, Failure>>()?))
    }

    fn borrowed(&self) -> Vec<(&str, &Tensor)> {
        let arrays = self.0.iter();
        arrays.map(|(name, array)| (name.as_str(), array)).collect()
    }
}
