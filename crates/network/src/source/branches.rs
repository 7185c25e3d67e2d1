//! Replaces `If` nodes whose condition is known by the branch that it chooses.
//!
//! A condition is known if it depends on constants and on shapes alone: once the shapes of the
//! inputs are known, so is the branch.

use std::collections::{HashMap, HashSet};

use tract_onnx::pb::{GraphProto, NodeProto};

use super::names::{prefix, subgraphs};
use crate::NetworkError;

/// Computes the only output of a graph, from constants and shapes; `None` if it is not known.
pub(crate) type Decide<'a> = dyn Fn(&GraphProto) -> Result<Option<bool>, NetworkError> + 'a;

/// Replaces all `If` nodes of a graph with known conditions, also those that appear by that.
pub(crate) fn decide_branches(
    graph: &mut GraphProto,
    decide: &Decide<'_>,
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
                decide(&cone(graph, condition))?
            }
            _ => None,
        };
        match chosen {
            None => {
                undecided.insert(node.name.clone());
            }
            Some(chosen) => {
                let nodes = branch(graph, at, chosen);
                graph.node.splice(at..=at, nodes);
            }
        }
    }
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

/// Whether a value depends on the values of inputs, and not on their shapes alone.
fn depends_on_values(graph: &GraphProto, name: &str) -> bool {
    let constants: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    let producers = producers(graph);
    let mut seen: HashSet<&str> = HashSet::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        if name.is_empty() || constants.contains(name) || !seen.insert(name) {
            continue;
        }
        let Some(node) = producers.get(name) else {
            return true;
        };
        match node.op_type.as_str() {
            "Shape" | "Size" => {}
            "RandomNormal" | "RandomUniform" | "Multinomial" | "Bernoulli" => return true,
            _ => open.extend(sources(node)),
        }
    }
    false
}

fn producers(graph: &GraphProto) -> HashMap<&str, &NodeProto> {
    let nodes = graph.node.iter();
    let outputs = nodes.flat_map(|node| node.output.iter().map(move |name| (name.as_str(), node)));
    outputs.collect()
}

/// The values that a node reads, those that graphs within read from outside included.
fn sources(node: &NodeProto) -> Vec<&str> {
    let mut all: Vec<&str> = node.input.iter().map(String::as_str).collect();
    for inner in subgraphs(node) {
        let mut own: HashSet<&str> = HashSet::new();
        own.extend(inner.initializer.iter().map(|t| t.name.as_str()));
        own.extend(inner.input.iter().map(|input| input.name.as_str()));
        own.extend(
            inner
                .node
                .iter()
                .flat_map(|node| node.output.iter().map(String::as_str)),
        );
        let read = inner.node.iter().flat_map(sources);
        let read = read.chain(inner.output.iter().map(|output| output.name.as_str()));
        all.extend(read.filter(|name| !own.contains(name)));
    }
    all
}

/// The part of a graph that computes one value, as a graph with that value as its only output.
pub(crate) fn cone(graph: &GraphProto, name: &str) -> GraphProto {
    let producers = producers(graph);
    let mut needed: HashSet<&str> = HashSet::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        if needed.insert(name)
            && let Some(node) = producers.get(name)
        {
            open.extend(sources(node));
        }
    }
    let is_needed = |node: &&NodeProto| node.output.iter().any(|o| needed.contains(o.as_str()));
    let mut part = GraphProto {
        node: graph.node.iter().filter(is_needed).cloned().collect(),
        initializer: { graph.initializer.iter() }
            .filter(|tensor| needed.contains(tensor.name.as_str()))
            .cloned()
            .collect(),
        input: { graph.input.iter() }
            .filter(|input| needed.contains(input.name.as_str()))
            .cloned()
            .collect(),
        ..GraphProto::default()
    };
    // A node: an input or a constant may be the output, too.
    let output = "cellstream/value".to_owned();
    part.node.push(NodeProto {
        name: output.clone(),
        op_type: "Identity".into(),
        input: vec![name.to_owned()],
        output: vec![output.clone()],
        ..NodeProto::default()
    });
    part.output.push(tract_onnx::pb::ValueInfoProto {
        name: output,
        ..Default::default()
    });
    part
}
