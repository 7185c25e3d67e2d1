//! Writes operators of other domains as operators of ONNX.

use std::collections::HashSet;

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

use super::attributes::{float, integer};
use super::names::subgraphs_mut;

/// Rewrites the operators of a graph and those within.
pub(super) fn rewrite(graph: &mut GraphProto) {
    let mut nodes = Vec::with_capacity(graph.node.len());
    let mut constants: HashSet<String> = HashSet::new();
    for mut node in std::mem::take(&mut graph.node) {
        for inner in subgraphs_mut(&mut node) {
            rewrite(inner);
        }
        match (node.domain.as_str(), node.op_type.as_str()) {
            ("com.microsoft", "FusedMatMul") => {
                let scale = float(&node, "alpha", 1.0);
                let scale_name = format!("cellstream/scale/{}", scale.to_bits());
                if constants.insert(scale_name.clone()) {
                    graph.initializer.push(scalar(&scale_name, scale));
                }
                nodes.extend(matrix_product(node, scale_name));
            }
            _ => nodes.push(node),
        }
    }
    graph.node = nodes;
}

fn scalar(name: &str, value: f32) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        data_type: 1,
        float_data: vec![value],
        ..TensorProto::default()
    }
}

/// `alpha · op(A) · op(B)`, where `op` may exchange the last two axes.
fn matrix_product(node: NodeProto, scale: String) -> [NodeProto; 2] {
    let is_set = |name: &str| integer(&node, name, 0) != 0;
    let a = if is_set("transA") { "ji" } else { "ij" };
    let b = if is_set("transB") { "kj" } else { "jk" };
    let product = format!("{}/product", node.name);
    let equation = AttributeProto {
        name: "equation".into(),
        r#type: AttributeType::String as i32,
        s: format!("...{a},...{b}->...ik").into_bytes(),
        ..AttributeProto::default()
    };
    [
        NodeProto {
            name: product.clone(),
            op_type: "Einsum".into(),
            input: node.input.clone(),
            output: vec![product.clone()],
            attribute: vec![equation],
            ..NodeProto::default()
        },
        NodeProto {
            op_type: "Mul".into(),
            domain: String::new(),
            input: vec![product, scale],
            attribute: Vec::new(),
            ..node
        },
    ]
}
