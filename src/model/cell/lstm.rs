//! LSTM: four gates and a cell state.

use super::step::{
    CellStep, Operand, OperandSource, Product, StepProduct, input, recurrent, with_last,
};
use gatestream_kernels::{GateKernel, LstmFunctions, PlainFunctions};

const H: Operand = Operand::STATE;

/// Without a projection.
pub(super) const STEP: CellStep = CellStep {
    gates: &["i", "f", "g", "o"],
    products: &[
        input(0, 0),
        input(1, 1),
        input(2, 2),
        input(3, 3),
        recurrent(0, H, 0),
        recurrent(1, H, 1),
        recurrent(2, H, 2),
        recurrent(3, H, 3),
    ],
    has_cell_state: true,
    activations: 5,
};

/// `m = o∘output(c)`, the output before its projection.
const UNPROJECTED: Operand = Operand {
    source: OperandSource::Gates(&[0, 1, 2, 3]),
    symbol: "m",
};

/// With a projection.
pub(super) const PROJECTED: CellStep = CellStep {
    products: &with_last::<9>(
        STEP.products,
        StepProduct {
            product: Product::Projection,
            operand: UNPROJECTED,
            slot: 0,
        },
    ),
    ..STEP
};

/// One phase, and another for a projection.
pub(super) fn gate_kernels(functions: LstmFunctions, is_projected: bool) -> Vec<GateKernel> {
    let projection = GateKernel::Plain(PlainFunctions {
        activation: None,
        clip: None,
    });
    let mut kernels = vec![GateKernel::Lstm(functions)];
    kernels.extend(is_projected.then_some(projection));
    kernels
}
