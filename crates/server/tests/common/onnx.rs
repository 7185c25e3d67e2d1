//! Small ONNX files: the fields of `onnx.proto` that they need.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::Path;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<Opset>,
}

#[derive(Clone, PartialEq, Message)]
struct Opset {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
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
    int: i64,
    #[prost(int32, tag = "20")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    kind: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    elements: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    axes: Vec<Axis>,
}

#[derive(Clone, PartialEq, Message)]
struct Axis {
    #[prost(int64, optional, tag = "1")]
    size: Option<i64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
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

pub const FLOAT: i32 = 1;
pub const INT64: i32 = 7;
pub const STRING: i32 = 8;
pub const BFLOAT16: i32 = 16;

/// An input or an output: name, number of its type, axes by size or by name; `None`: of any rank.
pub type PortOf<'a> = (&'a str, i32, Option<&'a [&'a str]>);

fn port((name, elements, axes): &PortOf<'_>) -> ValueInfo {
    let axis = |text: &&str| match text.parse() {
        Ok(size) => Axis {
            size: Some(size),
            name: None,
        },
        Err(_) => Axis {
            size: None,
            name: Some((*text).to_owned()),
        },
    };
    let shape = axes.map(|axes| Shape {
        axes: axes.iter().map(axis).collect(),
    });
    let tensor = TensorType {
        elements: *elements,
        shape,
    };
    ValueInfo {
        name: (*name).to_owned(),
        kind: Some(TypeProto {
            tensor: Some(tensor),
        }),
    }
}

/// A node with integer attributes. Empty names are inputs and outputs that it does not have.
pub fn node(
    operator: &str,
    inputs: &[&str],
    outputs: &[&str],
    attributes: &[(&str, i64)],
) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let attribute = |&(name, int): &(&str, i64)| Attribute {
        name: name.to_owned(),
        int,
        kind: 2,
    };
    NodeProto {
        input: names(inputs),
        output: names(outputs),
        name: "node".into(),
        op_type: operator.to_owned(),
        attribute: attributes.iter().map(attribute).collect(),
    }
}

pub fn floats(name: &str, shape: &[usize], floats: Vec<f32>) -> TensorProto {
    TensorProto {
        dims: shape.iter().map(|&size| size as i64).collect(),
        data_type: FLOAT,
        floats,
        name: name.into(),
        ..TensorProto::default()
    }
}

pub fn integers(name: &str, integers: &[i64]) -> TensorProto {
    TensorProto {
        dims: vec![integers.len() as i64],
        data_type: INT64,
        integers: integers.to_vec(),
        name: name.into(),
        ..TensorProto::default()
    }
}

/// The file of a graph.
fn graph_file(
    node: Vec<NodeProto>,
    initializer: Vec<TensorProto>,
    inputs: &[PortOf<'_>],
    output: PortOf<'_>,
) -> Vec<u8> {
    let graph = GraphProto {
        node,
        name: "graph".into(),
        initializer,
        input: inputs.iter().map(port).collect(),
        output: vec![port(&output)],
    };
    let model = ModelProto {
        ir_version: 8,
        graph: Some(graph),
        opset_import: vec![Opset {
            domain: String::new(),
            version: 17,
        }],
    };
    model.encode_to_vec()
}

/// The file of a graph from `x` to `y`, both float32 of any shape.
pub fn file(node: Vec<NodeProto>, initializer: Vec<TensorProto>) -> Vec<u8> {
    graph_file(node, initializer, &[("x", FLOAT, None)], ("y", FLOAT, None))
}

/// A file of one node, with integers as its attributes.
pub fn node_file(
    operator: &str,
    attributes: &[(&str, i64)],
    inputs: &[PortOf<'_>],
    output: PortOf<'_>,
) -> Vec<u8> {
    let names: Vec<&str> = inputs.iter().map(|(name, ..)| *name).collect();
    let node = node(operator, &names, &[output.0], attributes);
    graph_file(vec![node], Vec::new(), inputs, output)
}

/// `y = x + x`, then its negative: two nodes.
pub fn sums_file() -> Vec<u8> {
    let nodes = vec![
        node("Add", &["x", "x"], &["twice"], &[]),
        node("Neg", &["twice"], &["y"], &[]),
    ];
    file(nodes, Vec::new())
}

/// A graph whose runs take long: an LSTM over so many steps. The axes are those of its input.
pub fn slow_file(steps: i64, axes: Option<&[&str]>) -> Vec<u8> {
    const HIDDEN: usize = 16;
    let attributes = [("hidden_size", HIDDEN as i64)];
    let nodes = vec![
        node("Expand", &["x", "shape"], &["steps"], &[]),
        node("LSTM", &["steps", "w", "r"], &["", "y"], &attributes),
    ];
    let weights = |name, columns: usize| {
        let values = (0..4 * HIDDEN * columns).map(|index| index as f32 * 1e-4);
        floats(name, &[1, 4 * HIDDEN, columns], values.collect())
    };
    let shape = integers("shape", &[steps, 1, 1]);
    let weights = vec![weights("w", 1), weights("r", HIDDEN), shape];
    graph_file(nodes, weights, &[("x", FLOAT, axes)], ("y", FLOAT, None))
}

/// Adds a graph to a repository.
pub fn save(folder: &Path, name: &str, file: &[u8], config: &str) {
    let version = folder.join(name).join("1");
    std::fs::create_dir_all(&version).expect("a folder");
    std::fs::write(version.join("model.onnx"), file).expect("written");
    std::fs::write(folder.join(name).join("config.toml"), config).expect("written");
}
