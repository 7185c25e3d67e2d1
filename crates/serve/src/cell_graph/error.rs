//! What is wrong with a graph.

use super::NodeId;

/// Why a graph was refused. Nothing of the request has been computed; of one that grows, nothing of what
/// was added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// No node.
    #[error("the graph has no node; a request computes at least one cell")]
    Empty,
    /// More nodes than can be counted.
    #[error("the graph has {nodes} nodes; at most {most} are supported")]
    TooManyNodes {
        /// Nodes of the graph.
        nodes: usize,
        /// Most that are accepted.
        most: usize,
    },
    /// A cell type that the engine does not have.
    #[error("node {node} calls cell {cell}, but there are {cells} cells, numbered from 0")]
    UnknownCell {
        /// The node.
        node: usize,
        /// What it calls.
        cell: usize,
        /// How many there are.
        cells: usize,
    },
    /// A node with too few or too many sources.
    #[error("node {node} has {found} sources; its cell, `{cell}`, takes {expected}: {ports}")]
    Sources {
        /// The node.
        node: usize,
        /// Its cell.
        cell: String,
        /// How many the cell takes.
        expected: usize,
        /// How many the node has.
        found: usize,
        /// Names of the ports, in order.
        ports: String,
    },
    /// Values of another width than the port takes.
    #[error(
        "node {node} takes {found} values for `{port}` of cell `{cell}`, which takes {expected}"
    )]
    Width {
        /// The node.
        node: usize,
        /// Its cell.
        cell: String,
        /// The port.
        port: String,
        /// Values that the port takes.
        expected: usize,
        /// Values that the source has.
        found: usize,
    },
    /// A source that names a node that is not there.
    #[error("{user} takes something of node {node}, but there are {nodes} nodes, numbered from 0")]
    UnknownNode {
        /// Who takes: a node, or the answer.
        user: User,
        /// The node that is not there.
        node: usize,
        /// How many there are.
        nodes: usize,
    },
    /// A source that names something that a node does not give.
    #[error(
        "{user} takes port {port} of node {node}, whose cell, `{cell}`, gives {gives}, numbered from 0"
    )]
    UnknownPort {
        /// Who takes.
        user: User,
        /// Of which node.
        node: usize,
        /// Which port.
        port: usize,
        /// The node's cell.
        cell: String,
        /// How many ports it gives.
        gives: usize,
    },
    /// Given values that were not given.
    #[error("{user} takes values {first} to {end} of the request, which has {given}")]
    UnknownGiven {
        /// Who takes.
        user: User,
        /// The first.
        first: usize,
        /// One past the last.
        end: usize,
        /// How many there are.
        given: usize,
    },
    /// Zeros in the answer: of no width.
    #[error(
        "the answer takes zeros, whose number nothing says; take a node's or the request's values"
    )]
    AnswerZeros,
    /// Nodes that wait for each other.
    #[error("node {node} waits for its own result: its sources lead back to it")]
    Cycle {
        /// One of them.
        node: usize,
    },
    /// A node that is watched in a request that nothing grows: its answer would lack what comes then.
    #[error("node {node} is watched, but nothing grows the request; give it a function that does")]
    NothingGrows {
        /// The node.
        node: usize,
    },
    /// A node that was asked to be watched when it may have been computed.
    #[error("node {node} is to be watched, but was added before; watch nodes when they are added")]
    WatchedLate {
        /// The node.
        node: usize,
    },
    /// A node that was asked to be watched, but is not there.
    #[error("node {node} is to be watched, but there are {nodes} nodes, numbered from 0")]
    UnknownWatched {
        /// The node.
        node: usize,
        /// How many there are.
        nodes: usize,
    },
    /// What was added later takes something that is not kept for it, whether it has been computed by then or not.
    #[error(
        "{user}, added later, takes something of node {node}, which is not kept for it: what is added for a watched \
         node may take what that gives, or go on from all states of another watched one, once, and take nothing else"
    )]
    NotKept {
        /// Who takes.
        user: User,
        /// The node.
        node: usize,
    },
}

/// Who takes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A node.
    Node(NodeId),
    /// The request's answer.
    Answer,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            User::Node(node) => write!(f, "node {}", node.index()),
            User::Answer => f.write_str("the answer"),
        }
    }
}
