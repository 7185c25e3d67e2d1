//! Graphs that grow while they are computed: a decoder's, whose next step depends on its last answer.

use std::fmt;

use super::{CellError, CellId, Graph, NodeId, Source};

/// What goes on at the end of a watched node. One per request, so it may keep what it has seen.
pub trait DynamicGraph: Send {
    /// `node`, which was watched ([`Graph::watch`]), has been computed and `gave` these values. Adds to
    /// the graph what is to be computed next; a request ends when nothing of its graph is left.
    ///
    /// What is added may take anything that `node` gives, that came with the request or that is added with it; of what
    /// was there before only all states of a node that was watched, too, to go on from as another node of its cell, which
    /// nothing else does; and that node, with all of its cell that are connected with it, may take nothing else of other nodes.
    /// All else is refused, whether it has been computed by then or not
    /// ([`GraphError::NotKept`](super::GraphError::NotKept)): which it is depends on others' requests. So does which of two
    /// watched nodes is told of first, if neither waits for the other: what they add to the answer should not depend on it.
    ///
    /// Called by a worker between two batches: it should be quick. If it panics, its request alone ends,
    /// with an error; a function that has ended its request is called no more. Its request's values are locked meanwhile: it
    /// must not end that request (by cancelling it, or dropping its ticket or the engine), which would wait for them for
    /// ever; [`Growth::fail`] ends it.
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>);
}

/// What a node gives: a row of each of its cell's states and outputs.
#[derive(Clone, Copy)]
pub struct NodeOutputs<'a> {
    rows: &'a [&'a [f32]],
}

impl<'a> NodeOutputs<'a> {
    /// Of these rows, one for each of the cell's states and then outputs.
    pub fn new(rows: &'a [&'a [f32]]) -> NodeOutputs<'a> {
        NodeOutputs { rows }
    }

    /// How many ports there are.
    pub fn ports(&self) -> usize {
        self.rows.len()
    }

    /// The values of a port, counted over the cell's states and then its outputs.
    ///
    /// # Panics
    /// If the cell has fewer.
    pub fn port(&self, port: usize) -> &'a [f32] {
        self.rows[port]
    }
}

/// A graph that can be added to.
pub struct Growth<'a> {
    graph: &'a mut Graph,
    failure: Option<CellError>,
    deferred: Vec<Deferred>,
}

/// What is done when nothing is locked.
pub(crate) type Deferred = Box<dyn FnOnce() + Send>;

impl<'a> Growth<'a> {
    /// Of this graph.
    pub fn new(graph: &'a mut Graph) -> Growth<'a> {
        Growth {
            graph,
            failure: None,
            deferred: Vec::new(),
        }
    }

    /// To be done when the request's values are not locked any more: what may call users' code.
    pub(crate) fn defer(&mut self, job: impl FnOnce() + Send + 'static) {
        self.deferred.push(Box::new(job));
    }

    /// What was put off.
    pub(crate) fn take_deferred(&mut self) -> Vec<Deferred> {
        std::mem::take(&mut self.deferred)
    }

    /// Ends the request, and no other, with an error that says `why`; nothing more of it is computed. The
    /// first of several counts.
    pub fn fail(&mut self, why: impl fmt::Display) {
        self.failure.get_or_insert_with(|| CellError::new(why));
    }

    /// Why the request is to end, if it is.
    pub fn failure(&self) -> Option<&CellError> {
        self.failure.as_ref()
    }

    /// As [`Graph::give`].
    pub fn give(&mut self, values: &[f32]) -> Source {
        self.graph.give(values)
    }

    /// As [`Graph::node`].
    pub fn node(&mut self, cell: CellId, sources: &[Source]) -> NodeId {
        self.graph.node(cell, sources)
    }

    /// As [`Graph::answer`].
    pub fn answer(&mut self, source: Source) {
        self.graph.answer(source);
    }

    /// As [`Graph::watch`], of a node that is added now: one that was there before may have been computed.
    pub fn watch(&mut self, node: NodeId) {
        self.graph.watch(node);
    }
}
