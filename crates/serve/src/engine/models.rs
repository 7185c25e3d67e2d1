//! The models of an engine: added, drained and removed while its workers run.
//!
//! ```text
//! add      prepare the cells for each worker                                        no lock
//!          the scheduler gets the model, each worker's list of changes its cells    lock
//! remove   refuse requests; wait at `idle` until the accepted ones are replied to   lock
//!          each worker's list gets the removal; wake all workers                    lock
//!          wait at `idle` until the last worker has reported                        lock
//! worker   take its changes before it asks for tasks                                lock
//!          insert cells, drop cells                                                 no lock
//!          report removals; the last worker notifies `idle`                         lock
//! ```
//!
//! **A task before its cells**: a worker asks for tasks only while its list is empty, under the
//! same lock. The scheduler knows no model whose cells are not in the lists.
//!
//! **A task after its cells**: a worker takes its list only without a task, also in flight on a
//! device. The scheduler has no request of the model then, so it forms none.
//!
//! **An end that nobody replies to**: a worker takes the ended requests of its last report before
//! it releases the lock for its changes, as everywhere.
//!
//! **A cell of an id that is used again**: the scheduler keeps the ids until all workers have
//! reported and the last stream of the model is closed.
//!
//! **A stop beside a change**: `Shared::stop` ends all requests and notifies `idle`. Changes that
//! no worker takes any more are dropped with the engine.

use std::sync::Arc;
use std::time::Instant;

use super::prepare::ModelSetup;
use super::shared::{Shared, State, release_records};
use super::stats::{ModelStats, Recorder};
use super::{EngineError, Reply};
use crate::cell_graph::CellId;
use crate::scheduler::{ModelKey, ModelShare, RequestKey, Task, WorkerId};
use crate::sync::{MutexGuard, PoisonError};
use crate::worker::{ModelCells, Runner, Spent, Worker};
use gatestream::execute::team::catch_panic;

/// What the engine knows of a model beside the scheduler.
pub(super) struct ModelState {
    name: Arc<str>,
    cells: Arc<ModelCells>,
    /// Its requests that have ended and are being replied to.
    pub replying: usize,
    pub recorder: Recorder,
    stage: Stage,
}

/// How far the removal of a model has got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It accepts requests, unless it drains.
    Serving,
    /// It refuses requests.
    Refusing,
    /// This number of workers have its cells.
    Removing(usize),
    /// No worker has its cells. A stream of it is open.
    Removed,
}

/// A change of the cells of a worker.
pub(super) enum Change {
    Insert(Arc<ModelCells>, Vec<Runner<Reply>>),
    Remove(Arc<ModelCells>),
}

impl Change {
    /// Changes the cells of a worker; returns the model that it does not have any more.
    fn apply(self, worker: &mut Worker<Reply>) -> Option<ModelKey> {
        match self {
            Change::Insert(model, runners) => {
                worker.insert(model.first, runners);
                None
            }
            Change::Remove(model) => {
                let removed = worker.remove(model.first, model.cells.len());
                // Cells of users may panic.
                let _ = catch_panic(|| drop(removed));
                Some(model.key)
            }
        }
    }
}

impl Shared {
    /// Adds a model whose cells are prepared for each worker.
    pub fn add_model(
        &self,
        name: &Arc<str>,
        prepared: &ModelSetup,
        share: ModelShare,
        runners: Vec<Vec<Runner<Reply>>>,
    ) -> Result<Arc<ModelCells>, EngineError> {
        let mut state = self.lock();
        if state.stopping {
            return Err(EngineError::Stopped);
        }
        let model = state.add_model(name, prepared, share)?;
        for (changes, runners) in state.changes.iter_mut().zip(runners) {
            changes.push(Change::Insert(Arc::clone(&model), runners));
        }
        Ok(model)
    }

    /// Refuses new requests of a model and steps of its streams.
    pub fn drain_model(&self, key: ModelKey) {
        let mut state = self.lock();
        state.scheduler.handle_drain_model(key);
        state.waiting.retry_all();
        drop(state);
        self.wake_waiting();
    }

    /// Waits until all requests of a model have been replied to, or until `deadline`. Returns the
    /// number of requests and callbacks that remain. Does not wait in a callback.
    pub fn wait_for_model(&self, key: ModelKey, deadline: Option<Instant>) -> usize {
        let remaining = |state: &State| state.model_remaining(key);
        if self.is_replying() {
            remaining(&self.lock())
        } else {
            self.wait_while(deadline, remaining)
        }
    }

    /// Ends all requests of a model.
    pub fn cancel_model(&self, key: ModelKey) {
        self.with(|state, now| {
            for request in state.requests_of(key) {
                state.scheduler.handle_cancel(now, request);
            }
        });
    }

    /// Removes a model, after all of its requests have been replied to.
    pub fn remove_model(&self, key: ModelKey) {
        let mut state = self.lock();
        let Some(model) = state.models.get_mut(&key) else {
            return;
        };
        if model.stage == Stage::Serving {
            model.stage = Stage::Refusing;
            state.scheduler.handle_drain_model(key);
            state.waiting.retry_all();
            drop(state);
            self.wake_waiting();
            state = self.lock();
        }
        loop {
            let is_idle = state.is_model_idle(key);
            let is_over = state.stopping;
            let State {
                models, changes, ..
            } = &mut *state;
            match models.get_mut(&key) {
                None => return,
                Some(model) if model.stage == Stage::Removed => return,
                Some(model) if is_idle && model.stage == Stage::Refusing => {
                    model.stage = Stage::Removing(changes.len());
                    for changes in changes {
                        changes.push(Change::Remove(Arc::clone(&model.cells)));
                    }
                    self.work.notify_all();
                }
                Some(_) => {}
            }
            // The cells are dropped with the workers.
            if is_over && is_idle {
                return;
            }
            state = (self.idle.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Changes the cells of a worker, without the lock, and reports removals.
    pub fn change<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: WorkerId,
        worker: &mut Worker<Reply>,
    ) -> MutexGuard<'a, State> {
        let changes = std::mem::take(&mut state.changes[id.0]);
        state.workers[id.0].work_started(None, Instant::now());
        // The worker may have reported their last tasks.
        let finished = state.take_finished();
        let spent = state.scheduler.take_spent();
        drop(state);
        self.reply(finished);
        release_records(spent);
        let changes = changes.into_iter();
        let removed: Vec<ModelKey> = changes.filter_map(|one| one.apply(worker)).collect();
        let mut state = self.lock();
        state.workers[id.0].work_finished();
        let mut notify = false;
        for key in removed {
            notify |= state.worker_removed(key);
        }
        if notify {
            self.idle.notify_all();
        }
        state
    }
}

impl State {
    /// Adds a model to the scheduler.
    pub fn add_model(
        &mut self,
        name: &Arc<str>,
        prepared: &ModelSetup,
        share: ModelShare,
    ) -> Result<Arc<ModelCells>, EngineError> {
        let key = self.scheduler.add_model(&prepared.costs, share)?;
        self.scheduler.set_steps_at_once(key, &prepared.steps);
        let cells = Arc::new(ModelCells {
            key,
            first: self.scheduler.first_cell(key).unwrap_or_default(),
            cells: prepared.cells.clone(),
        });
        let model = ModelState {
            name: Arc::clone(name),
            recorder: Recorder::new(cells.cells.len()),
            cells: Arc::clone(&cells),
            replying: 0,
            stage: Stage::Serving,
        };
        self.models.insert(key, model);
        Ok(cells)
    }

    /// The names of a cell of the engine and of its model.
    pub fn cell_names(&self, cell: CellId) -> Option<(String, String)> {
        let model = self.models.get(&self.scheduler.model_of(cell)?)?;
        let local = cell.index() - model.cells.first.index();
        let (_, cell) = model.cells.cells.iter().nth(local)?;
        Some((model.name.to_string(), cell.name().to_owned()))
    }

    /// A task was run for `rows` of its rows.
    pub fn ran(&mut self, task: &Task, rows: usize, spent: Spent) {
        let model = self.scheduler.model_of(task.cell);
        if let Some(model) = model.and_then(|key| self.models.get_mut(&key)) {
            let cell = task.cell.index() - model.cells.first.index();
            model.recorder.ran(cell, task, rows, spent);
        }
    }

    /// The models, in the order of their cells.
    pub fn model_keys(&self) -> Vec<ModelKey> {
        let mut keys: Vec<ModelKey> = self.models.keys().copied().collect();
        keys.sort_by_key(|key| self.models[key].cells.first);
        keys
    }

    /// Statistics of a model; `None` if it was removed.
    pub fn model_stats(&self, key: ModelKey) -> Option<ModelStats> {
        let model = self.models.get(&key)?;
        let Recorder { cells, times, .. } = model.recorder.clone();
        Some(ModelStats {
            name: model.name.to_string(),
            counts: self.scheduler.model_counts(key)?,
            usage: self.scheduler.model_usage(key)?,
            ready: self.scheduler.model_ready(key)?,
            waiting: self.waiting.of_model(key),
            unanswered: self.model_remaining(key),
            draining: self.scheduler.is_model_draining(key),
            times,
            cells,
        })
    }

    /// Whether a model is not being removed, and was not.
    pub fn is_serving(&self, key: ModelKey) -> bool {
        let model = self.models.get(&key);
        model.is_some_and(|model| model.stage == Stage::Serving)
    }

    /// Whether no request of a model is left and all have been replied to.
    pub fn is_model_idle(&self, key: ModelKey) -> bool {
        self.model_remaining(key) == 0
    }

    /// Number of requests of a model that have not ended or are not replied to.
    fn model_remaining(&self, key: ModelKey) -> usize {
        let replying = self.models.get(&key).map_or(0, |model| model.replying);
        let live = self
            .scheduler
            .model_counts(key)
            .map_or(0, |counts| counts.live());
        replying + live as usize
    }

    fn requests_of(&self, key: ModelKey) -> Vec<RequestKey> {
        let requests = self.requests.iter();
        let of = requests.filter(|(_, values)| values.model().key == key);
        of.map(|(request, _)| request).collect()
    }

    /// A worker has dropped the cells of a model. Returns whether it was the last one.
    fn worker_removed(&mut self, key: ModelKey) -> bool {
        let Some(model) = self.models.get_mut(&key) else {
            return false;
        };
        let Stage::Removing(workers) = &mut model.stage else {
            return false;
        };
        *workers -= 1;
        if *workers > 0 {
            return false;
        }
        model.stage = Stage::Removed;
        self.forget_model(key);
        true
    }

    /// Forgets a removed model without open streams.
    pub fn forget_model(&mut self, key: ModelKey) {
        let is_removed = |model: &ModelState| model.stage == Stage::Removed;
        if self.models.get(&key).is_some_and(is_removed) && self.scheduler.remove_model(key).is_ok()
        {
            self.models.remove(&key);
        }
    }
}
