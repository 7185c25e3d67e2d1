//! The part of a graph that a value depends on.

use std::collections::{HashMap, HashSet};

use tract_onnx::pb::{GraphProto, NodeProto, ValueInfoProto};

use crate::source::names::subgraphs;

/// The names that a value depends on by their values, not by their shapes alone, and that no node
/// of the graph gives; a random value counts as one.
pub(crate) fn values_read<'a>(graph: &'a GraphProto, name: &'a str) -> HashSet<&'a str> {
    let constants: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    let producers = producers(graph);
    let mut read = HashSet::new();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        if name.is_empty() || constants.contains(name) || !seen.insert(name) {
            continue;
        }
        let operator = producers
            .get(name)
            .map(|node| (node.op_type.as_str(), node));
        match operator {
            Some(("Shape" | "Size", _)) => {}
            None | Some(("RandomNormal" | "RandomUniform" | "Multinomial" | "Bernoulli", _)) => {
                read.insert(name);
            }
            Some((_, node)) => open.extend(sources(node)),
        }
    }
    read
}

/// Whether a value depends on the values of inputs, and not on their shapes alone.
pub(crate) fn depends_on_values(graph: &GraphProto, name: &str) -> bool {
    !values_read(graph, name).is_empty()
}

pub(crate) fn producers(graph: &GraphProto) -> HashMap<&str, &NodeProto> {
    let nodes = graph.node.iter();
    let outputs = nodes.flat_map(|node| node.output.iter().map(move |name| (name.as_str(), node)));
    outputs.collect()
}

/// The values that a node reads, those that graphs within read from outside included.
pub(crate) fn sources(node: &NodeProto) -> Vec<&str> {
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

/// The number of nodes and outputs that read each value.
pub(crate) fn readers(graph: &GraphProto) -> HashMap<&str, usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let read = graph.node.iter().flat_map(sources);
    let read = read.chain(graph.output.iter().map(|output| output.name.as_str()));
    read.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

/// The names that a value depends on and no node of the graph gives, each once.
pub(crate) fn leaves<'a>(graph: &'a GraphProto, name: &'a str) -> Vec<&'a str> {
    let producers = producers(graph);
    let mut seen: HashSet<&str> = HashSet::new();
    let mut leaves = Vec::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        if name.is_empty() || !seen.insert(name) {
            continue;
        }
        match producers.get(name) {
            Some(node) => open.extend(sources(node)),
            None => leaves.push(name),
        }
    }
    leaves
}

/// The begin of the names of the outputs of a [`cone`].
const END: &str = "gatestream/value/";

/// Whether a node of a [`cone`] only gives an output its name.
pub(super) fn is_end(node: &NodeProto) -> bool {
    node.name.starts_with(END)
}

/// The names of values and of all that they depend on.
pub(crate) fn ancestors<'a>(graph: &'a GraphProto, names: &[&'a str]) -> HashSet<&'a str> {
    let producers = producers(graph);
    let mut needed: HashSet<&str> = HashSet::new();
    let mut open = names.to_vec();
    while let Some(name) = open.pop() {
        if needed.insert(name)
            && let Some(node) = producers.get(name)
        {
            open.extend(sources(node));
        }
    }
    needed
}

/// The part of a graph that computes these values, as a graph with them as its outputs.
pub(crate) fn cone(graph: &GraphProto, names: &[&str]) -> GraphProto {
    let needed = ancestors(graph, names);
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
    for (index, name) in names.iter().enumerate() {
        // A node: an input or a constant may be the output, too.
        let output = format!("{END}{index}");
        part.node.push(identity(name, &output));
        part.output.push(ValueInfoProto {
            name: output,
            ..ValueInfoProto::default()
        });
    }
    part
}

/// A node that gives a value another name.
pub(super) fn identity(from: &str, to: &str) -> NodeProto {
    NodeProto {
        name: to.to_owned(),
        op_type: "Identity".into(),
        input: vec![from.to_owned()],
        output: vec![to.to_owned()],
        ..NodeProto::default()
    }
}
