//! Large constants of a model, which all plans share.
//!
//! Each is read once, as a tensor of tract. In the graph, a tensor without values refers to it: it
//! keeps its name, type and shape. Graphs are copied and rewritten for each plan, and such a copy
//! costs no more than its nodes. Tables that stay in their file ([`tables`]) are referred to alike.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::tensor_proto::DataLocation;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, StringStringEntryProto, TensorProto};
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::konst::Const;
use tract_onnx::{Onnx, data_resolver, tensor};

use super::attributes::{attribute, integer, integer_attribute, is_standard};
use super::names::subgraphs_mut;
use super::tables::{self, GATHER_ROWS, Table};
use crate::control_flow::readers;
use crate::operators::Parsed;
use crate::{ElementType, scoped};

/// The operator of a node that gives a shared constant.
const CONSTANT: &str = "gatestream.Constant";
/// The attribute of such a node, and the entry of a tensor that refers to a constant: its index.
const INDEX: &str = "gatestream.index";
/// The same of a table.
const TABLE: &str = "gatestream.table";

/// Fewest bytes of a shared constant: smaller ones are copied with their graph.
pub(super) const MIN_BYTES: usize = 1024;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Constants {
    tensors: Vec<Arc<Tensor>>,
    tables: Vec<Arc<Table>>,
}

impl Constants {
    /// Takes the values of a constant, which refers to them from now on.
    pub fn add(&mut self, constant: &mut TensorProto, values: Tensor) {
        refer(constant, INDEX, self.tensors.len());
        self.tensors.push(Arc::new(values));
    }

    /// Takes a table, to which the constant refers from now on.
    pub fn add_table(&mut self, constant: &mut TensorProto, table: Table) {
        refer(constant, TABLE, self.tables.len());
        self.tables.push(Arc::new(table));
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
        if !is_supported || reference(constant).is_some() || bytes_of(constant) < MIN_BYTES {
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

/// Has a constant refer to its values.
fn refer(constant: &mut TensorProto, kind: &str, index: usize) {
    *constant = TensorProto {
        name: std::mem::take(&mut constant.name),
        dims: std::mem::take(&mut constant.dims),
        data_type: constant.data_type,
        data_location: Some(DataLocation::External as i32),
        external_data: vec![StringStringEntryProto {
            key: kind.into(),
            value: index.to_string(),
        }],
        ..TensorProto::default()
    };
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

/// The shared constant that a tensor refers to, as the attribute of a node.
fn reference(constant: &TensorProto) -> Option<AttributeProto> {
    let entry = constant.external_data.first()?;
    let is_external = constant.data_location == Some(DataLocation::External as i32);
    let kind = [INDEX, TABLE].into_iter().find(|kind| entry.key == *kind)?;
    let index = entry.value.parse().ok().filter(|_| is_external)?;
    Some(integer_attribute(kind, index))
}

/// The attribute of a node that reads this constant as a table, if it is one.
pub(crate) fn table_attribute(constant: &TensorProto) -> Option<AttributeProto> {
    reference(constant).filter(|attribute| attribute.name == TABLE)
}

/// Writes a node for each reference to a shared constant in a graph and those within.
pub(crate) fn write_nodes(graph: &mut GraphProto) {
    gather_rows(graph);
    let readers = readers(graph);
    let read: HashSet<String> = readers.into_keys().map(str::to_owned).collect();
    let mut nodes = Vec::new();
    graph.initializer.retain(|constant| {
        let Some(attribute) = reference(constant) else {
            return true;
        };
        nodes.push(NodeProto {
            name: constant.name.clone(),
            op_type: CONSTANT.into(),
            output: vec![constant.name.clone()],
            attribute: vec![attribute],
            ..NodeProto::default()
        });
        false
    });
    // In the order in which tract has constants.
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    // Before IR version 4 constants are inputs, too.
    let is_made = |name: &String| nodes.binary_search_by(|node| node.name.cmp(name)).is_ok();
    graph.input.retain(|input| !is_made(&input.name));
    // A table would be read as a whole.
    nodes.retain(|node| read.contains(&node.name));
    for node in &mut graph.node {
        let attribute = value_mut(node).and_then(|constant| reference(constant));
        if let Some(attribute) = attribute {
            node.op_type = CONSTANT.into();
            node.attribute = vec![attribute];
        }
        subgraphs_mut(node).for_each(write_nodes);
    }
    graph.node.splice(0..0, nodes);
}

/// Has nodes read the rows of tables from their files.
fn gather_rows(graph: &mut GraphProto) {
    let constants = graph.initializer.iter();
    let tables: HashMap<&str, AttributeProto> = constants
        .filter_map(|constant| Some((constant.name.as_str(), table_attribute(constant)?)))
        .collect();
    for node in &mut graph.node {
        if tables::reads_rows(node)
            && let Some(attribute) = tables.get(node.input[0].as_str())
        {
            node.op_type = GATHER_ROWS.into();
            node.attribute = vec![attribute.clone()];
            node.input.remove(0);
        }
    }
}

thread_local!(static CONSTANTS: RefCell<Option<Arc<Constants>>> = const { RefCell::new(None) });

/// Parses a graph whose shared constants are these.
pub(crate) fn while_parsing<T>(constants: &Arc<Constants>, parse: impl FnOnce() -> T) -> T {
    scoped::with(&CONSTANTS, constants, parse)
}

pub(crate) fn register(onnx: &mut Onnx) {
    onnx.op_register.insert(CONSTANT, parse);
    onnx.op_register.insert(GATHER_ROWS, tables::parse);
}

fn current() -> TractResult<Arc<Constants>> {
    scoped::current(&CONSTANTS).context("a constant outside of a network")
}

fn found<T>(of: &[Arc<T>], node: &NodeProto, kind: &str) -> TractResult<Arc<T>> {
    let index = usize::try_from(integer(node, kind, -1)).ok();
    let found = index.and_then(|index| of.get(index)).cloned();
    found.with_context(|| format!("constant {:?} has no values", node.name))
}

/// The number of the table of a node, if it has one.
pub(crate) fn table_index(node: &NodeProto) -> Option<i64> {
    attribute(node, TABLE).map(|one| one.i)
}

/// The table of a node; an error for one without.
pub(crate) fn table(node: &NodeProto) -> TractResult<Arc<Table>> {
    found(&current()?.tables, node, TABLE)
}

fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let values = match table(node) {
        Ok(table) => table.read()?.into_arc_tensor(),
        Err(_) => found(&current()?.tensors, node, INDEX)?,
    };
    Ok((Box::new(Const::new(values)?), Vec::new()))
}
