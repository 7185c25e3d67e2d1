//! The nodes that take the place of others.

use tract_onnx::pb::{NodeProto, TensorProto};

use crate::source::attributes::integer_attribute;
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

    /// Adds a node that joins values along an axis.
    pub fn concat(&mut self, from: &[&str], to: &str, axis: i64) {
        let node = self.add("Concat", from, &[to]);
        node.attribute.push(integer_attribute("axis", axis));
    }

    /// Adds a node that takes one step of a value.
    pub fn gather(&mut self, from: &str, step: usize, to: &str) {
        let step = Tensor::new(&[], vec![step as i64]).expect("one element");
        let step_name = format!("{to}/step");
        self.constants.push(step.to_proto(&step_name));
        self.add("Gather", &[from, &step_name], &[to]);
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
