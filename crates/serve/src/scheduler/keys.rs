//! The names of requests, subgraphs, rows and workers.

use crate::cell_graph::NodeId;

slotmap::new_key_type! {
    /// A request that was accepted. No two requests of a scheduler ever have the same key.
    pub struct RequestKey;
}

/// A subgraph of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubgraphKey {
    /// Its request.
    pub request: RequestKey,
    /// Its position among the subgraphs of the request.
    pub index: u32,
}

/// One row of a batch: a node of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// Its request.
    pub request: RequestKey,
    /// The node.
    pub node: NodeId,
}

/// A worker, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub usize);
