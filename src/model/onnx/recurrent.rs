//! One LSTM, GRU, RNN or DynamicQuantizeLSTM node's attributes and weights as directions of a
//! layer.
//!
//! ONNX shapes, for `D` directions and `G` gates: `W [D, G·H, E]`, `R [D, G·H, H]`,
//! `B [D, 2·G·H]` (input biases, then recurrent ones), `P [D, 3·H]` (input, output, forget).
//! DynamicQuantizeLSTM has `W [D, E, 4·H]`, `R [D, H, 4·H]`, in 8 bits (`quantised.rs`).

use super::activations;
use super::attributes::Attributes;
use super::budget::Budget;
use super::constants::Constants;
use super::gate_order::reordered;
use super::node::Node;
use super::quantised::Quantised;
use super::tensor::Tensor;
use super::value::Value;
use crate::model::{
    Activation, Cell, CellKind, Direction, LoadError, Matrix, MatrixKind, Peepholes,
    QuantisedMatrix, Requantised, ResetForm, Weights,
};

/// Which operator a recurrent node is.
#[derive(Clone, Copy)]
pub(super) struct Operator {
    kind: CellKind,
    /// DynamicQuantizeLSTM.
    quantised: bool,
}

/// The operator of ONNX of that name.
pub(super) fn standard(name: &str) -> Option<Operator> {
    let kind = match name {
        "LSTM" => CellKind::Lstm,
        "GRU" => CellKind::Gru,
        "RNN" => CellKind::Rnn,
        _ => return None,
    };
    Some(Operator {
        kind,
        quantised: false,
    })
}

/// ONNX Runtime's own operator of that name.
pub(super) fn microsoft(name: &str) -> Option<Operator> {
    (name == "DynamicQuantizeLSTM").then_some(Operator {
        kind: CellKind::Lstm,
        quantised: true,
    })
}

/// The directions of a recurrent node, and what its wiring must know.
pub(super) struct Recurrent {
    pub kind: CellKind,
    pub directions: Vec<Direction>,
    /// ONNX `layout` 1: batch before time, and before direction.
    pub batch_major: bool,
    pub input_size: usize,
    pub hidden_size: usize,
    /// Matrices that the file has in 8 bits, as of layer 0.
    pub quantised: Vec<QuantisedMatrix>,
}

/// W or R of a node, as the file stores them.
enum Stored<'a> {
    Plain(&'a Tensor),
    Quantised(Quantised<'a>),
}

impl Stored<'_> {
    /// One direction's, with this crate's rows; of 8 bits also whether it was quantised anew.
    fn matrix(
        &self,
        kind: CellKind,
        (rows, cols): (usize, usize),
        at: usize,
        of: usize,
    ) -> Result<(Matrix, Option<Option<Requantised>>), LoadError> {
        match self {
            Stored::Plain(tensor) => {
                let values = reordered(part(tensor, at, of), kind, cols);
                Ok((Matrix::new(rows, cols, values)?, None))
            }
            Stored::Quantised(quantised) => {
                let (matrix, requantised) = quantised.matrix(at, of)?;
                Ok((matrix, Some(requantised)))
            }
        }
    }
}

/// Reads a node's attributes and its constant inputs.
pub(super) fn read(
    node: Node,
    operator: Operator,
    inputs: &[Option<Value>],
    budget: &mut Budget,
) -> Result<Recurrent, LoadError> {
    let Operator { kind, quantised } = operator;
    let most = match (quantised, kind) {
        (true, _) => 12,
        (false, CellKind::Lstm) => 8,
        (false, _) => 6,
    };
    if inputs.len() > most {
        return Err(node.error(format!("{} inputs; it takes at most {most}", inputs.len())));
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
        CellKind::Lstm => known.push("input_forget"),
        CellKind::Gru => known.push("linear_before_reset"),
        CellKind::Rnn => {}
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
    let tensor = |index: usize| match quantised {
        false => constants.required_floats(index),
        true => constants.required_bytes(index),
    };
    // Rows, and what a row holds, in the order in which the file has those axes.
    let shape = |rows, cols| match quantised {
        false => [Some(count), rows, cols],
        true => [Some(count), cols, rows],
    };
    let depth = |dims: &[usize]| match quantised {
        false => dims.last().copied(),
        true => dims.get(1).copied(),
    };
    let stored = |index: usize, tensor| {
        Ok::<_, LoadError>(match quantised {
            false => Stored::Plain(tensor),
            true => Stored::Quantised(Quantised::read(node, constants, index, tensor)?),
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
            "hidden_size is {size}, but R has shape {:?} (for {hidden} hidden units)",
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
        CellKind::Lstm => constants.floats(7)?,
        _ => None,
    };
    if let Some(p) = p {
        constants.expect(7, p, &[&[Some(count), hidden.checked_mul(3)]])?;
    }

    let cells = cells(node, kind, &attributes, count)?;
    let clip = attributes.float("clip")?;
    let mut directions = Vec::with_capacity(count);
    let mut taken = Vec::new();
    for (at, (cell, reverse)) in cells.into_iter().zip(reverse).enumerate() {
        let vectors = if quantised { 4 } else { 2 };
        let values = rows * (input_size + hidden + vectors) + 3 * hidden;
        budget.charge(values).map_err(|e| node.error(e))?;
        let (input, input_taken) = w.matrix(kind, (rows, input_size), at, count)?;
        let (recurrent, recurrent_taken) = r.matrix(kind, (rows, hidden), at, count)?;
        for (index, matrix, requantised) in [
            (1, MatrixKind::Input, input_taken),
            (2, MatrixKind::Recurrent, recurrent_taken),
        ] {
            taken.extend(requantised.map(|requantised| QuantisedMatrix {
                layer: 0,
                reverse: *reverse,
                matrix,
                tensor: constants.name(index).to_string(),
                requantised,
            }));
        }
        let biases = b.map(|b| part(b, at, count));
        let bias = |half: usize| match biases {
            Some(both) => reordered(&both[half * rows..(half + 1) * rows], kind, 1),
            None => vec![0.0; rows],
        };
        let weights = Weights {
            input,
            recurrent,
            input_bias: bias(0),
            recurrent_bias: bias(1),
            peepholes: p.map(|p| {
                let all = part(p, at, count);
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
    Ok(Recurrent {
        kind,
        directions,
        batch_major: attributes.flag("layout")?,
        input_size,
        hidden_size: hidden,
        quantised: taken,
    })
}

/// One cell for each direction.
fn cells(
    node: Node,
    kind: CellKind,
    attributes: &Attributes,
    count: usize,
) -> Result<Vec<Cell>, LoadError> {
    use Activation::{Sigmoid, Tanh};
    let defaults: &[Activation] = match kind {
        CellKind::Lstm => &[Sigmoid, Tanh, Tanh],
        CellKind::Gru => &[Sigmoid, Tanh],
        CellKind::Rnn => &[Tanh],
    };
    let each = defaults.len();
    let all = activations::read(node, attributes, each * count)?
        .unwrap_or_else(|| defaults.repeat(count));
    let input_forget = kind == CellKind::Lstm && attributes.flag("input_forget")?;
    let after = kind == CellKind::Gru && attributes.flag("linear_before_reset")?;
    Ok(all
        .chunks_exact(each)
        .map(|f| match kind {
            CellKind::Lstm => Cell::Lstm {
                gate: f[0],
                candidate: f[1],
                output: f[2],
                input_forget,
            },
            CellKind::Gru => Cell::Gru {
                gate: f[0],
                candidate: f[1],
                reset: if after {
                    ResetForm::After
                } else {
                    ResetForm::Before
                },
            },
            CellKind::Rnn => Cell::Rnn { activation: f[0] },
        })
        .collect())
}

/// One direction's values.
fn part(tensor: &Tensor, at: usize, of: usize) -> &[f32] {
    let all = tensor.as_floats().unwrap_or_default();
    let each = all.len() / of;
    &all[at * each..(at + 1) * each]
}
