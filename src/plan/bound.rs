//! The shortest time that a machine's ceilings allow for a plan.

use super::{Plan, PlanError};
use crate::machine::{Bound, BoundBy, Ceilings, Level, Topology};
use crate::model::{Direction, Model};

impl Plan {
    /// The bound on running full-length sequences: over all phases, the larger of arithmetic over
    /// peak and bytes of weights over the bandwidth of the level where each core's slice of them
    /// fits (deepcpu section 3, equation 1).
    ///
    /// Input products read their weights once per chunk; recurrent ones at every step. What binds is
    /// what the largest part of the time is bound by.
    ///
    /// # Errors
    /// What [`Plan::check`] refuses.
    pub fn bound(
        &self,
        model: &Model,
        topology: &Topology,
        ceilings: &Ceilings,
    ) -> Result<Bound, PlanError> {
        self.check(model)?;
        let mut by_cause: Vec<(BoundBy, f64)> = Vec::new();
        let mut phase = |values: usize, rows: usize, resident: usize, times: usize| {
            let flops = 2.0 * values as f64 * rows as f64;
            let level = match topology.cores.first() {
                Some(core) => topology.level_holding(core, 4 * resident / self.threads),
                None => Level::Memory,
            };
            let bound = ceilings.bound(flops, 4.0 * values as f64, level, self.threads);
            by_cause.push((bound.by, bound.seconds * times as f64));
        };
        for (plan, layer) in self.layers.iter().zip(model.layers()) {
            let recurrent: usize = layer.directions().iter().map(recurrent_values).sum();
            let input: usize = (layer.directions().iter())
                .map(|d| d.weights().input.data().len())
                .sum();
            let (chunks, rest) = (self.steps / plan.chunk_steps, self.steps % plan.chunk_steps);
            if chunks > 0 {
                phase(
                    input,
                    self.batch.saturating_mul(plan.chunk_steps),
                    input,
                    chunks,
                );
            }
            if rest > 0 {
                phase(input, self.batch.saturating_mul(rest), input, 1);
            }
            phase(recurrent, self.batch, recurrent, self.steps);
        }
        let share = |by: BoundBy| -> f64 {
            let of_cause = by_cause.iter().filter(|(cause, _)| *cause == by);
            of_cause.map(|(_, seconds)| seconds).sum()
        };
        let causes = by_cause.iter().map(|(by, _)| *by);
        Ok(Bound {
            seconds: by_cause.iter().map(|(_, seconds)| seconds).sum(),
            by: causes
                .max_by(|a, b| share(*a).total_cmp(&share(*b)))
                .unwrap_or(BoundBy::Compute),
        })
    }
}

/// Weights that a step reads.
fn recurrent_values(direction: &Direction) -> usize {
    let weights = direction.weights();
    let projection = weights.projection.as_ref();
    weights.recurrent.data().len() + projection.map_or(0, |p| p.data().len())
}

/// Floating-point operations of running `batch` sequences of `steps` steps: two per weight of every
/// product, activations not counted.
pub fn flops(model: &Model, batch: usize, steps: usize) -> f64 {
    let directions = model.layers().iter().flat_map(|layer| layer.directions());
    let values: usize = directions
        .map(|d| recurrent_values(d) + d.weights().input.data().len())
        .sum();
    2.0 * values as f64 * batch as f64 * steps as f64
}
