//! Reads the attributes and weights of an LSTM, GRU, RNN or DynamicQuantizeLSTM node.
//!
//! ONNX shapes, for `D` directions and `G` gates: `W [D, G·H, E]`, `R [D, G·H, H]`,
//! `B [D, 2·G·H]` (input biases, then recurrent ones), `P [D, 3·H]` (input, output, forget).
//! DynamicQuantizeLSTM has `W [D, E, 4·H]`, `R [D, H, 4·H]`, in 8 bits (`quantised.rs`).

use super::activations;
use super::attributes::Attributes;
use super::budget::Budget;
use super::constants::Constants;
use super::gate_order::{OperatorKind, reordered};
use super::node::Node;
use super::quantised::{QuantisedTensor, RequantisedMatrix};
use super::tensor::Tensor;
use super::value::Value;
use crate::model::{
    Activation, Cell, Direction, LoadError, Matrix, MatrixKind, Peepholes, QuantisedMatrix,
    Requantised, ResetForm, Weights,
};

/// The operator of a recurrent node.
#[derive(Clone, Copy)]
pub(super) struct Operator {
    kind: OperatorKind,
    /// DynamicQuantizeLSTM.
    quantised: bool,
}

/// The recurrent operator of ONNX with this name.
pub(super) fn standard(name: &str) -> Option<Operator> {
    let kind = match name {
        "LSTM" => OperatorKind::Lstm,
        "GRU" => OperatorKind::Gru,
        "RNN" => OperatorKind::Rnn,
        _ => return None,
    };
    Some(Operator {
        kind,
        quantised: false,
    })
}

/// The recurrent operator of ONNX Runtime with this name.
pub(super) fn microsoft(name: &str) -> Option<Operator> {
    (name == "DynamicQuantizeLSTM").then_some(Operator {
        kind: OperatorKind::Lstm,
        quantised: true,
    })
}

/// A recurrent node, read.
pub(super) struct RecurrentNode {
    pub kind: OperatorKind,
    pub directions: Vec<Direction>,
    /// ONNX `layout` 1: the batch is the first axis.
    pub batch_major: bool,
    pub input_size: usize,
    pub hidden_size: usize,
    /// Reports on the matrices stored in 8 bits. Their layer is 0; the chain sets it.
    pub quantised: Vec<QuantisedMatrix>,
}

/// W or R of a node, as stored in the file.
enum StoredMatrix<'a> {
    Floats(&'a Tensor),
    Quantised(QuantisedTensor<'a>),
}

/// The matrix of one direction.
struct DirectionMatrix {
    matrix: Matrix,
    /// Whether the matrix is stored in 8 bits, and then whether it was quantised again.
    quantised: Option<Option<Requantised>>,
}

impl StoredMatrix<'_> {
    /// The matrix of direction `at` of `count`, with this crate's order of rows.
    fn direction(
        &self,
        kind: OperatorKind,
        shape: [usize; 2],
        at: usize,
        count: usize,
    ) -> Result<DirectionMatrix, LoadError> {
        match self {
            StoredMatrix::Floats(tensor) => {
                let [rows, cols] = shape;
                let values = reordered(direction_values(tensor, at, count), kind, cols);
                Ok(DirectionMatrix {
                    matrix: Matrix::new(rows, cols, values)?,
                    quantised: None,
                })
            }
            StoredMatrix::Quantised(tensor) => {
                let RequantisedMatrix { matrix, reason } = tensor.direction(at, count)?;
                Ok(DirectionMatrix {
                    matrix,
                    quantised: Some(reason),
                })
            }
        }
    }
}

/// Reads the attributes and constant inputs of a node.
pub(super) fn read(
    node: Node,
    operator: Operator,
    inputs: &[Option<Value>],
    budget: &mut Budget,
) -> Result<RecurrentNode, LoadError> {
    let Operator { kind, quantised } = operator;
    let max_inputs = match (quantised, kind) {
        (true, _) => 12,
        (false, OperatorKind::Lstm) => 8,
        (false, _) => 6,
    };
    if inputs.len() > max_inputs {
        return Err(node.error(format!(
            "{} inputs; at most {max_inputs} are supported",
            inputs.len()
        )));
    }
    let mut known = vec![
        "activation_alpha",
        "activation_beta",
        "activations",
        "clip",
        "direction",
        "hidden_size",
    ];
    if !quantised {
        known.push("layout");
    }
    match kind {
        OperatorKind::Lstm => known.push("input_forget"),
        OperatorKind::Gru => known.push("linear_before_reset"),
        OperatorKind::Rnn => {}
    }
    let attributes = Attributes::new(node, &known)?;
    let reverse: &[bool] = match attributes.string("direction")?.unwrap_or("forward") {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => {
            return Err(node.error(format!(
                "direction {other:?}; supported: forward, reverse, bidirectional"
            )));
        }
    };
    let count = reverse.len();
    let gates = kind.gates();
    let constants = Constants::new(node, inputs);
    let tensor = |index: usize| {
        if quantised {
            constants.required_bytes(index)
        } else {
            constants.required_floats(index)
        }
    };
    // DynamicQuantizeLSTM stores its matrices transposed.
    let shape = |rows, cols| {
        if quantised {
            [Some(count), cols, rows]
        } else {
            [Some(count), rows, cols]
        }
    };
    let depth = |dims: &[usize]| {
        let axis = if quantised { 1 } else { 2 };
        dims.get(axis).copied()
    };
    let stored = |index: usize, tensor| -> Result<StoredMatrix<'_>, LoadError> {
        Ok(if quantised {
            StoredMatrix::Quantised(QuantisedTensor::read(node, constants, index, tensor)?)
        } else {
            StoredMatrix::Floats(tensor)
        })
    };

    let r = tensor(2)?;
    let hidden = depth(&r.dims).unwrap_or(0);
    let rows = hidden.checked_mul(gates).unwrap_or(0);
    constants.expect(2, r, &[&shape(Some(rows), Some(hidden))])?;
    if let Some(size) = attributes.int("hidden_size")?
        && usize::try_from(size) != Ok(hidden)
    {
        return Err(node.error(format!(
            "hidden_size is {size}, but R has shape {:?} ({hidden} hidden units)",
            r.dims
        )));
    }
    let w = tensor(1)?;
    constants.expect(1, w, &[&shape(Some(rows), None)])?;
    let input_size = depth(&w.dims).unwrap_or(0);
    let (w, r) = (stored(1, w)?, stored(2, r)?);
    let b = constants.floats(3)?;
    if let Some(b) = b {
        constants.expect(3, b, &[&[Some(count), rows.checked_mul(2)]])?;
    }
    let p = match kind {
        OperatorKind::Lstm => constants.floats(7)?,
        _ => None,
    };
    if let Some(p) = p {
        constants.expect(7, p, &[&[Some(count), hidden.checked_mul(3)]])?;
    }

    let cells = cells(node, kind, &attributes, count)?;
    let clip = attributes.float("clip")?;
    let mut directions = Vec::with_capacity(count);
    let mut reports = Vec::new();
    for (at, (cell, reverse)) in cells.into_iter().zip(reverse).enumerate() {
        let vectors = if quantised { 4 } else { 2 };
        let values = rows * (input_size + hidden + vectors) + 3 * hidden;
        budget.charge(values).map_err(|e| node.error(e))?;
        let input = w.direction(kind, [rows, input_size], at, count)?;
        let recurrent = r.direction(kind, [rows, hidden], at, count)?;
        for (index, matrix, quantised) in [
            (1, MatrixKind::Input, input.quantised),
            (2, MatrixKind::Recurrent, recurrent.quantised),
        ] {
            if let Some(requantised) = quantised {
                reports.push(QuantisedMatrix {
                    layer: 0,
                    reverse: *reverse,
                    matrix,
                    tensor: constants.name(index).to_string(),
                    requantised,
                });
            }
        }
        let biases = b.map(|b| direction_values(b, at, count));
        let bias = |half: usize| match biases {
            Some(both) => reordered(&both[half * rows..(half + 1) * rows], kind, 1),
            None => vec![0.0; rows],
        };
        let weights = Weights {
            input: input.matrix,
            recurrent: recurrent.matrix,
            input_bias: bias(0),
            recurrent_bias: bias(1),
            peepholes: p.map(|p| {
                let all = direction_values(p, at, count);
                Peepholes {
                    input: all[..hidden].to_vec(),
                    output: all[hidden..2 * hidden].to_vec(),
                    forget: all[2 * hidden..].to_vec(),
                }
            }),
            projection: None,
        };
        let mut direction = Direction::new(cell, weights).map_err(|e| node.error(e.to_string()))?;
        if let Some(clip) = clip {
            direction = direction
                .with_clip(clip)
                .map_err(|e| node.error(e.to_string()))?;
        }
        directions.push(if *reverse {
            direction.reversed()
        } else {
            direction
        });
    }
    Ok(RecurrentNode {
        kind,
        directions,
        batch_major: attributes.flag("layout")?,
        input_size,
        hidden_size: hidden,
        quantised: reports,
    })
}

/// The cell of each direction.
fn cells(
    node: Node,
    kind: OperatorKind,
    attributes: &Attributes,
    count: usize,
) -> Result<Vec<Cell>, LoadError> {
    use Activation::{Sigmoid, Tanh};
    let defaults: &[Activation] = match kind {
        OperatorKind::Lstm => &[Sigmoid, Tanh, Tanh],
        OperatorKind::Gru => &[Sigmoid, Tanh],
        OperatorKind::Rnn => &[Tanh],
    };
    let each = defaults.len();
    let all = activations::read(node, attributes, each * count)?
        .unwrap_or_else(|| defaults.repeat(count));
    let input_forget = kind == OperatorKind::Lstm && attributes.flag("input_forget")?;
    let after = kind == OperatorKind::Gru && attributes.flag("linear_before_reset")?;
    Ok(all
        .chunks_exact(each)
        .map(|f| match kind {
            OperatorKind::Lstm => Cell::Lstm {
                gate: f[0],
                candidate: f[1],
                output: f[2],
                input_forget,
            },
            OperatorKind::Gru => Cell::Gru {
                gate: f[0],
                candidate: f[1],
                reset: if after {
                    ResetForm::After
                } else {
                    ResetForm::Before
                },
            },
            OperatorKind::Rnn => Cell::Rnn { activation: f[0] },
        })
        .collect())
}

/// The values of direction `at` of `count`.
fn direction_values(tensor: &Tensor, at: usize, count: usize) -> &[f32] {
    let all = tensor.as_floats().unwrap_or_default();
    let each = all.len() / count;
    &all[at * each..(at + 1) * each]
}
