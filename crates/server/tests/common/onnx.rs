//! Small ONNX files, by the fields of the messages that they need.
#![allow(dead_code, reason = "each test uses a part")]

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<Opset>,
}

#[derive(Clone, PartialEq, Message)]
struct Opset {
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<Value>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Node {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(int32, tag = "20")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(float, repeated, tag = "4")]
    floats: Vec<f32>,
    #[prost(int64, repeated, tag = "7")]
    integers: Vec<i64>,
    #[prost(string, tag = "8")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Message)]
struct Kind {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorKind>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorKind {
    #[prost(int32, tag = "1")]
    elem_type: i32,
}

/// A node with integer attributes. Empty names are inputs and outputs that it does not have.
pub fn node(operator: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, i64)]) -> Node {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Node {
        input: names(inputs),
        output: names(outputs),
        op_type: operator.into(),
        attribute: { attributes.iter() }
            .map(|&(name, i)| Attribute {
                name: name.into(),
                i,
                kind: 2,
            })
            .collect(),
    }
}

pub fn floats(name: &str, shape: &[usize], floats: Vec<f32>) -> Tensor {
    Tensor {
        dims: shape.iter().map(|&size| size as i64).collect(),
        data_type: 1,
        floats,
        name: name.into(),
        ..Tensor::default()
    }
}

pub fn integers(name: &str, integers: &[i64]) -> Tensor {
    Tensor {
        dims: vec![integers.len() as i64],
        data_type: 7,
        integers: integers.to_vec(),
        name: name.into(),
        ..Tensor::default()
    }
}

/// The file of a graph from `x` to `y`, both float32 of any shape.
pub fn file(node: Vec<Node>, initializer: Vec<Tensor>) -> Vec<u8> {
    let value = |name: &str| Value {
        name: name.into(),
        kind: Some(Kind {
            tensor: Some(TensorKind { elem_type: 1 }),
        }),
    };
    let model = Model {
        ir_version: 8,
        opset_import: vec![Opset { version: 17 }],
        graph: Some(Graph {
            node,
            initializer,
            input: vec![value("x")],
            output: vec![value("y")],
        }),
    };
    model.encode_to_vec()
}
