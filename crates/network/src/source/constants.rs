//! Large constants of a model, which all plans share.
//!
//! Each is read once, as a tensor of tract. In the graph, a tensor without values refers to it: it
//! keeps its name, type and shape. Graphs are copied and rewritten for each plan, and such a copy
//! costs no more than its nodes.

use std::cell::RefCell;
use std::sync::Arc;

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::tensor_proto::DataLocation;
use tract_onnx::pb::{GraphProto, NodeProto, StringStringEntryProto, TensorProto};
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::konst::Const;
use tract_onnx::{Onnx, data_resolver, tensor};

use super::attributes::{integer, integer_attribute, is_standard};
use super::names::subgraphs_mut;
use crate::{ElementType, scoped};

/// The operator of a node that gives a shared constant.
const CONSTANT: &str = "cellstream.Constant";
/// The attribute of such a node, and the entry of a tensor that refers to a constant: its index.
const INDEX: &str = "cellstream.index";

/// Fewest bytes of a shared constant: smaller ones are copied with their graph.
pub(super) const MIN_BYTES: usize = 1024;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Constants {
    tensors: Vec<Arc<Tensor>>,
}

impl Constants {
    /// Takes the values of a constant, which refers to them from now on.
    pub fn add(&mut self, constant: &mut TensorProto, values: Tensor) {
        *constant = TensorProto {
            name: std::mem::take(&mut constant.name),
            dims: std::mem::take(&mut constant.dims),
            data_type: constant.data_type,
            data_location: Some(DataLocation::External as i32),
            external_data: vec![StringStringEntryProto {
                key: INDEX.into(),
                value: self.tensors.len().to_string(),
            }],
            ..TensorProto::default()
        };
        self.tensors.push(Arc::new(values));
    }

    /// Takes all large constants of a graph and of those within.
    pub fn take(&mut self, graph: &mut GraphProto) {
        for constant in &mut graph.initializer {
            self.take_one(constant);
        }
        for node in &mut graph.node {
            if let Some(constant) = value_mut(node) {
                self.take_one(constant);
            }
            subgraphs_mut(node).for_each(|inner| self.take(inner));
        }
    }

    fn take_one(&mut self, constant: &mut TensorProto) {
        let is_supported = ElementType::of_onnx(constant.data_type).is_some();
        if !is_supported || index_of(constant).is_some() || bytes_of(constant) < MIN_BYTES {
            return;
        }
        // One that cannot be read stays: the error of the first plan names its node.
        let read = tensor::load_tensor(&data_resolver::MmapDataResolver, constant, None);
        if let Ok(values) = read {
            self.add(constant, values);
        }
    }

    /// Whether a tensor is among them.
    pub fn has(&self, tensor: &Arc<Tensor>) -> bool {
        self.tensors.iter().any(|own| Arc::ptr_eq(own, tensor))
    }
}

/// The bytes of the values of a constant in its message.
fn bytes_of(constant: &TensorProto) -> usize {
    let (floats, integers) = (&constant.float_data, &constant.int64_data);
    constant
        .raw_data
        .len()
        .max(4 * floats.len())
        .max(8 * integers.len())
}

/// Whether a node is a constant.
pub(super) fn is_value(node: &NodeProto) -> bool {
    node.op_type == "Constant" && is_standard(&node.domain)
}

/// The value of a node that is a constant.
fn value_mut(node: &mut NodeProto) -> Option<&mut TensorProto> {
    if !is_value(node) {
        return None;
    }
    let mut attributes = node.attribute.iter_mut();
    attributes.find(|one| one.name == "value")?.t.as_mut()
}

/// The index of the shared constant that a tensor refers to.
fn index_of(constant: &TensorProto) -> Option<i64> {
    let entry = constant.external_data.first()?;
    let is_external = constant.data_location == Some(DataLocation::External as i32);
    let is_reference = is_external && entry.key == INDEX;
    is_reference.then(|| entry.value.parse().ok()).flatten()
}

/// Writes a node for each reference to a shared constant in a graph and those within.
pub(crate) fn write_nodes(graph: &mut GraphProto) {
    let mut nodes = Vec::new();
    graph.initializer.retain(|constant| {
        let index = index_of(constant);
        nodes.extend(index.map(|index| NodeProto {
            name: constant.name.clone(),
            op_type: CONSTANT.into(),
            output: vec![constant.name.clone()],
            attribute: vec![integer_attribute(INDEX, index)],
            ..NodeProto::default()
        }));
        index.is_none()
    });
    // In the order in which tract has constants.
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    // Before IR version 4 constants are inputs, too.
    let is_made = |name: &String| nodes.binary_search_by(|node| node.name.cmp(name)).is_ok();
    graph.input.retain(|input| !is_made(&input.name));
    for node in &mut graph.node {
        let index = value_mut(node).and_then(|constant| index_of(constant));
        if let Some(index) = index {
            node.op_type = CONSTANT.into();
            node.attribute = vec![integer_attribute(INDEX, index)];
        }
        subgraphs_mut(node).for_each(write_nodes);
    }
    graph.node.splice(0..0, nodes);
}

thread_local!(static CONSTANTS: RefCell<Option<Arc<Constants>>> = const { RefCell::new(None) });

/// Parses a graph whose shared constants are these.
pub(crate) fn while_parsing<T>(constants: &Arc<Constants>, parse: impl FnOnce() -> T) -> T {
    scoped::with(&CONSTANTS, constants, parse)
}

pub(crate) fn register(onnx: &mut Onnx) {
    onnx.op_register.insert(CONSTANT, parse);
}

fn parse(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let constants = scoped::current(&CONSTANTS).context("a constant outside of a network")?;
    let index = usize::try_from(integer(node, INDEX, -1)).ok();
    let found = index.and_then(|index| constants.tensors.get(index));
    let found = found.with_context(|| format!("constant {:?} has no values", node.name))?;
    Ok((Box::new(Const::new(Arc::clone(found))?), Vec::new()))
}
