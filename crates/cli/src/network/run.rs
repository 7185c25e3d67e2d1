//! `cellstream run` of a whole graph.

use std::path::{Path, PathBuf};

use super::super::named::Named;
use super::super::{npy, profile};
use super::shares::Shares;
use super::{Arrays, Source, first_run, open};
use cellstream_command::Failure;

/// Loads, runs, writes.
pub fn run(
    source: Source<'_>,
    inputs: &[Named],
    outputs: &[Named],
    plan: Option<&Path>,
) -> Result<(), Failure> {
    let is_traced = profile::is_asked()?;
    let failed = |why: &dyn std::fmt::Display| Failure::new(why.to_string()).of(source.model);
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
        return Err(failed(&format_args!(
            "{:?} is not an output of this model; use one of {}",
            unknown.name,
            known.join(", ")
        )));
    }
    let arrays = Arrays::read(inputs)?;
    let inputs = arrays.borrowed();
    let results = first_run(&network, &inputs, plan).map_err(|why| failed(&why))?;
    if is_traced {
        let run = network.profile(&inputs).map_err(|why| failed(&why))?;
        eprint!("{}", Shares::new(&[run.profile]));
    }
    // All are complete before the first is in its place.
    let pending = outputs.iter().map(|output| {
        let mut of_name = results.iter().filter(|result| result.name == output.name);
        let result = of_name
            .next()
            .ok_or_else(|| failed(&"an output is missing"))?;
        npy::write_tensor(&output.path, &result.tensor)
    });
    let pending = pending.collect::<Result<Vec<_>, Failure>>()?;
    pending.into_iter().try_for_each(|file| {
        let path: PathBuf = file.path().to_path_buf();
        let committed = file.commit();
        committed.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    })
}
