//! What may be added to a graph while it is computed.
//!
//! Which nodes have been computed by then depends on the batches that others are in, and must not decide whether a
//! request is answered. So only the graph is asked. What is added may take, beside given values and what is added with it,
//!
//! ```text
//! all that is given by     the watched node that it is added for
//! all states of            another node that was watched before, to go on from as a node of the same cell, once, with
//!                          nothing else that was there before: they rest until then
//! ```
//!
//! and may ask to watch what is added with it.

use rustc_hash::FxHashSet;

use super::error::{GraphError, User};
use super::graph::Mark;
use super::{Cells, Graph, NodeId, Source, Unfolded};

/// The watched nodes of a graph whose states nothing goes on from yet.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Resting(FxHashSet<NodeId>);

impl Resting {
    /// Of a graph that has been checked, as it was submitted.
    pub fn of(cells: &Cells, graph: &Graph) -> Resting {
        let mut resting = Resting(FxHashSet::default());
        if !graph.watched().is_empty() {
            resting.add(cells, graph, Mark::default());
        }
        resting
    }

    /// Checks what was added to a graph since `before`, for a `watched` node or from outside, and takes notice of it. After an
    /// error it is to be taken back.
    pub fn grown(
        &mut self,
        cells: &Cells,
        graph: &Graph,
        before: Mark,
        watched: Option<NodeId>,
    ) -> Result<Unfolded, GraphError> {
        let unfolded = graph.unfold_from(cells, before)?;
        self.check(cells, graph, before, watched, &unfolded)?;
        self.add(cells, graph, before);
        Ok(unfolded)
    }

    fn check(
        &self,
        cells: &Cells,
        graph: &Graph,
        before: Mark,
        watched: Option<NodeId>,
        unfolded: &Unfolded,
    ) -> Result<(), GraphError> {
        let is_kept = |source: &Source| match *source {
            Source::Node { node, .. } => node.index() >= before.nodes || Some(node) == watched,
            Source::Zeros | Source::Given { .. } => true,
        };
        let refused = |user: User, source: &Source| match *source {
            Source::Node { node, .. } => Err(GraphError::NotKept {
                user,
                node: node.index(),
            }),
            Source::Zeros | Source::Given { .. } => Ok(()),
        };
        let goes_on = unfolded.goes_on_from();
        let mut continued = Vec::new();
        for node in (before.nodes..graph.len()).map(NodeId::new) {
            let sources = graph.sources(node);
            let Some(lacking) = sources.iter().find(|source| !is_kept(source)) else {
                continue;
            };
            let rests = continues(cells, graph, node).filter(|from| {
                goes_on[unfolded.subgraph(node)] == Some(*from)
                    && self.0.contains(from)
                    && !continued.contains(from)
            });
            // It takes nothing else of old nodes: its subgraph goes on from one alone, and inputs are not states.
            let inputs = &sources[..inputs_of(cells, graph, node)];
            match rests {
                Some(from) if inputs.iter().all(is_kept) => continued.push(from),
                _ => refused(User::Node(node), lacking)?,
            }
        }
        for source in graph.answers()[before.answers..].iter() {
            if !is_kept(source) {
                refused(User::Answer, source)?;
            }
        }
        let late = graph.watched()[before.watched..].iter();
        match late.copied().find(|node| node.index() < before.nodes) {
            Some(node) => Err(GraphError::WatchedLate { node: node.index() }),
            None => Ok(()),
        }
    }

    fn add(&mut self, cells: &Cells, graph: &Graph, before: Mark) {
        self.0.extend(&graph.watched()[before.watched..]);
        for node in (before.nodes..graph.len()).map(NodeId::new) {
            if let Some(from) = continues(cells, graph, node) {
                self.0.remove(&from);
            }
        }
    }
}

impl Graph {
    /// Whether watched nodes have a function that is to be called.
    pub(in crate::serve) fn check_watched(&self, grows: bool) -> Result<(), GraphError> {
        match self.watched().first() {
            Some(node) if !grows => Err(GraphError::NothingGrows { node: node.index() }),
            _ => Ok(()),
        }
    }
}

/// The node of the same cell of which `node` takes all states as its own.
pub(in crate::serve) fn continues(cells: &Cells, graph: &Graph, node: NodeId) -> Option<NodeId> {
    let states = &graph.sources(node)[inputs_of(cells, graph, node)..];
    let Some(&Source::Node { node: from, .. }) = states.first() else {
        return None;
    };
    let all = states.iter().enumerate().all(
        |(at, source)| matches!(*source, Source::Node { node, port } if node == from && port == at),
    );
    (all && graph.cell(from) == graph.cell(node)).then_some(from)
}

/// How many of a node's sources are inputs; the others are states.
pub(super) fn inputs_of(cells: &Cells, graph: &Graph, node: NodeId) -> usize {
    let cell = cells.get(graph.cell(node));
    cell.map_or(0, |cell| cell.ports().inputs().len())
}
