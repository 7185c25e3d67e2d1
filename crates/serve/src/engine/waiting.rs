//! Submissions that wait for room.
//!
//! ```text
//! submission    refused under the engine's lock: enters the line in the same critical section, with
//!               a place for a message
//! room          requests end, streams close, replies are delivered: under the lock, the first
//!               submission for each limit gets its message
//! message       a thread or a task tries again, under the lock: it is accepted and leaves the line,
//!               or waits for the next message
//! leaves        accepted, timed out or dropped: the next ones get messages
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

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::admission::Candidate;
use super::answer::{AnswerReceiver, AnswerSender, answer_slot};
use super::shared::Shared;
use super::ticket::Ticket;
use super::{Reply, Request, RequestId, Response, SubmitError};
use crate::scheduler::{ClientId, LimitOf, ModelKey, Refused, RefusedAt, RequestKey, Requirements};
use crate::worker::ModelCells;

/// What became of an attempt.
enum Entered {
    Accepted(RequestKey),
    /// It has a place in the line, and receives a message.
    Waits {
        number: u64,
        message: AnswerReceiver<()>,
    },
}

/// The line, in the order of arrival.
#[derive(Default)]
pub(super) struct WaitingLine {
    /// By number.
    entries: BTreeMap<u64, Entry>,
    /// Numbers that were given.
    given: u64,
}

struct Entry {
    model: ModelKey,
    client: Option<ClientId>,
    /// Whose limit was exceeded: others that need room of it wait behind this one.
    of: LimitOf,
    /// `None` once the message was sent.
    message: Option<AnswerSender<()>>,
    /// It gets a message whichever others wait before it.
    must_retry: bool,
}

impl Entry {
    /// Whether requests with these requirements wait behind it.
    fn is_before(&self, model: ModelKey, client: Option<ClientId>) -> bool {
        match self.of {
            LimitOf::Engine => true,
            LimitOf::Model => self.model == model,
            LimitOf::Client => self.client == client,
        }
    }
}

impl WaitingLine {
    /// Number of submissions before the one of this number, or before a new one, that wait for a
    /// limit of these requirements.
    pub fn before(&self, number: Option<u64>, of: &Requirements) -> usize {
        let earlier = self.entries.range(..number.unwrap_or(u64::MAX));
        let before = earlier.filter(|(_, entry)| entry.is_before(of.model, of.client));
        before.count()
    }

    /// The last of the submissions before this one that it waits for.
    fn limit_of_last_before(&self, number: Option<u64>, of: &Requirements) -> Option<LimitOf> {
        let mut earlier = self.entries.range(..number.unwrap_or(u64::MAX));
        let before = earlier.rfind(|(_, entry)| entry.is_before(of.model, of.client));
        before.map(|(_, entry)| entry.of)
    }

    /// Enters the line, or stays at its place there.
    fn enter(&mut self, number: Option<u64>, of: &Requirements, refused: Refused) -> Entered {
        let limit = match refused {
            Refused::Overloaded { of, .. } => of,
            // It waits for the same limit as the one before.
            _ => (self.limit_of_last_before(number, of)).unwrap_or(LimitOf::Engine),
        };
        let number = number.unwrap_or_else(|| {
            self.given += 1;
            self.given
        });
        let (message, receiver) = answer_slot();
        let entry = Entry {
            model: of.model,
            client: of.client,
            of: limit,
            message: Some(message),
            must_retry: false,
        };
        self.entries.insert(number, entry);
        Entered::Waits {
            number,
            message: receiver,
        }
    }

    fn leave(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.entries.remove(&number);
        }
    }

    /// The next messages are to all: a model or the engine accepts no more requests.
    pub fn retry_all(&mut self) {
        for entry in self.entries.values_mut() {
            entry.must_retry = true;
        }
    }

    /// Number of submissions of a model.
    pub fn of_model(&self, model: ModelKey) -> usize {
        let of_model = self.entries.values().filter(|entry| entry.model == model);
        of_model.count()
    }

    /// Sends messages to those that wait behind no other. Returns the wakers of tasks.
    #[must_use = "tasks wait"]
    pub fn wake(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut passed: Vec<(LimitOf, ModelKey, Option<ClientId>)> = Vec::new();
        for entry in self.entries.values_mut() {
            let is_behind = passed.iter().any(|&(of, model, client)| match of {
                LimitOf::Engine => true,
                LimitOf::Model => model == entry.model,
                LimitOf::Client => client == entry.client,
            });
            if (!is_behind || entry.must_retry)
                && let Some(message) = entry.message.take()
            {
                wakers.extend(message.send(Ok(())));
            }
            // Those behind it wait for the same limit.
            if !is_behind {
                passed.push((entry.of, entry.model, entry.client));
            }
        }
        wakers
    }
}

impl Shared {
    /// There may be room: submissions that wait try again.
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
        let candidate = shared.prepare(model, request, Reply::Ticket(sender), true)?;
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
        let entered = self.shared.with(|state, now| {
            let checked = state.check_room(number, std::slice::from_ref(&candidate));
            let Err(RefusedAt { refused, .. }) = checked else {
                state.waiting.leave(number);
                return state.accept(now, candidate).map(Entered::Accepted);
            };
            let requirements = candidate.requirements();
            let entered = match may_wait && refused.may_pass() {
                true => Ok(state.waiting.enter(number, requirements, refused)),
                false => {
                    (state.scheduler).handle_refused(requirements.model, refused.reason());
                    Err(refused)
                }
            };
            refused_request = Some(candidate);
            entered
        });
        match entered? {
            Entered::Accepted(key) => {
                if self.number.take().is_some() {
                    self.shared.wake_waiting();
                }
                let id = RequestId::new(&self.shared, key);
                Ok(Some(Ticket::new(answer, id, Arc::downgrade(&self.shared))))
            }
            Entered::Waits { number, message } => {
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
            // Whatever the message is, or without one in time, it tries again.
            if let Some(message) = self.message.take() {
                let _ = message.wait_until(deadline);
            }
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if self.number.is_some() && !self.shared.made_in.is_forked() {
            self.shared.lock().waiting.leave(self.number);
            self.shared.wake_waiting();
        }
    }
}

/// The future of [`Model::submit_async`](super::Model::submit_async). Dropping it withdraws the
/// request. Polled again after the ticket, it returns [`SubmitError::Returned`].
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
