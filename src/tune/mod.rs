//! Tuning: candidates are verified against the reference, then timed, then one is chosen.
//!
//! ```text
//! for size in the grid of (batch, steps)
//!   best <- the estimate
//!   for stage in arrangements × orders, schedules, chunks, shares and chunks of rows that others
//!                take ahead, orders, blockings, single layers
//!     candidates <- best, and the stage's variations of it
//!     stop if one differs from the reference in any bit        (a defect, which is reported)
//!     best <- the winner of a race among them
//!   last races: best, the runner-up, the estimate; in doubt, the estimate
//! ```
//!
//! Where time is up before any race has three complete rounds, nothing is chosen: the entry is the
//! estimate, without times.
//!
//! `exhaustive` races all combinations instead of stage after stage.
//!
//! Which precision each layer has is chosen before that, by [`choose_precisions`]: another mix is
//! another model, with other answers, for which other plans may be best.

mod against_f32;
mod candidates;
mod mixes;
mod precision;
mod precision_options;
mod race;
mod search;
mod subject;
mod track;
mod verify;

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::time::Duration;

use crate::execute::{PackError, RunError, SessionError};
use crate::model::{Model, ModelError, TreeWeights};
use crate::plan::{Configuration, Cost, Plan};
use search::search;
use subject::Subject;

pub use precision::{Chosen, Mix, PrecisionProgress, choose_precisions};
pub use precision_options::PrecisionOptions;
pub use verify::{Check, VerifyError};

/// How hard to look, as in FFTW.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Time nothing: the estimate, by arithmetic and bytes
    Estimate,
    /// Time one dimension after the other
    #[default]
    Measure,
    /// Time all combinations
    Exhaustive,
}

/// What to tune for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Sizes of requests: sequences and steps. One entry of the plan each.
    pub sizes: Vec<(usize, usize)>,
    /// Lengths of sequences, in steps, assigned to the sequences of a request in turn. A request of
    /// fewer sequences gets some, evenly from the longest down. Lengths are cut to the size's
    /// steps. Empty: all sequences have the size's steps. The best plan may depend on it: where
    /// many sequences end early, few are left to share the reading of weights.
    pub lengths: Vec<usize>,
    /// The most cores to use.
    pub cores: usize,
    /// Time for all sizes together.
    pub budget: Duration,
    /// How hard to look.
    pub effort: Effort,
}

impl Options {
    /// Sequences of full length, and [`Effort::Measure`].
    pub fn new(sizes: Vec<(usize, usize)>, cores: usize, budget: Duration) -> Options {
        Options {
            sizes,
            lengths: Vec::new(),
            cores,
            budget,
            effort: Effort::Measure,
        }
    }
}

/// How far a tuning has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The size being tuned, counted from 0, and how many there are.
    pub size: (usize, usize),
    /// What is varied now.
    pub stage: &'static str,
    /// Candidates that are still in the race.
    pub standing: usize,
    /// The best so far, and its time.
    pub best: (&'a Configuration, Cost),
    /// Part of the budget that is used up, from 0 to 1.
    pub fraction: f64,
}

/// A tuned plan, and what it took.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// One entry per size, in ascending order; estimates, not measured, of those that had no three
    /// complete rounds of a race before time was up or the tuning was broken off.
    pub plan: Plan,
    /// Of each entry, whether all was done for its size that was asked for: no race was left out or
    /// cut short for want of time; or there was nothing to be timed.
    pub finished: Vec<bool>,
    /// Timed runs, warm-up runs not counted.
    pub runs: usize,
    /// Candidates that were verified and timed.
    pub candidates: usize,
    /// Broken off by the caller.
    pub interrupted: bool,
}

/// The entries that [`Tuned::keep`] took from an earlier plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPlan {
    /// Number of entries of sizes that were not tuned.
    pub others: usize,
    /// Sizes, as sequences and steps, that were tuned but keep their earlier entry.
    pub instead: Vec<(usize, usize)>,
}

impl Tuned {
    /// Adds entries of an earlier plan of the model: those of other sizes, measured ones of sizes
    /// whose races were cut short, and, where both are estimates, the earlier one, unless only
    /// estimates were asked for.
    pub fn keep(&mut self, earlier: Plan) -> KeptPlan {
        let mut kept = KeptPlan::default();
        for old in earlier.entries {
            let size = (old.batch, old.steps);
            let mut sizes = self.plan.entries.iter().map(|e| (e.batch, e.steps));
            let Some(index) = sizes.position(|found| found == size) else {
                self.plan.entries.push(old);
                kept.others += 1;
                continue;
            };
            let found = &mut self.plan.entries[index];
            let finished = self.finished.get(index).copied().unwrap_or(true);
            let is_better = match (&old.measured, &found.measured) {
                (Some(_), None) => true,
                (None, Some(_)) => false,
                _ => !finished,
            };
            if is_better {
                *found = old;
                kept.instead.push(size);
            }
        }
        kept
    }
}

/// Why a model could not be tuned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// Nothing to tune for.
    #[error("give at least one size to tune for, each with one sequence and one step or more")]
    NoSize,
    /// A sequence of no steps to tune for.
    #[error("lengths to tune for are of one step or more, or none are given")]
    NoLength,
    /// Steps or lengths of a tree's cell.
    #[error("a tree's cell is tuned for batches of nodes; give sizes of one step and no lengths")]
    NotOfTree,
    /// A sample without a step.
    #[error("the sample is empty; give at least a step of a sequence")]
    NoSample,
    /// f32's own answer for the sample is NaN in some place.
    #[error(
        "the output for the sample contains NaN in f32, so no error can be measured; use another \
         sample or correct the weights"
    )]
    NotComparable,
    /// No bound for an error.
    #[error("the maximum error must be 0 or more, not {0}")]
    MostError(f64),
    /// The sample could not be run.
    #[error("the sample: {0}")]
    Sample(#[from] RunError),
    /// The model has no such precisions.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Broken off before there was anything to keep.
    #[error("interrupted before precisions were chosen")]
    BrokenOff,
    /// A session could not be made.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A candidate could not be run, or gave a wrong answer.
    #[error("{candidate}: {source}")]
    Verify {
        /// The candidate, in words.
        candidate: String,
        /// What happened.
        source: VerifyError,
    },
}

impl From<PackError> for TuneError {
    fn from(error: PackError) -> TuneError {
        SessionError::from(error).into()
    }
}

/// Finds the fastest configuration of `model` for each size, within the budget. When it is used up,
/// only the current lap ends, and sizes without a lap get one. `progress` is called after each
/// round and may stop the tuning, which keeps the results so far. Sizes without three complete
/// rounds of a race are estimated.
///
/// # Errors
/// [`TuneError`]; a candidate that gives a wrong answer ends the tuning, because it is a defect.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::time::Duration;
/// use gatestream::model::Lstm;
/// use gatestream::tune::{Options, tune};
///
/// let model = Lstm::new(8, 16).random(1)?;
/// let options = Options::new(vec![(1, 10)], 2, Duration::from_millis(50));
/// let tuned = tune(&model, &options, |_| ControlFlow::Continue(()))?;
/// assert_eq!(tuned.plan.entries.len(), 1);
/// if !tuned.finished[0] {
///     println!("more time would tell more");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn tune(
    model: &Model,
    options: &Options,
    progress: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
) -> Result<Tuned, TuneError> {
    tune_subject(model, options, progress)
}

/// As [`tune`], for a cell of a tree. Each size is a number of nodes and one step; there are no
/// lengths. Candidates differ in cores, partition, order of panels and blocking. A plan of a tree
/// has no file format.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::time::Duration;
/// use gatestream::model::{Matrix, TreeWeights};
/// use gatestream::tune::{Options, tune_tree};
///
/// let (weights, bias) = (Matrix::new(3 * 32, 8, vec![0.1; 3 * 32 * 8])?, vec![0.0; 3 * 32]);
/// let leaf = TreeWeights::leaf(&weights, &bias)?;
/// let options = Options::new(vec![(16, 1)], 2, Duration::from_millis(50));
/// let tuned = tune_tree(&leaf, &options, |_| ControlFlow::Continue(()))?;
/// tuned.plan.check_tree(&leaf)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`tune`]; [`TuneError::NotOfTree`].
pub fn tune_tree(
    weights: &TreeWeights<'_>,
    options: &Options,
    progress: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
) -> Result<Tuned, TuneError> {
    if !options.lengths.is_empty() || options.sizes.iter().any(|&(_, steps)| steps > 1) {
        return Err(TuneError::NotOfTree);
    }
    tune_subject(weights, options, progress)
}

fn tune_subject(
    subject: &dyn Subject,
    options: &Options,
    mut progress: impl FnMut(&Progress<'_>) -> ControlFlow<()> + Send,
) -> Result<Tuned, TuneError> {
    // On a thread of its own: the thread that takes part in the runs is pinned to a core.
    std::thread::scope(|scope| {
        let tuning = scope.spawn(|| search(subject, options, &mut progress));
        tuning.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Matrix;

    #[test]
    fn a_cell_of_a_tree_is_tuned_for_batches_of_nodes() {
        let hidden = 40;
        let matrix = |gates: usize| {
            let value = |at: usize| ((at * 7919) % 101) as f32 / 101.0 - 0.5;
            let values = (0..gates * hidden * hidden).map(value);
            Matrix::new(gates * hidden, hidden, values.collect()).unwrap()
        };
        let (five, three, one, bias) = (matrix(5), matrix(3), matrix(1), vec![0.1; 5 * hidden]);
        let bias = |gates: usize| &bias[..gates * hidden];
        let cells = [
            TreeWeights::leaf(&three, bias(3)).unwrap(),
            TreeWeights::binary(&five, &five, bias(5)).unwrap(),
            TreeWeights::child(&one, &one, bias(1)).unwrap(),
            TreeWeights::node(&three, &three, bias(3)).unwrap(),
        ];
        let mut options = Options::new(vec![(1, 1), (9, 1)], 2, Duration::from_millis(40));
        options.effort = Effort::Exhaustive;
        let run =
            |options: &Options, weights| tune_tree(weights, options, |_| ControlFlow::Continue(()));
        for weights in &cells {
            let tuned = run(&options, weights).unwrap();
            tuned.plan.check_tree(weights).unwrap();
            assert!(tuned.candidates > 0 && tuned.plan.entries.len() == 2);
        }
        options.sizes = vec![(9, 2)];
        assert!(matches!(
            run(&options, &cells[0]),
            Err(TuneError::NotOfTree)
        ));
    }
}
