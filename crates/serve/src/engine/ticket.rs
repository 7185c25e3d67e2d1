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
    /// `None` once the response has been returned.
    answer: Option<oneshot::Receiver<Result<Response, RequestError>>>,
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
        request: RequestId,
        shared: Weak<Shared>,
    ) -> Ticket {
        Ticket {
            answer: Some(answer),
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
        let receiver = self.answer.take().ok_or(RequestError::Returned)?;
        let answer = match self.cancel.made_in.is_forked() {
            true => in_child(&receiver),
            false => or_shut_down(receiver.recv()),
        };
        self.cancel.armed = false;
        answer
    }

    /// Waits for at most `timeout`. `None`: the request has not ended by then, and continues. The
    /// response is returned once; later calls return [`RequestError::Returned`] at once.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Response, RequestError>> {
        let Some(receiver) = self.answer.as_ref() else {
            return Some(Err(RequestError::Returned));
        };
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

    fn into_future(mut self) -> ResponseFuture {
        ResponseFuture {
            answer: self.answer.take().map(IntoFuture::into_future),
            cancel: self.cancel,
        }
    }
}

/// The future of a [`Ticket`]; dropping it cancels the request. Polled again after the response, it
/// returns [`RequestError::Returned`].
pub struct ResponseFuture {
    /// `None` once the response has been returned.
    answer: Option<oneshot::AsyncReceiver<Result<Response, RequestError>>>,
    cancel: Cancel,
}

impl Future for ResponseFuture {
    type Output = Result<Response, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = self.answer.as_mut() else {
            return Poll::Ready(Err(RequestError::Returned));
        };
        let received = match Pin::new(answer).poll(context) {
            Poll::Pending if self.cancel.made_in.is_forked() => Ok(Err(RequestError::Forked)),
            polled => std::task::ready!(polled),
        };
        self.cancel.armed = false;
        self.answer = None;
        Poll::Ready(or_shut_down(received))
    }
}
