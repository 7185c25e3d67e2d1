//! What may be added to a graph while it is computed.
//!
//! Which nodes have been computed by then depends on the batches that others are in, and must not decide whether a
//! request is answered. So only the graph is asked. What is added may take, beside given values and what is added with it,
//!
//! ```text
//! all that is given by     the watched node that it is added for
//! all states of            another node that was watched before, to go on from as a node of the same cell, which nothing else
//!                          does: they rest until then. That node, and those of its cell that are connected with it (its
//!                          subgraph), may take nothing else that is not given: what goes on in the rows of a worker waits
//!                          for nothing
//! ```
//!
//! and may ask to watch what is added with it.

use rustc_hash::FxHashSet;

use super::error::{GraphError, User};
use super::graph::Mark;
use super::{Cells, Graph, NodeId, RequestGraph, Source};

/// The watched nodes of a graph, as far as something may still go on from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resident {
    /// Those whose states nothing goes on from yet.
    resident: FxHashSet<NodeId>,
    /// Those that something goes on from that was added for another one. What is added for them may not, too: had it come
    /// first, the other's would have been refused, and which comes first depends on others.
    gone_on: FxHashSet<NodeId>,
}

impl Resident {
    /// Of a graph that has been checked, as it was submitted.
    pub fn of(cells: &Cells, graph: &Graph) -> Resident {
        let mut resident = Resident::default();
        if !graph.watched().is_empty() {
            resident.add(cells, graph, Mark::default(), None);
        }
        resident
    }

    /// Checks what was added to a graph since `before`, for a `watched` node or from outside, and takes notice of it. After an
    /// error it is to be taken back.
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
        // An old node that a source is of, if what it gives is not kept for it anyway.
        let lacks = |source: &Source| match *source {
            Source::Node { node, .. } if node.index() < before.nodes && Some(node) != watched => {
                Some(node)
            }
            _ => None,
        };
        let not_kept = |user: User, node: NodeId| GraphError::NotKept {
            user,
            node: node.index(),
        };
        let goes_on = unfolded.goes_on_from();
        let mut continued = Vec::new();
        for node in (before.nodes..graph.len()).map(NodeId::new) {
            let (sources, user) = (graph.sources(node), User::Node(node));
            let from = graph.continues(cells, node);
            if let Some(from) = from.filter(|from| self.gone_on.contains(from)) {
                return Err(not_kept(user, from));
            }
            let Some(lacking) = sources.iter().find_map(lacks) else {
                continue;
            };
            let rests = from.filter(|from| {
                goes_on[unfolded.subgraph(node)] == Some(*from)
                    && self.resident.contains(from)
                    && !continued.contains(from)
            });
            let mut inputs = sources[..graph.inputs_of(cells, node)].iter();
            match rests {
                Some(from) if !inputs.any(|source| lacks(source).is_some()) => continued.push(from),
                _ => return Err(not_kept(user, lacking)),
            }
        }
        if let Some(node) = graph.answers()[before.answers..].iter().find_map(lacks) {
            return Err(not_kept(User::Answer, node));
        }
        let mut late = graph.watched()[before.watched..].iter();
        match late.find(|node| node.index() < before.nodes) {
            Some(node) => Err(GraphError::WatchedLate { node: node.index() }),
            None => Ok(()),
        }
    }

    fn add(&mut self, cells: &Cells, graph: &Graph, before: Mark, watched: Option<NodeId>) {
        self.resident.extend(&graph.watched()[before.watched..]);
        for node in (before.nodes..graph.len()).map(NodeId::new) {
            if let Some(from) = graph.continues(cells, node) {
                self.resident.remove(&from);
                if from.index() < before.nodes && watched.is_some_and(|watched| watched != from) {
                    self.gone_on.insert(from);
                }
            }
        }
    }
}

impl Graph {
    /// Whether watched nodes have a function that is to be called.
    pub(crate) fn check_watched(&self, grows: bool) -> Result<(), GraphError> {
        match self.watched().first() {
            Some(node) if !grows => Err(GraphError::NothingGrows { node: node.index() }),
            _ => Ok(()),
        }
    }
}
