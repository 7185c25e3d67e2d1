//! All nodes of a file as one graph: those of branches and loop bodies, too.

use std::collections::HashMap;

use tract_onnx::pb::{GraphProto, NodeProto};

use super::names::prefix;

/// See the [module](self). A body's values and nodes have the name of its node as a prefix; its
/// outputs are among those of the graph. It is
/// for questions about parts of a graph; it does not run, as both branches of an `If` are there.
pub(crate) struct FlatGraph {
    pub graph: GraphProto,
    /// By the name of a node of a body: the node that has the body, and its operator.
    pub holders: HashMap<String, Holder>,
}

/// A node with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub name: String,
    pub operator: String,
}

/// Collects the nodes of a graph whose nodes have names.
pub(crate) fn flatten(graph: &GraphProto) -> FlatGraph {
    let mut flat = FlatGraph {
        graph: GraphProto {
            input: graph.input.clone(),
            output: graph.output.clone(),
            ..GraphProto::default()
        },
        holders: HashMap::new(),
    };
    flat.add(graph.clone(), None);
    flat
}

impl FlatGraph {
    fn add(&mut self, graph: GraphProto, holder: Option<&Holder>) {
        self.graph.initializer.extend(graph.initializer);
        for mut node in graph.node {
            if let Some(holder) = holder {
                self.holders.insert(node.name.clone(), holder.clone());
            }
            let inner = Holder {
                name: node.name.clone(),
                operator: node.op_type.clone(),
            };
            for (name, body) in take_bodies(&mut node) {
                let mut body = body;
                prefix(&mut body, &format!("{}/{name}/", node.name));
                // The node reads them.
                self.graph.output.extend(body.output.iter().cloned());
                self.add(body, Some(&inner));
            }
            self.graph.node.push(node);
        }
    }
}

/// The bodies of a node with the names of their attributes.
fn take_bodies(node: &mut NodeProto) -> Vec<(String, GraphProto)> {
    let mut bodies = Vec::new();
    for attribute in &mut node.attribute {
        let own = attribute.g.take().into_iter();
        let own = own.chain(attribute.graphs.drain(..));
        bodies.extend(own.map(|body| (attribute.name.clone(), body)));
    }
    bodies
}
