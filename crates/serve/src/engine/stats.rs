//! What an engine has done: counts, batch sizes, where the time went.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::scheduler::{Counts, End, Ended, Task};
use crate::worker::Spent;

/// A look at what an engine has done since its start.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Requests.
    pub counts: Counts,
    /// By cell, in the order of [`crate::cell_graph::Cells`].
    pub cells: Vec<CellStats>,
    /// Queueing of the requests that were completed, in microseconds.
    pub queueing: Histogram<u64>,
    /// Computing of the requests that were completed, in microseconds.
    pub computing: Histogram<u64>,
    /// Time that went into choosing and recording, under the engine's lock.
    pub scheduling: Duration,
}

/// What was done of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellStats {
    /// Tasks, each a step of a batch, by the number of rows that they were formed with, padding included.
    pub batches: Vec<u64>,
    /// Rows whose requests wanted them.
    pub rows: u64,
    /// Rows that nobody wanted: padding, and those of requests that ended meanwhile.
    pub padding: u64,
    /// Time for values into batches.
    pub gather: Duration,
    /// Time in the cell.
    pub run: Duration,
    /// The same, step by step, in nanoseconds, to two digits; steps that ran in one batch have equal shares of its time.
    pub steps: Histogram<u64>,
    /// Time for values out of batches, and for growing graphs.
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
            // Up to an hour. Two digits take 40 KB, three take 300, which every look at the statistics copies.
            steps: histogram(3_600_000_000_000, 2),
            scatter: Duration::ZERO,
        }
    }
}

/// Collects [`Stats`].
pub(super) struct Recorder {
    cells: Vec<CellStats>,
    queueing: Histogram<u64>,
    computing: Histogram<u64>,
    scheduling: Duration,
}

/// Up to an hour, to three digits.
fn micros() -> Histogram<u64> {
    histogram(3_600_000_000, 3)
}

/// From 1 to `most`, to so many digits.
fn histogram(most: u64, digits: u8) -> Histogram<u64> {
    match Histogram::new_with_bounds(1, most, digits) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("valid bounds"),
    }
}

impl Recorder {
    pub fn new(cells: usize) -> Recorder {
        Recorder {
            cells: vec![CellStats::new(); cells],
            queueing: micros(),
            computing: micros(),
            scheduling: Duration::ZERO,
        }
    }

    pub fn scheduled(&mut self, time: Duration) {
        self.scheduling += time;
    }

    /// A task was run for `rows` of its rows.
    pub fn ran(&mut self, task: &Task, rows: usize, spent: Spent) {
        let cell = &mut self.cells[task.cell.index()];
        let batch = task.rows.len() + task.padding;
        if cell.batches.len() <= batch {
            cell.batches.resize(batch + 1, 0);
        }
        cell.batches[batch] += 1;
        cell.rows += rows as u64;
        cell.padding += (batch - rows) as u64;
        cell.gather += spent.gather;
        cell.run += spent.run;
        cell.scatter += spent.scatter;
        // A task that nobody wants any more is not run.
        if rows + task.padding > 0 {
            let nanoseconds = u64::try_from(spent.run.as_nanos()).unwrap_or(u64::MAX);
            cell.steps.saturating_record(nanoseconds);
        }
    }

    pub fn ended(&mut self, ended: &Ended) {
        if ended.end == End::Completed {
            let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            self.queueing
                .saturating_record(micros(ended.timing.queueing));
            self.computing
                .saturating_record(micros(ended.timing.computing));
        }
    }

    pub fn stats(&self, counts: Counts) -> Stats {
        Stats {
            counts,
            cells: self.cells.clone(),
            queueing: self.queueing.clone(),
            computing: self.computing.clone(),
            scheduling: self.scheduling,
        }
    }
}
