//! How each direction's products read their weights.

use std::ops::Range;

use super::{Configuration, DirectionPlan};
use crate::machine::CacheModel;
use crate::model::{Matrix, Model, Precision, StepWeights};
use crate::schedule::PhasePlacement;
use gatestream_kernels::Stripes;

impl Configuration {
    /// The configuration with the blocking that its slices of the weights suit, on a machine of
    /// these caches.
    #[must_use]
    pub(crate) fn with_blocking(mut self, model: &Model, caches: &CacheModel) -> Configuration {
        for (plan, layer) in self.layers.iter_mut().zip(model.layers()) {
            for (plan, direction) in plan.directions.iter_mut().zip(layer.directions()) {
                plan.set_blocking(&direction.step_weights(), caches);
            }
        }
        self
    }
}

impl DirectionPlan {
    /// Sets the blocking by the largest slice, and the products of a step: a hoisted input
    /// projection reads its weights seldom.
    pub(super) fn set_blocking(&mut self, weights: &StepWeights<'_>, caches: &CacheModel) {
        let gates = weights.step.gates.len();
        let input = self.schedule.input.iter();
        let input_gates = input
            .filter(|place| **place != PhasePlacement::Ahead)
            .count();
        let units = self.partition.units.iter().map(Range::len).max();
        let bytes = |matrix: &Matrix, gates: usize| units.unwrap_or(0) * gates * matrix.row_bytes();
        let recurrent = weights.recurrent.map(|matrix| (matrix, gates));
        let products = recurrent.into_iter().chain([(weights.input, input_gates)]);
        let step = products.clone().map(|(matrix, gates)| bytes(matrix, gates));
        let mut blocking = caches.blocking(step.sum());
        // Int8 has no tall tiles and no stripes.
        if weights.recurrent.unwrap_or(weights.input).precision() == Precision::Int8 {
            blocking.tile_rows = 0;
        }
        let is_striped = |(matrix, gates): (&Matrix, usize)| {
            gates == 4
                && matrix.precision() != Precision::Int8
                && caches.stripes(bytes(matrix, gates)) == Stripes::Two
        };
        if { products }.any(is_striped) {
            blocking.stripes = Stripes::Two;
        }
        self.blocking = blocking;
    }
}
