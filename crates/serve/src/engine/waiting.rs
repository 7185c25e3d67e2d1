//! Submissions that wait for room.
//!
//! ```text
//! submission    refused under the engine's lock: enters the line in the same critical section,
//!               with a place for a message
//! room          requests end, streams close, replies are delivered: under the lock, the first
//!               submission for each limit gets its message
//! message       a thread or a task tries again, under the lock: it is accepted and leaves the
//!               line, or waits for the next message
//! leaves        accepted, refused, timed out or dropped: the next ones get messages
//! ```
//!
//! Submissions that wait for the same limit are accepted in the order of their arrival, so a large
//! request is not overtaken by small ones for ever. Submissions that do not wait are refused while
//! others wait for the same limit.
//!
//! **A lost wake-up** (no room, room arises, the submission waits): the refusal and the entry into
//! the line are one critical section. Room that arises later finds the entry, and the message
//! stays in its place until it is taken.
//!
//! **A message to a submission that has left** (it timed out, or its future was dropped): leaving
//! sends messages to the next ones, after the entry was removed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::admission::Candidate;
use super::answer::{AnswerReceiver, answer_slot};
use super::shared::Shared;
use super::ticket::Ticket;
use super::waiting_line::Place;
use super::{Reply, Request, RequestId, Response, SubmitError};
use crate::scheduler::{RefusedAt, RequestKey};
use crate::worker::ModelCells;

/// The result of an attempt that is not refused.
enum Attempt {
    Accepted(RequestKey),
    /// It has a place in the line, and receives a message.
    Waits(Place),
}

impl Shared {
    /// There may be room: the first submissions that wait try again.
    pub fn wake_waiting(&self) {
        self.hand_over(&[], Vec::new());
    }
}

/// A submission that waits for room.
pub(super) struct Submission {
    shared: Arc<Shared>,
    /// The request and the receiver of its answer, until it is accepted.
    waits: Option<(Candidate, AnswerReceiver<Response>)>,
    /// Its place in the line.
    number: Option<u64>,
    message: Option<AnswerReceiver<()>>,
}

impl Submission {
    pub fn new(
        shared: Arc<Shared>,
        model: &Arc<ModelCells>,
        request: Request,
    ) -> Result<Submission, SubmitError> {
        let (sender, answer) = answer_slot();
        let candidate = shared.prepare(model, request, Reply::Ticket(sender))?;
        Ok(Submission {
            shared,
            waits: Some((candidate, answer)),
            number: None,
            message: None,
        })
    }

    /// Submits the request if there is room. `None`: it waits for a message.
    fn attempt(&mut self, may_wait: bool) -> Result<Option<Ticket>, SubmitError> {
        if self.shared.made_in.is_forked() {
            return Err(SubmitError::Forked);
        }
        let (candidate, answer) = self.waits.take().ok_or(SubmitError::Returned)?;
        let number = self.number;
        // A refused request is dropped without the lock.
        let mut refused_request = None;
        let attempt = self.shared.with(|state, now| {
            let checked = state.check_room(number, std::slice::from_ref(&candidate));
            let requirements = candidate.requirements();
            let entered = match checked {
                Err(RefusedAt { refused, .. }) if may_wait && refused.may_pass() => {
                    Ok(state.waiting.enter(number, requirements, refused))
                }
                checked => {
                    // Its message was taken, or no task waits for it.
                    drop(state.waiting.leave(number));
                    match checked {
                        Ok(()) => return state.accept(now, candidate).map(Attempt::Accepted),
                        Err(RefusedAt { refused, .. }) => {
                            let reason = refused.reason();
                            state.scheduler.handle_refused(requirements.model, reason);
                            Err(refused)
                        }
                    }
                }
            };
            refused_request = Some(candidate);
            entered.map(Attempt::Waits)
        });
        if !matches!(attempt, Ok(Attempt::Waits(_))) && self.number.take().is_some() {
            self.shared.wake_waiting();
        }
        match attempt? {
            Attempt::Accepted(key) => {
                let id = RequestId::new(&self.shared, key);
                Ok(Some(Ticket::new(answer, id, Arc::downgrade(&self.shared))))
            }
            Attempt::Waits(Place { number, message }) => {
                self.waits = refused_request.map(|request| (request, answer));
                (self.number, self.message) = (Some(number), Some(message));
                Ok(None)
            }
        }
    }

    /// Waits for room, until `deadline` if there is one.
    pub fn wait(mut self, deadline: Option<Instant>) -> Result<Ticket, SubmitError> {
        loop {
            let may_wait = deadline.is_none_or(|at| Instant::now() < at);
            if let Some(ticket) = self.attempt(may_wait)? {
                return Ok(ticket);
            }
            // After a message, or at the deadline, it tries again.
            if let Some(message) = self.message.take() {
                let _ = message.wait_until(deadline);
            }
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if self.number.is_some() && !self.shared.made_in.is_forked() {
            let unsent = self.shared.lock().waiting.leave(self.number);
            // Wakes its own task, if that waits: users' code, with nothing locked.
            drop(unsent);
            self.shared.wake_waiting();
        }
    }
}

/// The future of [`Model::submit_async`](super::Model::submit_async). Dropping it withdraws the
/// request. Polled again after the ticket or an error, it returns [`SubmitError::Returned`].
///
/// Once it waits, it has a place in the line: if it is neither polled nor dropped, the submissions
/// that wait behind it for the same limit wait, too.
pub struct Submitting(pub(super) Result<Submission, SubmitError>);

impl Future for Submitting {
    type Output = Result<Ticket, SubmitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let submission = match &mut self.0 {
            Ok(submission) => submission,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        loop {
            if let Some(message) = &submission.message {
                if message.poll(context).is_pending() {
                    return Poll::Pending;
                }
                submission.message = None;
            }
            if let Some(ticket) = submission.attempt(true)? {
                return Poll::Ready(Ok(ticket));
            }
        }
    }
}
