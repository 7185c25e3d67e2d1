//! Vanilla RNN: one pre-activation.

use super::step::{CellStep, Operand, input, recurrent};
use gatestream_kernels::{Activation, GateKernel, PlainFunctions};

/// One gate, which has no name.
pub(super) const STEP: CellStep = CellStep {
    gates: &[""],
    products: &[input(0, 0), recurrent(0, Operand::STATE, 0)],
    has_cell_state: false,
    activations: 1,
};

/// One phase.
pub(super) fn gate_kernels(activation: Activation, clip: Option<f32>) -> Vec<GateKernel> {
    vec![GateKernel::Plain(PlainFunctions {
        activation: Some(activation),
        clip,
    })]
}
