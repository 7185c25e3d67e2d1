//! Commands on whole graphs, for ONNX files that are more than a stack of layers.

mod bench;
mod quantize;
mod run;
mod shares;
mod tune;

use std::io::Read;
use std::path::Path;

pub use bench::{Timing, bench, explain};
pub use quantize::quantize;
pub use run::run;
pub use tune::{Tuning, tune};

use crate::named::Named;
use crate::npy;
use cellstream::model::Precision;
use cellstream_command::Failure;
use cellstream_network::{NamedTensor, Network, NetworkError, NetworkOptions, NetworkPlan, Tensor};

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
pub const PLAN: &str = "cellstream network plan ";

/// Whether a file may be a graph that only a network runs.
pub fn is_candidate(model: &Path) -> bool {
    model
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
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
    };
    let network = Network::open_with(model, options).map_err(failed(model))?;
    if let Some(path) = plan {
        let used = NetworkPlan::load(path).and_then(|plan| network.use_plan(Some(plan)));
        used.map_err(failed(path))?;
    }
    Ok(network)
}

/// The failure for an error of a file, which it names once.
fn failed(path: &Path) -> impl Fn(NetworkError) -> Failure {
    move |why| match why {
        NetworkError::Read { .. } => Failure::new(why.to_string()),
        why => Failure::new(why.to_string()).of(path),
    }
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
                "cellstream: {path}: {why}; going on with estimates; `cellstream tune … -o \
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
