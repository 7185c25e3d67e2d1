//! Tickets: handles to wait for submitted requests.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::Duration;

use super::answer::AnswerReceiver;
use super::shared::Shared;
use super::{RequestError, Response};
use crate::scheduler::RequestKey;
use gatestream::execute::team::ProcessMark;

/// The identifier of an accepted request. It is unique among all engines of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(super) engine: u64,
    pub(super) key: RequestKey,
}

impl RequestId {
    pub(super) fn new(shared: &Shared, key: RequestKey) -> RequestId {
        RequestId {
            engine: shared.engine,
            key,
        }
    }
}

/// An accepted request. Wait for it ([`Ticket::wait`]) or `.await` it. Dropping it cancels the
/// request; its rows are freed before the next batch.
#[must_use = "dropping a ticket cancels its request"]
pub struct Ticket {
    answer: AnswerReceiver<Response>,
    cancel: Cancel,
}

/// Cancels a request when it is dropped.
struct Cancel {
    request: RequestId,
    shared: Weak<Shared>,
    armed: bool,
    made_in: ProcessMark,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        if self.armed
            && let Some(shared) = self.shared.upgrade()
        {
            shared.cancel(self.request.key);
        }
    }
}

impl Ticket {
    pub(super) fn new(
        answer: AnswerReceiver<Response>,
        request: RequestId,
        shared: Weak<Shared>,
    ) -> Ticket {
        Ticket {
            answer,
            cancel: Cancel {
                request,
                shared,
                armed: true,
                made_in: ProcessMark::new(),
            },
        }
    }

    /// Waits for the end of the request.
    ///
    /// # Errors
    /// [`RequestError`] if the request ended without a response, or [`Ticket::wait_timeout`] has
    /// returned it ([`RequestError::Returned`]).
    pub fn wait(mut self) -> Result<Response, RequestError> {
        let answer = if self.cancel.made_in.is_forked() {
            self.answer.in_child()
        } else {
            self.answer.wait()
        };
        self.cancel.armed = false;
        answer
    }

    /// Waits for at most `timeout`. `None`: the request has not ended by then, and continues. The
    /// response is returned once; later calls return [`RequestError::Returned`] at once.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Response, RequestError>> {
        let answer = if self.cancel.made_in.is_forked() {
            self.answer.in_child()
        } else {
            self.answer.wait_for(timeout)?
        };
        self.cancel.armed = false;
        Some(answer)
    }

    /// Ends the request now, with [`RequestError::Cancelled`] unless it has ended before.
    pub fn cancel(&self) {
        if let Some(shared) = self.cancel.shared.upgrade() {
            shared.cancel(self.cancel.request.key);
        }
    }

    /// The identifier of the request.
    pub fn id(&self) -> RequestId {
        self.cancel.request
    }
}

impl IntoFuture for Ticket {
    type Output = Result<Response, RequestError>;
    type IntoFuture = ResponseFuture;

    fn into_future(self) -> ResponseFuture {
        ResponseFuture(self)
    }
}

/// The future of a [`Ticket`]; dropping it cancels the request. Polled again after the response, it
/// returns [`RequestError::Returned`].
pub struct ResponseFuture(Ticket);

impl Future for ResponseFuture {
    type Output = Result<Response, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = &mut self.0;
        let answer = if ticket.cancel.made_in.is_forked() {
            ticket.answer.in_child()
        } else {
            std::task::ready!(ticket.answer.poll(context))
        };
        ticket.cancel.armed = false;
        Poll::Ready(answer)
    }
}
