//! Inputs of a graph, once more is known of them.

use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{GraphProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto};

use crate::{ElementType, Tensor};

/// An input of this type; `None`: of any shape.
pub(crate) fn input(name: &str, kind: ElementType, shape: Option<&[usize]>) -> ValueInfoProto {
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(type_proto::Tensor {
                elem_type: kind.to_onnx(),
                shape: shape.map(sizes),
            })),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}

/// A value whose axes have any sizes, with these names.
pub(crate) fn input_of(name: &str, kind: ElementType, axes: &[&str]) -> ValueInfoProto {
    let dim = axes.iter().map(|axis| Dimension {
        value: Some(dimension::Value::DimParam(format!("{name}_{axis}"))),
        ..Dimension::default()
    });
    let mut of_any = input(name, kind, Some(&[]));
    if let Some(type_proto::Value::TensorType(tensor)) =
        of_any.r#type.as_mut().and_then(|of| of.value.as_mut())
    {
        tensor.shape = Some(TensorShapeProto { dim: dim.collect() });
    }
    of_any
}

/// A value of so many axes of any size.
pub(crate) fn of_any_size(name: &str, kind: ElementType, axes: usize) -> ValueInfoProto {
    let axes: Vec<String> = (0..axes).map(|axis| axis.to_string()).collect();
    let axes: Vec<&str> = axes.iter().map(String::as_str).collect();
    input_of(name, kind, &axes)
}

fn sizes(shape: &[usize]) -> TensorShapeProto {
    let dim = shape.iter().map(|&size| Dimension {
        value: Some(dimension::Value::DimValue(size as i64)),
        ..Dimension::default()
    });
    TensorShapeProto { dim: dim.collect() }
}

/// Gives an input its shape.
pub(crate) fn fix_shape(graph: &mut GraphProto, name: &str, shape: &[usize]) {
    let input = graph.input.iter_mut().find(|input| input.name == name);
    let kind = input.and_then(|input| input.r#type.as_mut()?.value.as_mut());
    if let Some(type_proto::Value::TensorType(tensor)) = kind {
        tensor.shape = Some(sizes(shape));
    }
}

/// Makes an input a constant.
pub(crate) fn fix_value(graph: &mut GraphProto, name: &str, value: &Tensor) {
    graph.input.retain(|input| input.name != name);
    graph.initializer.push(value.to_proto(name));
}
