//! `gatestream run` of a whole graph.

use std::path::{Path, PathBuf};

use super::shares::Shares;
use super::{Arrays, Source, failed, first_run, open};
use crate::named::Named;
use crate::{npy, profile};
use gatestream_command::Failure;

/// Loads, runs, writes.
pub fn run(
    source: Source<'_>,
    inputs: &[Named],
    outputs: &[Named],
    plan: Option<&Path>,
) -> Result<(), Failure> {
    let is_traced = profile::is_asked()?;
    let model = source.model;
    let network = open(source, plan)?;
    let known: Vec<&str> = network
        .outputs()
        .iter()
        .map(|port| port.name.as_str())
        .collect();
    if let Some(unknown) = outputs
        .iter()
        .find(|output| !known.contains(&output.name.as_str()))
    {
        let why = format!(
            "{:?} is not an output of this model; use one of {}",
            unknown.name,
            known.join(", ")
        );
        return Err(Failure::new(why).of(model));
    }
    let arrays = Arrays::read(inputs)?;
    let inputs = arrays.borrowed();
    let results = first_run(&network, &inputs, plan).map_err(failed(model))?;
    if is_traced {
        // The first run also prepares the graph for these shapes.
        let run = network.profile(&inputs).map_err(failed(model))?;
        eprint!("{}", Shares::new(&[run.profile]));
    }
    // All are complete before the first is in its place.
    let pending = outputs.iter().map(|output| {
        let mut of_name = results.iter().filter(|result| result.name == output.name);
        let missing = || Failure::new("an output is missing").of(model);
        let result = of_name.next().ok_or_else(missing)?;
        npy::write_tensor(&output.path, &result.tensor)
    });
    let pending = pending.collect::<Result<Vec<_>, Failure>>()?;
    pending.into_iter().try_for_each(|file| {
        let path: PathBuf = file.path().to_path_buf();
        let committed = file.commit();
        committed.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    })
}
