//! The handles of a stream and of its steps.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::super::answer::{AnswerReceiver, answer_slot};
use super::super::replies::Job;
use super::super::shared::Shared;
use super::super::{RequestError, SubmitError};
use super::segments::{Inner, Now, WaitingStep, width};
use super::{AHEAD, STEP_BYTES, StepOptions, StreamError};
use crate::cell_graph::CellId;
use crate::scheduler::{LimitOf, Reason, Refused};
use crate::sync::Mutex;
use crate::worker::ModelCells;
use gatestream::execute::team::ProcessMark;

/// An open-ended chain. Dropping it cancels what has not been computed.
pub struct Stream {
    inner: Arc<Inner>,
}

/// The outputs of one step, to wait for or to `.await`. Dropping it changes nothing for the stream.
/// A task that awaits it is woken by the engine's reply thread.
pub struct Step {
    answer: AnswerReceiver<Vec<f32>>,
    made_in: ProcessMark,
}

impl Stream {
    pub(in crate::engine) fn open(
        shared: &Arc<Shared>,
        model: &Arc<ModelCells>,
        cell: CellId,
        states: Option<&[f32]>,
    ) -> Result<Stream, StreamError> {
        if shared.made_in.is_forked() {
            return Err(SubmitError::Forked.into());
        }
        let Some(found) = model.cells.get(cell) else {
            return Err(StreamError::UnknownCell {
                cell: cell.index(),
                cells: model.cells.len(),
            });
        };
        let (name, ports) = (|| found.name().to_owned(), found.ports());
        if ports.states().is_empty() {
            return Err(StreamError::NoState { cell: name() });
        }
        if ports.has_sequences() {
            return Err(StreamError::Sequences { cell: name() });
        }
        let (input, state) = (width(ports.inputs()), width(ports.states()));
        // The states are kept by the stream, and by its running segment.
        let bytes = AHEAD * (input * size_of::<f32>() + STEP_BYTES) + 2 * state * size_of::<f32>();
        let room = Shared::open_stream(shared, model.key, bytes)?;
        let position = room.position();
        let inner = Inner {
            shared: Arc::downgrade(shared),
            made_in: shared.made_in,
            model: Arc::clone(model),
            cell,
            now: Mutex::new(Now::new(room)),
        };
        let states = states.unwrap_or_default();
        if !states.is_empty() {
            inner.expect("states", state, states.len())?;
            inner.lock().states = states.to_vec();
        }
        let inner = Arc::new(inner);
        shared.watch_stream(position, &inner);
        Ok(Stream { inner })
    }

    #[cfg(all(test, loom))]
    pub(in crate::engine) fn inner(&self) -> Arc<Inner> {
        Arc::clone(&self.inner)
    }

    /// As [`Stream::push_with`], with priority 0 and no deadline.
    ///
    /// # Errors
    /// As [`Stream::push_with`].
    pub fn push(&mut self, inputs: &[f32]) -> Result<Step, StreamError> {
        self.push_with(inputs, StepOptions::default())
    }

    /// Adds a step, of the values of all of the cell's inputs one after the other. Steps are
    /// computed in the order in which they were added. Up to [`Stream::AHEAD`] steps may be
    /// unanswered. The engine has room for them: other requests cannot take it.
    ///
    /// # Errors
    /// [`StreamError::Values`] and [`StreamError::Submit`] (too many unanswered steps, or the
    /// engine drains) leave the stream as it was; [`StreamError::Ended`].
    pub fn push_with(&mut self, inputs: &[f32], options: StepOptions) -> Result<Step, StreamError> {
        let inner = &self.inner;
        if inner.made_in.is_forked() {
            return Err(SubmitError::Forked.into());
        }
        inner.expect("inputs", width(inner.ports().inputs()), inputs.len())?;
        let shared = inner.shared.upgrade();
        let (reply, answer) = answer_slot();
        let mut now = inner.lock();
        if let Some(error) = &now.ended {
            return Err(RequestError::clone(error).into());
        }
        let Some(shared) = shared else {
            return Err(RequestError::ShutDown.into());
        };
        let have = now.unanswered();
        if have >= AHEAD {
            let mut state = shared.lock();
            (state.scheduler).handle_refused(inner.model.key, Reason::Steps);
            return Err(SubmitError::from(Refused::Overloaded {
                of: LimitOf::Engine,
                what: Reason::Steps,
                have,
                needs: 1,
                most: AHEAD,
            })
            .into());
        }
        if now.running.is_some() {
            shared.check_draining(inner.model.key)?;
        }
        now.add(WaitingStep {
            inputs: inputs.to_vec(),
            options,
            reply,
        });
        if now.running.is_none()
            && let Err(refused) = inner.begin_segment(&mut now, false)
        {
            now.remove_last();
            return Err(refused);
        }
        Ok(Step {
            answer,
            made_in: inner.made_in,
        })
    }

    /// Maximum number of unanswered steps of a stream.
    pub const AHEAD: usize = AHEAD;

    /// The states after the last answered step, one after the other, for
    /// [`Engine::stream`](crate::Engine::stream): a stream that starts from them continues this
    /// one. Steps that are not answered are not part of them. Also after the stream has ended.
    pub fn state(&self) -> Vec<f32> {
        if self.inner.made_in.is_forked() {
            return Vec::new();
        }
        self.inner.states(&self.inner.lock())
    }

    /// No more steps will come; those that were added are computed. The returned handle receives
    /// the states after the last step when the room of the stream has been returned; dropping it
    /// changes nothing.
    pub fn close(self) -> Step {
        let inner = &self.inner;
        let (reply, answer) = answer_slot();
        let closed = Step {
            answer,
            made_in: inner.made_in,
        };
        if inner.made_in.is_forked() {
            return closed;
        }
        let mut now = inner.lock();
        if let Some(error) = now.ended.clone() {
            let _ = reply.send(Err(*error));
            return closed;
        }
        now.closing = Some(reply);
        let ends = inner.closed(&mut now);
        drop(now);
        // The receiver is here, so that no task waits.
        if let Some(ends) = ends {
            let _ = ends.tell();
        }
        closed
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.inner.made_in.is_forked() {
            return;
        }
        let mut now = self.inner.lock();
        if now.closing.is_some() || now.ended.is_some() {
            return;
        }
        // Ended here, so that a segment that is just over begins no other.
        let unanswered = now.end(RequestError::Cancelled);
        let running = now.running;
        drop(now);
        if let (Some(segment), Some(shared)) = (running, self.inner.shared.upgrade()) {
            shared.cancel(segment.key);
        }
        let mut jobs = Vec::new();
        unanswered.tell(&mut jobs);
        // A thread of the user.
        jobs.into_iter().rev().for_each(Job::run_alone);
    }
}

impl Step {
    /// Waits for the outputs of the step, one after the other.
    ///
    /// # Errors
    /// Why there are none.
    pub fn wait(self) -> Result<Vec<f32>, RequestError> {
        if self.made_in.is_forked() {
            return self.answer.in_child();
        }
        self.answer.wait()
    }
}

impl IntoFuture for Step {
    type Output = Result<Vec<f32>, RequestError>;
    type IntoFuture = Stepping;

    fn into_future(self) -> Stepping {
        Stepping(self)
    }
}

/// The future of a [`Step`]. Polled again after the outputs, it returns
/// [`RequestError::Returned`].
pub struct Stepping(Step);

impl Future for Stepping {
    type Output = Result<Vec<f32>, RequestError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.0.made_in.is_forked() {
            Poll::Ready(self.0.answer.in_child())
        } else {
            self.0.answer.poll(context)
        }
    }
}
