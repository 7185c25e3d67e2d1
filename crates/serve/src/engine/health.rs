//! The state of the workers: statistics, and the present activity of each.
//!
//! A worker records under the engine's lock that it begins to work, and the part of the work in an
//! atomic, without the lock. So [`Engine::health`] finds a worker that is stuck in a cell or in a
//! `DynamicGraph`, without a thread of its own.
//!
//! [`Engine::health`]: super::Engine::health

use std::time::{Duration, Instant};

use super::shared::State;
use super::stats::WorkerStats;
use crate::cell_graph::CellId;
use crate::worker::{Phase, PhaseCell};

/// The present state of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether the engine refuses new requests, because it drains or stops.
    pub draining: bool,
    /// The workers.
    pub workers: Vec<WorkerHealth>,
}

impl Health {
    /// The indices of the workers that have ended, or have worked for longer than `after` without a
    /// look at the scheduler. A batch takes microseconds to milliseconds, but may wait for a cell
    /// that is packed ([`Engine::add_model`](super::Engine::add_model)).
    pub fn stuck(&self, after: Duration) -> impl Iterator<Item = usize> {
        let workers = self.workers.iter().enumerate();
        let stuck = workers.filter(move |(_, worker)| {
            !worker.is_alive || worker.works_since.is_some_and(|time| time > after)
        });
        stuck.map(|(index, _)| index)
    }
}

/// The present state of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerHealth {
    /// Whether its thread runs. The engine stops if one ends.
    pub is_alive: bool,
    /// What it works on.
    pub activity: Activity,
    /// Time since it began to work, after its last look at the scheduler; `None` if it waits.
    pub works_since: Option<Duration>,
    /// Time since its last batch began; `None` before the first.
    pub last_batch: Option<Duration>,
}

/// The activity of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// It waits for work, or chooses it.
    Waiting,
    /// It sends replies, or changes its cells after models were added or removed.
    Replying,
    /// It runs a batch of a cell.
    Cell {
        /// The name of the model.
        model: String,
        /// The name of the cell.
        cell: String,
    },
    /// A [`DynamicGraph`](crate::cell_graph::DynamicGraph) adds nodes after a batch of a cell.
    Growing {
        /// The name of the model.
        model: String,
        /// The name of the cell.
        cell: String,
    },
}

/// The record of a worker in the engine's state.
pub(super) struct WorkerState {
    pub stats: WorkerStats,
    pub is_alive: bool,
    /// The part of its work; of the worker.
    pub phase: PhaseCell,
    works_since: Option<Instant>,
    /// The cell of its last batch, and the beginning.
    last_batch: Option<(CellId, Instant)>,
}

impl WorkerState {
    pub fn new() -> WorkerState {
        WorkerState {
            stats: WorkerStats::default(),
            is_alive: true,
            phase: PhaseCell::default(),
            works_since: None,
            last_batch: None,
        }
    }

    /// The worker leaves the lock to work, on a batch of `cell` if there is one.
    pub fn work_started(&mut self, cell: Option<CellId>, now: Instant) {
        self.phase.set(Phase::Replies);
        self.works_since = Some(now);
        if let Some(cell) = cell {
            self.last_batch = Some((cell, now));
        }
    }

    /// The worker has the lock again.
    pub fn work_finished(&mut self) {
        self.works_since = None;
    }
}

impl State {
    pub fn health(&self, now: Instant) -> Health {
        let workers = self
            .workers
            .iter()
            .map(|worker| self.worker_health(worker, now));
        Health {
            draining: self.scheduler.is_draining(),
            workers: workers.collect(),
        }
    }

    fn worker_health(&self, worker: &WorkerState, now: Instant) -> WorkerHealth {
        let since = |at: Instant| now.saturating_duration_since(at);
        let cell = worker.last_batch.and_then(|(id, _)| self.cell_names(id));
        let activity = match (worker.works_since, worker.phase.get(), cell) {
            (None, ..) => Activity::Waiting,
            (_, Phase::Cell, Some((model, cell))) => Activity::Cell { model, cell },
            (_, Phase::Growth, Some((model, cell))) => Activity::Growing { model, cell },
            _ => Activity::Replying,
        };
        WorkerHealth {
            is_alive: worker.is_alive,
            activity,
            works_since: worker.works_since.map(since),
            last_batch: worker.last_batch.map(|(_, at)| since(at)),
        }
    }
}
