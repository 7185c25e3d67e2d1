//! The values of one request: what came with it, what its nodes gave that others still take, its answer.
//!
//! ```text
//! a node's states   rest in their row of the batch buffers while the next node of the chain follows there,
//!                   "in place" (which row is noted here, and checked there); else they are kept here until all
//!                   that take it have taken it
//! a node's outputs  are kept here for those that take them
//! the answer        is filled as the nodes that it is made of end
//! ```
//!
//! What came with the request never changes, and cells read it without the lock.
//!
//! Workers lock a request's values before each of its cells (to see whether it can run with the one
//! before, to find its row, to note or copy inputs) and after it. Two threads can want them at the
//! same time only where two of its nodes run at the same time: on two workers, or in one batch that
//! a worker's team copies. Each holds one such lock, for one row, and waits for nothing meanwhile.

use super::buffer_pool::BufferPool;
use crate::sync::{AtomicBool, Mutex, MutexGuard, PoisonError};
use std::sync::atomic::Ordering;

use crate::cell_graph::{
    Cells, DynamicGraph, Graph, GraphError, NodeId, Port, RequestGraph, Resident, Source,
};

/// A request's values, as engine and workers share them.
pub(crate) struct RequestValues<R> {
    /// What came with it, which cells read where it lies, without the lock. What a growing graph is given later is in that.
    given: Box<[f32]>,
    values: Mutex<Values<R>>,
    /// Nobody wants the rest: rows of tasks that have been formed need not be computed.
    ended: AtomicBool,
    /// It has a function of its own.
    grows: bool,
}

impl<R> RequestValues<R> {
    pub fn new(mut values: Values<R>) -> RequestValues<R> {
        RequestValues {
            given: values.graph.take_given(),
            grows: values.grow.is_some(),
            values: Mutex::new(values),
            ended: AtomicBool::new(false),
        }
    }

    /// A panic under the lock is a `DynamicGraph`'s, after which its request ends.
    pub fn lock(&self) -> MutexGuard<'_, Values<R>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn given(&self) -> &[f32] {
        &self.given
    }

    pub fn grows(&self) -> bool {
        self.grows
    }

    pub fn set_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// `R` is whom to reply to; the values do not look at it.
pub(crate) struct Values<R> {
    graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
    /// Nothing that it did ended the request.
    may_grow: bool,
    resident: Resident,
    nodes: Vec<NodeFacts>,
    outputs: Vec<Output>,
    retained: RetainedOutputs,
    /// Places in the answer, linked in lists by the give that fills them.
    answer_slots: Vec<AnswerSlot>,
    answer: Vec<f32>,
    watched: usize,
    pub reply: Option<R>,
}

/// What is known of a node beside the graph.
#[derive(Clone, Copy)]
struct NodeFacts {
    /// The number of its first give.
    first_output: u32,
    /// The node that takes all of its states as its own.
    follower: Option<NodeId>,
    /// The node whose follower this is.
    follows: Option<NodeId>,
    /// The row of the batch buffers that its states rest in, while they do.
    slot: u32,
    watched: bool,
    /// Its states rest here, and not in a row.
    evicted: bool,
    /// The follower has taken the states.
    followed: bool,
}

impl NodeFacts {
    /// Whether its states are still to be taken over, should they be kept here: what goes on from a watched node may be added
    /// later.
    fn is_awaited(&self) -> bool {
        match self.follower {
            Some(_) => !self.followed,
            None => self.watched && self.evicted,
        }
    }
}

/// A row of an input that was not copied.
pub(super) enum InputRow {
    /// Of what came with the request, from here on.
    Given { first: usize },
    /// What was kept for this row alone, and is no request's any more.
    Retained(Box<[f32]>),
}

/// What is kept for those who take it, by the number of the give. A list, and not a table: it can be asked for ahead. Chains keep
/// nothing, and have none.
#[derive(Default)]
struct RetainedOutputs {
    by_output: Vec<Option<Box<[f32]>>>,
    count: usize,
}

impl RetainedOutputs {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn get(&self, number: u32) -> Option<&[f32]> {
        self.by_output.get(number as usize)?.as_deref()
    }

    fn has(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    fn take(&mut self, number: u32) -> Option<Box<[f32]>> {
        let retained = self.by_output.get_mut(number as usize)?.take()?;
        self.count -= 1;
        Some(retained)
    }

    /// Keeps this one of so many.
    fn put(&mut self, (number, outputs): (u32, usize), values: Box<[f32]>) {
        if self.by_output.len() < outputs {
            self.by_output.resize_with(outputs, || None);
        }
        let before = self.by_output[number as usize].replace(values);
        self.count += usize::from(before.is_none());
    }
}

/// One of the things that a node outputs.
#[derive(Clone, Copy)]
struct Output {
    width: u32,
    /// How many ports still take it, those of the follower not counted.
    uses: u32,
    first_answer: u32,
}

struct AnswerSlot {
    at: usize,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl<R> Values<R> {
    /// Of a graph that has been checked, to `unfolded`.
    pub fn new(
        graph: Graph,
        unfolded: &RequestGraph,
        grow: Option<Box<dyn DynamicGraph>>,
        cells: &Cells,
        reply: R,
    ) -> Values<R> {
        let mut values = Values {
            resident: Resident::of(cells, &graph),
            graph,
            grow,
            may_grow: true,
            nodes: Vec::new(),
            outputs: Vec::new(),
            retained: RetainedOutputs::default(),
            answer_slots: Vec::new(),
            answer: Vec::new(),
            watched: 0,
            reply: Some(reply),
        };
        values.add(cells, 0, 0, (unfolded, &[]));
        values
    }

    /// Bytes that the request takes at most, as far as its graph is known: what came with it, its answer, and
    /// everything that may be kept at the same time. Asked for before its values are [shared](RequestValues::new).
    pub fn bytes(&self, cells: &Cells) -> usize {
        let values = (self.answer.len() + self.max_retained(cells)) * size_of::<f32>();
        let retained = self.outputs.len() * size_of::<Option<Box<[f32]>>>();
        let facts = size_of_val(&self.nodes[..]) + size_of_val(&self.outputs[..]) + retained;
        self.graph.bytes() + values + facts
    }

    /// Values that may be kept at the same time: what others take and, of nodes that follow each other in place, the states
    /// of one, whose row may be needed for somebody else.
    pub fn max_retained(&self, cells: &Cells) -> usize {
        let taken = self.outputs.iter().filter(|output| output.uses > 0);
        let taken: usize = taken.map(|output| output.width as usize).sum();
        let nodes = (0..self.nodes.len()).map(NodeId::new);
        let firsts =
            nodes.filter(|&node| self.follows(node).is_none() && self.stays_resident(node));
        let cells = firsts.filter_map(|node| cells.get(self.graph.cell(node)));
        let evicted: usize = (cells.flat_map(|cell| cell.ports().states()))
            .map(Port::width)
            .sum();
        taken + evicted
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Adds to the graph, for a `watched` node or from outside; an error leaves it as it was. `given` came with the request.
    pub fn grow_by<T>(
        &mut self,
        cells: &Cells,
        (watched, given): (Option<NodeId>, &[f32]),
        change: impl FnOnce(&mut Graph) -> T,
    ) -> Result<(T, Option<RequestGraph>), GraphError> {
        let before = self.graph.mark();
        let out = change(&mut self.graph);
        match self.resident.grown(cells, &self.graph, before, watched) {
            Ok(unfolded) => {
                self.add(cells, before.nodes, before.answers, (&unfolded, given));
                Ok((out, (unfolded.nodes() > 0).then_some(unfolded)))
            }
            Err(error) => {
                self.graph.back_to(before);
                Err(error)
            }
        }
    }

    /// Takes notice of nodes and answers that were added to the graph.
    fn add(
        &mut self,
        cells: &Cells,
        nodes: usize,
        answers: usize,
        (unfolded, given): (&RequestGraph, &[f32]),
    ) {
        let graph = &self.graph;
        let goes_on = unfolded.continues_from();
        for node in (nodes..graph.len()).map(NodeId::new) {
            self.nodes.push(NodeFacts {
                first_output: self.outputs.len() as u32,
                follower: None,
                follows: None,
                slot: NONE,
                watched: false,
                evicted: false,
                followed: false,
            });
            if let Some(cell) = cells.get(graph.cell(node)) {
                self.outputs
                    .extend(cell.ports().writes().map(|port| Output {
                        width: port.width() as u32,
                        uses: 0,
                        first_answer: NONE,
                    }));
            }
        }
        for node in (nodes..graph.len()).map(NodeId::new) {
            let Some(cell) = cells.get(graph.cell(node)) else {
                continue;
            };
            let sources = graph.sources(node);
            let before = graph.continues(cells, node).filter(|&before| {
                // In another subgraph it could be another worker's.
                let together = match before.index() >= nodes {
                    true => unfolded.subgraph(before) == unfolded.subgraph(node),
                    false => goes_on[unfolded.subgraph(node)] == Some(before),
                };
                together && self.nodes[before.index()].follower.is_none()
            });
            if let Some(before) = before {
                self.nodes[before.index()].follower = Some(node);
                self.nodes[node.index()].follows = Some(before);
            }
            let counted = match before {
                Some(_) => &sources[..cell.ports().inputs().len()],
                None => sources,
            };
            for source in counted {
                if let Source::Node { node, port } = *source {
                    let output = self.nodes[node.index()].first_output as usize + port;
                    self.outputs[output].uses += 1;
                }
            }
        }
        for source in &graph.answers()[answers..] {
            let at = self.answer.len();
            match *source {
                Source::Zeros => {}
                Source::Given { first, width } => {
                    for values in graph.given_among(given, first..first + width) {
                        self.answer.extend(values);
                    }
                }
                Source::Node { node, port } => {
                    let number = self.nodes[node.index()].first_output as usize + port;
                    let output = &mut self.outputs[number];
                    self.answer.resize(at + output.width as usize, 0.0);
                    let next =
                        std::mem::replace(&mut output.first_answer, self.answer_slots.len() as u32);
                    self.answer_slots.push(AnswerSlot { at, next });
                }
            }
        }
        for node in &graph.watched()[self.watched..] {
            self.nodes[node.index()].watched = true;
        }
        self.watched = graph.watched().len();
    }

    /// The node whose states `node` takes over in place.
    pub fn follows(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].follows
    }

    /// The row that the states of `node` were last said to rest in.
    pub fn slot(&self, node: NodeId) -> Option<usize> {
        let slot = self.nodes[node.index()].slot;
        (slot != NONE).then_some(slot as usize)
    }

    /// The states of `node` rest in this row.
    pub fn set_slot(&mut self, node: NodeId, row: usize) {
        self.nodes[node.index()].slot = u32::try_from(row).unwrap_or(NONE);
    }

    /// Whether a node's states stay in their row when it is done: something follows, or may.
    pub fn stays_resident(&self, node: NodeId) -> bool {
        let facts = &self.nodes[node.index()];
        facts.follower.is_some() || facts.watched
    }

    pub fn is_watched(&self, node: NodeId) -> bool {
        self.nodes[node.index()].watched
    }

    /// Whether `node` can be computed in one batch with `before`, the step before it: it goes on from its states in place,
    /// which nobody else takes or sees, nor ever will, as nobody watches it, and its own inputs are here.
    pub fn joins(&self, before: NodeId, node: NodeId, states: usize) -> bool {
        let facts = &self.nodes[before.index()];
        if states == 0 || facts.follower != Some(node) || facts.watched {
            return false;
        }
        let sources = self.graph.sources(node);
        let is_here = |source: &Source| match *source {
            Source::Zeros | Source::Given { .. } => true,
            Source::Node { node, port } => {
                let number = self.nodes[node.index()].first_output + port as u32;
                self.retained.has(number)
            }
        };
        let outputs = &self.outputs[facts.first_output as usize..][..states];
        (outputs.iter()).all(|output| output.uses == 0 && output.first_answer == NONE)
            && sources[..sources.len() - states].iter().all(is_here)
    }

    /// The states of `before`, which was [joined](Values::joins), are taken over by the step after it.
    pub fn joined(&mut self, before: NodeId) {
        self.nodes[before.index()].followed = true;
    }

    /// The states of `node` were taken over where they rest: copies that were kept for others who took
    /// them before are not needed any more.
    pub(super) fn followed_in_place(&mut self, node: NodeId, states: usize, pool: &mut BufferPool) {
        let facts = &mut self.nodes[node.index()];
        facts.followed = true;
        if !self.retained.is_empty() {
            for number in facts.first_output..facts.first_output + states as u32 {
                if self.outputs[number as usize].uses == 0
                    && let Some(kept) = self.retained.take(number)
                {
                    pool.put(kept);
                }
            }
        }
    }

    /// What `source` outputs, without a copy, for a gathered row: what came with the request, or
    /// was kept for this alone. `None` if it must be [copied](Values::take).
    pub(super) fn input_row(&mut self, source: Source, given: &[f32]) -> Option<InputRow> {
        match source {
            Source::Zeros => None,
            Source::Given { first, width } => {
                (first + width <= given.len()).then_some(InputRow::Given { first })
            }
            Source::Node { .. } => self.take_retained(source, false).map(InputRow::Retained),
        }
    }

    /// What `source` outputs, where it was kept for this alone. `None`, and nothing is changed, if
    /// it must be [copied](Values::take).
    pub(super) fn take_retained(
        &mut self,
        source: Source,
        as_follower: bool,
    ) -> Option<Box<[f32]>> {
        let Source::Node { node, port } = source else {
            return None;
        };
        let facts = &mut self.nodes[node.index()];
        let number = facts.first_output + port as u32;
        let output = &mut self.outputs[number as usize];
        let is_wanted = match as_follower {
            true => output.uses > 0,
            false => output.uses != 1 || facts.is_awaited(),
        };
        if is_wanted {
            return None;
        }
        let retained = self.retained.take(number)?;
        output.uses = 0;
        facts.followed |= as_follower;
        Some(retained)
    }

    /// Copies what `source` gives; `false` if it is not here but rests in a row of some batch buffer. What was kept for this
    /// alone goes to `spare`. `given` came with the request.
    pub(super) fn take(
        &mut self,
        (source, given): (Source, &[f32]),
        to: &mut [f32],
        as_follower: bool,
        pool: &mut BufferPool,
    ) -> bool {
        match source {
            Source::Zeros => to.fill(0.0),
            Source::Given { first, width } => {
                let [before, after] = self.graph.given_among(given, first..first + width);
                let (begin, end) = to.split_at_mut(before.len());
                begin.copy_from_slice(before);
                end.copy_from_slice(after);
            }
            Source::Node { node, port } => {
                let facts = &mut self.nodes[node.index()];
                let number = facts.first_output + port as u32;
                let output = &mut self.outputs[number as usize];
                match as_follower {
                    true => facts.followed = true,
                    false => output.uses -= 1,
                }
                let Some(kept) = self.retained.get(number) else {
                    return false;
                };
                to.copy_from_slice(kept);
                if output.uses == 0
                    && !facts.is_awaited()
                    && let Some(kept) = self.retained.take(number)
                {
                    pool.put(kept);
                }
            }
        }
        true
    }

    /// Whether anybody takes what `node` gives at `port`, but for a follower in place: of a chain's step nobody, mostly, and
    /// there is nothing to [output](Values::store).
    pub fn is_taken(&self, node: NodeId, port: usize) -> bool {
        let first = self.nodes[node.index()].first_output as usize;
        let output = &self.outputs[first + port];
        output.uses > 0 || output.first_answer != NONE
    }

    /// What `node` gives at `port`: copied to the answer, and kept for those who take it.
    pub(super) fn store(
        &mut self,
        node: NodeId,
        port: usize,
        values: &[f32],
        pool: &mut BufferPool,
    ) {
        if let Some(number) = self.write_answer(node, port, values) {
            self.retained
                .put((number, self.outputs.len()), pool.copy(values));
        }
    }

    /// As [`Values::store`], of values that nobody else needs: what is kept are they themselves,
    /// and other room takes their place.
    pub(super) fn store_owned(
        &mut self,
        node: NodeId,
        port: usize,
        values: &mut Box<[f32]>,
        pool: &mut BufferPool,
    ) {
        if let Some(number) = self.write_answer(node, port, values) {
            let retained = std::mem::replace(values, pool.buffer(values.len()));
            self.retained.put((number, self.outputs.len()), retained);
        }
    }

    /// Copies what `node` gives at `port` to the answer. Returns the number to keep it by, if somebody takes it.
    fn write_answer(&mut self, node: NodeId, port: usize, values: &[f32]) -> Option<u32> {
        let number = self.nodes[node.index()].first_output + port as u32;
        let output = &self.outputs[number as usize];
        let mut slot = output.first_answer;
        while slot != NONE {
            let AnswerSlot { at, next } = self.answer_slots[slot as usize];
            self.answer[at..at + values.len()].copy_from_slice(values);
            slot = next;
        }
        (output.uses > 0).then_some(number)
    }

    /// A row is needed for somebody else: keeps a state of `node` that nobody has taken over yet.
    pub(super) fn retain_state(
        &mut self,
        node: NodeId,
        port: usize,
        keep: impl FnOnce() -> Box<[f32]>,
    ) {
        let facts = &mut self.nodes[node.index()];
        facts.evicted = true;
        let number = facts.first_output + port as u32;
        if !self.retained.has(number) {
            self.retained.put((number, self.outputs.len()), keep());
        }
    }

    /// The request's own function, to be called without it.
    pub fn take_grow(&mut self) -> Option<Box<dyn DynamicGraph>> {
        self.grow.take_if(|_| self.may_grow)
    }

    /// Puts it back; it is called no more unless it `goes_on`.
    pub fn put_grow(&mut self, grow: Box<dyn DynamicGraph>, goes_on: bool) {
        self.grow = Some(grow);
        self.may_grow = goes_on;
    }

    /// How many values are kept for those who take them.
    #[cfg(all(test, not(loom)))]
    pub fn retained(&self) -> usize {
        let retained = self.retained.by_output.iter().flatten();
        retained.map(|kept| kept.len()).sum()
    }

    pub fn take_answer(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.answer)
    }

    /// Lets go of what is kept, and of the request's own function, which the caller drops when nothing is locked.
    /// The graph stays: rows of a task that runs may refer to it.
    pub fn clear(&mut self) -> Option<Box<dyn DynamicGraph>> {
        self.retained = RetainedOutputs::default();
        self.grow.take()
    }
}
