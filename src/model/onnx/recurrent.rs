//! One LSTM, GRU or RNN node's attributes and weights as directions of a layer.
//!
//! ONNX shapes, for `D` directions and `G` gates: `W [D, G·H, E]`, `R [D, G·H, H]`,
//! `B [D, 2·G·H]` (input biases, then recurrent ones), `P [D, 3·H]` (input, output, forget).

use super::activations;
use super::attributes::Attributes;
use super::budget::Budget;
use super::node::Node;
use super::tensor::Tensor;
use super::value::Value;
use crate::model::{
    Activation, Cell, CellKind, Direction, LoadError, Matrix, Peepholes, ResetForm, Weights,
};

/// The directions of a recurrent node, and what its wiring must know.
pub(super) struct Recurrent {
    pub kind: CellKind,
    pub directions: Vec<Direction>,
    /// ONNX `layout` 1: batch before time, and before direction.
    pub batch_major: bool,
    pub input_size: usize,
    pub hidden_size: usize,
}

/// The kind of cell an operator stands for.
pub(super) fn kind(operator: &str) -> Option<CellKind> {
    match operator {
        "LSTM" => Some(CellKind::Lstm),
        "GRU" => Some(CellKind::Gru),
        "RNN" => Some(CellKind::Rnn),
        _ => None,
    }
}

/// Row blocks of ONNX (LSTM i, o, f, c; GRU z, r, h) in this crate's order (LSTM i, f, c, o;
/// GRU r, z, h).
fn gate_order(kind: CellKind) -> &'static [usize] {
    match kind {
        CellKind::Lstm => &[0, 2, 3, 1],
        CellKind::Gru => &[1, 0, 2],
        CellKind::Rnn => &[0],
    }
}

/// Reads a node's attributes and its constant inputs.
pub(super) fn read(
    node: Node,
    kind: CellKind,
    inputs: &[Option<Value>],
    budget: &mut Budget,
) -> Result<Recurrent, LoadError> {
    let most = if kind == CellKind::Lstm { 8 } else { 6 };
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
        "layout",
    ];
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
    let constant = |index: usize, name: &'static str| weight(node, inputs, index, name);
    let required = |index, name| {
        constant(index, name)?
            .ok_or_else(|| node.error(format!("input {index} ({name}) is missing")))
    };

    let r = required(2, "R")?;
    let hidden = *r.dims.last().unwrap_or(&0);
    let rows = hidden.checked_mul(gates).unwrap_or(0);
    expect(node, "R", &r, &[Some(count), Some(rows), Some(hidden)])?;
    if let Some(size) = attributes.int("hidden_size")?
        && usize::try_from(size) != Ok(hidden)
    {
        return Err(node.error(format!(
            "hidden_size is {size}, but R has shape {:?} (for {hidden} hidden units)",
            r.dims
        )));
    }
    let w = required(1, "W")?;
    expect(node, "W", &w, &[Some(count), Some(rows), None])?;
    let input_size = w.dims[2];
    let b = constant(3, "B")?;
    if let Some(b) = &b {
        expect(node, "B", b, &[Some(count), rows.checked_mul(2)])?;
    }
    let p = match kind {
        CellKind::Lstm => constant(7, "P")?,
        _ => None,
    };
    if let Some(p) = &p {
        expect(node, "P", p, &[Some(count), hidden.checked_mul(3)])?;
    }

    let cells = cells(node, kind, &attributes, count)?;
    let clip = attributes.float("clip")?;
    let mut directions = Vec::with_capacity(count);
    for (at, (cell, reverse)) in cells.into_iter().zip(reverse).enumerate() {
        let values = rows * (input_size + hidden + 2) + 3 * hidden;
        budget.charge(values).map_err(|e| node.error(e))?;
        let biases = b.as_ref().map(|b| part(b, at, count));
        let bias = |half: usize| match biases {
            Some(both) => reordered(&both[half * rows..(half + 1) * rows], kind, 1),
            None => vec![0.0; rows],
        };
        let weights = Weights {
            input: Matrix::new(
                rows,
                input_size,
                reordered(part(&w, at, count), kind, input_size),
            )?,
            recurrent: Matrix::new(rows, hidden, reordered(part(&r, at, count), kind, hidden))?,
            input_bias: bias(0),
            recurrent_bias: bias(1),
            peepholes: p.as_ref().map(|p| {
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

/// A constant float input, if given.
fn weight(
    node: Node,
    inputs: &[Option<Value>],
    index: usize,
    name: &str,
) -> Result<Option<Tensor>, LoadError> {
    match inputs.get(index).and_then(Option::as_ref) {
        None => Ok(None),
        Some(Value::Constant(tensor)) if tensor.as_floats().is_some() => Ok(Some(tensor.clone())),
        Some(other) => Err(node.error(format!(
            "input {index} ({name}) is {}; supported: a constant of floats (an initializer)",
            match other {
                Value::Constant(_) => "a constant of integers",
                other => other.kind(),
            }
        ))),
    }
}

/// Refuses a weight whose shape is another (`None` stands for any size).
fn expect(
    node: Node,
    name: &str,
    tensor: &Tensor,
    shape: &[Option<usize>],
) -> Result<(), LoadError> {
    let fits = tensor.dims.len() == shape.len()
        && std::iter::zip(&tensor.dims, shape).all(|(d, s)| *d > 0 && s.is_none_or(|s| s == *d));
    if fits {
        return Ok(());
    }
    let wanted: Vec<String> = shape
        .iter()
        .map(|s| s.map_or("any".into(), |s| s.to_string()))
        .collect();
    let input = ["X", "W", "R", "B", "", "", "", "P"]
        .iter()
        .position(|n| *n == name)
        .and_then(|i| node.proto.input.get(i))
        .map_or("", String::as_str);
    Err(node.error(format!(
        "{name} ({input:?}) has shape {:?}; it must be [{}]",
        tensor.dims,
        wanted.join(", ")
    )))
}

/// One direction's values.
fn part(tensor: &Tensor, at: usize, of: usize) -> &[f32] {
    let all = tensor.as_floats().unwrap_or_default();
    let each = all.len() / of;
    &all[at * each..(at + 1) * each]
}

/// The gates' row blocks in this crate's order.
fn reordered(values: &[f32], kind: CellKind, cols: usize) -> Vec<f32> {
    let block = values.len() / kind.gates();
    debug_assert!(block.is_multiple_of(cols));
    gate_order(kind)
        .iter()
        .flat_map(|gate| &values[gate * block..(gate + 1) * block])
        .copied()
        .collect()
}
