//! Replaces calls of a model's own functions by their bodies.

use std::collections::HashMap;

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, FunctionProto, GraphProto, NodeProto};

use super::malformed;
use super::names::{prefix, rename, subgraphs_mut};
use crate::NetworkError;

/// Largest number of nodes after inlining, so that functions that call functions end.
const MAX_NODES: usize = 1_000_000;
/// Deepest nesting of calls.
const MAX_DEPTH: usize = 64;

/// Inlines all calls in a graph and those within.
pub(super) fn inline(
    graph: &mut GraphProto,
    functions: &[FunctionProto],
) -> Result<(), NetworkError> {
    if functions.is_empty() {
        return Ok(());
    }
    let name = |function: &FunctionProto| function.name.clone().unwrap_or_default();
    let functions: HashMap<_, _> = (functions.iter())
        .map(|function| ((domain(function), name(function)), function))
        .collect();
    let mut state = Inlining {
        functions,
        calls: 0,
        nodes: 0,
    };
    state.graph(graph, 0)
}

fn domain(function: &FunctionProto) -> String {
    normal(function.domain.as_deref().unwrap_or_default()).to_owned()
}

fn normal(domain: &str) -> &str {
    match domain {
        "ai.onnx" => "",
        domain => domain,
    }
}

struct Inlining<'a> {
    functions: HashMap<(String, String), &'a FunctionProto>,
    calls: usize,
    nodes: usize,
}

impl Inlining<'_> {
    fn graph(&mut self, graph: &mut GraphProto, depth: usize) -> Result<(), NetworkError> {
        let mut nodes = Vec::with_capacity(graph.node.len());
        for mut node in std::mem::take(&mut graph.node) {
            for inner in subgraphs_mut(&mut node) {
                self.graph(inner, depth)?;
            }
            let key = (normal(&node.domain).to_owned(), node.op_type.clone());
            match self.functions.get(&key) {
                None => nodes.push(node),
                Some(function) => {
                    let mut body = self.body(&node, function, depth)?;
                    nodes.append(&mut body);
                }
            }
        }
        self.nodes += nodes.len();
        if self.nodes > MAX_NODES {
            return Err(malformed(format!(
                "its functions have more than {MAX_NODES} nodes"
            )));
        }
        graph.node = nodes;
        Ok(())
    }

    /// The nodes that compute a call.
    fn body(
        &mut self,
        call: &NodeProto,
        function: &FunctionProto,
        depth: usize,
    ) -> Result<Vec<NodeProto>, NetworkError> {
        if depth >= MAX_DEPTH {
            return Err(malformed(format!(
                "function {:?} is nested more than {MAX_DEPTH} times",
                call.op_type
            )));
        }
        self.calls += 1;
        let mut graph = GraphProto {
            node: function.node.clone(),
            ..GraphProto::default()
        };
        for node in &mut graph.node {
            give_attributes(node, call);
        }
        prefix(&mut graph, &format!("{}#{}/", call.op_type, self.calls));
        let mut values: HashMap<&str, &str> = HashMap::new();
        let ports = function.input.iter().zip(&call.input);
        values.extend(ports.map(|(inside, outside)| (inside.as_str(), outside.as_str())));
        let of_body: HashMap<String, &str> = { function.output.iter().zip(&call.output) }
            .filter(|(_, outside)| !outside.is_empty())
            .map(|(inside, outside)| {
                let defined = format!("{}#{}/{inside}", call.op_type, self.calls);
                (defined, outside.as_str())
            })
            .collect();
        // An input that the call omits is empty.
        let omitted = |name: &str| function.input.iter().any(|input| input == name);
        rename(&mut graph, &|name| {
            let outside = values.get(name).copied().or(of_body.get(name).copied());
            match outside {
                Some(outside) => Some(outside.to_owned()),
                None => omitted(name).then(String::new),
            }
        });
        // An output that is an input of the function.
        for (inside, outside) in function.output.iter().zip(&call.output) {
            if let Some(input) = values.get(inside.as_str())
                && !outside.is_empty()
            {
                graph.node.push(NodeProto {
                    op_type: "Identity".into(),
                    input: vec![(*input).to_owned()],
                    output: vec![outside.clone()],
                    ..NodeProto::default()
                });
            }
        }
        self.graph(&mut graph, depth + 1)?;
        Ok(graph.node)
    }
}

/// Replaces references to attributes of the function by those of the call.
fn give_attributes(node: &mut NodeProto, call: &NodeProto) {
    node.attribute.retain_mut(|attribute| {
        if attribute.ref_attr_name.is_empty() {
            return true;
        }
        let mut given = call.attribute.iter();
        match given.find(|given| given.name == attribute.ref_attr_name) {
            None => false,
            Some(given) => {
                *attribute = AttributeProto {
                    name: std::mem::take(&mut attribute.name),
                    ..given.clone()
                };
                attribute.r#type != AttributeType::Undefined as i32
            }
        }
    });
    for inner in subgraphs_mut(node) {
        for node in &mut inner.node {
            give_attributes(node, call);
        }
    }
}
