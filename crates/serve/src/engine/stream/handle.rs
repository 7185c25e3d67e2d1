//! The handles of a stream and of its steps.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::super::shared::Shared;
use super::super::ticket::in_child;
use super::super::{RequestError, SubmitError};
use super::segments::{Inner, Now, Segment};
use super::{SEGMENT, StreamError};
use crate::cell_graph::{CellId, Graph, NodeId};
use crate::scheduler::{Refused, RequestKey};
use crate::sync::Mutex;
use cellstream::execute::team::ProcessMark;

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

impl Stream {
    pub(in crate::engine) fn open(
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
