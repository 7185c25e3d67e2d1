//! Vanilla RNN: one pre-activation.

use super::step::{CellStep, Operand, input, recurrent};

/// One gate, which has no name.
pub(super) const STEP: CellStep = CellStep {
    gates: &[""],
    products: &[input(0, 0), recurrent(0, Operand::STATE, 0)],
    has_cell_state: false,
    activations: 1,
};
