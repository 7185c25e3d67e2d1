//! GRU: reset gate, update gate and candidate.

use super::ResetForm;
use super::step::{CellStep, Operand, OperandSource, input, recurrent, with_last};
use gatestream_kernels::{GateKernel, GruFunctions};

const H: Operand = Operand::STATE;

/// Reset after the product: the candidate's two products are chains of their own.
pub(super) const RESET_AFTER: CellStep = CellStep {
    gates: &["r", "z", "n"],
    products: &[
        input(0, 0),
        input(1, 1),
        input(2, 2),
        recurrent(0, H, 0),
        recurrent(1, H, 1),
        recurrent(2, H, 3),
    ],
    has_cell_state: false,
    activations: 4,
};

/// `r∘h`.
const RESET_STATE: Operand = Operand {
    source: OperandSource::Gates(&[0]),
    symbol: "r∘h",
};

/// Reset before the product: the candidate multiplies the reset state.
pub(super) const RESET_BEFORE: CellStep = CellStep {
    products: &with_last::<6>(RESET_AFTER.products, recurrent(2, RESET_STATE, 2)),
    ..RESET_AFTER
};

/// One phase, or two where the reset state is a product's operand.
pub(super) fn gate_kernels(functions: GruFunctions, reset: ResetForm) -> Vec<GateKernel> {
    match reset {
        ResetForm::After => vec![GateKernel::Gru(functions)],
        ResetForm::Before => vec![
            GateKernel::GruReset(functions),
            GateKernel::GruCandidate(functions),
        ],
    }
}
