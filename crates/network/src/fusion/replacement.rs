//! The nodes that take the place of others.

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, NodeProto, TensorProto};

use crate::tensor::Tensor;

/// Nodes with their constants.
#[derive(Default)]
pub(super) struct Replacement {
    pub nodes: Vec<NodeProto>,
    pub constants: Vec<TensorProto>,
}

impl Replacement {
    /// Adds a node that gives a value another shape.
    pub fn reshape(&mut self, from: &str, to: &str, shape: &[usize]) {
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let sizes = Tensor::new(&[shape.len()], sizes).expect("as many elements");
        let shape_name = format!("{to}/shape");
        self.constants.push(sizes.to_proto(&shape_name));
        self.add("Reshape", &[from, &shape_name], &[to]);
    }

    /// Adds a node without attributes. The first output has a name.
    pub fn add(&mut self, operator: &str, inputs: &[&str], outputs: &[&str]) -> &mut NodeProto {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        self.nodes.push(NodeProto {
            name: format!("{}/{operator}", outputs[0]),
            op_type: operator.into(),
            input: names(inputs),
            output: names(outputs),
            ..NodeProto::default()
        });
        self.nodes.last_mut().expect("a node was added")
    }
}

pub(super) fn integer_attribute(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: AttributeType::Int as i32,
        i: value,
        ..AttributeProto::default()
    }
}
