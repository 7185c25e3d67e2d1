//! Statistics of an engine: counts, batch sizes, times.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::shared::Shared;
use crate::scheduler::{Counts, End, Ended, Task, Timing, Usage};
use crate::worker::Spent;

/// Statistics of an engine since its start.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Numbers of requests, those of removed models included.
    pub counts: Counts,
    /// The part of the engine's limits that is used.
    pub usage: Usage,
    /// The models, in the order of the ids of their cells: the first model, then those that were
    /// added. A model may have the place of one that was removed.
    pub models: Vec<ModelStats>,
    /// The workers.
    pub workers: Vec<WorkerStats>,
    /// Times of the completed requests, those of removed models included.
    pub times: Times,
    /// Time of scheduling and recording, under the engine's lock.
    pub scheduling: Duration,
}

impl Stats {
    /// Those of an engine of another process.
    pub(super) fn of_none() -> Stats {
        Stats {
            counts: Counts::default(),
            usage: Usage::default(),
            models: Vec::new(),
            workers: Vec::new(),
            times: Times::new(),
            scheduling: Duration::ZERO,
        }
    }
}

/// Statistics of a model since it was added.
#[derive(Clone, Debug)]
pub struct ModelStats {
    /// [`ModelOptions::name`](super::ModelOptions::name).
    pub name: String,
    /// Numbers of requests; each segment of a stream counts as one.
    pub counts: Counts,
    /// The part of the limits that is used: by requests that have not ended, and by open streams.
    pub usage: Usage,
    /// Rows that wait for a worker.
    pub ready: usize,
    /// Submissions that wait for room.
    pub waiting: usize,
    /// Requests that have not ended, and replies that are not delivered: the wait of
    /// [`Model::drain`](super::Model::drain).
    pub unanswered: usize,
    /// Whether it refuses new requests, because it or the engine drains, or it is being removed.
    pub draining: bool,
    /// Times of the completed requests.
    pub times: Times,
    /// Its cells, in the order of [`Cells`](crate::cell_graph::Cells).
    pub cells: Vec<CellStats>,
}

/// Times of completed requests, in microseconds, to two digits.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// From the submission until the first cell went to a worker.
    pub queueing: Histogram<u64>,
    /// From then until the end.
    pub computing: Histogram<u64>,
}

impl Times {
    pub(super) fn new() -> Times {
        // Up to an hour.
        Times {
            queueing: histogram(3_600_000_000),
            computing: histogram(3_600_000_000),
        }
    }

    fn record(&mut self, timing: Timing) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.queueing.saturating_record(micros(timing.queueing));
        self.computing.saturating_record(micros(timing.computing));
    }
}

/// Statistics of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// The operating system's numbers of its cores.
    pub cores: Vec<usize>,
    /// Whether each of its threads is pinned to its core.
    pub pinned: bool,
    /// Batches, further steps of their rows included.
    pub batches: u64,
    /// Time of its batches: copies and cells.
    pub busy: Duration,
}

/// Statistics of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellStats {
    /// Number of tasks (each is a step of a batch) by their rows, padding included.
    pub batches: Vec<u64>,
    /// Rows of live requests.
    pub rows: u64,
    /// Other rows: padding, and those of requests that ended before the batch.
    pub padding: u64,
    /// Time of copying values into batches.
    pub gather: Duration,
    /// Time in the cell.
    pub run: Duration,
    /// Time of each step in the cell, in nanoseconds, to two digits. Steps of one batch have equal
    /// shares of its time.
    pub steps: Histogram<u64>,
    /// Time of copying values out of batches, and of growing graphs.
    pub scatter: Duration,
}

impl CellStats {
    fn new() -> CellStats {
        CellStats {
            batches: Vec::new(),
            rows: 0,
            padding: 0,
            gather: Duration::ZERO,
            run: Duration::ZERO,
            // Up to an hour.
            steps: histogram(3_600_000_000_000),
            scatter: Duration::ZERO,
        }
    }

    /// A task was run for `rows` of its rows.
    fn ran(&mut self, task: &Task, rows: usize, spent: Spent) {
        let batch = task.rows.len() + task.padding;
        if self.batches.len() <= batch {
            self.batches.resize(batch + 1, 0);
        }
        self.batches[batch] += 1;
        self.rows += rows as u64;
        self.padding += (batch - rows) as u64;
        self.gather += spent.gather;
        self.run += spent.run;
        self.scatter += spent.scatter;
        // A task without live rows and padding is not run.
        if rows + task.padding > 0 {
            let nanoseconds = u64::try_from(spent.run.as_nanos()).unwrap_or(u64::MAX);
            self.steps.saturating_record(nanoseconds);
        }
    }
}

impl Shared {
    /// Takes the lock once for each model, so that no batch waits for copies of all.
    pub fn stats(&self) -> Stats {
        let state = self.lock();
        let keys = state.model_keys();
        let Recorder {
            times, scheduling, ..
        } = state.recorder.clone();
        let (counts, usage) = (state.scheduler.counts(), state.scheduler.usage());
        let workers = state.workers.iter().map(|worker| worker.stats.clone());
        let workers = workers.collect();
        drop(state);
        let models = keys.into_iter();
        let models = models.filter_map(|key| self.lock().model_stats(key));
        Stats {
            models: models.collect(),
            counts,
            usage,
            workers,
            times,
            scheduling,
        }
    }
}

/// From 1 to `max`, to two digits, because it is copied under the engine's lock.
fn histogram(max: u64) -> Histogram<u64> {
    match Histogram::new_with_bounds(1, max, 2) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("valid bounds"),
    }
}

/// The recorded part of [`Stats`] or of [`ModelStats`].
#[derive(Clone)]
pub(super) struct Recorder {
    /// Empty in that of the engine.
    pub cells: Vec<CellStats>,
    pub times: Times,
    pub scheduling: Duration,
}

impl Recorder {
    /// For this number of cells.
    pub fn new(cells: usize) -> Recorder {
        Recorder {
            cells: (0..cells).map(|_| CellStats::new()).collect(),
            times: Times::new(),
            scheduling: Duration::ZERO,
        }
    }

    pub fn scheduled(&mut self, time: Duration) {
        self.scheduling += time;
    }

    /// A task of a cell was run for `rows` of its rows.
    pub fn ran(&mut self, cell: usize, task: &Task, rows: usize, spent: Spent) {
        if let Some(cell) = self.cells.get_mut(cell) {
            cell.ran(task, rows, spent);
        }
    }

    pub fn ended(&mut self, ended: &Ended) {
        if ended.end == End::Completed {
            self.times.record(ended.timing);
        }
    }
}
