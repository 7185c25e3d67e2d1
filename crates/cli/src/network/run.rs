//! `cellstream run` of a whole graph, for ONNX files that are more than a stack of layers.

use std::path::{Path, PathBuf};

use super::npy;
use cellstream_command::Failure;
use cellstream_network::{Network, NetworkOptions, Tensor};

/// A name and the file of its array.
pub struct NamedFile<'a> {
    pub name: &'a str,
    pub path: &'a Path,
}

/// Whether a file may be a graph that only a network runs.
pub fn is_candidate(model: &Path) -> bool {
    model
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// Loads, runs, writes.
pub fn run(
    model: &Path,
    inputs: &[NamedFile<'_>],
    outputs: &[NamedFile<'_>],
    threads: Option<u32>,
) -> Result<(), Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", model.display()));
    let options = NetworkOptions {
        threads: threads.map(|threads| threads as usize),
    };
    let network = Network::open_with(model, options).map_err(|why| failed(&why))?;
    let known: Vec<&str> = network
        .outputs()
        .iter()
        .map(|port| port.name.as_str())
        .collect();
    if let Some(unknown) = outputs.iter().find(|output| !known.contains(&output.name)) {
        return Err(failed(&format_args!(
            "{:?} is not an output of this model; use one of {}",
            unknown.name,
            known.join(", ")
        )));
    }
    let arrays: Vec<(&str, Tensor)> = (inputs.iter())
        .map(|input| Ok((input.name, npy::read_tensor(input.path)?)))
        .collect::<Result<_, Failure>>()?;
    let borrowed: Vec<(&str, &Tensor)> =
        arrays.iter().map(|(name, array)| (*name, array)).collect();
    let results = network.run(&borrowed).map_err(|why| failed(&why))?;
    // All are complete before the first is in its place.
    let pending = outputs.iter().map(|output| {
        let mut of_name = results.iter().filter(|result| result.name == output.name);
        let result = of_name
            .next()
            .ok_or_else(|| failed(&"an output is missing"))?;
        npy::write_tensor(output.path, &result.tensor)
    });
    let pending = pending.collect::<Result<Vec<_>, Failure>>()?;
    pending.into_iter().try_for_each(|file| {
        let path: PathBuf = file.path().to_path_buf();
        let committed = file.commit();
        committed.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    })
}
