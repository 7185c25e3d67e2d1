//! Names of values and nodes, and graphs within graphs.

use std::collections::HashSet;

use tract_onnx::pb::{GraphProto, NodeProto};

/// The graphs that the attributes of a node hold.
pub(crate) fn subgraphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    let attributes = node.attribute.iter();
    attributes.flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// As [`subgraphs`].
pub(crate) fn subgraphs_mut(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    let attributes = node.attribute.iter_mut();
    attributes.flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs))
}

/// Gives a name to each node that has none, and makes names of nodes unique.
pub(super) fn complete(graph: &mut GraphProto) {
    complete_in(graph, &mut HashSet::new());
}

fn complete_in(graph: &mut GraphProto, taken: &mut HashSet<String>) {
    for node in &mut graph.node {
        let outputs = node.output.iter().find(|name| !name.is_empty());
        let base = match (node.name.as_str(), outputs) {
            ("", Some(output)) => output.clone(),
            ("", None) => node.op_type.clone(),
            (name, _) => name.to_owned(),
        };
        let mut name = base.clone();
        let mut number = 1;
        while !taken.insert(name.clone()) {
            number += 1;
            name = format!("{base}#{number}");
        }
        node.name = name;
        for inner in subgraphs_mut(node) {
            complete_in(inner, taken);
        }
    }
}

/// Prefixes all values that a graph defines, and the names of its nodes; values of outer graphs
/// keep their names.
pub(crate) fn prefix(graph: &mut GraphProto, prefix: &str) {
    let mut own: HashSet<String> = HashSet::new();
    own.extend(graph.initializer.iter().map(|tensor| tensor.name.clone()));
    own.extend(graph.input.iter().map(|input| input.name.clone()));
    let outputs = graph.node.iter().flat_map(|node| &node.output);
    own.extend(outputs.filter(|name| !name.is_empty()).cloned());
    rename(graph, &|name| {
        own.contains(name).then(|| format!("{prefix}{name}"))
    });
    for node in &mut graph.node {
        node.name = format!("{prefix}{}", node.name);
    }
}

/// Renames values in a graph and the graphs within.
pub(crate) fn rename(graph: &mut GraphProto, new: &dyn Fn(&str) -> Option<String>) {
    let rename_one = |name: &mut String| {
        if let Some(new) = new(name) {
            *name = new;
        }
    };
    graph
        .initializer
        .iter_mut()
        .for_each(|tensor| rename_one(&mut tensor.name));
    let infos = graph
        .input
        .iter_mut()
        .chain(&mut graph.output)
        .chain(&mut graph.value_info);
    infos.for_each(|info| rename_one(&mut info.name));
    for node in &mut graph.node {
        node.input
            .iter_mut()
            .chain(&mut node.output)
            .for_each(rename_one);
        for inner in subgraphs_mut(node) {
            rename(inner, new);
        }
    }
}
