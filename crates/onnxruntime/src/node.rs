//! A recurrent node of a graph: its model, and the places of its inputs and outputs.

use gatestream::Model;
use prost::Message;

use crate::api::{Api, AttributeValue, Result, Tensor};
use crate::ffi::{FLOAT, INT32, Node, ValueInfo};
use crate::onnx::*;

/// The inputs of the operators, in their order. Those of LSTM are the first eight; GRU and RNN have
/// the first six.
const INPUTS: [&str; 12] = [
    "X",
    "W",
    "R",
    "B",
    "sequence_lens",
    "initial_h",
    "initial_c",
    "P",
    "W_scale",
    "W_zero_point",
    "R_scale",
    "R_zero_point",
];
const OUTPUTS: [&str; 3] = ["Y", "Y_h", "Y_c"];

/// Whether an input is read at each run.
fn is_read(name: &str) -> bool {
    matches!(name, "X" | "sequence_lens" | "initial_h" | "initial_c")
}

/// See the [module](self).
pub struct RecurrentNode {
    pub name: String,
    pub operator: String,
    pub directions: usize,
    /// The batch is the first axis.
    pub is_batch_major: bool,
    attributes: Vec<(String, AttributeValue)>,
    /// The names of the values at the first of [`INPUTS`]; empty where an optional one is absent.
    inputs: Vec<String>,
    /// The names of the outputs Y, Y_h and Y_c; `None`: nobody reads it.
    pub outputs: [Option<String>; 3],
}

/// Whether an operator may be a recurrent layer.
pub fn is_recurrent(operator: &str, domain: &str) -> bool {
    match domain {
        "" | "ai.onnx" => matches!(operator, "LSTM" | "GRU" | "RNN"),
        "com.microsoft" => operator == "DynamicQuantizeLSTM",
        _ => false,
    }
}

impl RecurrentNode {
    /// Reads a node whose operator [is recurrent](is_recurrent).
    ///
    /// # Errors
    /// Why it is left to ONNX Runtime.
    pub fn read(api: &Api, node: *const Node) -> Result<RecurrentNode> {
        let (name, operator) = (api.node_name(node)?, api.operator(node)?);
        let mut attributes = api.attributes(node)?;
        let inputs = value_names(api, &api.inputs(node)?)?;
        if inputs.len() > INPUTS.len() {
            return Err(format!("it has {} inputs", inputs.len()));
        }
        let outputs = api.outputs(node)?;
        let output = |at: usize| -> Result<Option<String>> {
            let Some(&value) = outputs.get(at) else {
                return Ok(None);
            };
            let name = api.value_name(value)?;
            Ok((!name.is_empty()).then_some(name))
        };
        let outputs = [output(0)?, output(1)?, output(2)?];
        let of = |name: &str| {
            attributes
                .iter()
                .find(|(found, _)| found == name)
                .map(|(_, v)| v)
        };
        let is_bidirectional =
            matches!(of("direction"), Some(AttributeValue::String(d)) if d == b"bidirectional");
        let is_batch_major = of("layout") == Some(&AttributeValue::Int(1));
        let directions = if is_bidirectional { 2 } else { 1 };
        if operator == "RNN" {
            // The default of its schema, which ONNX Runtime fills in, is for two directions.
            let activations = attributes
                .iter_mut()
                .find(|(name, _)| name == "activations");
            if let Some((_, AttributeValue::Strings(names))) = activations {
                names.truncate(directions);
            }
        }
        Ok(RecurrentNode {
            name,
            operator,
            directions,
            is_batch_major,
            attributes,
            inputs,
            outputs,
        })
    }

    /// The name of the value at this one of [`INPUTS`]; `None`: it is absent.
    pub fn input(&self, input: &str) -> Option<&str> {
        self.given()
            .find(|(found, _)| *found == input)
            .map(|(_, value)| value)
    }

    /// The inputs that are weights, and the names of their values.
    pub fn weights(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.given().filter(|(input, _)| !is_read(input))
    }

    /// All inputs that are not absent, and the names of their values.
    fn given(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = INPUTS
            .into_iter()
            .zip(self.inputs.iter().map(String::as_str));
        all.filter(|(_, value)| !value.is_empty())
    }

    /// Its model with the weights of the file.
    ///
    /// # Errors
    /// As [`RecurrentNode::model`], and weights that are no constants.
    pub fn constant_model(&self, api: &Api, node: *const Node) -> Result<Model> {
        let values = api.inputs(node)?;
        let mut weights = Vec::new();
        for (&input, value) in INPUTS.iter().zip(values) {
            if is_read(input) || self.input(input).is_none() {
                continue;
            }
            let constant = api.constant(value)?;
            weights.push((
                input,
                constant.ok_or_else(|| format!("{input} is no constant"))?,
            ));
        }
        self.model(&weights)
    }

    /// Its model with these weights.
    ///
    /// # Errors
    /// Why it is left to ONNX Runtime.
    pub fn model(&self, weights: &[(&'static str, Tensor<'_>)]) -> Result<Model> {
        let weights = weights
            .iter()
            .map(|(input, tensor)| initializer(input, tensor));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let slots = INPUTS.iter().zip(&self.inputs);
        let slots = slots.map(|(&input, value)| if value.is_empty() { "" } else { input });
        let slots = slots.map(str::to_owned).collect();
        let file = file(&self.operator, &self.attributes, slots, weights);
        Model::from_onnx(&file).map_err(|why| why.to_string())
    }
}

/// The names of values; empty for one that is absent.
pub fn value_names(api: &Api, values: &[*const ValueInfo]) -> Result<Vec<String>> {
    values.iter().map(|&value| api.value_name(value)).collect()
}

/// Lengths as sizes.
pub fn lengths(values: &[i32]) -> Result<Vec<usize>> {
    let lengths = { values.iter() }.map(|&length| {
        usize::try_from(length).map_err(|_| format!("a sequence of length {length}"))
    });
    lengths.collect()
}

fn initializer(name: &str, tensor: &Tensor<'_>) -> Result<TensorProto> {
    let bytes = tensor.bytes().map_err(|why| format!("{name} is {why}"))?;
    Ok(TensorProto {
        name: name.into(),
        dims: tensor.shape.iter().map(|&length| length as i64).collect(),
        data_type: tensor.element_type,
        raw_data: bytes.to_vec(),
    })
}

fn attribute((name, value): &(String, AttributeValue)) -> AttributeProto {
    use AttributeValue as V;
    let name = name.clone();
    let empty = AttributeProto {
        name,
        ..AttributeProto::default()
    };
    match value.clone() {
        V::Float(f) => AttributeProto {
            f,
            r#type: 1,
            ..empty
        },
        V::Int(i) => AttributeProto {
            i,
            r#type: 2,
            ..empty
        },
        V::String(s) => AttributeProto {
            s,
            r#type: 3,
            ..empty
        },
        V::Floats(floats) => AttributeProto {
            floats,
            r#type: 6,
            ..empty
        },
        V::Ints(ints) => AttributeProto {
            ints,
            r#type: 7,
            ..empty
        },
        V::Strings(strings) => AttributeProto {
            strings,
            r#type: 8,
            ..empty
        },
    }
}

/// An input or output of any size.
fn of_any_size(name: &str, elem_type: i32, rank: usize) -> ValueInfoProto {
    let dim = (0..rank).map(|axis| DimensionProto {
        dim_param: format!("{name}_{axis}"),
    });
    let shape = Some(ShapeProto { dim: dim.collect() });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto { elem_type, shape }),
        }),
    }
}

/// The bytes of an ONNX file of this node alone, for the library's own loader: so no rule of the
/// operators is written twice.
fn file(
    operator: &str,
    attributes: &[(String, AttributeValue)],
    slots: Vec<String>,
    initializers: Vec<TensorProto>,
) -> Vec<u8> {
    let is_quantised = operator == "DynamicQuantizeLSTM";
    let count = if is_quantised || operator == "LSTM" {
        3
    } else {
        2
    };
    let outputs = &OUTPUTS[..count];
    let inputs = slots
        .iter()
        .filter(|slot| is_read(slot))
        .map(|slot| match slot.as_str() {
            "sequence_lens" => of_any_size(slot, INT32, 1),
            _ => of_any_size(slot, FLOAT, 3),
        });
    let graph = GraphProto {
        name: operator.into(),
        initializer: initializers,
        input: inputs.collect(),
        output: { outputs.iter() }
            .map(|name| of_any_size(name, FLOAT, if *name == "Y" { 4 } else { 3 }))
            .collect(),
        node: vec![NodeProto {
            name: operator.into(),
            op_type: operator.into(),
            domain: if is_quantised {
                "com.microsoft".into()
            } else {
                String::new()
            },
            input: slots,
            output: outputs.iter().map(|&name| name.into()).collect(),
            attribute: attributes.iter().map(attribute).collect(),
        }],
    };
    let set = |domain: &str, version| OperatorSetIdProto {
        domain: domain.into(),
        version,
    };
    let model = ModelProto {
        ir_version: 8,
        // The operators are the same since version 7, but for `layout`, which 14 adds.
        opset_import: vec![set("", 22), set("com.microsoft", 1)],
        graph: Some(graph),
    };
    model.encode_to_vec()
}
