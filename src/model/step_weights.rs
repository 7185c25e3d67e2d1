//! The weights of a step, borrowed from whatever holds them: a direction, or a cell of a tree.

use super::{CellStep, Direction, Matrix, Peepholes, Product};

/// What the products of a step multiply with, and where their chains start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepWeights<'a> {
    pub step: &'static CellStep,
    pub hidden: usize,
    /// Of [`Product::Input`], `[gates * hidden, _]`.
    pub input: &'a Matrix,
    /// Of [`Product::Recurrent`], likewise.
    pub recurrent: Option<&'a Matrix>,
    /// Of the input products; empty where they have none.
    pub input_bias: &'a [f32],
    /// Of the recurrent products, likewise.
    pub recurrent_bias: &'a [f32],
    pub peepholes: Option<&'a Peepholes>,
    pub projection: Option<&'a Matrix>,
}

impl<'a> StepWeights<'a> {
    /// The weights and the bias of a product; no bias of a projection.
    pub fn of(&self, product: Product) -> (Option<&'a Matrix>, &'a [f32]) {
        match product {
            Product::Input(_) => (Some(self.input), self.input_bias),
            Product::Recurrent(_) => (self.recurrent, self.recurrent_bias),
            Product::Projection => (self.projection, &[]),
        }
    }

    /// Rows of the projection; 0 where there is none.
    pub fn projected(&self) -> usize {
        self.projection.map_or(0, Matrix::rows)
    }
}

impl Direction {
    /// Its weights, as those of a step.
    pub(crate) fn step_weights(&self) -> StepWeights<'_> {
        let weights = self.weights();
        StepWeights {
            step: self.step(),
            hidden: self.hidden_size(),
            input: &weights.input,
            recurrent: Some(&weights.recurrent),
            input_bias: &weights.input_bias,
            recurrent_bias: &weights.recurrent_bias,
            peepholes: weights.peepholes.as_ref(),
            projection: weights.projection.as_ref(),
        }
    }
}
