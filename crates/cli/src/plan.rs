//! `--plan`: a plan from a file if it fits, else the estimate, with the reason on standard error.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gatestream::model::{Model, Precision};
use gatestream::plan::{Entry, Plan, PlanFileError};
use gatestream::tune::{Options, tune};
use gatestream_command::{Failure, threads};

/// The plan file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PlanOption {
    /// Use this plan file. A file that does not exist, is empty or not a plan is an error. A
    /// corrupt plan, or one of another model or machine, causes a warning, and the estimate is used
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,
}

impl PlanOption {
    /// The path, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.plan.as_deref()
    }
}

/// The origin of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A measured entry of a file.
    Tuned,
    /// An entry of a file without measurement.
    File,
    /// No file, or an unusable one.
    Estimate,
}

impl Origin {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Tuned => "tuned",
            Origin::File => "file",
            Origin::Estimate => "estimate",
        }
    }
}

/// The plan for requests of one size, batch and steps: the nearest entry of the file. `asked` is
/// the maximum number of threads, if it is limited.
///
/// # Errors
/// The file does not exist, is empty or not a plan, because its name was mistyped. For any other
/// unusable file a warning is printed to standard error, and the estimate is used.
pub fn plan_for(
    model: &Model,
    (batch, steps): (usize, usize),
    asked: Option<u32>,
    option: &PlanOption,
) -> Result<(Plan, Origin), Failure> {
    let (nearest, origin) = entry_for(model, (batch, steps), asked, option)?;
    // Only for this size: weights are packed for each entry.
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
            | PlanFileError::FormerName
            | PlanFileError::NotAPlan { .. }),
        ) => Err(Failure::from(error).of(path)),
        Err(error) => {
            // The file may be needed for another model or more threads: keep it.
            let place = match error {
                PlanFileError::Model { .. } | PlanFileError::Threads { .. } => "OTHER.plan".into(),
                _ => path.display().to_string(),
            };
            let makes = format!("; `gatestream tune … -o {place}` makes a plan that fits");
            // The error names the correction; `tune` refuses to overwrite a file whose first line
            // is not that of a plan.
            let advice = match error {
                PlanFileError::Heading { .. }
                | PlanFileError::ByteOrderMark
                | PlanFileError::Corrupt { line: 1, .. } => String::new(),
                PlanFileError::Model { ref planned, .. } => match in_precision(planned) {
                    // The shape may differ too: only the first line that differs is known.
                    Some(precision) => format!("; the plan was made for --precision {precision}"),
                    None => makes,
                },
                _ => makes,
            };
            let why = Failure::from(error).of(path);
            let line = Failure::new(format!("{why}; going on with the estimate{advice}"));
            eprintln!("gatestream: {line}");
            Ok(estimate())
        }
    }
}

/// The precision in a line of a plan, if `--precision` accepts it.
fn in_precision(line: &str) -> Option<Precision> {
    line.strip_prefix("precision ")?.parse().ok()
}

/// The plan of a tuning of about `seconds` for requests of one size; the estimate if the time was
/// too short.
pub fn tuned(
    model: &Model,
    size: (usize, usize),
    asked: Option<u32>,
    seconds: f64,
) -> Result<(Plan, Origin), Failure> {
    let options = Options::new(vec![size], threads(asked), Duration::from_secs_f64(seconds));
    let tuned = tune(model, &options, |_| ControlFlow::Continue(()))?;
    let origin = if tuned.plan.is_tuned() {
        Origin::Tuned
    } else {
        Origin::Estimate
    };
    Ok((tuned.plan, origin))
}
