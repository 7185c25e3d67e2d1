//! Errors of graphs.

use super::{CellError, NodeId};

/// Why a graph, or an addition to it, was refused. Nothing of it has been computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The graph has no node.
    #[error("the graph has no node; a request computes at least one cell")]
    Empty,
    /// The graph has more than [`MAX_NODES`](super::MAX_NODES) nodes.
    #[error("the graph has {nodes} nodes; the maximum is {max}")]
    TooManyNodes {
        /// Nodes of the graph.
        nodes: usize,
        /// The maximum.
        max: usize,
    },
    /// A cell type that the engine does not have.
    #[error("node {node} calls cell {cell}, but there are {cells} cells, numbered from 0")]
    UnknownCell {
        /// The node.
        node: usize,
        /// The cell that it calls.
        cell: usize,
        /// Number of cells.
        cells: usize,
    },
    /// A node has too few or too many sources.
    #[error("node {node} has {found} sources; its cell `{cell}` reads {expected}: {ports}")]
    Sources {
        /// The node.
        node: usize,
        /// Its cell.
        cell: String,
        /// Number of ports that the cell reads.
        expected: usize,
        /// Number of sources of the node.
        found: usize,
        /// Names of the ports, in order.
        ports: String,
    },
    /// A source and its port have different widths.
    #[error("node {node} has {found} values for `{port}` of cell `{cell}`, which reads {expected}")]
    Width {
        /// The node.
        node: usize,
        /// Its cell.
        cell: String,
        /// The port.
        port: String,
        /// Width of the port.
        expected: usize,
        /// Width of the source.
        found: usize,
    },
    /// A source is no sequence of the port.
    #[error(
        "node {node} has {found} values for the sequence `{port}` of cell `{cell}`, which reads \
         one or more elements of {width}"
    )]
    Sequence {
        /// The node.
        node: usize,
        /// Its cell.
        cell: String,
        /// The port.
        port: String,
        /// Values of an element.
        width: usize,
        /// Number of values of the source.
        found: usize,
    },
    /// A node has too few or too many lengths of output sequences.
    #[error(
        "node {node} has {found} lengths; its cell `{cell}` has {expected} output sequences \
         (`Graph::node_of_lengths`)"
    )]
    Lengths {
        /// The node.
        node: usize,
        /// Its cell.
        cell: String,
        /// Number of output sequences.
        expected: usize,
        /// Number of lengths.
        found: usize,
    },
    /// A cell refuses the lengths of sequences.
    #[error("cell `{cell}` refuses node {node}: {why}")]
    Refused {
        /// The node.
        node: usize,
        /// Its cell.
        cell: String,
        /// The cause.
        why: CellError,
    },
    /// A source is a node that does not exist.
    #[error("{reader} reads node {node}; the graph has nodes 0 to {nodes} (exclusive)")]
    UnknownNode {
        /// The reader.
        reader: Reader,
        /// The node that does not exist.
        node: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A source is a port that the cell of the node does not have.
    #[error(
        "{reader} reads port {port} of node {node}; its cell `{cell}` has {ports} output ports, \
         numbered from 0"
    )]
    UnknownPort {
        /// The reader.
        reader: Reader,
        /// The node.
        node: usize,
        /// The port.
        port: usize,
        /// The node's cell.
        cell: String,
        /// Number of states and outputs of the cell.
        ports: usize,
    },
    /// A source is values that the request does not have.
    #[error("{reader} reads values {first}..{end} of the request, which has {given} values")]
    UnknownGiven {
        /// The reader.
        reader: Reader,
        /// The first.
        first: usize,
        /// One past the last.
        end: usize,
        /// Number of values of the request.
        given: usize,
    },
    /// The answer contains zeros, which have no width.
    #[error(
        "the response contains `Source::Zeros`, which has no width; use values of a node or of \
         the request"
    )]
    AnswerZeros,
    /// Nodes depend on each other in a cycle.
    #[error("node {node} depends on its own result: its sources form a cycle")]
    Cycle {
        /// One of them.
        node: usize,
    },
    /// A node is watched, but the request has no [`DynamicGraph`](super::DynamicGraph).
    #[error(
        "node {node} is watched, but the request has no `DynamicGraph`; set one with \
         `Request::grow`"
    )]
    NoDynamicGraph {
        /// The node.
        node: usize,
    },
    /// A node is watched after it was added, when it may have been computed.
    #[error("node {node} is watched too late; watch a node in the call that adds it")]
    WatchedTooLate {
        /// The node.
        node: usize,
    },
    /// A watched node does not exist.
    #[error("node {node} is watched; the graph has nodes 0 to {nodes} (exclusive)")]
    UnknownWatched {
        /// The node.
        node: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// An added node reads values that are not retained for it
    /// ([`DynamicGraph::grow`](super::DynamicGraph::grow)).
    #[error(
        "{reader} was added later and reads node {node}, whose values are not retained; added \
         nodes may read the watched node that they were added for, or continue once from all \
         states of another watched node"
    )]
    NotRetained {
        /// The reader.
        reader: Reader,
        /// The node.
        node: usize,
    },
}

/// A reader of values: a node, or the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A node.
    Node(NodeId),
    /// The response.
    Response,
}

impl std::fmt::Display for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reader::Node(node) => write!(f, "node {}", node.index()),
            Reader::Response => f.write_str("the response"),
        }
    }
}
