//! Small ONNX graphs.

#![allow(dead_code)] // Each program needs some of it.

use prost::Message;
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, type_proto,
};

/// A value of float32 and any shape.
pub fn value(name: &str) -> ValueInfoProto {
    value_of(name, 1)
}

/// A value of one of ONNX's types and any shape.
pub fn value_of(name: &str, elem_type: i32) -> ValueInfoProto {
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(type_proto::Tensor {
                elem_type,
                shape: None,
            })),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}

pub fn constant(name: &str, shape: &[usize], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: shape.iter().map(|&size| size as i64).collect(),
        data_type: 1,
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

pub fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: operator.into(),
        input: inputs.iter().map(|&name| name.into()).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    }
}

pub fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: 2,
        i: value,
        ..AttributeProto::default()
    }
}

pub fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: 7,
        ints: values.to_vec(),
        ..AttributeProto::default()
    }
}

pub fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: 1,
        f: value,
        ..AttributeProto::default()
    }
}

/// A branch of an `If` node.
pub fn branch(name: &str, nodes: Vec<NodeProto>, output: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: 5,
        g: Some(GraphProto {
            node: nodes,
            output: vec![value(output)],
            ..GraphProto::default()
        }),
        ..AttributeProto::default()
    }
}

/// The model of a graph, with these opsets.
pub fn model(graph: GraphProto, opsets: &[i64]) -> ModelProto {
    let opset_import = opsets.iter().map(|&version| OperatorSetIdProto {
        version,
        ..OperatorSetIdProto::default()
    });
    ModelProto {
        ir_version: 8,
        opset_import: opset_import.collect(),
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// The bytes of the file of a graph of opset 17.
pub fn file(graph: GraphProto) -> Vec<u8> {
    model(graph, &[17]).encode_to_vec()
}
