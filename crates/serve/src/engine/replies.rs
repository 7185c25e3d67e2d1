//! The reply thread: runs users' code that replies call or drop, so that workers do not.
//!
//! ```text
//! worker         puts answers into tickets and steps: wakes threads, runs no user code
//!                callbacks, wakers and users' objects to drop: to the queue, in one lock;
//!                wakes the reply thread if it sleeps
//! reply thread   takes the whole queue; runs each job with nothing locked; ends idle streams
//! ```
//!
//! The queue is protected by the engine's lock. Jobs run in the order in which their requests
//! ended. A job that takes long delays later jobs by that time, and neither workers nor threads
//! that wait for tickets. The reply thread is not pinned.
//!
//! **A job is lost at the end**: the reply thread returns when it is told that the workers have
//! ended and the queue is empty, both under the lock. A thread that has jobs after that (a worker
//! whose cell owned the engine) finds that under the same lock and runs them itself. So it does
//! in an engine without a reply thread ([`EngineOptions::reply_thread`]).
//!
//! [`EngineOptions::reply_thread`]: super::EngineOptions::reply_thread

use std::cell::Cell;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::shared::Shared;
use super::{RequestError, Response};
use crate::cell_graph::DynamicGraph;
use crate::scheduler::ModelKey;
use crate::sync::PoisonError;
use gatestream::execute::team::{catch_panic, without_pin};
use gatestream_scheduler::engine::Deferred;

/// A callback of a request.
pub(super) type Callback = Box<dyn FnOnce(Result<Response, RequestError>) + Send>;

/// A call of users' code.
pub(super) enum Job {
    Call(Callback, Result<Response, RequestError>),
    Wake(Waker),
    Deferred(Deferred),
    Drop(Box<dyn DynamicGraph>),
}

impl Job {
    fn run(self) {
        match self {
            Job::Call(call, answer) => call(answer),
            Job::Wake(waker) => waker.wake(),
            Job::Deferred(job) => job(),
            Job::Drop(grow) => drop(grow),
        }
    }

    /// Runs it; a panic does not reach other jobs.
    pub fn run_alone(self) {
        let _ = catch_panic(|| self.run());
    }
}

/// A job, and the model of the request that is not replied to before it has run.
pub(super) type ModelJob = (Option<ModelKey>, Job);

/// The queue, a part of the engine's state.
#[derive(Default)]
pub(super) struct Queue {
    /// Each with the model of its request, if it is part of the reply.
    jobs: Vec<ModelJob>,
    /// A reply thread takes the jobs.
    served: bool,
    sleeping: bool,
    ending: bool,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.jobs.len()
    }
}

thread_local! {
    /// The engine whose jobs this thread runs.
    static ENGINE: Cell<Option<u64>> = const { Cell::new(None) };
}

fn run(engine: u64, jobs: impl Iterator<Item = Job>) {
    let before = ENGINE.replace(Some(engine));
    jobs.for_each(Job::run_alone);
    ENGINE.set(before);
}

impl Shared {
    /// Whether this thread runs a job of this engine, which must not wait for itself.
    pub fn is_replying(&self) -> bool {
        ENGINE.get() == Some(self.engine)
    }

    /// Requests of these models are replied to, except for these jobs.
    pub fn hand_over(&self, replied: &[ModelKey], mut jobs: Vec<ModelJob>) {
        let of_requests: Vec<_> = replied.iter().copied().map(Some).collect();
        let mut state = self.lock();
        // Requests have ended, so that there may be room.
        let woken = state.waiting.wake();
        jobs.extend(woken.into_iter().map(|waker| (None, Job::Wake(waker))));
        let queue = &mut state.replies;
        if queue.served && !jobs.is_empty() {
            let wake = std::mem::take(&mut queue.sleeping);
            let models: Vec<_> = jobs.iter().map(|(model, _)| *model).collect();
            queue.jobs.append(&mut jobs);
            state.handed_over(&models);
            state.replied(self, &of_requests);
            drop(state);
            if wake {
                self.reply_work.notify_one();
            }
            return;
        }
        if !jobs.is_empty() {
            drop(state);
            // Threads that a job starts must not run on this worker's core alone.
            without_pin(|| run(self.engine, jobs.drain(..).map(|(_, job)| job)));
            state = self.lock();
        }
        state.replied(self, &of_requests);
    }

    /// From now on the queue is served: to be called before the thread that
    /// [delivers](Shared::deliver) starts.
    pub fn begin_replies(&self) {
        self.lock().replies.served = true;
    }

    /// Ends the reply thread after the last job, or records that there is none.
    pub fn end_replies(&self) {
        self.lock().replies.ending = true;
        self.reply_work.notify_one();
    }

    /// The loop of the reply thread, until [`Shared::end_replies`].
    pub fn deliver(&self) {
        let mut jobs = Vec::new();
        let mut state = self.lock();
        loop {
            let next = state.idle_streams.next();
            let left = next.map(|at| at.saturating_duration_since(Instant::now()));
            let queue = &mut state.replies;
            if queue.jobs.is_empty() {
                if queue.ending {
                    queue.served = false;
                    return;
                }
                if left != Some(Duration::ZERO) {
                    queue.sleeping = true;
                    state = match left {
                        None => {
                            (self.reply_work.wait(state)).unwrap_or_else(PoisonError::into_inner)
                        }
                        Some(left) => {
                            let woken = self.reply_work.wait_timeout(state, left);
                            woken.unwrap_or_else(PoisonError::into_inner).0
                        }
                    };
                    state.replies.sleeping = false;
                    continue;
                }
            }
            std::mem::swap(&mut queue.jobs, &mut jobs);
            drop(state);
            if left == Some(Duration::ZERO) {
                self.end_idle_streams();
            }
            let models: Vec<_> = jobs.iter().map(|(model, _)| *model).collect();
            run(self.engine, jobs.drain(..).map(|(_, job)| job));
            state = self.lock();
            state.replied(self, &models);
            // There is room for replies.
            let woken = state.waiting.wake();
            let woken = woken.into_iter().map(|waker| (None, Job::Wake(waker)));
            let before = state.replies.jobs.len();
            state.replies.jobs.extend(woken);
            let added = state.replies.jobs.len() - before;
            state.handed_over(&vec![None; added]);
        }
    }
}
