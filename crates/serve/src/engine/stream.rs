//! Streams: chains whose next input arrives later, and that may go on for ever.
//!
//! A stream is an open request that grows by a node for each input. So that what is known of its
//! past does not grow with it, it is cut into segments of [`SEGMENT`] nodes, each a request:
//!
//! ```text
//! push   the segment has room    add a node; the last one closes the request
//!        it has none             put the input aside
//! a node is done                 tell its outputs; of the last one, keep the states
//! the segment has ended          begin the next, from these states, with all inputs put aside
//! ```
//!
//! Within a segment the states rest in the worker's batch, as those of any chain.

use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::shared::Shared;
use super::ticket::in_child;
use super::{Reply, Request, RequestError, Response, SubmitError};
use crate::cell_graph::{CellId, DynamicGraph, Graph, Growth, NodeId, NodeOutputs, Source};
use crate::scheduler::{Refused, RequestKey};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use cellstream::execute::team::ProcessMark;
use cellstream::execute::team::catch_panic;

/// Steps of a segment: enough that what a new request costs is nothing to a step. Two for the model
/// checker, whose streams are a few steps long.
const SEGMENT: usize = if cfg!(loom) { 2 } else { 256 };

/// What a step takes beside its inputs: of the graph, the values' and the scheduler's records.
const STEP_BYTES: usize = 256;

/// Why a stream was not opened, or does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// There is no such cell.
    #[error("there is no cell {cell}; there are {cells}, numbered from 0")]
    UnknownCell {
        /// Which was asked for.
        cell: usize,
        /// How many there are.
        cells: usize,
    },
    /// A cell that takes nothing over from step to step.
    #[error("cell `{cell}` has no state to carry from step to step; submit its calls as requests")]
    NoState {
        /// Which.
        cell: String,
    },
    /// Values of another size.
    #[error("{what} of cell `{cell}` are {expected} values, not {found}")]
    Values {
        /// States or inputs.
        what: &'static str,
        /// Which cell.
        cell: String,
        /// How many it takes.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// The step was refused; the stream is as it was before.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The stream has ended.
    #[error("the stream has ended: {0}")]
    Ended(#[from] RequestError),
}

type StepReply = oneshot::Sender<Result<Vec<f32>, RequestError>>;

/// An open-ended chain. Dropping it cancels what has not been computed.
pub struct Stream {
    inner: Arc<Inner>,
}

/// The outputs of one step, to wait for or to `.await`. Dropping it changes nothing for the stream.
/// Who awaits it is woken by one of the engine's threads, between two batches and with nothing
/// locked: a waker should be quick, and not wait for the engine.
pub struct Step {
    receiver: oneshot::Receiver<Result<Vec<f32>, RequestError>>,
    made_in: ProcessMark,
}

struct Inner {
    shared: Weak<Shared>,
    made_in: ProcessMark,
    cell: CellId,
    name: String,
    /// Widths of the cell's inputs, and of its states.
    inputs: Vec<usize>,
    states: Vec<usize>,
    now: Mutex<Now>,
}

/// How far a stream is. Locked by `push`, and by a worker at the end of each step (with the values
/// of the segment locked before) and segment; never with the engine's lock held.
#[derive(Default)]
struct Now {
    segment: Segment,
    /// Of the nodes that have not been told, oldest first.
    replies: VecDeque<StepReply>,
    /// Inputs for the next segment.
    aside: VecDeque<(Vec<f32>, StepReply)>,
    /// States that the next segment begins from; empty: zeros.
    states: Vec<f32>,
    closing: bool,
    ended: Option<RequestError>,
}

#[derive(Clone, Copy, Default)]
enum Segment {
    /// None runs.
    #[default]
    None,
    /// This one, with so many nodes.
    Open(RequestKey, usize),
    /// This one, which takes no more.
    Full(RequestKey),
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self, what: &'static str, expected: usize, found: usize) -> Result<(), StreamError> {
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
    fn step(&self, graph: &mut Graph, inputs: &[f32], before: &[Source]) -> NodeId {
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
    fn begin_segment(
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
    fn end(&mut self, error: RequestError) -> Waiting {
        self.ended = Some(error.clone());
        let aside = self.aside.drain(..).map(|(_, reply)| reply);
        Waiting {
            replies: self.replies.drain(..).chain(aside).collect(),
            error,
        }
    }
}

/// Those whose steps will not be computed.
struct Waiting {
    replies: Vec<StepReply>,
    error: RequestError,
}

impl Waiting {
    fn tell(self) {
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

impl Stream {
    pub(super) fn open(
        shared: &Arc<Shared>,
        cell: CellId,
        states: Option<&[f32]>,
    ) -> Result<Stream, StreamError> {
        if shared.made_in.is_forked() {
            return Err(SubmitError::Forked.into());
        }
        let Some(found) = shared.cells.get(cell) else {
            return Err(StreamError::UnknownCell {
                cell: cell.index(),
                cells: shared.cells.len(),
            });
        };
        let (name, ports) = (found.name().to_owned(), found.ports());
        if ports.states().is_empty() {
            return Err(StreamError::NoState { cell: name });
        }
        let widths = |ports: &[crate::cell_graph::Port]| -> Vec<usize> {
            ports.iter().map(|port| port.width()).collect()
        };
        let inner = Inner {
            shared: Arc::downgrade(shared),
            made_in: shared.made_in,
            cell,
            inputs: widths(ports.inputs()),
            states: widths(ports.states()),
            now: Mutex::new(Now::default()),
            name,
        };
        let states = states.unwrap_or_default();
        if !states.is_empty() {
            inner.expect("states", inner.states.iter().sum(), states.len())?;
            inner.lock().states = states.to_vec();
        }
        Ok(Stream {
            inner: Arc::new(inner),
        })
    }

    /// Adds a step, of the values of all of the cell's inputs one after the other. Steps are
    /// computed in the order in which they were added; some hundreds may be under way. A stream
    /// takes room for a segment of 256 steps at a time: where there is none when one is over, steps
    /// that were added for the next one end with [`RequestError::Refused`], and so has the stream:
    /// its states are gone.
    ///
    /// # Errors
    /// [`StreamError::Values`] and [`StreamError::Submit`] leave the stream as it was;
    /// [`StreamError::Ended`].
    pub fn push(&mut self, inputs: &[f32]) -> Result<Step, StreamError> {
        let inner = &self.inner;
        if inner.made_in.is_forked() {
            return Err(SubmitError::Forked.into());
        }
        inner.expect("inputs", inner.inputs.iter().sum(), inputs.len())?;
        let (reply, receiver) = oneshot::channel();
        let mut now = inner.lock();
        if let Some(error) = &now.ended {
            return Err(error.clone().into());
        }
        match now.segment {
            Segment::Full(_) => {
                let have = now.aside.len();
                if have == SEGMENT {
                    return Err(SubmitError::from(Refused::Overloaded {
                        what: "steps of a stream",
                        have,
                        needs: 1,
                        most: SEGMENT,
                    })
                    .into());
                }
                now.aside.push_back((inputs.to_vec(), reply));
            }
            Segment::None => {
                now.replies.push_back(reply);
                inner
                    .begin_segment(&mut now, &[inputs], false)
                    .inspect_err(|_| {
                        now.replies.pop_back();
                    })?;
            }
            Segment::Open(key, nodes) => {
                now.replies.push_back(reply);
                // Before the node is added: the segment may have ended by the time that it has
                // been.
                let full = nodes + 1 == SEGMENT;
                now.segment = match full {
                    true => Segment::Full(key),
                    false => Segment::Open(key, nodes + 1),
                };
                drop(now);
                self.add(key, nodes, inputs, full)?;
            }
        }
        Ok(Step {
            receiver,
            made_in: inner.made_in,
        })
    }

    /// Adds a node to an open segment, whose reply waits already: a node may end before this
    /// returns. A worker that has computed a step locks the stream with the request's values
    /// locked; so the stream must not be locked here, where the values are.
    fn add(
        &self,
        key: RequestKey,
        nodes: usize,
        inputs: &[f32],
        full: bool,
    ) -> Result<(), StreamError> {
        let inner = &self.inner;
        let Some(shared) = inner.shared.upgrade() else {
            return Err(RequestError::ShutDown.into());
        };
        let last = NodeId::new(nodes - 1);
        let before: Vec<_> = (0..inner.states.len()).map(|p| last.output(p)).collect();
        let change = |graph: &mut Graph| {
            inner.step(graph, inputs, &before);
        };
        let refused = shared.grow(key, change, full).err();
        let mut now = inner.lock();
        // One that has ended has told all replies why, this one's too.
        if let Some(why) = refused.filter(|_| now.ended.is_none()) {
            now.replies.pop_back();
            now.segment = Segment::Open(key, nodes);
            return Err(why.into());
        }
        Ok(())
    }

    /// No more steps will come; those that were added are computed.
    pub fn close(self) {
        if self.inner.made_in.is_forked() {
            return;
        }
        let mut now = self.inner.lock();
        now.closing = true;
        let segment = std::mem::take(&mut now.segment);
        if let (Segment::Open(key, _), Some(shared)) = (segment, self.inner.shared.upgrade()) {
            drop(now);
            shared.close(key);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.inner.made_in.is_forked() {
            return;
        }
        let mut now = self.inner.lock();
        if now.closing || now.ended.is_some() {
            return;
        }
        // Ended here, so that a segment that is just over begins no other.
        let waiting = now.end(RequestError::Cancelled);
        let segment = now.segment;
        drop(now);
        if let (Segment::Open(key, _) | Segment::Full(key), Some(shared)) =
            (segment, self.inner.shared.upgrade())
        {
            shared.cancel(key);
        }
        // Who is woken finds the room free.
        waiting.tell();
    }
}

impl Step {
    /// Waits for the outputs of the step, one after the other.
    ///
    /// # Errors
    /// Why there are none.
    pub fn wait(self) -> Result<Vec<f32>, RequestError> {
        if self.made_in.is_forked() {
            return in_child(&self.receiver);
        }
        self.receiver.recv().unwrap_or(Err(RequestError::ShutDown))
    }
}

impl IntoFuture for Step {
    type Output = Result<Vec<f32>, RequestError>;
    type IntoFuture = Stepping;

    fn into_future(self) -> Stepping {
        Stepping {
            receiver: self.receiver.into_future(),
            made_in: self.made_in,
        }
    }
}

/// The future of a [`Step`].
pub struct Stepping {
    receiver: oneshot::AsyncReceiver<Result<Vec<f32>, RequestError>>,
    made_in: ProcessMark,
}

impl Future for Stepping {
    type Output = Result<Vec<f32>, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = match Pin::new(&mut self.receiver).poll(context) {
            Poll::Pending if self.made_in.is_forked() => Ok(Err(RequestError::Forked)),
            polled => std::task::ready!(polled),
        };
        Poll::Ready(received.unwrap_or(Err(RequestError::ShutDown)))
    }
}
