//! The requests that an engine has, and how far each is: nodes, what they wait for, subgraphs.
//!
//! ```text
//! a node is ready       when all nodes of its subgraph that it takes something of have been
//!                       submitted, and its subgraph is released
//! a subgraph is released when all nodes outside of it that its nodes take something of are done
//! ```
//!
//! The subgraphs of a large request *arrive* in pieces, as its nodes are taken, because a lock is
//! held meanwhile. Those that wait for nothing outside are released when they arrive, at the
//! positions in the order of releases that were reserved for them when the request was submitted.
//!
//! Submitted is enough within a subgraph because all of its tasks go to one worker, which runs them
//! in order, until none is in flight (BatchMaker, section 4.3): it is *pinned*. Here it stays so
//! until its worker has put its states where others find them, see
//! [`super::Scheduler::handle_evicted`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use slotmap::SlotMap;

use super::Timing;
use super::keys::{ClientId, ModelKey, RequestKey, Row, SubgraphKey, WorkerId};
use super::record::{Edge, NONE, Node, NodeState, PIECE, Phase, Prepared, Request, Subgraph};
use crate::cell_graph::{CellId, NodeId, RequestGraph};

/// All requests that have not ended, or have rows in flight.
#[derive(Default)]
pub struct Table {
    requests: SlotMap<RequestKey, Request>,
    /// Subgraphs released so far.
    released: u64,
    /// Tasks submitted so far.
    tasks: u64,
    /// Subgraphs with new ready nodes, and how many, for the policy to hear of.
    pub(super) announced: Vec<(SubgraphKey, usize)>,
    /// Subgraphs of which no task is in flight any more.
    pub(super) idle: Vec<SubgraphKey>,
    /// Requests of which more subgraphs should arrive. Some may have ended.
    pub(super) arriving: VecDeque<RequestKey>,
    /// Large records that were forgotten.
    pub(super) spent: Vec<Spent>,
}

/// The record of a request that is forgotten. Dropping it takes time in proportion to the request,
/// so it is to be dropped without a lock.
pub struct Spent(Request);

impl Spent {
    /// Bytes of the record, by the length of its longest lists.
    pub fn bytes(&self) -> usize {
        let Request {
            nodes,
            edges,
            subgraphs,
            ..
        } = &self.0;
        size_of_val(&nodes[..]) + size_of_val(&edges[..]) + size_of_val(&subgraphs[..])
    }
}

/// Freeing the record of a request with fewer nodes takes less than a microsecond.
const LARGE: usize = 256;

/// The state of a subgraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubgraphView {
    /// The priority of its request; higher goes first.
    pub priority: u8,
    /// Its cell.
    pub cell: CellId,
    /// The position of a released subgraph in the order of releases, which is unique.
    pub released: u64,
    /// Number of known nodes of its request that no task had taken when the subgraph got its first
    /// ready node. Constant while the subgraph has ready nodes, so it can be used as a sort key.
    pub request_left: u32,
    /// Number of its ready nodes, if it is released.
    pub ready: usize,
    /// Whether one of its nodes has been taken, or it continues a stream.
    pub begun: bool,
    /// The worker that must run its tasks.
    pub pinned: Option<WorkerId>,
    /// Number of tasks that were submitted since it got the first of its ready nodes.
    pub waited: u64,
}

impl Table {
    /// Adds a request; its first ready nodes are announced. `first_cell` is that of its model.
    pub(super) fn insert(
        &mut self,
        prepared: Prepared,
        first_cell: CellId,
        now: Instant,
    ) -> RequestKey {
        let Prepared(mut request) = prepared;
        request.first_cell = first_cell;
        request.submitted = Some(now);
        request.position = request.requirements.stream.unwrap_or(self.released);
        if !request.is_segment() {
            self.released += u64::from(request.first_subgraphs);
        }
        let key = self.requests.insert(request);
        self.arriving.push_back(key);
        self.arrive_of(key, PIECE);
        if !self.requests[key].wants_more() {
            self.arriving.pop_back();
        }
        key
    }

    /// Keeps the record of a refused request until [`Table::spent`] is taken.
    pub(super) fn refuse(&mut self, prepared: Prepared) {
        if prepared.0.nodes.len() >= LARGE {
            self.spent.push(Spent(prepared.0));
        }
    }

    /// Up to a piece of subgraphs arrives, of requests that have few ready ones.
    pub(super) fn arrive(&mut self) {
        let mut left = PIECE;
        while left > 0
            && let Some(&key) = self.arriving.front()
        {
            if self.is_live(key) {
                left -= self.arrive_of(key, left);
            }
            if !self.is_live(key) || !self.requests[key].wants_more() {
                self.arriving.pop_front();
            }
        }
    }

    /// Up to `max` subgraphs of a request arrive, as long as it has few ready ones. Returns how
    /// many did.
    fn arrive_of(&mut self, key: RequestKey, max: u32) -> u32 {
        let request = &mut self.requests[key];
        let first = request.arrived;
        while request.arrived - first < max && request.wants_more() {
            let index = request.arrived;
            request.arrived += 1;
            let mut position = request.position + u64::from(index);
            let key = SubgraphKey {
                request: key,
                index,
            };
            request.release(key, self.tasks, &mut position, &mut self.announced);
        }
        request.arrived - first
    }

    /// A position in the order of releases, for the segments of a stream.
    pub(super) fn reserve_position(&mut self) -> u64 {
        self.released += 1;
        self.released - 1
    }

    /// Adds nodes to a live request; those that are ready are announced.
    pub(super) fn grow(&mut self, key: RequestKey, unfolded: &RequestGraph) {
        let request = &mut self.requests[key];
        debug_assert_eq!(request.nodes.len(), unfolded.first, "growths in order");
        let homes = request.add(unfolded);
        // New ready nodes of homes that are released already; several new subgraphs may have one
        // home.
        let mut joined = BTreeMap::new();
        for index in unfolded.first..request.nodes.len() {
            let Node {
                missing, subgraph, ..
            } = request.nodes[index];
            if missing == 0 {
                let home = &mut request.subgraphs[subgraph as usize];
                home.add_ready(&mut request.nodes, index as u32, request.untaken);
                if home.released.is_some() {
                    if home.ready == 1 {
                        request.link_ready(subgraph, self.tasks);
                    }
                    *joined.entry(subgraph).or_insert(0) += 1;
                }
            }
        }
        let of = |index| SubgraphKey {
            request: key,
            index,
        };
        let joined = joined.into_iter();
        self.announced
            .extend(joined.map(|(index, ready)| (of(index), ready)));
        for index in homes {
            let (released, announced) = (&mut self.released, &mut self.announced);
            request.release(of(index), self.tasks, released, announced);
        }
    }

    /// Rows become a task of `worker`: what waits for them within their subgraphs gets ready.
    pub(super) fn submit(&mut self, rows: &[Row], worker: WorkerId, now: Instant) {
        self.tasks += 1;
        for row in rows {
            let request = &mut self.requests[row.request];
            request.started.get_or_insert(now);
            request.in_flight += 1;
            let node = &mut request.nodes[row.node.index()];
            node.state = NodeState::Submitted;
            let (index, mut edge) = (node.subgraph, node.first_edge);
            let subgraph = &mut request.subgraphs[index as usize];
            subgraph.in_flight += 1;
            subgraph.pinned = Some(worker);
            let mut ready = 0;
            while edge != NONE {
                let Edge { to, next } = request.edges[edge as usize];
                let follower = &mut request.nodes[to as usize];
                if follower.subgraph == index {
                    follower.missing -= 1;
                    if follower.missing == 0 {
                        subgraph.add_ready(&mut request.nodes, to, request.untaken);
                        ready += 1;
                    }
                }
                edge = next;
            }
            if ready > 0 {
                if subgraph.ready as usize == ready {
                    request.link_ready(index, self.tasks);
                }
                let request = row.request;
                self.announced.push((SubgraphKey { request, index }, ready));
            }
        }
    }

    /// A row of a task is done. `true` if that was the last of a live request. Forgets a request
    /// that has ended, as [`Table::forget`] does.
    pub(super) fn done(&mut self, row: Row) -> bool {
        let request = &mut self.requests[row.request];
        request.in_flight -= 1;
        request.left -= 1;
        let node = &mut request.nodes[row.node.index()];
        node.state = NodeState::Done;
        let (index, mut edge) = (node.subgraph, node.first_edge);
        let subgraph = &mut request.subgraphs[index as usize];
        subgraph.in_flight -= 1;
        if subgraph.in_flight == 0 {
            let request = row.request;
            self.idle.push(SubgraphKey { request, index });
        }
        if request.phase != Phase::Live {
            self.forget(row.request);
            return false;
        }
        while edge != NONE {
            let Edge { to, next } = request.edges[edge as usize];
            let home = request.nodes[to as usize].subgraph;
            if home != index {
                let waiting = &mut request.subgraphs[home as usize];
                waiting.missing -= 1;
                let key = SubgraphKey {
                    request: row.request,
                    index: home,
                };
                let (released, announced) = (&mut self.released, &mut self.announced);
                request.release(key, self.tasks, released, announced);
            }
            edge = next;
        }
        request.left == 0 && !request.open
    }

    /// No more nodes come from outside. `true` if that was all that a live request waited for.
    pub(super) fn close(&mut self, key: RequestKey) -> bool {
        let request = self.requests.get_mut(key);
        let Some(request) = request.filter(|r| r.phase == Phase::Live) else {
            return false;
        };
        std::mem::replace(&mut request.open, false) && request.left == 0
    }

    /// Keeps a request that is done until [`Table::end`].
    pub(super) fn hold(&mut self, key: RequestKey) {
        self.requests[key].phase = Phase::Held;
    }

    /// Ends a request; its record goes when none of its rows is in flight. `None` if it has ended
    /// before.
    pub(super) fn end(&mut self, key: RequestKey, now: Instant) -> Option<Timing> {
        let request = self.requests.get_mut(key)?;
        if request.phase == Phase::Ended {
            return None;
        }
        request.phase = Phase::Ended;
        let started = request.started.unwrap_or(now);
        Some(Timing {
            queueing: started.saturating_duration_since(request.submitted.unwrap_or(started)),
            computing: now.saturating_duration_since(started),
        })
    }

    /// Forgets a request that has ended, once none of its rows is in flight.
    pub(super) fn forget(&mut self, key: RequestKey) {
        if self.is_over(key)
            && let Some(request) = self.requests.remove(key)
            && request.nodes.len() >= LARGE
        {
            self.spent.push(Spent(request));
        }
    }

    /// A worker has no state of the subgraph any more: any may take it. `false` if it is pinned for
    /// another reason, or gone.
    pub(super) fn unpin(&mut self, key: SubgraphKey) -> bool {
        let Some(request) = self.requests.get_mut(key.request) else {
            return false;
        };
        let subgraph = &mut request.subgraphs[key.index as usize];
        let unpins = subgraph.in_flight == 0 && subgraph.pinned.is_some();
        if unpins {
            subgraph.pinned = None;
        }
        unpins
    }

    /// Requests that have not ended, or still have rows in flight.
    pub(super) fn keys(&self) -> impl Iterator<Item = RequestKey> {
        self.requests.keys()
    }

    /// Number of records: of requests that have not ended, or still have rows in flight. 0 when all
    /// requests have ended and all tasks are done.
    pub fn records(&self) -> usize {
        self.requests.len()
    }

    /// Whether the record of a request should have been forgotten.
    pub(super) fn is_over(&self, key: RequestKey) -> bool {
        self.requests.get(key).is_some_and(Request::is_over)
    }

    /// The client of a request.
    pub(super) fn client(&self, key: RequestKey) -> Option<ClientId> {
        self.requests[key].requirements.client
    }

    /// Bytes that a request was counted with.
    pub(super) fn bytes(&self, key: RequestKey) -> usize {
        self.requests[key].requirements.bytes
    }

    /// Whether a request is a segment of a stream.
    pub(super) fn is_segment(&self, key: RequestKey) -> bool {
        self.requests.get(key).is_some_and(Request::is_segment)
    }

    /// Whether a request has neither ended nor got all its nodes done.
    pub fn is_live(&self, key: RequestKey) -> bool {
        let live = |r: &Request| r.phase == Phase::Live;
        self.requests.get(key).is_some_and(live)
    }

    /// Whether a request is done but held back.
    pub(super) fn is_held(&self, key: RequestKey) -> bool {
        let held = |r: &Request| r.phase == Phase::Held;
        self.requests.get(key).is_some_and(held)
    }

    /// How much a request is to be preferred.
    ///
    /// # Panics
    /// If there is no such request, as in all that follow.
    pub fn priority(&self, key: RequestKey) -> u8 {
        self.requests[key].requirements.priority
    }

    /// The model of a request.
    pub fn model(&self, key: RequestKey) -> ModelKey {
        self.requests[key].requirements.model
    }

    /// When a request is late.
    pub fn deadline(&self, key: RequestKey) -> Option<Instant> {
        self.requests[key].requirements.deadline
    }

    /// Number of a request's nodes, as far as they are known.
    pub fn nodes(&self, key: RequestKey) -> usize {
        self.requests[key].nodes.len()
    }

    /// Number of a request's nodes that are not done.
    pub fn nodes_left(&self, key: RequestKey) -> usize {
        self.requests[key].left
    }

    /// The cell of a node.
    pub fn node_cell(&self, row: Row) -> CellId {
        let request = &self.requests[row.request];
        request.id_of(request.nodes[row.node.index()].cell)
    }

    /// The subgraph of a node.
    pub fn node_subgraph(&self, row: Row) -> SubgraphKey {
        SubgraphKey {
            request: row.request,
            index: self.requests[row.request].nodes[row.node.index()].subgraph,
        }
    }

    /// Whether the only node that is ready in the subgraph of a row, which has just been submitted,
    /// may be computed in one batch with that; where none is, nothing goes on.
    pub(super) fn next_joins(&self, row: Row) -> bool {
        let request = &self.requests[row.request];
        let node = &request.nodes[row.node.index()];
        let subgraph = &request.subgraphs[node.subgraph as usize];
        let next = request.nodes.get(subgraph.first_ready as usize);
        next.is_none_or(|next| subgraph.ready == 1 && next.joins)
    }

    /// The cells of a request that have had ready nodes.
    pub fn cells(&self, request: RequestKey) -> impl Iterator<Item = CellId> {
        let request = &self.requests[request];
        request.ready.iter().map(|list| request.id_of(list.cell))
    }

    /// A request's subgraphs that are released and have ready nodes; those of one cell in the order
    /// in which they got ready.
    pub fn ready_subgraphs(&self, request: RequestKey) -> impl Iterator<Item = SubgraphKey> {
        let lists = self.requests[request].ready.iter();
        lists.flat_map(move |list| self.linked(request, list.first))
    }

    /// Number of a request's ready nodes in released subgraphs.
    pub(super) fn ready_rows(&self, request: RequestKey) -> usize {
        let subgraphs = self.ready_subgraphs(request);
        subgraphs.map(|subgraph| self.ready(subgraph)).sum()
    }

    /// Those of one cell.
    pub fn ready_subgraphs_of(
        &self,
        request: RequestKey,
        cell: CellId,
    ) -> impl Iterator<Item = SubgraphKey> {
        let of = &self.requests[request];
        let found = of
            .ready
            .binary_search_by_key(&cell, |list| of.id_of(list.cell));
        self.linked(request, found.map_or(NONE, |at| of.ready[at].first))
    }

    fn linked(&self, request: RequestKey, first: u32) -> impl Iterator<Item = SubgraphKey> {
        let subgraphs = &self.requests[request].subgraphs;
        let some = |index: u32| (index != NONE).then_some(index);
        let next = move |&index: &u32| some(subgraphs[index as usize].next);
        std::iter::successors(some(first), next).map(move |index| SubgraphKey { request, index })
    }

    /// How a subgraph stands: several of the questions below, with one look.
    pub fn view(&self, key: SubgraphKey) -> SubgraphView {
        let request = &self.requests[key.request];
        let subgraph = &request.subgraphs[key.index as usize];
        SubgraphView {
            priority: request.requirements.priority,
            cell: request.id_of(subgraph.cell),
            released: subgraph.released.unwrap_or(u64::MAX),
            request_left: subgraph.request_left,
            ready: subgraph.released.map_or(0, |_| subgraph.ready as usize),
            begun: subgraph.begun,
            pinned: subgraph.pinned,
            waited: self.tasks - subgraph.ready_since,
        }
    }

    /// The cell of a subgraph.
    pub fn cell(&self, key: SubgraphKey) -> CellId {
        self.view(key).cell
    }

    /// How many ready nodes a released subgraph has.
    pub fn ready(&self, key: SubgraphKey) -> usize {
        self.view(key).ready
    }

    /// The worker that a subgraph's tasks must go to.
    pub fn pinned(&self, key: SubgraphKey) -> Option<WorkerId> {
        self.subgraph(key).pinned
    }

    /// Whether no subgraph of a request is pinned to another worker.
    pub fn may_run_on(&self, request: RequestKey, worker: WorkerId) -> bool {
        let mut subgraphs = self.requests[request].subgraphs.iter();
        subgraphs.all(|s| s.pinned.is_none_or(|pinned| pinned == worker))
    }

    /// Whether two requests of which nothing has been submitted have the same graph, node by node.
    pub fn has_graph_of(&self, one: RequestKey, other: RequestKey) -> bool {
        let (one, other) = (&self.requests[one], &self.requests[other]);
        let same = |a: &Node, b: &Node| {
            (a.cell, a.subgraph, a.first_edge) == (b.cell, b.subgraph, b.first_edge)
        };
        let fresh = |r: &Request| r.subgraphs.iter().all(|s| !s.begun);
        fresh(one)
            && fresh(other)
            && one.nodes.len() == other.nodes.len()
            && one.nodes.iter().zip(&other.nodes).all(|(a, b)| same(a, b))
            && one.edges == other.edges
    }

    /// Whether a task with a node of the subgraph is in flight.
    pub(super) fn is_in_flight(&self, key: SubgraphKey) -> bool {
        self.subgraph(key).in_flight > 0
    }

    /// Takes up to `max` ready nodes of a subgraph, oldest first, and adds them to `rows`. Returns
    /// how many are still ready.
    pub fn take(&mut self, key: SubgraphKey, max: usize, rows: &mut Vec<Row>) -> usize {
        let request = &mut self.requests[key.request];
        let subgraph = &mut request.subgraphs[key.index as usize];
        let count = max.min(subgraph.ready as usize);
        for _ in 0..count {
            let node = subgraph.first_ready;
            subgraph.first_ready = request.nodes[node as usize].next_ready;
            let (request, node) = (key.request, NodeId(node));
            rows.push(Row { request, node });
        }
        subgraph.ready -= count as u32;
        subgraph.begun |= count > 0;
        request.untaken -= count as u32;
        let left = subgraph.ready as usize;
        if count > 0 && left == 0 {
            request.unlink_ready(key.index);
            if request.is_arriving() && request.ready_subgraphs == PIECE / 2 - 1 {
                self.arriving.push_back(key.request);
            }
        }
        left
    }

    /// Whether a request is live and none of the nodes of this subgraph of it has been taken.
    pub fn is_untouched(&self, key: SubgraphKey) -> bool {
        let request = self.requests.get(key.request);
        let live = request.filter(|request| request.phase == Phase::Live);
        live.is_some_and(|request| !request.subgraphs[key.index as usize].begun)
    }

    fn subgraph(&self, key: SubgraphKey) -> &Subgraph {
        &self.requests[key.request].subgraphs[key.index as usize]
    }
}
