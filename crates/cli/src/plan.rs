//! `--plan`: a plan from a file if it fits, else the estimate, with a word on why.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cellstream::model::{Model, Precision};
use cellstream::plan::{Entry, Plan, PlanFileError};
use cellstream::tune::{Options, tune};
use cellstream_command::Failure;
use cellstream_command::threads;

/// Which plan file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PlanOption {
    /// Use this plan file. One that is absent, empty or no plan at all is refused; one that is for
    /// another model or machine, or damaged, is named on standard error, and the estimate is used
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,
}

impl PlanOption {
    /// The file, if one was named.
    pub fn path(&self) -> Option<&Path> {
        self.plan.as_deref()
    }
}

/// Where a plan is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A file, and measured.
    Tuned,
    /// A file, not measured.
    File,
    /// No file, or one that does not fit.
    Estimate,
}

impl Origin {
    /// As it is written in results.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Tuned => "tuned",
            Origin::File => "file",
            Origin::Estimate => "estimate",
        }
    }
}

/// The plan for requests of one size, batch and steps, with room for no more: of a file with
/// several entries, the nearest. `asked` is the most threads asked for.
///
/// # Errors
/// A file that is not there, empty or no plan at all: its name was mistyped. Any other that cannot
/// be used is named on standard error, and the estimate is taken.
pub fn plan_for(
    model: &Model,
    (batch, steps): (usize, usize),
    asked: Option<u32>,
    option: &PlanOption,
) -> Result<(Plan, Origin), Failure> {
    let (nearest, origin) = entry_for(model, (batch, steps), asked, option)?;
    // For this very size: the weights are packed for no other.
    let entry = Entry {
        batch,
        steps,
        ..nearest
    };
    let entries = vec![entry];
    Ok((Plan { entries }, origin))
}

/// The entry of [`plan_for`] with the size that it was planned for.
///
/// # Errors
/// As [`plan_for`].
pub fn entry_for(
    model: &Model,
    (batch, steps): (usize, usize),
    asked: Option<u32>,
    option: &PlanOption,
) -> Result<(Entry, Origin), Failure> {
    let estimate = || {
        let mut plan = Plan::estimate(model, batch, steps, threads(asked));
        (plan.entries.swap_remove(0), Origin::Estimate)
    };
    let Some(path) = &option.plan else {
        return Ok(estimate());
    };
    let loaded = Plan::load(path, model).and_then(|mut plan| {
        let entry = plan.entries.swap_remove(plan.nearest(batch, steps));
        match (entry.configuration.threads, asked) {
            (planned, Some(most)) if planned > most as usize => Err(PlanFileError::Threads {
                planned,
                most: most as usize,
            }),
            _ => Ok(entry),
        }
    });
    match loaded {
        Ok(entry) if entry.measured.is_some() => Ok((entry, Origin::Tuned)),
        Ok(entry) => Ok((entry, Origin::File)),
        Err(PlanFileError::Isa(error)) => Err(error.into()),
        Err(
            error @ (PlanFileError::Io { .. }
            | PlanFileError::Empty
            | PlanFileError::NotAPlan { .. }),
        ) => Err(Failure::from(error).of(path)),
        Err(error) => {
            // Another model, or a run on more threads, may still need its file.
            let place = match error {
                PlanFileError::Model { .. } | PlanFileError::Threads { .. } => "OTHER.plan".into(),
                _ => path.display().to_string(),
            };
            // Its own words say what to mend: it is a plan, only not from line 1 on, and `tune`
            // would take it for somebody's text.
            let advice = match error {
                PlanFileError::Heading { .. }
                | PlanFileError::ByteOrderMark
                | PlanFileError::Corrupt { line: 1, .. } => String::new(),
                PlanFileError::Model { ref planned, .. } if in_precision(planned).is_some() => {
                    let precision = in_precision(planned).unwrap_or_default();
                    // The shape may be another, too: only the first line that differs is known.
                    format!("; the plan was made for --precision {precision}")
                }
                _ => format!("; `cellstream tune … -o {place}` makes a plan that fits"),
            };
            let why = Failure::from(error).of(path);
            let line = Failure::new(format!("{why}; going on with the estimate{advice}"));
            eprintln!("cellstream: {line}");
            Ok(estimate())
        }
    }
}

/// The precision that a plan's line names, if it names one that can be asked for.
fn in_precision(line: &str) -> Option<&str> {
    let name = line.strip_prefix("precision ")?;
    let known = Precision::ALL.into_iter().any(|p| p.name() == name);
    known.then_some(name)
}

/// The plan that tuning finds for requests of one size, in about so many seconds; the estimate
/// where they were too few to choose by.
pub fn tuned(
    model: &Model,
    size: (usize, usize),
    asked: Option<u32>,
    seconds: f64,
) -> Result<(Plan, Origin), Failure> {
    let options = Options::new(vec![size], threads(asked), Duration::from_secs_f64(seconds));
    let tuned = tune(model, &options, |_| ControlFlow::Continue(()))?;
    let origin = match tuned.plan.is_tuned() {
        true => Origin::Tuned,
        false => Origin::Estimate,
    };
    Ok((tuned.plan, origin))
}
