//! Cells as data: which recurrence, with which activations, and what its step computes.

mod gru;
mod light_gru;
mod lstm;
mod rnn;
mod step;
#[cfg(feature = "safetensors")]
mod text;
mod tree;

use std::fmt;

use super::Activation;
use gatestream_kernels::{GateKernel, GruFunctions, LightGruFunctions, LstmFunctions};

#[cfg(feature = "safetensors")]
pub(super) use text::CellText;

pub use light_gru::{BatchNorm, LightGru, LightGruCell};
pub use step::{CellStep, Operand, OperandSource, Product, StepProduct};
pub use tree::{TreeCell, TreeWeights};

/// The kinds of recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CellKind {
    /// Long short-term memory: four gates and a cell state.
    Lstm,
    /// Gated recurrent unit: three gates.
    Gru,
    /// Light gated recurrent unit: two gates, no reset.
    LightGru,
    /// Vanilla recurrence: one product and an activation.
    Rnn,
}

impl CellKind {
    /// Rows of a weight matrix per hidden unit: 4, 3, 2 or 1.
    pub fn gates(self) -> usize {
        let step = match self {
            CellKind::Lstm => &lstm::STEP,
            CellKind::Gru => &gru::RESET_AFTER,
            CellKind::LightGru => &light_gru::STEP,
            CellKind::Rnn => &rnn::STEP,
        };
        step.gates.len()
    }
}

impl fmt::Display for CellKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CellKind::Lstm => "lstm",
            CellKind::Gru => "gru",
            CellKind::LightGru => "light gru",
            CellKind::Rnn => "rnn",
        })
    }
}

/// Where a GRU's reset gate acts on the candidate (ONNX attribute `linear_before_reset`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetForm {
    /// On the state, before the product: `n = g(W x + U (r ∘ h) + b)`. ONNX's default, 0.
    Before,
    /// On the product: `n = g(W x + b_w + r ∘ (U h + b_u))`. ONNX's 1; PyTorch's only form.
    After,
}

/// One recurrence with its activations. `σ`-position activations are called `gate`.
///
/// Formulas, for input `x`, states `h`, `c` (ONNX operators LSTM, GRU, RNN, opset 22; PyTorch
/// `torch.nn` of the same names):
///
/// ```text
/// LSTM  i = gate(W_i x + U_i h + p_i∘c + b_i)     f = gate(W_f x + U_f h + p_f∘c + b_f)
///       g = candidate(W_g x + U_g h + b_g)        c' = f∘c + i∘g
///       o = gate(W_o x + U_o h + p_o∘c' + b_o)    h' = o∘output(c')
/// GRU   r = gate(W_r x + U_r h + b_r)             z = gate(W_z x + U_z h + b_z)
///       n = candidate(…)  see ResetForm           h' = (1-z)∘n + z∘h
/// LightGru  z = gate(W_z x + U_z h + b_z)   n = candidate(W_n x + U_n h + b_n)
///       h' = (1-z)∘n + z∘h
/// RNN   h' = activation(W x + U h + b)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cell {
    /// Long short-term memory.
    Lstm {
        /// Activation of the input, forget and output gates (ONNX's first, `f`).
        gate: Activation,
        /// Activation of the candidate (ONNX's second, `g`).
        candidate: Activation,
        /// Activation of the new cell state on its way to the output (ONNX's third, `h`).
        output: Activation,
        /// Couples the forget gate to the input gate: `f = 1 - i`.
        input_forget: bool,
    },
    /// Gated recurrent unit.
    Gru {
        /// Activation of the reset and update gates.
        gate: Activation,
        /// Activation of the candidate.
        candidate: Activation,
        /// Where the reset gate acts.
        reset: ResetForm,
    },
    /// Light gated recurrent unit (Ravanelli et al. 2018): no reset gate.
    LightGru {
        /// Activation of the update gate.
        gate: Activation,
        /// Activation of the candidate.
        candidate: Activation,
    },
    /// Vanilla recurrence.
    Rnn {
        /// Its activation.
        activation: Activation,
    },
}

/// A cell with a name in model files and on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedCell {
    /// In the metadata of a safetensors file.
    pub name: &'static str,
    /// As the argument `--cell`.
    pub argument: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// The cell.
    pub cell: Cell,
}

/// Bounds on the inputs of activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clips {
    /// Of gates and candidates.
    pub clip: Option<f32>,
    /// Of an LSTM's output activation.
    pub output_clip: Option<f32>,
}

impl Cell {
    /// The LSTM of PyTorch and of ONNX's defaults: sigmoid gates, tanh elsewhere.
    pub const LSTM: Cell = Cell::Lstm {
        gate: Activation::Sigmoid,
        candidate: Activation::Tanh,
        output: Activation::Tanh,
        input_forget: false,
    };
    /// PyTorch's GRU: sigmoid gates, tanh candidate, reset after the product.
    pub const GRU: Cell = Cell::Gru {
        gate: Activation::Sigmoid,
        candidate: Activation::Tanh,
        reset: ResetForm::After,
    };
    /// PyTorch's default RNN: tanh.
    pub const RNN: Cell = Cell::Rnn {
        activation: Activation::Tanh,
    };

    /// The cells that have a name.
    pub const NAMED: &[NamedCell] = &[
        NamedCell {
            name: "lstm",
            argument: "lstm",
            about: "Long short-term memory",
            cell: Cell::LSTM,
        },
        NamedCell {
            name: "gru",
            argument: "gru",
            about: "Gated recurrent unit, reset after the product",
            cell: Cell::GRU,
        },
        light_gru::NAMED,
        NamedCell {
            name: "rnn_tanh",
            argument: "rnn",
            about: "Vanilla recurrence with tanh",
            cell: Cell::RNN,
        },
        NamedCell {
            name: "rnn_relu",
            argument: "rnn-relu",
            about: "Vanilla recurrence with relu",
            cell: Cell::Rnn {
                activation: Activation::Relu,
            },
        },
    ];

    /// The kind of recurrence.
    pub fn kind(&self) -> CellKind {
        match self {
            Cell::Lstm { .. } => CellKind::Lstm,
            Cell::Gru { .. } => CellKind::Gru,
            Cell::LightGru { .. } => CellKind::LightGru,
            Cell::Rnn { .. } => CellKind::Rnn,
        }
    }

    /// What a step computes, without or with a projection of the state.
    pub fn step(&self, is_projected: bool) -> &'static CellStep {
        let before = ResetForm::Before;
        match self {
            Cell::Lstm { .. } if is_projected => &lstm::PROJECTED,
            Cell::Lstm { .. } => &lstm::STEP,
            Cell::Gru { reset, .. } if *reset == before => &gru::RESET_BEFORE,
            Cell::Gru { .. } => &gru::RESET_AFTER,
            Cell::LightGru { .. } => &light_gru::STEP,
            Cell::Rnn { .. } => &rnn::STEP,
        }
    }

    /// The elementwise part of each phase of a step.
    pub(crate) fn gate_kernels(&self, clips: Clips, is_projected: bool) -> Vec<GateKernel> {
        let Clips { clip, output_clip } = clips;
        match *self {
            Cell::Lstm {
                gate,
                candidate,
                output,
                input_forget,
            } => {
                let functions = LstmFunctions {
                    gate,
                    candidate,
                    output,
                    input_forget,
                    clip,
                    output_clip,
                };
                lstm::gate_kernels(functions, is_projected)
            }
            Cell::Gru {
                gate,
                candidate,
                reset,
            } => {
                let functions = GruFunctions {
                    gate,
                    candidate,
                    clip,
                };
                gru::gate_kernels(functions, reset)
            }
            Cell::LightGru { gate, candidate } => light_gru::gate_kernels(LightGruFunctions {
                gate,
                candidate,
                clip,
            }),
            Cell::Rnn { activation } => rnn::gate_kernels(activation, clip),
        }
    }
}
