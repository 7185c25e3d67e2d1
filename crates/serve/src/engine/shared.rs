//! The shared state of the threads of an engine, and their protocol.
//!
//! ```text
//! one mutex    the scheduler, and the values of each request; held for bookkeeping only
//! work         a worker without a task waits here
//! idle         `Engine::drain` waits here until no request is left, and changes of models
//!              (`models.rs` has their protocol) until a model is idle or removed
//! reply_work   the reply thread waits here (`replies.rs`)
//! ```
//!
//! The loop of a worker, with the lock held where marked:
//!
//! ```text
//! loop
//!   │ report the last task; poll tasks if none is left; take the ended requests
//!   │ no task, none in flight on a device, and changes of its cells: make these without the
//!   │     lock, and begin again; until then no tasks are polled
//!   │ nothing to do: wait at `work` until the next deadline (first, once, release memory
//!   │     without the lock)
//!   reply to the ended requests; evict the states that the scheduler names
//!   run the first task and those that are further steps of its rows; of cells on a device, start
//!     the tasks, and report one that the device has finished (`worker/resident/`)
//! ```
//!
//! **A lost wake-up** (a worker finds no task, a request arrives, the worker sleeps): requests
//! arrive under the lock. The worker holds it from its look at the scheduler until the wait
//! releases it, so a later request notifies a worker that already waits.
//!
//! **An unnoticed deadline** (the only sleeping worker went to sleep before the request arrived,
//! all others run slow cells): a worker that starts a task while no sleeping worker has a timeout
//! for the next deadline wakes one, which then sleeps until that deadline.
//!
//! **Two replies to a request, or none**: the scheduler reports each end once, under the lock; the
//! thread that polls it replies after it has released the lock, or hands over to the reply thread.
//! A thread that may have ended requests polls all ends before it releases the lock
//! ([`State::take_finished`]).
//!
//! **A ticket is dropped while its reply is on its way**: cancelling an ended request does nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use slotmap::SecondaryMap;

use super::health::WorkerState;
use super::models::{Change, ModelState};
use super::replies::{Job, Queue};
use super::stats::Recorder;
use super::stream::IdleStreams;
use super::waiting_line::WaitingLine;
use super::{Reply, RequestError, Response};
use crate::scheduler::{
    End, Ended, ModelKey, RequestKey, Scheduler, Spent, SubgraphKey, Task, WorkerId,
};
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::worker::{Outcome, Phase, RequestValues, TaskRow, Worker, WorkerTask, release};
use gatestream::execute::team::ProcessMark;

/// See the [module](self).
pub(super) struct Shared {
    /// The number of the engine in the process.
    pub engine: u64,
    /// A child has a copy of the state, which may be locked for ever, and no worker.
    pub made_in: ProcessMark,
    state: Mutex<State>,
    pub work: Condvar,
    pub idle: Condvar,
    pub(super) reply_work: Condvar,
    /// [`EngineOptions::idle_streams`](super::EngineOptions::idle_streams).
    pub idle_streams: Option<Duration>,
}

pub(super) struct State {
    pub scheduler: Scheduler,
    pub models: FxHashMap<ModelKey, ModelState>,
    pub workers: Vec<WorkerState>,
    /// By worker: changes of its cells.
    pub changes: Vec<Vec<Change>>,
    pub requests: SecondaryMap<RequestKey, Arc<RequestValues<Reply>>>,
    failures: SecondaryMap<RequestKey, RequestError>,
    /// Of all models together.
    pub recorder: Recorder,
    /// Workers that wait at `work`.
    sleeping: usize,
    /// The timeout of one of them; `None` if none is known.
    awaited: Option<Instant>,
    /// Requests that have ended and are being replied to, and jobs of the reply thread.
    pub(super) replying: usize,
    pub(super) replies: Queue,
    /// Maximum number of jobs of the reply thread, beyond which requests are refused.
    pub(super) max_replies: usize,
    /// Submissions that wait for room.
    pub(super) waiting: WaitingLine,
    pub(super) idle_streams: IdleStreams,
    pub stopping: bool,
}

/// An ended request, whose reply is sent without the lock.
pub(super) struct Finished {
    ended: Ended,
    values: Arc<RequestValues<Reply>>,
    error: Option<RequestError>,
}

impl Finished {
    fn model(&self) -> ModelKey {
        self.values.model().key
    }

    /// Sends the reply. Returns the rest of the request, without users' objects; it is dropped
    /// after the other replies, as that may take long.
    fn reply(self, jobs: &mut Vec<Job>) -> Arc<RequestValues<Reply>> {
        let Finished {
            ended,
            values,
            error,
        } = self;
        let (reply, answer, grow) = {
            let mut values = values.lock();
            (values.reply.take(), values.take_answer(), values.clear())
        };
        let answer = match error {
            Some(error) => Err(error),
            None => Ok(Response {
                values: answer,
                timing: ended.timing,
            }),
        };
        // Jobs are collected in reverse order.
        jobs.extend(grow.map(Job::Drop));
        if let Some(reply) = reply {
            reply.send(answer, jobs);
        }
        values
    }
}

/// Releases the records of ended requests; without the lock.
pub(super) fn release_records(records: Vec<Spent>) {
    let bytes = records.iter().map(Spent::bytes).sum();
    release(records, bytes);
}

impl Shared {
    pub fn new(scheduler: Scheduler, workers: usize) -> Shared {
        // Not of the model checker: nothing depends on the order of engines.
        static ENGINES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        // A callback and a `DynamicGraph` to drop of each request that may be accepted.
        let max_replies = scheduler.limits().requests.saturating_mul(2);
        Shared {
            engine: ENGINES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            made_in: ProcessMark::new(),
            state: Mutex::new(State {
                scheduler,
                models: FxHashMap::default(),
                workers: (0..workers).map(|_| WorkerState::new()).collect(),
                changes: (0..workers).map(|_| Vec::new()).collect(),
                requests: SecondaryMap::new(),
                failures: SecondaryMap::new(),
                recorder: Recorder::new(0),
                sleeping: 0,
                awaited: None,
                replying: 0,
                replies: Queue::default(),
                max_replies,
                waiting: WaitingLine::default(),
                idle_streams: IdleStreams::default(),
                stopping: false,
            }),
            work: Condvar::new(),
            idle: Condvar::new(),
            reply_work: Condvar::new(),
            idle_streams: None,
        }
    }

    /// A panic under the lock is a bug of this crate; remaining requests are still served.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, replies to requests that ended by that, and wakes a worker.
    pub fn with<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.lock();
        let out = change(&mut state, Instant::now());
        let finished = state.take_finished();
        // Released last, without the lock.
        let spent = state.scheduler.take_spent();
        let wake = state.sleeping > 0;
        drop(state);
        if wake {
            self.work.notify_one();
        }
        self.reply(finished);
        release_records(spent);
        out
    }

    /// Returns whether the request had not ended.
    pub fn cancel(&self, key: RequestKey) -> bool {
        if self.made_in.is_forked() {
            return false;
        }
        self.with(|state, now| {
            let is_live = state.scheduler.table().is_live(key);
            state.scheduler.handle_cancel(now, key);
            is_live
        })
    }

    /// Ends all requests and stops the workers.
    pub fn stop(&self) {
        self.with(|state, now| {
            state.scheduler.handle_shutdown(now);
            state.waiting.retry_all();
            state.stopping = true;
        });
        self.work.notify_all();
        self.idle.notify_all();
        self.wake_waiting();
    }

    /// Replies to ended requests, and notifies `idle` after the last one.
    pub fn reply(&self, finished: Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
        // In reverse order: a user who waits for several requests in turn is woken once and finds
        // the other responses. A wake-up for each costs the workers' cores about as much time as
        // choosing a batch. No reply waits for memory to be freed.
        let models: Vec<ModelKey> = finished.iter().map(Finished::model).collect();
        let mut jobs = Vec::new();
        let mut left = Vec::with_capacity(models.len());
        for one in finished.into_iter().rev() {
            let model = one.model();
            let mut own = Vec::new();
            left.push(one.reply(&mut own));
            jobs.extend(own.into_iter().map(|job| (Some(model), job)));
        }
        jobs.reverse();
        self.hand_over(&models, jobs);
        drop(left);
    }

    /// Waits until every request has been replied to, or until `deadline`. Returns the number of
    /// requests that are not.
    pub fn wait_until_idle(&self, deadline: Option<Instant>) -> usize {
        self.wait_while(deadline, State::remaining)
    }

    /// Waits at `idle` until none are `remaining`, or until `deadline`. Returns the number.
    pub fn wait_while(
        &self,
        deadline: Option<Instant>,
        remaining: impl Fn(&State) -> usize,
    ) -> usize {
        let mut state = self.lock();
        while remaining(&state) > 0 {
            state = match deadline {
                None => (self.idle.wait(state)).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let woken = self.idle.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        remaining(&state)
    }

    /// The loop of one worker, until [`Shared::stop`].
    pub fn serve(&self, id: WorkerId, mut worker: Worker<Reply>) {
        let mut tasks: VecDeque<WorkerTask<Reply>> = VecDeque::new();
        let mut ran: Vec<WorkerTask<Reply>> = Vec::new();
        // Empty row lists of tasks that were run, for new tasks.
        let mut emptied: Vec<Vec<TaskRow<Reply>>> = Vec::new();
        let mut fresh: Vec<Task> = Vec::new();
        let mut evict: Vec<SubgraphKey> = Vec::new();
        let mut state = self.lock();
        state.workers[id.0].phase = worker.phase.clone();
        // The time at which the lock was taken.
        let mut begin = Instant::now();
        loop {
            let changes = !state.changes[id.0].is_empty();
            if tasks.is_empty() && changes && worker.in_flight() == 0 {
                state = self.change(state, id, &mut worker);
                begin = Instant::now();
                continue;
            }
            if tasks.is_empty() && !changes && worker.needs_tasks() {
                state.scheduler.poll_tasks(begin, id, &mut fresh);
                for task in fresh.drain(..) {
                    let mut work = emptied.pop().unwrap_or_default();
                    state.attach(&task, &mut work);
                    tasks.push_back(WorkerTask::new(task, work));
                }
                state.scheduler.poll_evictions(id, &mut evict);
            } else {
                // Deadlines are checked before each batch; `poll_tasks` does so, too.
                state.scheduler.handle_timeout(begin);
            }
            let finished = state.take_finished();
            let spent = state.scheduler.take_spent();
            let nothing_ended = finished.is_empty() && spent.is_empty();
            let has_work = !tasks.is_empty() || worker.in_flight() > 0;
            if !has_work && evict.is_empty() && nothing_ended {
                if state.stopping {
                    return;
                }
                state.recorder.scheduled(begin.elapsed());
                // An idle worker holds no memory of ended requests. A request that arrives
                // meanwhile is found in the next iteration.
                state = if worker.holds_memory() {
                    drop(state);
                    worker.release_memory();
                    self.lock()
                } else {
                    self.sleep(state)
                };
                begin = Instant::now();
                continue;
            }
            // Another worker may take the remaining nodes and watch the next deadline.
            let for_another = state.scheduler.queued() > 0 || state.deadline_is_unwatched();
            let wake_another = state.sleeping > 0 && for_another;
            state.recorder.scheduled(begin.elapsed());
            let first = tasks.front().map(|first| first.task.cell);
            state.workers[id.0].work_started(first.or(worker.oldest_in_flight()), begin);
            drop(state);
            if wake_another {
                self.work.notify_one();
            }
            self.reply(finished);
            release_records(spent);
            for subgraph in &evict {
                worker.evict(subgraph.request);
            }
            for todo in &mut tasks {
                todo.work.retain(|work| !work.values.has_ended());
            }
            let mut outcome = worker.advance(&mut tasks, &mut ran);
            if !outcome.deferred.is_empty() {
                worker.phase.set(Phase::Replies);
                let deferred = std::mem::take(&mut outcome.deferred);
                let jobs = deferred.into_iter().map(|job| (None, Job::Deferred(job)));
                self.hand_over(&[], jobs.collect());
            }
            state = self.lock();
            begin = Instant::now();
            state.workers[id.0].work_finished();
            for subgraph in evict.drain(..) {
                state.scheduler.handle_evicted(subgraph);
            }
            state.report(begin, id, &mut ran, &mut emptied, outcome);
        }
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.sleeping += 1;
        let deadline = state.scheduler.poll_timeout();
        state.awaited = deadline;
        let mut state = match deadline {
            None => self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                let woken = self.work.wait_timeout(state, left);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleeping -= 1;
        // The timeout may have been that of this worker.
        state.awaited = None;
        state
    }
}

impl State {
    /// Number of requests that have not ended or are not replied to.
    pub fn remaining(&self) -> usize {
        self.replying + self.scheduler.counts().live() as usize
    }

    /// The reply thread has got jobs of requests of these models.
    pub fn handed_over(&mut self, models: &[Option<ModelKey>]) {
        self.replying += models.len();
        for model in models.iter().flatten() {
            if let Some(model) = self.models.get_mut(model) {
                model.replying += 1;
            }
        }
    }

    /// Requests of these models, or jobs of requests, have been replied to.
    pub fn replied(&mut self, shared: &Shared, models: &[Option<ModelKey>]) {
        self.replying -= models.len();
        for model in models.iter().flatten() {
            if let Some(model) = self.models.get_mut(model) {
                model.replying -= 1;
            }
        }
        let mut of = models.iter().flatten();
        if self.remaining() == 0 || of.any(|&model| self.is_model_idle(model)) {
            shared.idle.notify_all();
        }
    }

    /// Whether the next deadline may pass before a sleeping worker times out.
    fn deadline_is_unwatched(&self) -> bool {
        let deadline = self.scheduler.poll_timeout();
        deadline.is_some_and(|at| self.awaited.is_none_or(|awaited| at < awaited))
    }

    /// Adds the rows of a task with their values to `work`.
    fn attach(&self, task: &Task, work: &mut Vec<TaskRow<Reply>>) {
        work.reserve(task.rows.len());
        let rows = task.rows.iter();
        work.extend(rows.filter_map(|&row| {
            let values = Arc::clone(self.requests.get(row.request)?);
            Some(TaskRow { row, values })
        }));
    }

    /// Reports tasks that a worker ran together. Their row lists go to `emptied`.
    fn report(
        &mut self,
        now: Instant,
        id: WorkerId,
        ran: &mut Vec<WorkerTask<Reply>>,
        emptied: &mut Vec<Vec<TaskRow<Reply>>>,
        outcome: Outcome,
    ) {
        for (key, error) in outcome.failed {
            self.fail(now, key, error);
        }
        for (key, unfolded) in outcome.grown {
            if let Err(refused) = self.scheduler.handle_grow(key, unfolded) {
                self.fail(now, key, refused.into());
            }
        }
        let each = outcome.spent.divided(ran.len());
        let worker = &mut self.workers[id.0].stats;
        worker.batches += u64::from(!ran.is_empty());
        worker.busy += outcome.spent.total();
        for todo in ran.drain(..) {
            debug_assert!(todo.work.is_empty(), "no row gets into another task");
            let mut took = None;
            if !outcome.is_refused {
                self.ran(&todo.task, todo.rows_run, each);
                took = (todo.rows_run + todo.task.padding > 0).then(|| each.total());
            }
            self.scheduler.handle_done(now, todo.task, took);
            emptied.push(todo.work);
        }
    }

    fn fail(&mut self, now: Instant, key: RequestKey, error: RequestError) {
        if self.scheduler.table().is_live(key) {
            self.failures.insert(key, error);
            self.scheduler.handle_failed(now, key);
        }
    }

    /// The ended requests that were not taken before.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        let mut finished = Vec::new();
        while let Some(ended) = self.scheduler.poll_ended() {
            let key = ended.request;
            let Some(values) = self.requests.remove(key) else {
                continue;
            };
            values.set_ended();
            self.recorder.ended(&ended);
            if let Some(model) = self.models.get_mut(&ended.model) {
                model.recorder.ended(&ended);
            }
            let error = match ended.end {
                End::Completed => None,
                End::Cancelled => Some(RequestError::Cancelled),
                End::Late => Some(RequestError::Late),
                End::ShutDown => Some(RequestError::ShutDown),
                End::Failed => self.failures.remove(key),
            };
            finished.push(Finished {
                ended,
                values,
                error,
            });
        }
        self.replying += finished.len();
        for one in &finished {
            if let Some(model) = self.models.get_mut(&one.model()) {
                model.replying += 1;
            }
        }
        finished
    }
}
