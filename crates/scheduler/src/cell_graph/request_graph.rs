//! The part of a checked graph that the scheduler needs: the cell of each node, the dependences,
//! and the subgraphs.
//!
//! A *subgraph* (BatchMaker, section 4.3) is a set of connected nodes of one cell that can be
//! scheduled without regard to the rest of the graph once all their outside sources are computed.
//! Connected nodes of one cell do not suffice: in `a → b → a'` with a third edge `a → a'` the two
//! `a` are connected, but `a'` depends on `b`, which depends on `a`, so a subgraph of both would
//! depend on itself. Therefore a node has a *stage*, the maximum number of changes of cell on a
//! path to it, and only nodes of one stage share a subgraph. Each edge between two subgraphs leads
//! to a later stage, so there is no cycle.

use super::error::{GraphError, Reader};
use super::graph::Mark;
use super::{CellError, CellId, Cells, Graph, NodeId, Source};

/// Maximum number of nodes of a graph.
pub const MAX_NODES: usize = 1 << 24;

/// A graph, or an addition to one, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestGraph {
    /// Number of earlier nodes.
    pub(crate) first: usize,
    /// The cell of each new node.
    pub(crate) cells: Vec<CellId>,
    /// Dependences `(from, to)`, once for each pair, ordered by `to`, which is new.
    pub(crate) edges: Vec<(NodeId, NodeId)>,
    /// The subgraph of each new node, numbered from 0 among the new ones.
    pub(crate) subgraph_of: Vec<u32>,
    /// Number of subgraphs.
    pub(crate) subgraphs: usize,
    /// Whether the graph allows each new node to run in one batch with its predecessor: its inputs
    /// are no results of its own subgraph, the predecessor is not watched, and no other node reads
    /// the predecessor's states.
    pub(crate) joins: Vec<bool>,
}

impl RequestGraph {
    /// Number of (new) nodes.
    pub fn nodes(&self) -> usize {
        self.cells.len()
    }

    /// Number of (new) subgraphs.
    pub fn subgraphs(&self) -> usize {
        self.subgraphs
    }

    /// The subgraph of a new node.
    ///
    /// # Panics
    /// If the node is not new.
    pub fn subgraph(&self, node: NodeId) -> usize {
        self.subgraph_of[node.index() - self.first] as usize
    }

    /// For each new subgraph, the earlier node that it continues from, if it reads no other node
    /// outside: then the scheduler joins it to that node's subgraph.
    pub fn continues_from(&self) -> Vec<Option<NodeId>> {
        let mut from: Vec<Option<NodeId>> = vec![None; self.subgraphs];
        let mut several = vec![false; self.subgraphs];
        for &(before, node) in &self.edges {
            let new = self.subgraph(node);
            if before.index() >= self.first {
                several[new] |= self.subgraph(before) != new;
            } else {
                several[new] |= from[new].is_some_and(|other| other != before);
                from[new] = Some(before);
            }
        }
        let one = from.into_iter().zip(several);
        one.map(|(from, several)| from.filter(|_| !several))
            .collect()
    }
}

impl Graph {
    /// Checks the graph against the cells that it calls, and divides it into subgraphs.
    ///
    /// # Errors
    /// The [`GraphError`] of the first invalid node; cycles last.
    pub fn unfold(&self, cells: &Cells) -> Result<RequestGraph, GraphError> {
        if self.is_empty() {
            return Err(GraphError::Empty);
        }
        self.unfold_from(cells, Mark::default())
    }

    /// As [`Graph::unfold`], for the nodes added since `before`: what
    /// [`Scheduler::handle_grow`](crate::scheduler::Scheduler::handle_grow) takes.
    ///
    /// # Errors
    /// As [`Graph::unfold`].
    pub fn unfold_from(&self, cells: &Cells, before: Mark) -> Result<RequestGraph, GraphError> {
        if self.len() > MAX_NODES {
            return Err(GraphError::TooManyNodes {
                nodes: self.len(),
                max: MAX_NODES,
            });
        }
        let new = before.nodes..self.len();
        // First all cells: sources may be later nodes.
        for node in new.clone() {
            let id = self.cell(NodeId::new(node));
            let Some(cell) = cells.get(id) else {
                return Err(GraphError::UnknownCell {
                    node,
                    cell: id.index(),
                    cells: cells.len(),
                });
            };
            let sequences = cell.ports().outputs().iter();
            let expected = sequences.filter(|port| port.is_sequence()).count();
            let found = self.lengths(NodeId::new(node)).len();
            if found != expected {
                return Err(GraphError::Lengths {
                    node,
                    cell: cell.name().into(),
                    expected,
                    found,
                });
            }
        }
        let mut edges = Vec::new();
        for node in new.clone().map(NodeId::new) {
            self.check_node(cells, node)?;
            let sources = self.sources(node);
            for (at, source) in sources.iter().enumerate() {
                if let Source::Node { node: from, .. } = *source
                    && !sources[..at].iter().any(|s| is_of(s, from))
                {
                    edges.push((from, node));
                }
            }
        }
        for source in &self.answers()[before.answers..] {
            if *source == Source::Zeros {
                return Err(GraphError::AnswerZeros);
            }
            self.width(cells, source, Reader::Response)?;
        }
        let mut watched = self.watched()[before.watched..].iter();
        if let Some(node) = watched.find(|node| node.index() >= self.len()) {
            return Err(GraphError::UnknownWatched {
                node: node.index(),
                nodes: self.len(),
            });
        }
        let called: Vec<CellId> = new.map(|node| self.cell(NodeId::new(node))).collect();
        let order = topological(before.nodes, called.len(), &edges)?;
        let (subgraph_of, subgraphs) = divide(before.nodes, &called, &edges, &order);
        Ok(RequestGraph {
            joins: self.joins(cells, before, &subgraph_of),
            first: before.nodes,
            cells: called,
            edges,
            subgraph_of,
            subgraphs,
        })
    }

    /// Which nodes that were added since `before` [join](RequestGraph::joins), of these subgraphs.
    /// An earlier node that is continued from is watched.
    fn joins(&self, cells: &Cells, before: Mark, subgraph_of: &[u32]) -> Vec<bool> {
        let added = |node: NodeId| node.index().checked_sub(before.nodes);
        // The new node whose state a source is.
        let state_of = |source: &Source| match *source {
            Source::Node { node, port } => {
                let cell = cells.get(self.cell(node));
                let is_state = cell.is_some_and(|cell| port < cell.ports().states().len());
                added(node).filter(|_| is_state)
            }
            Source::Zeros | Source::Given { .. } => None,
        };
        // For each new node: whether it is watched, or a node beside its first successor reads its
        // states.
        let mut seen = vec![false; subgraph_of.len()];
        let watched = self.watched()[before.watched..].iter();
        let answered = self.answers()[before.answers..].iter();
        let told = watched.filter_map(|&node| added(node));
        for at in told.chain(answered.filter_map(state_of)) {
            seen[at] = true;
        }
        // By new node: which it goes on from, if its inputs are there when the subgraph's turn
        // comes, as all that others give is.
        let mut from = vec![None; subgraph_of.len()];
        let mut gone_on = vec![false; subgraph_of.len()];
        for (at, from) in from.iter_mut().enumerate() {
            let node = NodeId::new(before.nodes + at);
            let (inputs, states) = self.sources(node).split_at(self.inputs_of(cells, node));
            let goes_on = self.continues(cells, node).and_then(added);
            let is_first = goes_on.is_some_and(|at| !std::mem::replace(&mut gone_on[at], true));
            let copied = if is_first { &[] } else { states };
            for at in inputs.iter().chain(copied).filter_map(state_of) {
                seen[at] = true;
            }
            let waits = |source: &Source| match *source {
                Source::Node { node, .. } => {
                    added(node).is_some_and(|other| subgraph_of[other] == subgraph_of[at])
                }
                Source::Zeros | Source::Given { .. } => false,
            };
            *from = goes_on.filter(|_| !inputs.iter().any(waits));
        }
        let joins = |from: Option<usize>| from.is_some_and(|from| !seen[from]);
        from.into_iter().map(joins).collect()
    }

    /// Sources of one node: as many as its cell takes, each of the width of its port.
    fn check_node(&self, cells: &Cells, node: NodeId) -> Result<(), GraphError> {
        let Some(cell) = cells.get(self.cell(node)) else {
            unreachable!("checked before");
        };
        let (takes, sources) = (cell.ports().reads(), self.sources(node));
        if takes.len() != sources.len() {
            let names: Vec<_> = takes.clone().map(|p| format!("`{}`", p.name())).collect();
            return Err(GraphError::Sources {
                node: node.index(),
                cell: cell.name().into(),
                expected: names.len(),
                found: sources.len(),
                ports: names.join(", "),
            });
        }
        for (port, source) in takes.zip(sources) {
            let width = self.width(cells, source, Reader::Node(node))?;
            if port.is_sequence() {
                // Zeros have no length.
                let found = width.unwrap_or(0);
                if found == 0 || !found.is_multiple_of(port.width()) {
                    return Err(GraphError::Sequence {
                        node: node.index(),
                        cell: cell.name().into(),
                        port: port.name().into(),
                        width: port.width(),
                        found,
                    });
                }
            } else if let Some(found) = width
                && found != port.width()
            {
                return Err(GraphError::Width {
                    node: node.index(),
                    cell: cell.name().into(),
                    port: port.name().into(),
                    expected: port.width(),
                    found,
                });
            }
        }
        if cell.ports().has_sequences() {
            self.check_lengths(cells, node)
        } else {
            Ok(())
        }
    }

    /// Asks the cell of a node for its opinion on the lengths of its sequences.
    fn check_lengths(&self, cells: &Cells, node: NodeId) -> Result<(), GraphError> {
        let Some(cell) = cells.get(self.cell(node)) else {
            unreachable!("checked before");
        };
        let ports = cell.ports();
        let mut inputs = Vec::new();
        for (port, source) in ports.inputs().iter().zip(self.sources(node)) {
            if port.is_sequence() {
                let values = self.width(cells, source, Reader::Node(node))?;
                inputs.push(values.unwrap_or(0) / port.width());
            }
        }
        let checked = if self.written_widths(node, ports).max() > Some(u32::MAX as usize) {
            Err(CellError::new(
                "an output sequence has more than 2^32 values",
            ))
        } else {
            cell.check_lengths(&inputs, self.lengths(node))
        };
        checked.map_err(|why| GraphError::Refused {
            node: node.index(),
            cell: cell.name().into(),
            why,
        })
    }

    /// How many values a source has; `None` for zeros, which are as many as needed.
    pub(crate) fn width(
        &self,
        cells: &Cells,
        source: &Source,
        reader: Reader,
    ) -> Result<Option<usize>, GraphError> {
        match *source {
            Source::Zeros => Ok(None),
            Source::Given { first, width } => {
                let (end, given) = (first.saturating_add(width), self.given_len());
                if end <= given {
                    Ok(Some(width))
                } else {
                    Err(GraphError::UnknownGiven {
                        reader,
                        first,
                        end,
                        given,
                    })
                }
            }
            Source::Node { node, port } => {
                if node.index() >= self.len() {
                    return Err(GraphError::UnknownNode {
                        reader,
                        node: node.index(),
                        nodes: self.len(),
                    });
                }
                let Some(cell) = cells.get(self.cell(node)) else {
                    unreachable!("checked before");
                };
                let count = cell.ports().writes().len();
                match self.written_widths(node, cell.ports()).nth(port) {
                    Some(width) => Ok(Some(width)),
                    None => Err(GraphError::UnknownPort {
                        reader,
                        node: node.index(),
                        port,
                        cell: cell.name().into(),
                        ports: count,
                    }),
                }
            }
        }
    }
}

fn is_of(source: &Source, of: NodeId) -> bool {
    matches!(*source, Source::Node { node, .. } if node == of)
}

/// The new nodes, each after all that it waits for; numbered from 0 among the new ones.
fn topological(
    first: usize,
    nodes: usize,
    edges: &[(NodeId, NodeId)],
) -> Result<Vec<usize>, GraphError> {
    // Nodes added after their sources, as most unfold functions do, are in order already.
    if edges.iter().all(|(from, to)| from < to) {
        return Ok((0..nodes).collect());
    }
    let local = |node: NodeId| node.index().checked_sub(first);
    let mut waits_for = vec![0usize; nodes];
    let mut followers = vec![Vec::new(); nodes];
    for (from, to) in edges {
        if let (Some(from), Some(to)) = (local(*from), local(*to)) {
            waits_for[to] += 1;
            followers[from].push(to);
        }
    }
    let mut order: Vec<usize> = (0..nodes).filter(|&n| waits_for[n] == 0).collect();
    let mut next = 0;
    while next < order.len() {
        for &follower in &followers[order[next]] {
            waits_for[follower] -= 1;
            if waits_for[follower] == 0 {
                order.push(follower);
            }
        }
        next += 1;
    }
    // Of those left over, some only wait for a circle: going back from any of them leads into it.
    let Some(left) = (0..nodes).find(|&n| waits_for[n] > 0) else {
        return Ok(order);
    };
    let mut seen = vec![false; nodes];
    let mut at = left;
    while !std::mem::replace(&mut seen[at], true) {
        // Edges are ordered by where they lead: only those that lead here are looked at.
        let into = edges.partition_point(|(_, to)| to.index() < first + at);
        let mut into = edges[into..]
            .iter()
            .take_while(|(_, to)| to.index() == first + at);
        let before = into.find_map(|(from, _)| local(*from).filter(|&from| waits_for[from] > 0));
        at = before.unwrap_or(at);
    }
    Err(GraphError::Cycle { node: first + at })
}

/// The subgraph of each new node, and how many there are.
fn divide(
    first: usize,
    called: &[CellId],
    edges: &[(NodeId, NodeId)],
    order: &[usize],
) -> (Vec<u32>, usize) {
    let nodes = called.len();
    // Edges are ordered by where they lead: `into[n]..into[n + 1]` lead to node n.
    let mut into = vec![0usize; nodes + 1];
    for (_, to) in edges {
        into[to.index() - first + 1] += 1;
    }
    for node in 0..nodes {
        into[node + 1] += into[node];
    }
    let mut stage = vec![0u32; nodes];
    let mut parent: Vec<u32> = (0..nodes as u32).collect();
    for &node in order {
        let before = || {
            let froms = edges[into[node]..into[node + 1]].iter();
            froms.filter_map(|(from, _)| from.index().checked_sub(first))
        };
        let after = |from: usize| stage[from] + u32::from(called[from] != called[node]);
        stage[node] = before().map(after).max().unwrap_or(0);
        for from in before() {
            if called[from] == called[node] && stage[from] == stage[node] {
                let (a, b) = (root(&mut parent, from), root(&mut parent, node));
                // The smaller number stays, so that subgraphs are numbered in the order of their
                // nodes.
                parent[a.max(b)] = a.min(b) as u32;
            }
        }
    }
    let mut number = vec![u32::MAX; nodes];
    let mut subgraphs = 0;
    let mut subgraph_of = Vec::with_capacity(nodes);
    for node in 0..nodes {
        let root = root(&mut parent, node);
        if number[root] == u32::MAX {
            number[root] = subgraphs;
            subgraphs += 1;
        }
        subgraph_of.push(number[root]);
    }
    (subgraph_of, subgraphs as usize)
}

/// The node that stands for `node`'s set; halves the way to it.
fn root(parent: &mut [u32], mut node: usize) -> usize {
    while parent[node] as usize != node {
        parent[node] = parent[parent[node] as usize];
        node = parent[node] as usize;
    }
    node
}
