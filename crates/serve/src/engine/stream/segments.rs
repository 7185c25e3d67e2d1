//! The state of a stream: one segment after the other, each an open request.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::super::shared::Shared;
use super::super::{Reply, Request, RequestError, Response, SubmitError};
use super::{SEGMENT, STEP_BYTES, StreamError};
use crate::cell_graph::{CellId, DynamicGraph, Graph, Growth, NodeId, NodeOutputs, Source};
use crate::scheduler::RequestKey;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use cellstream::execute::team::{ProcessMark, catch_panic};

pub(super) type StepReply = oneshot::Sender<Result<Vec<f32>, RequestError>>;

pub(super) struct Inner {
    pub(super) shared: Weak<Shared>,
    pub(super) made_in: ProcessMark,
    pub(super) cell: CellId,
    pub(super) name: String,
    /// Widths of the cell's inputs, and of its states.
    pub(super) inputs: Vec<usize>,
    pub(super) states: Vec<usize>,
    pub(super) now: Mutex<Now>,
}

/// How far a stream is. Locked by `push`, and by a worker at the end of each step (with the values
/// of the segment locked before) and segment; never with the engine's lock held.
#[derive(Default)]
pub(super) struct Now {
    pub(super) segment: Segment,
    /// Of the nodes that have not been told, oldest first.
    pub(super) replies: VecDeque<StepReply>,
    /// Inputs for the next segment.
    pub(super) aside: VecDeque<(Vec<f32>, StepReply)>,
    /// States that the next segment begins from; empty: zeros.
    pub(super) states: Vec<f32>,
    pub(super) closing: bool,
    pub(super) ended: Option<RequestError>,
}

#[derive(Clone, Copy, Default)]
pub(super) enum Segment {
    /// None runs.
    #[default]
    None,
    /// This one, with so many nodes.
    Open(RequestKey, usize),
    /// This one, which takes no more.
    Full(RequestKey),
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn expect(
        &self,
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), StreamError> {
        match expected == found {
            true => Ok(()),
            false => Err(StreamError::Values {
                what,
                cell: self.name.clone(),
                expected,
                found,
            }),
        }
    }

    /// Adds a step to a graph, after `before`.
    pub(super) fn step(&self, graph: &mut Graph, inputs: &[f32], before: &[Source]) -> NodeId {
        let mut sources = Vec::with_capacity(self.inputs.len() + self.states.len());
        let mut rest = inputs;
        for &width in &self.inputs {
            let (input, after) = rest.split_at(width);
            sources.push(graph.give(input));
            rest = after;
        }
        sources.extend(before);
        let node = graph.node(self.cell, &sources);
        graph.watch(node);
        node
    }

    /// The states that a segment begins from.
    fn begin(&self, graph: &mut Graph, states: &[f32]) -> Vec<Source> {
        if states.is_empty() {
            return vec![Source::Zeros; self.states.len()];
        }
        let mut rest = states;
        let widths = self.states.iter();
        widths
            .map(|&width| {
                let (state, after) = rest.split_at(width);
                rest = after;
                graph.give(state)
            })
            .collect()
    }

    /// Begins a segment with these inputs: those of a new step or, where the segment before has
    /// ended, of steps that were accepted meanwhile.
    pub(super) fn begin_segment(
        self: &Arc<Self>,
        now: &mut Now,
        steps: &[&[f32]],
        accepted: bool,
    ) -> Result<(), StreamError> {
        let Some(shared) = self.shared.upgrade() else {
            return Err(RequestError::ShutDown.into());
        };
        let mut graph = Graph::new();
        let mut before = self.begin(&mut graph, &now.states);
        for inputs in steps {
            let node = self.step(&mut graph, inputs, &before);
            before = (0..self.states.len())
                .map(|port| node.output(port))
                .collect();
        }
        let full = steps.len() == SEGMENT;
        let step: usize = self.inputs.iter().sum();
        // Those that came with it, and those of the last step, whose row may be needed for somebody
        // else.
        let states = self.states.iter().sum::<usize>() * size_of::<f32>();
        let request = Request::new(graph)
            .grow(Told(Arc::clone(self)))
            .of_bytes(SEGMENT * (step * size_of::<f32>() + STEP_BYTES) + 2 * states);
        let request = match full || now.closing {
            true => request,
            false => request.open(),
        };
        let request = match accepted {
            true => request.continues(),
            false => request,
        };
        let inner = Arc::clone(self);
        let ended = move |answer| inner.segment_ended(answer);
        // With the stream locked: accepting a request ends none, so nobody is told anything here.
        let key = shared.accept(request, Reply::Call(Box::new(ended)))?;
        now.segment = match full || now.closing {
            true => Segment::Full(key),
            false => Segment::Open(key, steps.len()),
        };
        Ok(())
    }

    /// A segment's request has ended.
    fn segment_ended(self: Arc<Self>, answer: Result<Response, RequestError>) {
        let mut now = self.lock();
        now.segment = Segment::None;
        if now.ended.is_some() {
            // Dropped meanwhile.
            return;
        }
        let begun = match answer {
            Err(error) => Err(error),
            Ok(_) if now.aside.is_empty() => Ok(()),
            Ok(_) => {
                let count = now.aside.len().min(SEGMENT);
                let (inputs, replies): (Vec<_>, Vec<_>) = now.aside.drain(..count).unzip();
                now.replies.extend(replies);
                let steps: Vec<&[f32]> = inputs.iter().map(|i| &i[..]).collect();
                let begun = self.begin_segment(&mut now, &steps, true);
                begun.map_err(|error| match error {
                    StreamError::Ended(error) => error,
                    StreamError::Submit(SubmitError::Graph(error)) => error.into(),
                    StreamError::Submit(SubmitError::Refused(error)) => error.into(),
                    _ => RequestError::ShutDown,
                })
            }
        };
        if let Err(error) = begun {
            let waiting = now.end(error);
            drop(now);
            waiting.tell();
        }
    }
}

impl Now {
    /// Those who wait, to be told when the stream is not locked: who is woken may drop it.
    #[must_use]
    pub(super) fn end(&mut self, error: RequestError) -> Waiting {
        self.ended = Some(error.clone());
        let aside = self.aside.drain(..).map(|(_, reply)| reply);
        Waiting {
            replies: self.replies.drain(..).chain(aside).collect(),
            error,
        }
    }
}

/// Those whose steps will not be computed.
pub(super) struct Waiting {
    replies: Vec<StepReply>,
    error: RequestError,
}

impl Waiting {
    pub(super) fn tell(self) {
        for reply in self.replies {
            // Wakers are users': a panic there is nobody else's.
            let _ = catch_panic(|| reply.send(Err(self.error.clone())));
        }
    }
}

/// Tells the outputs of each step.
struct Told(Arc<Inner>);

impl DynamicGraph for Told {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let inner = &self.0;
        let states = inner.states.len();
        let mut now = inner.lock();
        if node.index() + 1 == SEGMENT {
            now.states = (0..states)
                .flat_map(|port| outputs.port(port))
                .copied()
                .collect();
        }
        if let Some(reply) = now.replies.pop_front() {
            let outputs = (states..outputs.ports()).flat_map(|port| outputs.port(port));
            let outputs = outputs.copied().collect();
            more.defer(move || drop(reply.send(Ok(outputs))));
        }
    }
}
