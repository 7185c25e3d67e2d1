//! The names of models, clients, requests, subgraphs, rows and workers.

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

/// A model of a scheduler. No two models of a scheduler ever have the same key; the default is that
/// of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelKey {
    /// Its index, which is used again when it is removed.
    pub(super) index: u32,
    /// Models that were added before it.
    pub(super) number: u32,
}

impl ModelKey {
    /// The index among the models that are there, from 0. That of a removed model is used again.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// A client, numbered by the user. See [`Limits::client_requests`](super::Limits::client_requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);
