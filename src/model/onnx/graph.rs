//! Walks over the graph: looks up values by name and checks that the graph is well formed.

use std::collections::HashMap;

use super::budget::{Budget, malformed};
use super::chain::ChainBuilder;
use super::extent::Extent;
use super::node::{GraphInput, Node, SUPPORTED};
use super::proto::{GraphProto, TensorProto, ValueInfoProto};
use super::recurrent::{self, Operator};
use super::shape_ops;
use super::tensor::{self, MAX_AXES};
use super::value::Value;
use super::view::{AxisKind, AxisPart, View, ViewSource};
use crate::model::{LoadError, Model};

/// The domain of ONNX Runtime's own operators.
pub(super) const MICROSOFT: &str = "com.microsoft";
/// The supported version of that domain: the one whose DynamicQuantizeLSTM was checked.
pub(super) const MICROSOFT_VERSION: i64 = 1;

/// The model that a graph describes. `microsoft` is the imported version of [`MICROSOFT`].
pub(super) fn load(
    graph: GraphProto,
    microsoft: Option<i64>,
    budget: &mut Budget,
) -> Result<Model, LoadError> {
    if graph.sparse_initializer.is_some() {
        return Err(malformed(
            "sparse initializers are not supported; save the weights dense",
        ));
    }
    let mut names = Names::default();
    for tensor in graph.initializer {
        names.add_initializer(tensor)?;
    }
    let mut chain = ChainBuilder::new(declared_inputs(&graph.input, &mut names)?);
    for proto in &graph.node {
        let node = Node { proto };
        let operator = match proto.domain.as_str() {
            "" | "ai.onnx" => recurrent::standard(&proto.op_type),
            domain => Some(foreign(node, domain, microsoft)?),
        };
        let inputs = names.inputs(node)?;
        let outputs = match operator {
            Some(operator) => {
                let read = recurrent::read(node, operator, &inputs, budget)?;
                let views = chain.layer(node, read, &inputs)?;
                views.into_iter().map(Value::View).collect()
            }
            None => shape_ops::evaluate(node, &inputs, budget)?,
        };
        names.add_outputs(node, outputs)?;
    }
    if graph.output.is_empty() {
        return Err(malformed("the graph has no outputs"));
    }
    for output in &graph.output {
        let value = names.value(&output.name)?.ok_or_else(|| {
            malformed(format!(
                "graph output {:?} is not the output of any node",
                output.name
            ))
        })?;
        chain.output(output, &value)?;
    }
    chain.finish()
}

/// The operator of a node outside ONNX's domain.
fn foreign(node: Node, domain: &str, microsoft: Option<i64>) -> Result<Operator, LoadError> {
    let operator = match domain {
        MICROSOFT => recurrent::microsoft(&node.proto.op_type),
        _ => None,
    };
    let refused = || {
        node.error(format!(
            "operators of domain {domain:?} are not supported; supported: {SUPPORTED}"
        ))
    };
    let operator = operator.ok_or_else(refused)?;
    match microsoft {
        Some(MICROSOFT_VERSION) => Ok(operator),
        found => Err(node.error(format!(
            "the file imports {} of the operator set {MICROSOFT:?}; supported: version \
             {MICROSOFT_VERSION}",
            found.map_or("no version".into(), |v| format!("version {v}"))
        ))),
    }
}

/// The graph inputs that are not initializers, each added to `names` as a view.
fn declared_inputs(
    inputs: &[ValueInfoProto],
    names: &mut Names,
) -> Result<Vec<GraphInput>, LoadError> {
    let mut declared: Vec<GraphInput> = Vec::new();
    // Axes with the same name have the same size.
    let mut symbols: HashMap<&str, u32> = HashMap::new();
    let mut next = 0;
    for info in inputs {
        // Before IR version 4 every initializer is also an input.
        if names.initializers.contains_key(&info.name) {
            continue;
        }
        let refuse = |reason: String| LoadError::Tensor {
            name: info.name.clone(),
            reason,
        };
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some((tensor, shape)) = tensor.and_then(|t| Some((t, t.shape.as_ref()?))) else {
            return Err(refuse(
                "this graph input has no tensor shape; supported: tensors with a declared number \
                 of axes"
                    .into(),
            ));
        };
        if shape.dim.len() > MAX_AXES {
            return Err(refuse(format!(
                "this graph input has {} axes; at most {MAX_AXES} are supported",
                shape.dim.len()
            )));
        }
        let mut extents = Vec::with_capacity(shape.dim.len());
        for dim in &shape.dim {
            extents.push(match dim.dim_value {
                Some(size) if size < 1 => {
                    return Err(refuse(format!(
                        "this graph input declares an axis of size {size}; use a positive size"
                    )));
                }
                Some(size) => Extent::known(size),
                None => {
                    next += 1;
                    Extent::symbol(match dim.dim_param.as_str() {
                        "" => next,
                        name => *symbols.entry(name).or_insert(next),
                    })
                }
            });
        }
        let axis = |(axis, extent): (usize, &Extent)| {
            vec![AxisPart::new(AxisKind::InputAxis(axis), extent.clone())]
        };
        let view = View {
            source: ViewSource::Input(declared.len()),
            axes: extents.iter().enumerate().map(axis).collect(),
            element: tensor.elem_type,
            slices: Vec::new(),
            direction: None,
        };
        names.add(&info.name, Value::View(view))?;
        declared.push(GraphInput {
            name: info.name.clone(),
            shape: extents,
        });
    }
    Ok(declared)
}

/// Values by name. An initializer is decoded at its first use, so unused ones cost nothing.
#[derive(Default)]
struct Names {
    initializers: HashMap<String, Option<TensorProto>>,
    values: HashMap<String, Value>,
}

impl Names {
    fn add_initializer(&mut self, tensor: TensorProto) -> Result<(), LoadError> {
        let name = tensor.name.clone();
        if self.initializers.contains_key(&name) {
            return Err(malformed(format!("two initializers are named {name:?}")));
        }
        self.initializers.insert(name, Some(tensor));
        Ok(())
    }

    fn add(&mut self, name: &str, value: Value) -> Result<(), LoadError> {
        if self.initializers.contains_key(name) || self.values.contains_key(name) {
            return Err(malformed(format!("two values are named {name:?}")));
        }
        self.values.insert(name.to_string(), value);
        Ok(())
    }

    fn value(&mut self, name: &str) -> Result<Option<Value>, LoadError> {
        if let Some(proto) = self.initializers.get_mut(name).and_then(Option::take) {
            let tensor = tensor::decode(name, &proto)?;
            self.values
                .insert(name.to_string(), Value::Constant(tensor));
        }
        Ok(self.values.get(name).cloned())
    }

    fn inputs(&mut self, node: Node) -> Result<Vec<Option<Value>>, LoadError> {
        let mut inputs = Vec::with_capacity(node.proto.input.len());
        for name in &node.proto.input {
            inputs.push(if name.is_empty() {
                None
            } else {
                let value = self.value(name)?;
                Some(value.ok_or_else(|| {
                    node.error(format!(
                        "its input {name:?} is not an output of an earlier node, an initializer \
                         or a graph input; sort the nodes topologically"
                    ))
                })?)
            });
        }
        Ok(inputs)
    }

    fn add_outputs(&mut self, node: Node, outputs: Vec<Value>) -> Result<(), LoadError> {
        let names = &node.proto.output;
        if names.len() > outputs.len() {
            return Err(node.error(format!(
                "{} outputs; at most {} are supported",
                names.len(),
                outputs.len()
            )));
        }
        for (name, value) in names.iter().zip(outputs) {
            if !name.is_empty() {
                self.add(name, value)?;
            }
        }
        Ok(())
    }
}
