//! Replaces calls of a model's own functions by their bodies.

use std::collections::HashMap;

use prost::Message;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};

use super::malformed;
use super::names::{prefix, rename, subgraphs, subgraphs_mut};
use crate::NetworkError;
use crate::operators::has_one_version;

/// Largest number of nodes after inlining, so that functions that call functions end.
const MAX_NODES: usize = 1_000_000;
/// Deepest nesting of calls.
const MAX_DEPTH: usize = 64;

/// The fields of functions that came after the schema of tract.
#[derive(Message)]
struct ModelAddenda {
    #[prost(message, repeated, tag = "25")]
    functions: Vec<FunctionAddenda>,
}

#[derive(Message)]
struct FunctionAddenda {
    /// Attributes with default values.
    #[prost(message, repeated, tag = "11")]
    attributes: Vec<AttributeProto>,
    #[prost(string, tag = "13")]
    overload: String,
}

/// A function of a model.
pub(super) struct Function {
    proto: FunctionProto,
    defaults: Vec<AttributeProto>,
}

/// The functions of a model, which has these bytes.
pub(super) fn read(
    functions: Vec<FunctionProto>,
    bytes: &[u8],
) -> Result<Vec<Function>, NetworkError> {
    if functions.is_empty() {
        return Ok(Vec::new());
    }
    let addenda = ModelAddenda::decode(bytes).map_err(|why| malformed(why.to_string()))?;
    let pairs = functions.into_iter().zip(addenda.functions);
    let read = pairs.map(|(proto, addenda)| {
        if addenda.overload.is_empty() {
            let defaults = addenda.attributes;
            return Ok(Function { proto, defaults });
        }
        Err(malformed(format!(
            "function {:?} has the overload {:?}; overloads are not supported: inline the \
             functions with `onnx.inliner.inline_local_functions`",
            proto.name.unwrap_or_default(),
            addenda.overload
        )))
    });
    read.collect()
}

/// Inlines all calls in a graph and those within. `imports` are those of the model.
pub(super) fn inline(
    graph: &mut GraphProto,
    functions: &[Function],
    imports: &[OperatorSetIdProto],
) -> Result<(), NetworkError> {
    if functions.is_empty() {
        return Ok(());
    }
    let name = |function: &FunctionProto| function.name.clone().unwrap_or_default();
    let functions: HashMap<_, _> = (functions.iter())
        .map(|function| ((domain(&function.proto), name(&function.proto)), function))
        .collect();
    let mut state = Inlining {
        functions,
        imports,
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
    functions: HashMap<(String, String), &'a Function>,
    imports: &'a [OperatorSetIdProto],
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
        function: &Function,
        depth: usize,
    ) -> Result<Vec<NodeProto>, NetworkError> {
        let Function {
            proto: function,
            defaults,
        } = function;
        if depth >= MAX_DEPTH {
            return Err(malformed(format!(
                "function {:?} is nested more than {MAX_DEPTH} times",
                call.op_type
            )));
        }
        if let Some(node) = of_other_opset(&function.node, &function.opset_import, self.imports) {
            return Err(malformed(format!(
                "function {:?} has {} of another opset than the model; convert both to one with \
                 `onnx.version_converter`",
                call.op_type, node.op_type
            )));
        }
        self.calls += 1;
        let mut graph = GraphProto {
            node: function.node.clone(),
            ..GraphProto::default()
        };
        for node in &mut graph.node {
            give_attributes(node, &call.attribute, defaults);
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

/// The first of these nodes and those within that is another operator under the imports of a model
/// than under those of its function.
fn of_other_opset<'a>(
    nodes: &'a [NodeProto],
    of_function: &[OperatorSetIdProto],
    of_model: &[OperatorSetIdProto],
) -> Option<&'a NodeProto> {
    nodes.iter().find_map(|node| {
        if !has_one_version(node, of_function, of_model) {
            return Some(node);
        }
        subgraphs(node).find_map(|inner| of_other_opset(&inner.node, of_function, of_model))
    })
}

/// Replaces references to attributes of the function by those of the call, or their defaults.
fn give_attributes(node: &mut NodeProto, given: &[AttributeProto], defaults: &[AttributeProto]) {
    node.attribute.retain_mut(|attribute| {
        if attribute.ref_attr_name.is_empty() {
            return true;
        }
        let mut known = given.iter().chain(defaults);
        match known.find(|known| known.name == attribute.ref_attr_name) {
            None => false,
            Some(known) => {
                *attribute = AttributeProto {
                    name: std::mem::take(&mut attribute.name),
                    ..known.clone()
                };
                attribute.r#type != AttributeType::Undefined as i32
            }
        }
    });
    for inner in subgraphs_mut(node) {
        for node in &mut inner.node {
            give_attributes(node, given, defaults);
        }
    }
}
