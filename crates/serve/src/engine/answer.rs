//! The place of one answer: a thread or a task waits for it, and a worker puts it there.
//!
//! ```text
//! pending ──► answered ──► returned      AnswerSender::send; the first wait or poll after it
//!    └──────► lost                       the sender was dropped
//! ```
//!
//! One mutex protects the content and the identity of the waiting thread or task. Sending runs no
//! user code: it wakes a thread, and hands the waker of a task to the caller. So it may happen on a
//! worker and under other locks.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::RequestError;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a user gets.
pub(super) type Answer<T> = Result<T, RequestError>;

struct Slot<T> {
    state: Mutex<State<T>>,
    answered: Condvar,
}

struct State<T> {
    content: Content<T>,
    waiting: Waiting,
}

enum Content<T> {
    Pending,
    Answered(Answer<T>),
    Returned,
    /// A dropped engine has ended its requests, so a missing answer is a shutdown.
    Lost,
}

enum Waiting {
    Nobody,
    Thread,
    Task(Waker),
}

/// Puts the answer there.
pub(crate) struct AnswerSender<T>(Arc<Slot<T>>);

/// Waits for the answer.
pub(super) struct AnswerReceiver<T>(Arc<Slot<T>>);

/// The two ends of a place for one answer.
pub(super) fn answer_slot<T>() -> (AnswerSender<T>, AnswerReceiver<T>) {
    let slot = Arc::new(Slot {
        state: Mutex::new(State {
            content: Content::Pending,
            waiting: Waiting::Nobody,
        }),
        answered: Condvar::new(),
    });
    (AnswerSender(Arc::clone(&slot)), AnswerReceiver(slot))
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the content, unless there is an answer, and wakes a waiting thread.
    fn put(&self, content: Content<T>) -> Option<Waker> {
        let mut state = self.lock();
        if !matches!(state.content, Content::Pending) {
            return None;
        }
        state.content = content;
        let waiting = std::mem::replace(&mut state.waiting, Waiting::Nobody);
        drop(state);
        match waiting {
            Waiting::Nobody => None,
            Waiting::Thread => {
                self.answered.notify_one();
                None
            }
            Waiting::Task(waker) => Some(waker),
        }
    }
}

impl<T> State<T> {
    /// `None`: pending.
    fn take(&mut self) -> Option<Answer<T>> {
        match self.content {
            Content::Pending => None,
            Content::Lost => Some(Err(RequestError::ShutDown)),
            Content::Returned => Some(Err(RequestError::Returned)),
            Content::Answered(_) => match std::mem::replace(&mut self.content, Content::Returned) {
                Content::Answered(answer) => Some(answer),
                _ => None,
            },
        }
    }
}

impl<T> AnswerSender<T> {
    /// Returns the waker of a waiting task, to be woken where users' code may run.
    #[must_use = "a task waits"]
    pub fn send(self, answer: Answer<T>) -> Option<Waker> {
        self.0.put(Content::Answered(answer))
    }
}

impl<T> Drop for AnswerSender<T> {
    fn drop(&mut self) {
        if let Some(waker) = self.0.put(Content::Lost) {
            waker.wake();
        }
    }
}

impl<T> AnswerReceiver<T> {
    /// Waits, until `deadline` if there is one; `None`: there is no answer by then.
    pub fn wait_until(&self, deadline: Option<Instant>) -> Option<Answer<T>> {
        let mut state = self.0.lock();
        loop {
            if let Some(answer) = state.take() {
                return Some(answer);
            }
            state.waiting = Waiting::Thread;
            state = match deadline {
                None => (self.0.answered.wait(state)).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left == Duration::ZERO {
                        state.waiting = Waiting::Nobody;
                        return None;
                    }
                    let woken = self.0.answered.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Waits for at most `timeout`.
    pub fn wait_for(&self, timeout: Duration) -> Option<Answer<T>> {
        // A time that cannot be represented does not come.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// Waits.
    pub fn wait(&self) -> Answer<T> {
        match self.wait_until(None) {
            Some(answer) => answer,
            None => unreachable!("there is no deadline"),
        }
    }

    /// The answer, or the task is woken when there is one.
    pub fn poll(&self, context: &Context<'_>) -> Poll<Answer<T>> {
        let mut state = self.0.lock();
        if let Some(answer) = state.take() {
            return Poll::Ready(answer);
        }
        let waker = context.waker();
        let before = match &state.waiting {
            Waiting::Task(known) if known.will_wake(waker) => return Poll::Pending,
            _ => std::mem::replace(&mut state.waiting, Waiting::Task(waker.clone())),
        };
        drop(state);
        // Users' code, with nothing locked.
        drop(before);
        Poll::Pending
    }

    /// The answer that arrived before the fork, in a child of the process that waits for it. The
    /// lock may be held by a thread of the parent.
    pub fn in_child(&self) -> Answer<T> {
        let state = self.0.state.try_lock().ok();
        let answer = state.and_then(|mut state| state.take());
        answer.unwrap_or(Err(RequestError::Forked))
    }
}
