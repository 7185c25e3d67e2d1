//! The plan: who owns which slice of the weights, and how many steps are taken together.
//!
//! A plan is plain data. It can change the time of a run, never its answer. Here it comes from an
//! estimate ([`Plan::estimate`]); a search writes the same data after measuring.

mod bound;
mod estimate;
mod split;

use std::ops::Range;

use crate::model::{Layer, Model};

pub use bound::flops;
pub use split::{UNIT_GRANULE, split_units};

/// Most workers of a plan. More than there are groups of units in any model that fits a machine.
pub const MOST_THREADS: usize = 4096;

/// How a model is run: for sessions of up to `batch` sequences of up to `steps` steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Workers of the team, each on a core of its own.
    pub threads: usize,
    /// Most sequences a session has room for.
    pub batch: usize,
    /// Most steps a session has room for.
    pub steps: usize,
    /// One entry per layer of the model.
    pub layers: Vec<LayerPlan>,
}

/// How one layer is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    /// Steps whose input products are computed together, ahead of the recurrence. At least 1.
    pub chunk_steps: usize,
    /// One entry per direction.
    pub directions: Vec<Partition>,
}

/// Who computes what of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Hidden units of each worker, in order, together `0..hidden`; may be empty. A worker that
    /// owns a unit owns all its gates, so nothing is exchanged before the activation.
    pub units: Vec<Range<usize>>,
    /// Rows of the projection of each worker, likewise; all empty where there is no projection.
    pub projected: Vec<Range<usize>>,
}

impl Partition {
    /// Whether more than one worker takes part, so that they must meet at every step.
    pub fn is_shared(&self) -> bool {
        // Units and projection rows together: each side reads what the other writes.
        let parts = self.units.iter().zip(&self.projected);
        parts
            .filter(|(units, rows)| !(units.is_empty() && rows.is_empty()))
            .count()
            > 1
    }
}

/// Why a plan does not fit a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No worker, or more than a team can have.
    #[error("a plan needs 1 to {MOST_THREADS} threads, this one has {threads}")]
    Threads {
        /// In the plan.
        threads: usize,
    },
    /// Another number of layers or directions.
    #[error("the plan is for {planned} {what}, the model has {found}")]
    Count {
        /// Layers, or directions of a layer.
        what: &'static str,
        /// In the plan.
        planned: usize,
        /// In the model.
        found: usize,
    },
    /// A chunk of no steps.
    #[error("layer {layer}: a chunk needs at least one step")]
    EmptyChunk {
        /// Index of the layer.
        layer: usize,
    },
    /// Parts that leave out, repeat or misplace units.
    #[error(
        "layer {layer}: the workers' {what} must be {threads} ranges that follow each other, start \
         at multiples of {UNIT_GRANULE} and cover 0..{size}"
    )]
    Partition {
        /// Index of the layer.
        layer: usize,
        /// Units or projection rows.
        what: &'static str,
        /// Workers.
        threads: usize,
        /// What must be covered.
        size: usize,
    },
}

impl Plan {
    /// Checks that the plan covers every unit of `model` exactly once.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, model: &Model) -> Result<(), PlanError> {
        if self.threads == 0 || self.threads > MOST_THREADS {
            return Err(PlanError::Threads {
                threads: self.threads,
            });
        }
        expect_count("layers", self.layers.len(), model.layers().len())?;
        for (index, (plan, layer)) in self.layers.iter().zip(model.layers()).enumerate() {
            plan.check(index, self.threads, layer)?;
        }
        Ok(())
    }
}

impl LayerPlan {
    fn check(&self, index: usize, threads: usize, layer: &Layer) -> Result<(), PlanError> {
        if self.chunk_steps == 0 {
            return Err(PlanError::EmptyChunk { layer: index });
        }
        let directions = layer.directions();
        expect_count("directions", self.directions.len(), directions.len())?;
        for (partition, direction) in self.directions.iter().zip(directions) {
            let projected = match direction.weights().projection {
                Some(_) => direction.output_size(),
                None => 0,
            };
            let parts = [
                ("units", &partition.units, direction.hidden_size()),
                ("projection rows", &partition.projected, projected),
            ];
            for (what, parts, size) in parts {
                if parts.len() != threads || !split::covers(parts, size) {
                    return Err(PlanError::Partition {
                        layer: index,
                        what,
                        threads,
                        size,
                    });
                }
            }
        }
        Ok(())
    }
}

fn expect_count(what: &'static str, planned: usize, found: usize) -> Result<(), PlanError> {
    if planned == found {
        return Ok(());
    }
    Err(PlanError::Count {
        what,
        planned,
        found,
    })
}
