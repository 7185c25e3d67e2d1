//! The model of one recurrent node whose weights a program has already, as plug-ins of runtimes do.

use super::budget::Budget;
use super::constants::INPUTS;
use super::graph::{self, MICROSOFT, MICROSOFT_VERSION};
use super::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, data_type,
};
use super::recurrent;
use crate::model::{LoadError, Model};

/// A recurrent node of ONNX (LSTM, GRU, RNN) or of ONNX Runtime (DynamicQuantizeLSTM), with the
/// values of its weights. [`Model::from_recurrent`] makes a model of it.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentOp<'a> {
    /// Its name in errors.
    pub name: &'a str,
    /// The name of the operator, such as `LSTM`.
    pub operator: &'a str,
    /// Its attributes.
    pub attributes: &'a [OpAttribute],
    /// Those of [`RecurrentOp::INPUTS`] that each run gives: `X`, and `sequence_lens`, `initial_h`
    /// and `initial_c` where the node has them.
    pub run_inputs: &'a [&'a str],
    /// The other inputs that the node has.
    pub weights: &'a [OpWeights<'a>],
}

/// An attribute of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct OpAttribute {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: AttributeValue,
}

/// The value of an [`OpAttribute`]. Text is as in the file: bytes, which should be UTF-8.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the types of ONNX")]
pub enum AttributeValue {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Floats(Vec<f32>),
    String(Vec<u8>),
    Strings(Vec<Vec<u8>>),
}

/// The values of an input of a [`RecurrentOp`].
#[derive(Clone, Copy, Debug)]
pub struct OpWeights<'a> {
    /// One of [`RecurrentOp::INPUTS`].
    pub input: &'a str,
    /// The size of each axis.
    pub shape: &'a [usize],
    /// ONNX's number of the element type (`TensorProto.DataType`): 1 float, 2 uint8, 3 int8,
    /// 10 float16, 16 bfloat16.
    pub element_type: i32,
    /// The elements, little-endian, the last axis fastest.
    pub bytes: &'a [u8],
}

impl RecurrentOp<'_> {
    /// The inputs of the operators, in their order: LSTM has the first eight, GRU and RNN the first
    /// six, DynamicQuantizeLSTM all.
    pub const INPUTS: [&'static str; 12] = INPUTS;
    /// The outputs, in their order: GRU and RNN have the first two.
    pub const OUTPUTS: [&'static str; 3] = ["Y", "Y_h", "Y_c"];

    /// Whether the operator of this name in this domain is a recurrent one.
    pub fn is_recurrent(operator: &str, domain: &str) -> bool {
        match domain {
            "" | "ai.onnx" => recurrent::standard(operator).is_some(),
            MICROSOFT => recurrent::microsoft(operator).is_some(),
            _ => false,
        }
    }

    /// Directions of a node with these attributes.
    pub fn directions(attributes: &[OpAttribute]) -> usize {
        let bidirectional = AttributeValue::String(b"bidirectional".to_vec());
        if value(attributes, "direction") == Some(&bidirectional) {
            2
        } else {
            1
        }
    }

    /// ONNX `layout` 1: the batch is the first axis of the inputs and outputs.
    pub fn is_batch_major(attributes: &[OpAttribute]) -> bool {
        value(attributes, "layout") == Some(&AttributeValue::Int(1))
    }

    /// Whether this one of [`RecurrentOp::INPUTS`] is part of the weights.
    pub fn is_weight(input: &str) -> bool {
        !matches!(input, "X" | "sequence_lens" | "initial_h" | "initial_c")
    }

    /// The graph of this node alone, whose names are those of the operator.
    fn graph(&self) -> GraphProto {
        let is_given = |input: &str| {
            self.run_inputs.contains(&input) || self.weights.iter().any(|of| of.input == input)
        };
        let last = INPUTS.iter().rposition(|input| is_given(input));
        let slots = INPUTS.iter().take(last.map_or(0, |last| last + 1));
        let slot = |input: &&str| {
            if is_given(input) {
                (*input).to_owned()
            } else {
                String::new()
            }
        };
        let is_microsoft = recurrent::microsoft(self.operator).is_some();
        let has_cell_state = is_microsoft || self.operator == "LSTM";
        let outputs = &Self::OUTPUTS[..if has_cell_state { 3 } else { 2 }];
        GraphProto {
            input: self
                .run_inputs
                .iter()
                .map(|input| run_input(input))
                .collect(),
            initializer: self.weights.iter().map(initializer).collect(),
            node: vec![NodeProto {
                name: self.name.into(),
                op_type: self.operator.into(),
                domain: if is_microsoft { MICROSOFT } else { "" }.into(),
                input: slots.map(slot).collect(),
                output: outputs.iter().map(|&output| output.into()).collect(),
                attribute: self.attributes.iter().map(attribute).collect(),
            }],
            output: outputs
                .iter()
                .map(|&name| ValueInfoProto {
                    name: name.into(),
                    r#type: None,
                })
                .collect(),
            sparse_initializer: None,
        }
    }
}

impl Model {
    /// The model of one recurrent node: its ports have the names and axes of the operator's inputs
    /// and outputs. It is the model of an ONNX file that has this node alone
    /// ([`Model::from_onnx`]).
    ///
    /// ```
    /// use gatestream::model::{Model, OpWeights, RecurrentOp};
    ///
    /// // An RNN of 1 unit and 1 feature: W [1, 1, 1], R [1, 1, 1].
    /// let (w, r) = (0.5f32.to_le_bytes(), 0.25f32.to_le_bytes());
    /// let weights = |input, bytes| OpWeights { input, shape: &[1, 1, 1], element_type: 1, bytes };
    /// let model = Model::from_recurrent(&RecurrentOp {
    ///     name: "rnn",
    ///     operator: "RNN",
    ///     attributes: &[],
    ///     run_inputs: &["X"],
    ///     weights: &[weights("W", &w), weights("R", &r)],
    /// })?;
    /// assert_eq!((model.signature().input, model.signature().output), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::from_onnx`], for an operator, attributes or weights that are not supported.
    pub fn from_recurrent(op: &RecurrentOp<'_>) -> Result<Model, LoadError> {
        let is_known = |input: &&str| INPUTS.contains(input) && RecurrentOp::is_weight(input);
        let mut names = op.weights.iter().map(|of| of.input);
        if let Some(unknown) = names.find(|name| !is_known(name)) {
            return Err(LoadError::Tensor {
                name: unknown.into(),
                reason: "these weights are of no input of a recurrent operator".into(),
            });
        }
        let bytes = op.weights.iter().map(|of| of.bytes.len()).sum();
        graph::load(
            op.graph(),
            Some(MICROSOFT_VERSION),
            &mut Budget::of_file(bytes),
        )
    }
}

fn value<'a>(attributes: &'a [OpAttribute], name: &str) -> Option<&'a AttributeValue> {
    let found = attributes.iter().find(|attribute| attribute.name == name);
    found.map(|attribute| &attribute.value)
}

/// An input of any size.
fn run_input(name: &str) -> ValueInfoProto {
    let (element, axes) = if name == "sequence_lens" {
        (data_type::INT32, 1)
    } else {
        (data_type::FLOAT, 3)
    };
    let dimension = |axis| DimensionProto {
        dim_value: None,
        dim_param: format!("{name}_{axis}"),
    };
    let shape = TensorShapeProto {
        dim: (0..axes).map(dimension).collect(),
    };
    let tensor_type = TensorTypeProto {
        elem_type: element,
        shape: Some(shape),
    };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            tensor_type: Some(tensor_type),
        }),
    }
}

fn initializer(of: &OpWeights<'_>) -> TensorProto {
    TensorProto {
        name: of.input.into(),
        dims: of
            .shape
            .iter()
            .map(|&size| i64::try_from(size).unwrap_or(i64::MAX))
            .collect(),
        data_type: of.element_type,
        raw_data: Some(of.bytes.to_vec()),
        ..TensorProto::default()
    }
}

fn attribute(of: &OpAttribute) -> AttributeProto {
    let mut proto = AttributeProto {
        name: of.name.clone(),
        ..AttributeProto::default()
    };
    proto.r#type = match of.value.clone() {
        AttributeValue::Float(value) => {
            proto.f = value;
            attribute_type::FLOAT
        }
        AttributeValue::Int(value) => {
            proto.i = value;
            attribute_type::INT
        }
        AttributeValue::String(value) => {
            proto.s = value;
            attribute_type::STRING
        }
        AttributeValue::Floats(values) => {
            proto.floats = values;
            attribute_type::FLOATS
        }
        AttributeValue::Ints(values) => {
            proto.ints = values;
            attribute_type::INTS
        }
        AttributeValue::Strings(values) => {
            proto.strings = values;
            attribute_type::STRINGS
        }
    };
    proto
}
