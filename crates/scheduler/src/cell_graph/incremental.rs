//! The rules for additions to a graph while it is computed.
//!
//! The set of computed nodes depends on the batches of other requests, and must not decide whether
//! a request succeeds. So only the graph decides. Beside values of the request and nodes of the
//! same call, an added node may read
//!
//! ```text
//! states and outputs of   the watched node that it is added for
//! all states of           another watched node of the same cell, if no other node continues from
//!                         it: they are resident until then. The whole new subgraph may then read
//!                         no other earlier node, as a chain in the rows of a worker waits for
//!                         nothing
//! ```
//!
//! Nodes may be watched only in the call that adds them.

use rustc_hash::FxHashSet;

use super::error::{GraphError, Reader};
use super::graph::Mark;
use super::{Cells, Graph, NodeId, RequestGraph, Source};

/// The watched nodes of a graph from which a later node may continue.
#[derive(Clone, Debug, Default)]
pub struct Resident {
    /// Those from which no node continues yet.
    resident: FxHashSet<NodeId>,
    /// Those from which a node continues that was added for another one. A node added for them must
    /// not continue, too: in the other order of calls the first would have been refused, and the
    /// order depends on other requests.
    continued: FxHashSet<NodeId>,
}

impl Resident {
    /// The watched nodes of a checked graph at its submission.
    pub fn of(cells: &Cells, graph: &Graph) -> Resident {
        let mut resident = Resident::default();
        if !graph.watched().is_empty() {
            resident.add(cells, graph, Mark::default(), None);
        }
        resident
    }

    /// Checks and records the nodes added to a graph since `before`, for a `watched` node or from
    /// outside. After an error the caller removes them.
    pub fn grown(
        &mut self,
        cells: &Cells,
        graph: &Graph,
        before: Mark,
        watched: Option<NodeId>,
    ) -> Result<RequestGraph, GraphError> {
        let unfolded = graph.unfold_from(cells, before)?;
        self.check(cells, graph, before, watched, &unfolded)?;
        self.add(cells, graph, before, watched);
        Ok(unfolded)
    }

    fn check(
        &self,
        cells: &Cells,
        graph: &Graph,
        before: Mark,
        watched: Option<NodeId>,
        unfolded: &RequestGraph,
    ) -> Result<(), GraphError> {
        // The earlier node of a source, unless its values are retained for the added nodes.
        let lacks = |source: &Source| match *source {
            Source::Node { node, .. } if node.index() < before.nodes && Some(node) != watched => {
                Some(node)
            }
            _ => None,
        };
        let not_retained = |reader: Reader, node: NodeId| GraphError::NotRetained {
            reader,
            node: node.index(),
        };
        let goes_on = unfolded.continues_from();
        let mut taken = Vec::new();
        for node in (before.nodes..graph.len()).map(NodeId::new) {
            let (sources, reader) = (graph.sources(node), Reader::Node(node));
            let from = graph.continues(cells, node);
            if let Some(from) = from.filter(|from| self.continued.contains(from)) {
                return Err(not_retained(reader, from));
            }
            let Some(lacking) = sources.iter().find_map(lacks) else {
                continue;
            };
            let resident = from.filter(|from| {
                goes_on[unfolded.subgraph(node)] == Some(*from)
                    && self.resident.contains(from)
                    && !taken.contains(from)
            });
            let mut inputs = sources[..graph.inputs_of(cells, node)].iter();
            match resident {
                Some(from) if !inputs.any(|source| lacks(source).is_some()) => taken.push(from),
                _ => return Err(not_retained(reader, lacking)),
            }
        }
        if let Some(node) = graph.answers()[before.answers..].iter().find_map(lacks) {
            return Err(not_retained(Reader::Response, node));
        }
        let mut late = graph.watched()[before.watched..].iter();
        match late.find(|node| node.index() < before.nodes) {
            Some(node) => Err(GraphError::WatchedTooLate { node: node.index() }),
            None => Ok(()),
        }
    }

    fn add(&mut self, cells: &Cells, graph: &Graph, before: Mark, watched: Option<NodeId>) {
        self.resident.extend(&graph.watched()[before.watched..]);
        for node in (before.nodes..graph.len()).map(NodeId::new) {
            if let Some(from) = graph.continues(cells, node) {
                self.resident.remove(&from);
                if from.index() < before.nodes && watched.is_some_and(|watched| watched != from) {
                    self.continued.insert(from);
                }
            }
        }
    }
}

impl Graph {
    /// Refuses watched nodes in a request without a `DynamicGraph`.
    pub fn check_watched(&self, grows: bool) -> Result<(), GraphError> {
        match self.watched().first() {
            Some(node) if !grows => Err(GraphError::NoDynamicGraph { node: node.index() }),
            _ => Ok(()),
        }
    }
}
