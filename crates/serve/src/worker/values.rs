//! The values of one request: those it came with, results of its nodes that have readers, its
//! response.
//!
//! ```text
//! states of a node   stay in their slot of the batch buffers while the next node of the chain
//!                    continues there, "in place" (the slot is recorded here, and checked there);
//!                    else they are retained here until all readers have read them
//! outputs of a node  are retained here for their readers
//! the response       is filled when the nodes that it reads end
//! ```
//!
//! Values that came with the request never change; cells read them without the lock.
//!
//! Workers lock the values of a request before each of its cells (to check whether it joins the
//! step before, to find its slot, to record or copy inputs) and after it. Two threads contend for
//! them only if two of its nodes run at the same time: on two workers, or in one batch that a team
//! copies. Each holds one such lock, for one row, and does not wait meanwhile.

use super::buffer_pool::BufferPool;
use super::model_cells::ModelCells;
use super::release::{InPieces, release};
use super::retained_outputs::RetainedOutputs;
use crate::sync::{AtomicBool, Mutex, MutexGuard, PoisonError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cell_graph::{
    Cells, DynamicGraph, Graph, GraphError, NodeId, Port, RequestGraph, Resident, Source,
};
use gatestream_scheduler::engine::EngineGraph;

/// The values of a request, shared by engine and workers.
pub(crate) struct RequestValues<R> {
    model: Arc<ModelCells>,
    /// Values that came with it, which cells read in place without the lock. Values added by a
    /// growing graph are in the graph.
    given: Box<[f32]>,
    values: Mutex<Values<R>>,
    /// The request has ended: its rows in formed tasks need not be computed.
    ended: AtomicBool,
    /// It has a `DynamicGraph`.
    grows: bool,
}

impl<R> RequestValues<R> {
    /// Of a request of `model`.
    pub fn new(model: &Arc<ModelCells>, mut values: Values<R>) -> RequestValues<R> {
        RequestValues {
            model: Arc::clone(model),
            given: values.graph.take_given(),
            grows: values.grow.is_some(),
            values: Mutex::new(values),
            ended: AtomicBool::new(false),
        }
    }

    /// Only a `DynamicGraph` panics under the lock; its request ends then.
    pub fn lock(&self) -> MutexGuard<'_, Values<R>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn model(&self) -> &Arc<ModelCells> {
        &self.model
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

impl<R> Drop for RequestValues<R> {
    fn drop(&mut self) {
        let values = (self.values.get_mut()).unwrap_or_else(PoisonError::into_inner);
        let (given, graph) = (
            std::mem::take(&mut self.given),
            std::mem::take(&mut values.graph),
        );
        let facts = (
            std::mem::take(&mut values.nodes),
            std::mem::take(&mut values.outputs),
        );
        let bytes = size_of_val(&given[..])
            + graph.bytes()
            + size_of_val(&facts.0[..])
            + size_of_val(&facts.1[..]);
        release((InPieces(given.into_vec()), graph, facts), bytes);
    }
}

/// `R` is the receiver of the response, which the values do not use.
pub(crate) struct Values<R> {
    graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
    /// It did not end the request.
    may_grow: bool,
    resident: Resident,
    nodes: Vec<NodeFacts>,
    outputs: Vec<Output>,
    retained: RetainedOutputs,
    /// Positions in the answer, in a linked list for each output that fills them.
    answer_slots: Vec<AnswerSlot>,
    answer: Vec<f32>,
    watched: usize,
    pub reply: Option<R>,
}

/// Facts of a node beside the graph.
#[derive(Clone, Copy)]
struct NodeFacts {
    /// The number of its first output.
    first_output: u32,
    /// The node that continues from its states in place.
    successor: Option<NodeId>,
    /// The node whose successor this is.
    predecessor: Option<NodeId>,
    /// The slot of the batch buffers that has its states.
    slot: u32,
    watched: bool,
    /// Its states are retained here, not in a slot.
    evicted: bool,
    /// The successor has read the states.
    successor_done: bool,
}

impl NodeFacts {
    /// Whether a successor still needs its states: that of a watched node may be added later.
    fn is_awaited(&self) -> bool {
        match self.successor {
            Some(_) => !self.successor_done,
            None => self.watched && self.evicted,
        }
    }
}

/// An input row that is read in place.
pub(super) enum InputRow {
    /// Values that came with the request, from this index.
    Given { first: usize, width: usize },
    /// A retained result whose only reader is this row.
    Retained(Box<[f32]>),
}

/// A state or output of a node.
#[derive(Clone, Copy)]
struct Output {
    width: u32,
    /// Number of remaining readers, without the successor.
    uses: u32,
    first_answer: u32,
}

struct AnswerSlot {
    at: usize,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl<R> Values<R> {
    /// For a checked graph, with `unfolded` as the result.
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

    /// Maximum bytes of the request, as far as its graph is known: its values, its response, and
    /// the results that may be retained at the same time. Before the values are
    /// [shared](RequestValues::new).
    pub fn bytes(&self, cells: &Cells) -> usize {
        let values = (self.answer.len() + self.max_retained(cells)) * size_of::<f32>();
        let retained = self.outputs.len() * size_of::<Option<Box<[f32]>>>();
        let facts = size_of_val(&self.nodes[..]) + size_of_val(&self.outputs[..]) + retained;
        self.graph.bytes() + values + facts
    }

    /// Values that may be retained at the same time: those with readers and, for each chain of
    /// nodes that continue in place, the states of one, whose slot may be needed for another
    /// request.
    pub fn max_retained(&self, cells: &Cells) -> usize {
        let taken = self.outputs.iter().filter(|output| output.uses > 0);
        let taken: usize = taken.map(|output| output.width as usize).sum();
        let nodes = (0..self.nodes.len()).map(NodeId::new);
        let firsts =
            nodes.filter(|&node| self.predecessor(node).is_none() && self.stays_resident(node));
        let cells = firsts.filter_map(|node| cells.get(self.graph.cell(node)));
        let evicted: usize = (cells.flat_map(|cell| cell.ports().states()))
            .map(Port::width)
            .sum();
        taken + evicted
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Changes the graph, for a `watched` node or from outside; undone after an error. `given` are
    /// the values that came with the request.
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

    /// Records the nodes and answers that were added to the graph.
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
                successor: None,
                predecessor: None,
                slot: NONE,
                watched: false,
                evicted: false,
                successor_done: false,
            });
            if let Some(cell) = cells.get(graph.cell(node)) {
                let widths = graph.written_widths(node, cell.ports());
                self.outputs.extend(widths.map(|width| Output {
                    width: width as u32,
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
                let together = if before.index() >= nodes {
                    unfolded.subgraph(before) == unfolded.subgraph(node)
                } else {
                    goes_on[unfolded.subgraph(node)] == Some(before)
                };
                together && self.nodes[before.index()].successor.is_none()
            });
            if let Some(before) = before {
                self.nodes[before.index()].successor = Some(node);
                self.nodes[node.index()].predecessor = Some(before);
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

    /// The node from which `node` continues in place.
    pub fn predecessor(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].predecessor
    }

    /// The last recorded slot of the states of `node`.
    pub fn slot(&self, node: NodeId) -> Option<usize> {
        let slot = self.nodes[node.index()].slot;
        (slot != NONE).then_some(slot as usize)
    }

    /// Records the slot of the states of `node`.
    pub fn set_slot(&mut self, node: NodeId, row: usize) {
        self.nodes[node.index()].slot = u32::try_from(row).unwrap_or(NONE);
    }

    /// Whether the states of a node stay in their slot: it has a successor, or may get one.
    pub fn stays_resident(&self, node: NodeId) -> bool {
        let facts = &self.nodes[node.index()];
        facts.successor.is_some() || facts.watched
    }

    pub fn is_watched(&self, node: NodeId) -> bool {
        self.nodes[node.index()].watched
    }

    /// Whether `node` is watched, and the `DynamicGraph` reads this port.
    pub fn is_read_by_growth(&self, node: NodeId, port: usize) -> bool {
        self.is_watched(node) && self.grow.as_ref().is_some_and(|grow| grow.reads(port))
    }

    /// Whether `node` can be computed in one batch with `before`: it continues from its states in
    /// place, they have no other reader, `before` is not watched, and the inputs of `node` are
    /// here.
    pub fn joins(&self, before: NodeId, node: NodeId, states: usize) -> bool {
        let facts = &self.nodes[before.index()];
        if states == 0 || facts.successor != Some(node) || facts.watched {
            return false;
        }
        let sources = self.graph.sources(node);
        let outputs = &self.outputs[facts.first_output as usize..][..states];
        (outputs.iter()).all(|output| output.uses == 0 && output.first_answer == NONE)
            && self.are_here(&sources[..sources.len() - states])
    }

    /// Whether the values that `node` reads, except the states from which it continues in place,
    /// are here: those of the request and of nodes whose results were passed on. Its cell has
    /// `inputs` inputs.
    pub fn sources_are_here(&self, node: NodeId, inputs: usize) -> bool {
        let sources = self.graph.sources(node);
        self.are_here(match self.predecessor(node) {
            Some(_) => &sources[..inputs],
            None => sources,
        })
    }

    fn are_here(&self, sources: &[Source]) -> bool {
        sources.iter().all(|source| match *source {
            Source::Zeros | Source::Given { .. } => true,
            Source::Node { node, port } => {
                let number = self.nodes[node.index()].first_output + port as u32;
                self.retained.has(number)
            }
        })
    }

    /// Records that the successor of `before`, which was [joined](Values::joins), has its states.
    pub fn joined(&mut self, before: NodeId) {
        self.nodes[before.index()].successor_done = true;
    }

    /// Records that the successor of `node` continues in place, and frees copies that were retained
    /// for other readers, which have read them.
    pub(super) fn continued_in_place(
        &mut self,
        node: NodeId,
        states: usize,
        pool: &mut BufferPool,
    ) {
        let facts = &mut self.nodes[node.index()];
        facts.successor_done = true;
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

    /// The values of `source` for a gathered row, without a copy: those of the request, or a result
    /// with no other reader. `None` if they must be [copied](Values::take).
    pub(super) fn input_row(&mut self, source: Source, given: &[f32]) -> Option<InputRow> {
        match source {
            Source::Zeros => None,
            Source::Given { first, width } => {
                (first + width <= given.len()).then_some(InputRow::Given { first, width })
            }
            Source::Node { .. } => self.take_retained(source, false).map(InputRow::Retained),
        }
    }

    /// Number of values of `source`; none of zeros.
    pub(super) fn width(&self, source: Source) -> usize {
        match source {
            Source::Zeros => 0,
            Source::Given { width, .. } => width,
            Source::Node { node, port } => self.written_width(node, port),
        }
    }

    /// Number of values of the result of `node` at `port`.
    pub(super) fn written_width(&self, node: NodeId, port: usize) -> usize {
        let first = self.nodes[node.index()].first_output as usize;
        self.outputs[first + port].width as usize
    }

    /// The retained result `source`, if it has no other reader. `None`, without a change, if it
    /// must be [copied](Values::take).
    pub(super) fn take_retained(
        &mut self,
        source: Source,
        as_successor: bool,
    ) -> Option<Box<[f32]>> {
        let Source::Node { node, port } = source else {
            return None;
        };
        let facts = &mut self.nodes[node.index()];
        let number = facts.first_output + port as u32;
        let output = &mut self.outputs[number as usize];
        let is_wanted = if as_successor {
            output.uses > 0
        } else {
            output.uses != 1 || facts.is_awaited()
        };
        if is_wanted {
            return None;
        }
        let retained = self.retained.take(number)?;
        output.uses = 0;
        facts.successor_done |= as_successor;
        Some(retained)
    }

    /// Copies the values of `source`; `false` if they are not here but in a slot of a batch buffer.
    /// A result with no other reader goes to the pool. `given` are the values that came with the
    /// request.
    pub(super) fn take(
        &mut self,
        (source, given): (Source, &[f32]),
        to: &mut [f32],
        as_successor: bool,
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
                if as_successor {
                    facts.successor_done = true
                } else {
                    output.uses -= 1
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

    /// Whether the result of `node` at `port` has readers beside a successor in place. Most steps
    /// of a chain have none, and need not be [stored](Values::store).
    pub fn is_taken(&self, node: NodeId, port: usize) -> bool {
        let first = self.nodes[node.index()].first_output as usize;
        let output = &self.outputs[first + port];
        output.uses > 0 || output.first_answer != NONE
    }

    /// Copies the result of `node` at `port` to the answer, and retains it for its readers.
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

    /// As [`Values::store`], but retains the buffer itself, and replaces it by another.
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

    /// Copies the result of `node` at `port` to the answer. Returns its number if it has readers.
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

    /// The slot is needed for another request: retains a state of `node` for its successor.
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

    /// The `DynamicGraph`, to be called.
    pub fn take_grow(&mut self) -> Option<Box<dyn DynamicGraph>> {
        self.grow.take_if(|_| self.may_grow)
    }

    /// Puts it back; it is not called again unless it `continues`.
    pub fn put_grow(&mut self, grow: Box<dyn DynamicGraph>, continues: bool) {
        self.grow = Some(grow);
        self.may_grow = continues;
    }

    /// Number of retained values.
    #[cfg(all(test, not(loom)))]
    pub fn retained(&self) -> usize {
        self.retained.values()
    }

    pub fn take_answer(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.answer)
    }

    /// Frees the retained results and returns the `DynamicGraph`, which the caller drops when
    /// nothing is locked. The graph stays: rows of a running task may refer to it.
    pub fn clear(&mut self) -> Option<Box<dyn DynamicGraph>> {
        let retained = std::mem::take(&mut self.retained);
        let bytes = retained.bytes();
        release(retained, bytes);
        self.grow.take()
    }
}
