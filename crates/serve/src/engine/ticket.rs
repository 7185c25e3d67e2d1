//! Tickets: handles to wait for submitted requests.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::Duration;

use super::shared::Shared;
use super::{RequestError, Response};
use crate::scheduler::RequestKey;
use cellstream::execute::team::ProcessMark;

/// An accepted request. Wait for it ([`Ticket::wait`]) or `.await` it. Dropping it cancels the
/// request; its rows are freed before the next batch.
#[must_use = "dropping a ticket cancels its request"]
pub struct Ticket {
    answer: Option<oneshot::Receiver<Result<Response, RequestError>>>,
    cancel: Cancel,
}

/// Cancels a request when it is dropped.
struct Cancel {
    key: RequestKey,
    shared: Weak<Shared>,
    armed: bool,
    made_in: ProcessMark,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        if self.armed
            && let Some(shared) = self.shared.upgrade()
        {
            shared.cancel(self.key);
        }
    }
}

/// A dropped engine has ended its requests, so a missing reply is a shutdown.
fn or_shut_down<E>(
    received: Result<Result<Response, RequestError>, E>,
) -> Result<Response, RequestError> {
    received.unwrap_or(Err(RequestError::ShutDown))
}

/// The reply that arrived before the fork, in a child of the process that submitted the request.
pub(super) fn in_child<T>(
    receiver: &oneshot::Receiver<Result<T, RequestError>>,
) -> Result<T, RequestError> {
    receiver.try_recv().unwrap_or(Err(RequestError::Forked))
}

impl Ticket {
    pub(super) fn new(
        answer: oneshot::Receiver<Result<Response, RequestError>>,
        key: RequestKey,
        shared: Weak<Shared>,
    ) -> Ticket {
        Ticket {
            answer: Some(answer),
            cancel: Cancel {
                key,
                shared,
                armed: true,
                made_in: ProcessMark::new(),
            },
        }
    }

    /// Waits for the end of the request.
    ///
    /// # Errors
    /// [`RequestError`] if the request ended without a response.
    ///
    /// # Panics
    /// If [`Ticket::wait_timeout`] has given the answer.
    pub fn wait(mut self) -> Result<Response, RequestError> {
        let receiver = self.take();
        let answer = match self.cancel.made_in.is_forked() {
            true => in_child(&receiver),
            false => or_shut_down(receiver.recv()),
        };
        self.cancel.armed = false;
        answer
    }

    fn take(&mut self) -> oneshot::Receiver<Result<Response, RequestError>> {
        match self.answer.take() {
            Some(answer) => answer,
            None => panic!("wait_timeout has given the answer"),
        }
    }

    /// Waits for at most so long; `None` if it has not ended by then, and goes on. Once it has
    /// given the answer, the ticket has none any more.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Response, RequestError>> {
        let receiver = self.answer.as_ref()?;
        let answer = if self.cancel.made_in.is_forked() {
            in_child(receiver)
        } else {
            match receiver.recv_timeout(timeout) {
                Err(oneshot::RecvTimeoutError::Timeout) => return None,
                received => or_shut_down(received),
            }
        };
        self.cancel.armed = false;
        self.answer = None;
        Some(answer)
    }

    /// Ends the request now, with [`RequestError::Cancelled`] unless it has ended before.
    pub fn cancel(&self) {
        if let Some(shared) = self.cancel.shared.upgrade() {
            shared.cancel(self.cancel.key);
        }
    }

    /// The key of the request.
    pub fn key(&self) -> RequestKey {
        self.cancel.key
    }
}

impl IntoFuture for Ticket {
    type Output = Result<Response, RequestError>;
    type IntoFuture = ResponseFuture;

    fn into_future(mut self) -> ResponseFuture {
        ResponseFuture {
            answer: self.take().into_future(),
            cancel: self.cancel,
        }
    }
}

/// The future of a [`Ticket`]; dropping it cancels the request.
pub struct ResponseFuture {
    answer: oneshot::AsyncReceiver<Result<Response, RequestError>>,
    cancel: Cancel,
}

impl Future for ResponseFuture {
    type Output = Result<Response, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = match Pin::new(&mut self.answer).poll(context) {
            Poll::Pending if self.cancel.made_in.is_forked() => Ok(Err(RequestError::Forked)),
            polled => std::task::ready!(polled),
        };
        self.cancel.armed = false;
        Poll::Ready(or_shut_down(received))
    }
}
