//! A recognised cell as a recurrent node of ONNX with its weights.

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, NodeProto, TensorProto};

use super::cell::{Cell, Gate};
use super::replacement::Replacement;
use super::terms::{Matrix, Value};
use crate::recurrent::KEEPS_STATES;
use crate::source::attributes::integer_attribute;
use crate::tensor::Tensor;

/// The inputs of a cell whose features are joined to those of the layer's input.
#[derive(Clone, Debug)]
pub(super) struct CellInputs {
    pub values: Vec<Value>,
    widths: Vec<usize>,
}

impl CellInputs {
    /// All values but `h` that the gates multiply with a matrix. `None` if a size contradicts
    /// another, if there is no input, or if `h` is not the hidden state.
    pub fn of(cell: &Cell, h: &Value) -> Option<CellInputs> {
        let mut inputs = CellInputs {
            values: Vec::new(),
            widths: Vec::new(),
        };
        let mut reads_state = false;
        for gate in &cell.gates {
            let mut in_gate: Vec<&Value> = Vec::new();
            for (value, matrix) in &gate.linear.products {
                // Matrices of the same value are not added: that would round.
                if in_gate.contains(&value) {
                    return None;
                }
                in_gate.push(value);
                if value == h {
                    let fits = matrix.rows() == cell.hidden_size && gate.recurrent.is_none();
                    reads_state = true;
                    fits.then_some(())?;
                } else if let Some(at) = inputs.values.iter().position(|known| known == value) {
                    (inputs.widths[at] == matrix.rows()).then_some(())?;
                } else {
                    inputs.values.push(value.clone());
                    inputs.widths.push(matrix.rows());
                }
            }
            if let Some((matrix, _)) = &gate.recurrent {
                reads_state = true;
                (matrix.rows() == cell.hidden_size).then_some(())?;
            }
        }
        let has_sizes = cell.hidden_size > 0 && inputs.widths.iter().all(|&width| width > 0);
        (reads_state && has_sizes && !inputs.values.is_empty()).then_some(inputs)
    }

    /// The features of each.
    pub fn widths(&self) -> impl Iterator<Item = usize> {
        self.widths.iter().copied()
    }

    /// The features of a step.
    pub fn width(&self) -> usize {
        self.widths.iter().sum()
    }
}

/// A call of a layer.
pub(super) struct LayerCall<'a> {
    pub cell: &'a Cell,
    pub inputs: &'a CellInputs,
    /// The hidden state among the terms of the cell.
    pub h: &'a Value,
    /// The name of the node.
    pub name: &'a str,
    pub is_reversed: bool,
    /// The input `[steps, batch, features]`.
    pub x: String,
    /// The lengths of the sequences; empty: all steps.
    pub lengths: String,
    /// The initial hidden state, and of an LSTM the initial cell state, `[batch, hidden_size]`.
    pub initial: Vec<&'a str>,
    pub batch: usize,
}

/// The names of the outputs of a layer: all hidden states, and the last states.
pub(super) struct LayerOutputs {
    pub y: String,
    /// In the order of [`LayerCall::initial`].
    pub last: Vec<String>,
}

impl LayerCall<'_> {
    /// Adds the node of the layer with its constants.
    pub fn add_to(self, made: &mut Replacement) -> LayerOutputs {
        let LayerCall { name, batch, .. } = self;
        let weights = weights(self.cell, self.inputs, self.h, name);
        let mut node = node(self.cell, name, self.is_reversed);
        node.input.push(self.x);
        node.input
            .extend(weights.iter().map(|one| one.name.clone()));
        node.input.push(self.lengths);
        made.constants.extend(weights);
        let mut last = Vec::new();
        for (state, part) in self.initial.iter().zip(["h", "c"]) {
            let initial = format!("{name}/initial_{part}");
            made.reshape(state, &initial, &[1, batch, self.cell.hidden_size]);
            node.input.push(initial);
            last.push(format!("{name}/last_{part}"));
        }
        let y = format!("{name}/y");
        node.output.push(y.clone());
        node.output.extend(last.iter().cloned());
        made.nodes.push(node);
        LayerOutputs { y, last }
    }
}

/// `W`, `R` and `B` of a layer of one direction.
fn weights(cell: &Cell, inputs: &CellInputs, h: &Value, name: &str) -> [TensorProto; 3] {
    let size = cell.hidden_size;
    let (mut w, mut r) = (Vec::new(), Vec::new());
    let (mut input_bias, mut recurrent_bias) = (Vec::new(), Vec::new());
    for gate in &cell.gates {
        let matrices = inputs.values.iter().map(|input| gate.matrix(input));
        let columns = inputs.widths.iter().copied().zip(matrices);
        add_transposed(&mut w, columns.collect::<Vec<_>>().as_slice(), size);
        let recurrent = gate.recurrent.as_ref().map(|(matrix, _)| matrix);
        let recurrent = recurrent.or_else(|| gate.matrix(h));
        add_transposed(&mut r, &[(size, recurrent)], size);
        input_bias.extend_from_slice(&gate.linear.bias);
        match &gate.recurrent {
            Some((_, bias)) => recurrent_bias.extend_from_slice(bias),
            None => recurrent_bias.extend(std::iter::repeat_n(0.0, size)),
        }
    }
    let rows = cell.gates.len() * size;
    let bias = [input_bias, recurrent_bias].concat();
    let constant = |part: &str, shape: &[usize], values: Vec<f32>| {
        let value = Tensor::new(shape, values).expect("as many elements");
        value.to_proto(&format!("{name}/{part}"))
    };
    [
        constant("W", &[1, rows, inputs.width()], w),
        constant("R", &[1, rows, size], r),
        constant("B", &[1, 2 * rows], bias),
    ]
}

/// Adds matrices side by side, transposed: a row for each unit. An absent matrix is zero.
fn add_transposed(to: &mut Vec<f32>, parts: &[(usize, Option<&Matrix>)], units: usize) {
    for unit in 0..units {
        for (rows, matrix) in parts {
            to.extend((0..*rows).map(|row| matrix.map_or(0.0, |matrix| matrix.row(row)[unit])));
        }
    }
}

/// The recurrent node, without its inputs and outputs.
fn node(cell: &Cell, name: &str, is_reversed: bool) -> NodeProto {
    let attribute = |name: &str, kind: AttributeType| AttributeProto {
        name: name.into(),
        r#type: kind as i32,
        ..AttributeProto::default()
    };
    let parameters = |name: &str, index: usize| {
        let values = cell.activations.iter();
        let values = values.filter_map(|of| of.parameters.get(index).copied());
        AttributeProto {
            floats: values.collect(),
            ..attribute(name, AttributeType::Floats)
        }
    };
    let names = cell.activations.iter();
    let names = names.map(|activation| activation.name.as_bytes().to_vec());
    let direction: &[u8] = if is_reversed { b"reverse" } else { b"forward" };
    let mut attributes = vec![
        integer_attribute("hidden_size", cell.hidden_size as i64),
        integer_attribute(KEEPS_STATES, 1),
        AttributeProto {
            strings: names.collect(),
            ..attribute("activations", AttributeType::Strings)
        },
        AttributeProto {
            s: direction.to_vec(),
            ..attribute("direction", AttributeType::String)
        },
    ];
    let of_activations = [
        parameters("activation_alpha", 0),
        parameters("activation_beta", 1),
    ];
    attributes.extend(
        of_activations
            .into_iter()
            .filter(|one| !one.floats.is_empty()),
    );
    if cell.operator == "GRU" {
        let flag = i64::from(cell.is_linear_before_reset);
        attributes.push(integer_attribute("linear_before_reset", flag));
    }
    NodeProto {
        name: name.to_owned(),
        op_type: cell.operator.to_owned(),
        attribute: attributes,
        ..NodeProto::default()
    }
}

/// Whether two cells have the same weights, where `h` and `inputs` of one are those of the other.
pub(super) fn has_same_weights(
    (one, one_inputs, one_h): (&Cell, &CellInputs, &Value),
    (other, other_inputs, other_h): (&Cell, &CellInputs, &Value),
) -> bool {
    let same = |a: Option<&Matrix>, b: Option<&Matrix>| match (a, b) {
        (Some(a), Some(b)) => a.equals(b),
        (None, None) => true,
        _ => false,
    };
    let recurrent = |a: &Gate, b: &Gate| match (&a.recurrent, &b.recurrent) {
        (Some((a, a_bias)), Some((b, b_bias))) => a.equals(b) && a_bias == b_bias,
        (None, None) => true,
        _ => false,
    };
    let inputs = one_inputs.values.iter().zip(&other_inputs.values);
    let pairs: Vec<(&Value, &Value)> = inputs.chain([(one_h, other_h)]).collect();
    one.operator == other.operator
        && one.hidden_size == other.hidden_size
        && one.activations == other.activations
        && one.is_linear_before_reset == other.is_linear_before_reset
        && one_inputs.widths == other_inputs.widths
        && one.gates.iter().zip(&other.gates).all(|(a, b)| {
            a.linear.bias == b.linear.bias
                && recurrent(a, b)
                && pairs.iter().all(|(x, y)| same(a.matrix(x), b.matrix(y)))
        })
}
