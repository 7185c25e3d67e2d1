//! A recurrent node of a graph: its model, and the places of its inputs and outputs.

use cellstream::Model;
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

/// The value of an input or output of the node.
#[derive(Clone, Debug)]
pub enum Given {
    /// The name of the value in the graph.
    Value(String),
    /// A constant, which the kernel does not get.
    Floats(Vec<f32>),
    /// Lengths that are a constant.
    Lengths(Vec<usize>),
}

/// See the [module](self).
pub struct RecurrentNode {
    pub name: String,
    pub operator: String,
    pub model: Model,
    pub directions: usize,
    /// The batch is the first axis.
    pub is_batch_major: bool,
    pub x: String,
    pub lengths: Option<Given>,
    pub initial_h: Option<Given>,
    pub initial_c: Option<Given>,
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
        let inputs = api.inputs(node)?;
        let mut slots: Vec<String> = Vec::new();
        let mut initializers = Vec::new();
        let mut read: [Option<Given>; 4] = Default::default();
        for (slot, &value) in inputs.iter().enumerate() {
            let input = INPUTS
                .get(slot)
                .ok_or_else(|| format!("it has {} inputs", inputs.len()))?;
            let value_name = api.value_name(value)?;
            slots.push(if value_name.is_empty() {
                String::new()
            } else {
                (*input).into()
            });
            if value_name.is_empty() {
                continue;
            }
            let constant = api.constant(value)?;
            match (is_read(input), constant) {
                (true, constant) => {
                    let at = ["X", "sequence_lens", "initial_h", "initial_c"].iter();
                    let at = at.clone().position(|name| name == input).unwrap_or(0);
                    read[at] = Some(match constant {
                        None => Given::Value(value_name),
                        Some(tensor) if *input == "sequence_lens" => {
                            Given::Lengths(lengths(tensor.ints()?)?)
                        }
                        Some(tensor) => Given::Floats(tensor.floats()?.to_vec()),
                    });
                }
                (false, Some(tensor)) => initializers.push(initializer(input, &tensor)?),
                (false, None) => return Err(format!("{input} is no constant")),
            }
        }
        let [x, lengths, initial_h, initial_c] = read;
        let Some(Given::Value(x)) = x else {
            return Err("X is a constant".into());
        };
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
        let file = file(&operator, &attributes, slots, initializers);
        let model = Model::from_onnx(&file).map_err(|why| why.to_string())?;
        Ok(RecurrentNode {
            name,
            model,
            directions,
            is_batch_major,
            operator,
            x,
            lengths,
            initial_h,
            initial_c,
            outputs,
        })
    }
}

/// The places of values among the inputs or outputs of the fused node.
pub fn places(api: &Api, values: &[*const ValueInfo]) -> Result<Vec<String>> {
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
