//! Replaces `If` nodes whose condition is known by the branch that it chooses.
//!
//! A condition is known if it depends on constants and on shapes alone: once the shapes of the
//! inputs are known, so is the branch.

use std::collections::HashSet;

use tract_onnx::pb::{GraphProto, NodeProto};

use super::cone::{cone, depends_on_values, values_read};
use crate::NetworkError;
use crate::evaluation::Evaluation;
use crate::source::names::prefix;

/// Replaces all `If` nodes of a graph with known conditions, also those that appear by that.
pub(super) fn decide_branches(
    graph: &mut GraphProto,
    evaluation: &Evaluation<'_>,
) -> Result<(), NetworkError> {
    let mut undecided: HashSet<String> = HashSet::new();
    loop {
        let is_open = |node: &NodeProto| node.op_type == "If" && !undecided.contains(&node.name);
        let Some(at) = graph.node.iter().position(is_open) else {
            return Ok(());
        };
        let node = &graph.node[at];
        let chosen = match node.input.first() {
            Some(condition) if !depends_on_values(graph, condition) => {
                evaluation.integer(cone(graph, &[condition]))?
            }
            _ => None,
        };
        match chosen {
            None => {
                undecided.insert(node.name.clone());
            }
            Some(chosen) => {
                let nodes = branch(graph, at, chosen != 0);
                graph.node.splice(at..=at, nodes);
            }
        }
    }
}

/// The inputs on whose values the conditions of a graph's `If` nodes depend: their values choose
/// the branches.
pub(crate) fn deciding_inputs(graph: &GraphProto) -> Vec<&str> {
    let nodes = graph.node.iter().filter(|node| node.op_type == "If");
    let conditions = nodes.filter_map(|node| node.input.first());
    let mut read: HashSet<&str> = HashSet::new();
    conditions.for_each(|condition| read.extend(values_read(graph, condition)));
    let inputs = graph.input.iter().map(|input| input.name.as_str());
    inputs.filter(|name| read.contains(name)).collect()
}

/// The nodes that replace the `If` node at this index. Adds initializers of the branch.
fn branch(graph: &mut GraphProto, at: usize, chosen: bool) -> Vec<NodeProto> {
    let node = graph.node[at].clone();
    let name = if chosen { "then_branch" } else { "else_branch" };
    let attributes = node.attribute.iter();
    let mut of_name = attributes.filter(|attribute| attribute.name == name);
    let mut branch = of_name.next().and_then(|a| a.g.clone()).unwrap_or_default();
    prefix(&mut branch, &format!("{}/{name}/", node.name));
    let ends = branch.output.iter().zip(&node.output);
    let ends: Vec<NodeProto> = ends
        .filter(|(_, outside)| !outside.is_empty())
        .map(|(inside, outside)| NodeProto {
            name: format!("{}/{outside}", node.name),
            op_type: "Identity".into(),
            input: vec![inside.name.clone()],
            output: vec![outside.clone()],
            ..NodeProto::default()
        })
        .collect();
    graph.initializer.append(&mut branch.initializer);
    branch.node.into_iter().chain(ends).collect()
}
