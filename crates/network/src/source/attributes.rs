//! Attributes of nodes, and the domain of ONNX's own operators.

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, NodeProto};

/// Whether this is the domain of ONNX's own operators.
pub(crate) fn is_standard(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// The attribute with this name.
pub(crate) fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|one| one.name == name)
}

/// The value of an integer attribute.
pub(crate) fn integer(node: &NodeProto, name: &str, default: i64) -> i64 {
    attribute(node, name).map_or(default, |one| one.i)
}

/// The value of a float attribute.
pub(crate) fn float(node: &NodeProto, name: &str, default: f32) -> f32 {
    attribute(node, name).map_or(default, |one| one.f)
}

/// An integer attribute.
pub(crate) fn integer_attribute(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: AttributeType::Int as i32,
        i: value,
        ..AttributeProto::default()
    }
}

/// A float attribute.
pub(crate) fn float_attribute(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: AttributeType::Float as i32,
        f: value,
        ..AttributeProto::default()
    }
}
