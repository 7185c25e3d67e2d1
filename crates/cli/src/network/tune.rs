//! `gatestream tune` of a whole graph.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;

use super::shares::Shares;
use super::{Arrays, Source, failed, open};
use crate::named::Named;
use gatestream::tune::Effort;
use gatestream_command::interrupt::{self, flow};
use gatestream_command::{Failure, Printer};
use gatestream_network::{Network, NetworkError, NetworkPlan, NetworkTuning, Tensor};

/// Options of a tuning.
pub struct Tuning<'a> {
    pub seconds: f64,
    pub effort: Effort,
    pub output: Option<&'a Path>,
    pub bar: ProgressBar,
}

/// Profiled runs before and after.
const RUNS: usize = 11;

/// Tunes each recurrent region for the sizes of the arrays, writes the plan.
pub fn tune(source: Source<'_>, arrays: &[Named], tuning: &Tuning<'_>) -> Result<(), Failure> {
    let of_model = failed(source.model);
    let network = open(source, None)?;
    let arrays = Arrays::read(arrays)?;
    let inputs = arrays.borrowed();
    interrupt::catch()?;
    let before = shares(&network, &inputs).map_err(&of_model)?;
    // Entries of other sizes are kept.
    if let Some(path) = tuning.output.filter(|path| path.exists()) {
        let used = NetworkPlan::load(path).and_then(|plan| network.use_plan(Some(plan)));
        used.map_err(failed(path))?;
        if let Err(why) = network.run(&inputs) {
            eprintln!("gatestream: {}: {why}; it is written anew", path.display());
            network.use_plan(None).map_err(&of_model)?;
        }
    }
    let options = NetworkTuning {
        budget: Duration::from_secs_f64(tuning.seconds),
        effort: tuning.effort,
    };
    let tuned = network.tune(&inputs, options, |progress| {
        tuning.bar.set_position((1000.0 * progress.fraction) as u64);
        tuning.bar.set_message(progress.node.to_owned());
        flow()
    });
    tuning.bar.finish_and_clear();
    let tuned = tuned.map_err(&of_model)?;
    let after = shares(&network, &inputs).map_err(&of_model)?;
    let mut out = Printer::new(tuning.output.is_some());
    writeln!(
        out,
        "with estimated plans\n{before}\nwith tuned plans\n{after}"
    )?;
    write!(out, "{}", after.plans())?;
    if tuned.interrupted {
        writeln!(out, "\ninterrupted: the other regions keep their plans")?;
    }
    match tuning.output {
        Some(path) => {
            let saved = tuned.plan.save(path);
            saved.map_err(failed(path))?;
            writeln!(out, "\nwritten to {}", path.display())?;
        }
        None => writeln!(out, "\nno file was written; use -o PLAN to keep the plan")?,
    }
    Ok(())
}

fn shares(network: &Network, inputs: &[(&str, &Tensor)]) -> Result<Shares, NetworkError> {
    network.run(inputs)?;
    let profile = |_| Ok(network.profile(inputs)?.profile);
    let profiles: Result<Vec<_>, NetworkError> = (0..RUNS).map(profile).collect();
    Ok(Shares::new(&profiles?))
}
