//! One request, as the [table](super::table) keeps it: its nodes, what they wait for, its
//! subgraphs. Cells are numbered as in its graph.

use std::time::Instant;

use super::Requirements;
use super::keys::{SubgraphKey, WorkerId};
use crate::cell_graph::{CellId, NodeId, RequestGraph};

/// No edge, no node, or no subgraph.
pub(super) const NONE: u32 = u32::MAX;

/// Maximum number of subgraphs that arrive under one lock. While as many of a request are ready,
/// the others wait.
pub(super) const PIECE: u32 = 1024;

/// The record of a new request, which takes time in proportion to its graph: to be made without a
/// lock.
pub struct Prepared(pub(super) Request);

impl Prepared {
    /// The record of a request with this graph.
    pub fn new(unfolded: &RequestGraph, requirements: Requirements) -> Prepared {
        let mut request = Request {
            nodes: Vec::with_capacity(unfolded.nodes()),
            edges: Vec::with_capacity(unfolded.edges.len()),
            subgraphs: Vec::with_capacity(unfolded.subgraphs()),
            ready: Vec::new(),
            ready_subgraphs: 0,
            arrived: 0,
            first_subgraphs: unfolded.subgraphs() as u32,
            position: 0,
            left: 0,
            untaken: 0,
            in_flight: 0,
            open: requirements.open,
            phase: Phase::Live,
            submitted: None,
            started: None,
            first_cell: CellId(0),
            requirements,
        };
        let homes = request.add(unfolded);
        debug_assert!(homes.iter().copied().eq(0..request.first_subgraphs));
        for index in 0..request.nodes.len() {
            let Node {
                missing, subgraph, ..
            } = request.nodes[index];
            if missing == 0 {
                let home = &mut request.subgraphs[subgraph as usize];
                home.add_ready(&mut request.nodes, index as u32, request.untaken);
            }
        }
        // A segment continues the one before it: it is not among those that wait in order of
        // arrival.
        let is_segment = request.is_segment();
        request
            .subgraphs
            .iter_mut()
            .for_each(|s| s.begun = is_segment);
        Prepared(request)
    }

    /// Number of its nodes.
    pub fn nodes(&self) -> usize {
        self.0.nodes.len()
    }

    /// What it takes of the limits.
    pub fn requirements(&self) -> &Requirements {
        &self.0.requirements
    }
}

pub(super) struct Request {
    pub nodes: Vec<Node>,
    /// Edges that are still waited for, linked in lists by where they come from.
    pub edges: Vec<Edge>,
    pub subgraphs: Vec<Subgraph>,
    /// By cell, ascending: its subgraphs that are released and have ready nodes.
    pub ready: Vec<ReadyList>,
    /// Number of those of all cells.
    pub ready_subgraphs: u32,
    /// How many of its first subgraphs have arrived: those without outside sources are released.
    pub arrived: u32,
    /// Number of subgraphs that it was submitted with.
    pub first_subgraphs: u32,
    /// The position of its first subgraph in the order of releases; that of the others that arrive
    /// follow.
    pub position: u64,
    /// Nodes that are not done.
    pub left: usize,
    /// Nodes that no task has taken.
    pub untaken: u32,
    /// Rows of tasks that are not done.
    pub in_flight: usize,
    /// More nodes may come from outside.
    pub open: bool,
    pub phase: Phase,
    pub submitted: Option<Instant>,
    pub started: Option<Instant>,
    /// The id of its model's first cell.
    pub first_cell: CellId,
    pub requirements: Requirements,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Live,
    /// All nodes are done, and the policy has not let it go yet.
    Held,
    /// Its end has been reported; the record is kept until its rows in flight return.
    Ended,
}

pub(super) struct Node {
    pub cell: CellId,
    pub subgraph: u32,
    /// Nodes of the same subgraph that have not been submitted.
    pub missing: u32,
    pub first_edge: u32,
    /// The one that got ready after it, in the same subgraph.
    pub next_ready: u32,
    /// [`RequestGraph::joins`].
    pub joins: bool,
    pub state: NodeState,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeState {
    Waiting,
    Submitted,
    Done,
}

#[derive(PartialEq, Eq)]
pub(super) struct Edge {
    pub to: u32,
    pub next: u32,
}

/// The subgraphs of one cell that are released and have ready nodes: linked by
/// [`Subgraph::previous`] and [`Subgraph::next`], in the order in which they got ready.
pub(super) struct ReadyList {
    pub cell: CellId,
    pub first: u32,
    pub last: u32,
}

pub(super) struct Subgraph {
    pub cell: CellId,
    /// Edges from nodes of other subgraphs that are not done.
    pub missing: u32,
    /// The place in the order of releases.
    pub released: Option<u64>,
    /// Ready nodes that no task has taken, first in, first out, linked by [`Node::next_ready`]: how
    /// many, the first, the last.
    pub ready: u32,
    pub first_ready: u32,
    pub last_ready: u32,
    /// [`SubgraphView::request_left`](super::SubgraphView::request_left).
    pub request_left: u32,
    /// Its neighbours in its [`ReadyList`].
    pub previous: u32,
    pub next: u32,
    /// Number of tasks of the scheduler when it entered the list.
    pub ready_since: u64,
    /// A node of it has been taken.
    pub begun: bool,
    pub in_flight: u32,
    pub pinned: Option<WorkerId>,
}

impl Subgraph {
    /// A node of it, which is in no list, got ready; `untaken` is its request's.
    pub fn add_ready(&mut self, nodes: &mut [Node], node: u32, untaken: u32) {
        debug_assert_eq!(nodes[node as usize].next_ready, NONE, "in no list");
        match self.ready {
            0 => {
                self.request_left = untaken;
                self.first_ready = node;
            }
            _ => nodes[self.last_ready as usize].next_ready = node,
        }
        self.last_ready = node;
        self.ready += 1;
    }
}

impl Request {
    /// The id, among the cells of all models, of a cell of its graph.
    pub fn id_of(&self, cell: CellId) -> CellId {
        CellId(self.first_cell.0 + cell.0)
    }

    pub fn is_segment(&self) -> bool {
        self.requirements.stream.is_some()
    }

    /// Whether it has ended and none of its rows is in flight.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Ended && self.in_flight == 0
    }

    /// Whether some of its first subgraphs have not arrived.
    pub fn is_arriving(&self) -> bool {
        self.arrived < self.first_subgraphs
    }

    /// Whether more of its first subgraphs should arrive.
    pub fn wants_more(&self) -> bool {
        self.is_arriving() && self.ready_subgraphs < PIECE
    }

    /// Adds nodes, none of which is ready yet. Returns the subgraph of each new subgraph.
    pub fn add(&mut self, unfolded: &RequestGraph) -> Vec<u32> {
        let homes = self.homes(unfolded);
        let new = unfolded.cells.iter().zip(&unfolded.subgraph_of);
        for ((&cell, &subgraph), &joins) in new.zip(&unfolded.joins) {
            self.nodes.push(Node {
                cell,
                joins,
                subgraph: homes[subgraph as usize],
                missing: 0,
                first_edge: NONE,
                next_ready: NONE,
                state: NodeState::Waiting,
            });
        }
        self.left += unfolded.nodes();
        self.untaken += unfolded.nodes() as u32;
        for &(from, to) in &unfolded.edges {
            self.link(from, to);
        }
        homes
    }

    /// Releases a subgraph, unless it has been or something outside is missing, and announces what
    /// is ready. `tasks`, `released` and `announced` are the table's.
    pub fn release(
        &mut self,
        key: SubgraphKey,
        tasks: u64,
        released: &mut u64,
        announced: &mut Vec<(SubgraphKey, usize)>,
    ) {
        let subgraph = &mut self.subgraphs[key.index as usize];
        if subgraph.missing > 0 || subgraph.released.is_some() {
            return;
        }
        subgraph.released = Some(*released);
        subgraph.request_left = self.untaken;
        *released += 1;
        let ready = subgraph.ready as usize;
        if ready > 0 {
            self.link_ready(key.index, tasks);
            announced.push((key, ready));
        }
    }

    /// A released subgraph got its first ready node: it enters the list of its cell.
    pub fn link_ready(&mut self, index: u32, tasks: u64) {
        self.ready_subgraphs += 1;
        let cell = self.subgraphs[index as usize].cell;
        let found = self.ready.binary_search_by_key(&cell, |list| list.cell);
        let at = found.unwrap_or_else(|at| {
            let (first, last) = (NONE, NONE);
            self.ready.insert(at, ReadyList { cell, first, last });
            at
        });
        let list = &mut self.ready[at];
        let previous = std::mem::replace(&mut list.last, index);
        match self.subgraphs.get_mut(previous as usize) {
            Some(last) => last.next = index,
            None => list.first = index,
        }
        let subgraph = &mut self.subgraphs[index as usize];
        subgraph.previous = previous;
        subgraph.next = NONE;
        subgraph.ready_since = tasks;
    }

    /// The last ready node of a subgraph was taken: it leaves its list.
    pub fn unlink_ready(&mut self, index: u32) {
        self.ready_subgraphs -= 1;
        let Subgraph {
            cell,
            previous,
            next,
            ..
        } = self.subgraphs[index as usize];
        let found = self.ready.binary_search_by_key(&cell, |list| list.cell);
        let list = &mut self.ready[found.expect("it is in the list of its cell")];
        match self.subgraphs.get_mut(previous as usize) {
            Some(subgraph) => subgraph.next = next,
            None => list.first = next,
        }
        match self.subgraphs.get_mut(next as usize) {
            Some(subgraph) => subgraph.previous = previous,
            None => list.last = previous,
        }
    }

    /// Where each new subgraph goes: on with an old one, whose states are in some worker's buffers,
    /// or a subgraph of its own.
    pub fn homes(&mut self, unfolded: &RequestGraph) -> Vec<u32> {
        let mut homes: Vec<Option<u32>> = vec![None; unfolded.subgraphs()];
        let mut alone = vec![unfolded.first == 0; unfolded.subgraphs()];
        for &(from, to) in &unfolded.edges {
            let new = unfolded.subgraph(to);
            match self.nodes.get(from.index()) {
                // From a new node of another new subgraph, which cannot be done yet.
                None => alone[new] |= unfolded.subgraph(from) != new,
                Some(old) => {
                    let same_cell = old.cell == unfolded.cells[to.index() - unfolded.first];
                    match homes[new] {
                        None if same_cell => homes[new] = Some(old.subgraph),
                        Some(home) if home == old.subgraph => {}
                        _ => alone[new] |= old.state != NodeState::Done,
                    }
                }
            }
        }
        let mut cells = vec![CellId(0); unfolded.subgraphs()];
        for (&cell, &subgraph) in unfolded.cells.iter().zip(&unfolded.subgraph_of) {
            cells[subgraph as usize] = cell;
        }
        let homes = homes.iter().zip(alone).enumerate();
        let homes = homes.map(|(new, (home, alone))| match home {
            Some(home) if !alone => *home,
            _ => {
                self.subgraphs.push(Subgraph {
                    cell: cells[new],
                    missing: 0,
                    released: None,
                    ready: 0,
                    first_ready: NONE,
                    last_ready: NONE,
                    request_left: 0,
                    previous: NONE,
                    next: NONE,
                    ready_since: 0,
                    begun: false,
                    in_flight: 0,
                    pinned: None,
                });
                (self.subgraphs.len() - 1) as u32
            }
        });
        homes.collect()
    }

    /// Lets `to` wait for `from`, unless what it waits for has happened.
    pub fn link(&mut self, from: NodeId, to: NodeId) {
        let (index, home) = (to.0, self.nodes[to.index()].subgraph);
        let from = &mut self.nodes[from.index()];
        let met = if from.subgraph == home {
            NodeState::Submitted
        } else {
            NodeState::Done
        };
        if from.state >= met {
            return;
        }
        let next = std::mem::replace(&mut from.first_edge, self.edges.len() as u32);
        let within = from.subgraph == home;
        self.edges.push(Edge { to: index, next });
        if within {
            self.nodes[to.index()].missing += 1
        } else {
            self.subgraphs[home as usize].missing += 1
        }
    }
}
