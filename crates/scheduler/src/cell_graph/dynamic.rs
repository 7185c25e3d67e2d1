//! Graphs that grow while they are computed, such as that of a decoder, whose next step depends on
//! the symbol of the last.

use std::fmt;

use super::{CellError, CellId, Graph, NodeId, Source};

/// Adds nodes to the graph of a request while it is computed. Each request has its own, so it may
/// have state.
pub trait DynamicGraph: Send {
    /// Called when the watched `node` ([`Graph::watch`]) has been computed; `outputs` are its
    /// states and outputs. Adds the nodes to compute next; the request ends when none is left.
    ///
    /// An added node may read: values of the request; nodes added by the same call; states and
    /// outputs of `node`; and all states of one other watched node of its own cell, if no other
    /// node continues from it. In the last case the whole new subgraph reads no other earlier node.
    ///
    /// Other sources are refused with [`GraphError::NotRetained`](super::GraphError::NotRetained),
    /// even if they are already computed: that depends on other requests. For the same reason the
    /// response must not depend on the order of the calls for independent watched nodes.
    ///
    /// Runs on a worker between two batches, so it should be short. After a panic the request ends
    /// with an error and the function is not called again. The values of the request are locked
    /// during the call: do not cancel the request or drop its ticket or the engine here, which
    /// would deadlock; call [`Growth::fail`].
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>);

    /// Whether [`grow`](DynamicGraph::grow) reads the values of a port of its node, counted as
    /// in [`NodeOutputs`]. Those of other ports may be empty there, if they are on a device. Added
    /// nodes may read all ports.
    fn reads(&self, port: usize) -> bool {
        let _ = port;
        true
    }
}

/// The results of a node: one row of each state and output of its cell.
#[derive(Clone, Copy)]
pub struct NodeOutputs<'a> {
    rows: &'a [&'a [f32]],
}

impl<'a> NodeOutputs<'a> {
    /// Results with these rows, one for each of the cell's states and then outputs.
    pub fn new(rows: &'a [&'a [f32]]) -> NodeOutputs<'a> {
        NodeOutputs { rows }
    }

    /// Number of ports.
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

/// Additions to the graph of a request.
pub struct Growth<'a> {
    graph: &'a mut Graph,
    failure: Option<CellError>,
    /// `None` if nobody receives parts.
    parts: Option<Vec<Vec<f32>>>,
    deferred: Vec<Box<dyn FnOnce() + Send>>,
}

impl<'a> Growth<'a> {
    /// Additions to this graph.
    pub fn new(graph: &'a mut Graph) -> Growth<'a> {
        Growth {
            graph,
            failure: None,
            parts: None,
            deferred: Vec::new(),
        }
    }

    /// Runs `job` later, with nothing locked.
    pub(crate) fn defer(&mut self, job: impl FnOnce() + Send + 'static) {
        self.deferred.push(Box::new(job));
    }

    /// The deferred jobs.
    pub(crate) fn take_deferred(&mut self) -> Vec<Box<dyn FnOnce() + Send>> {
        std::mem::take(&mut self.deferred)
    }

    /// Sends values to the user before the response is complete, such as the symbol of a decoder.
    /// The receiver is that of `Request::on_part`; without one, this does nothing. The values are
    /// not part of the response, unless [`Growth::answer`] adds them, too.
    pub fn part(&mut self, values: &[f32]) {
        if let Some(parts) = &mut self.parts {
            parts.push(values.to_vec());
        }
    }

    /// From now on collects parts.
    pub(crate) fn collect_parts(&mut self) {
        self.parts = Some(Vec::new());
    }

    /// The collected parts.
    pub(crate) fn take_parts(&mut self) -> Vec<Vec<f32>> {
        self.parts.take().unwrap_or_default()
    }

    /// Ends the request, and no other, with an error with the message `why`. The first of several
    /// calls counts.
    pub fn fail(&mut self, why: impl fmt::Display) {
        self.failure.get_or_insert_with(|| CellError::new(why));
    }

    /// The error, if [`Growth::fail`] was called.
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

    /// As [`Graph::node_of_lengths`].
    pub fn node_of_lengths(
        &mut self,
        cell: CellId,
        sources: &[Source],
        lengths: &[usize],
    ) -> NodeId {
        self.graph.node_of_lengths(cell, sources, lengths)
    }

    /// As [`Graph::answer`].
    pub fn answer(&mut self, source: Source) {
        self.graph.answer(source);
    }

    /// As [`Graph::watch`], for a node added by this call: an earlier one may have been computed.
    pub fn watch(&mut self, node: NodeId) {
        self.graph.watch(node);
    }
}
