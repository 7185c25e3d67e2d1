//! How each direction's products read their weights.

use std::ops::Range;

use super::{Configuration, DirectionPlan};
use crate::kernels::{Blocking, Stripes};
use crate::machine::CacheModel;
use crate::model::{Direction, Matrix, Model, Precision};
use crate::schedule::PhasePlacement;

impl Configuration {
    /// The configuration with the blocking that its slices of the weights suit, on a machine of
    /// these caches.
    #[must_use]
    pub(crate) fn with_blocking(mut self, model: &Model, caches: &CacheModel) -> Configuration {
        for (plan, layer) in self.layers.iter_mut().zip(model.layers()) {
            for (plan, direction) in plan.directions.iter_mut().zip(layer.directions()) {
                plan.blocking = of_direction(direction, plan, caches);
            }
        }
        self
    }
}

/// By the largest slice, and the products of a step: those taken ahead read their weights seldom.
fn of_direction(direction: &Direction, plan: &DirectionPlan, caches: &CacheModel) -> Blocking {
    let weights = direction.weights();
    let gates = direction.cell().kind().gates();
    let input = plan.schedule.input.iter();
    let input_gates = input
        .filter(|place| **place != PhasePlacement::Ahead)
        .count();
    let units = plan.partition.units.iter().map(Range::len).max();
    let bytes = |matrix: &Matrix, gates: usize| {
        units.unwrap_or(0) * gates * matrix.cols() * matrix.precision().bytes()
    };
    let products = [(&weights.recurrent, gates), (&weights.input, input_gates)];
    let step = products.map(|(matrix, gates)| bytes(matrix, gates));
    let mut blocking = caches.blocking(step.iter().sum());
    // Int8 has no tall tiles and no stripes.
    if weights.recurrent.precision() == Precision::Int8 {
        blocking.tile_rows = 0;
    }
    let is_striped = |(matrix, gates): (&Matrix, usize)| {
        gates == 4
            && matrix.precision() != Precision::Int8
            && caches.stripes(bytes(matrix, gates)) == Stripes::Two
    };
    if products.into_iter().any(is_striped) {
        blocking.stripes = Stripes::Two;
    }
    blocking
}
