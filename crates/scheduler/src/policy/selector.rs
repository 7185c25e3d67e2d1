//! Selects the cell of a model that a worker runs next.
//!
//! ```text
//! overdue(worker, S):                                       S: cells with ready rows
//!   of the cells of S that have been skipped in MAX_SKIPS batches or more: the one most often
//! next(worker, S):                          if no cell is overdue and none has a full batch
//!   if no task of some cells of S is running: S = those       (rule 2 of Algorithm 1)
//!   if no batch of some cells of S has been timed: the latest of those in graphs
//!                                                            (the paper's priority)
//!   the cell with the largest rows² / (time of a step · rows of late)
//! ```
//!
//! The paper takes the latest cell, so that requests end sooner. But its worker asks while its last
//! task is in flight, and rule 2 then selects another cell. Here a worker asks when its last task
//! is done: with priority alone, a decoder that always has ready nodes would stop all encoders
//! until its last sentence has ended. The selection follows a balance instead. A request needs `T`
//! steps of a cell whose batches take `a` plus a little for each row. At `s` batches a second it
//! stays for `T / s`:
//!
//! ```text
//! minimum of Σ T / s  subject to  Σ s · a = the time left by the rows    =>  s ∝ √(T / a)
//! ready rows n = rate · T / s           =>  n² / (a · rate · T) is equal for all
//! ```
//!
//! This is the square-root rule of broadcast scheduling, where one transmission serves all that
//! wait. The cell that is above the balance runs next; `rate · T` is its number of rows of late.
//! `tuning/serving` has the simulation.

use std::time::Duration;

use super::moving_average;
use crate::scheduler::WorkerId;

/// See the [module](self).
pub(super) struct CellSelector {
    cells: Vec<Timed>,
    /// For each worker, by cell: the number of batches in a row that were of another cell while
    /// this one had ready rows.
    skips: Vec<Vec<usize>>,
}

/// Recent batches of a cell.
#[derive(Clone, Copy, Default)]
struct Timed {
    /// Moving average of the seconds of a step; `None` before the first.
    step: Option<f64>,
    /// Decaying sum of the rows of its steps.
    rows: f64,
}

/// A cell with ready rows is skipped at most this often in a row, unless other cells have been
/// skipped more often.
pub(super) const MAX_SKIPS: usize = 4;
/// When the sum of a cell's rows exceeds this, the sums of all cells are halved.
const RECENT_ROWS: f64 = 4096.0;

impl CellSelector {
    pub fn new(cells: usize, workers: usize) -> CellSelector {
        CellSelector {
            cells: vec![Timed::default(); cells],
            skips: vec![vec![0; cells]; workers],
        }
    }

    /// A step of `rows` rows of a cell took this time.
    pub fn measured(&mut self, cell: usize, rows: usize, took: Duration) {
        let took = took.as_secs_f64().max(1e-9);
        let timed = &mut self.cells[cell];
        timed.step = Some(moving_average::after(timed.step, took));
        timed.rows += rows as f64;
        if timed.rows > RECENT_ROWS {
            for timed in &mut self.cells {
                timed.rows /= 2.0;
            }
        }
    }

    /// The usual seconds of a step of a cell, if one was timed.
    pub fn usual_seconds(&self, cell: usize) -> Option<f64> {
        self.cells[cell].step
    }

    /// The cell that `worker` has skipped too often, if there is one; `has_rows` says which cells
    /// have rows that it may take.
    pub fn overdue(&self, worker: WorkerId, has_rows: impl Fn(usize) -> bool) -> Option<usize> {
        let skips = self.skips[worker.0].iter().enumerate();
        let overdue = skips.filter(|&(cell, &skips)| skips >= MAX_SKIPS && has_rows(cell));
        // `max_by_key` returns the last of equal ones: the latest in graphs.
        overdue
            .max_by_key(|&(_, skips)| skips)
            .map(|(cell, _)| cell)
    }

    /// The cell that is run next if none is overdue; `rows` is the number of rows of a cell that
    /// the worker may take.
    pub fn next(
        &self,
        rows: impl Fn(usize) -> usize,
        is_idle: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        // The latest in graphs first.
        let all = || (0..self.cells.len()).rev().filter(|&cell| rows(cell) > 0);
        self.best(all().filter(|&cell| is_idle(cell)), &rows)
            .or_else(|| self.best(all(), &rows))
    }

    /// The first cell that was never timed, or else the one furthest above the balance.
    fn best(
        &self,
        of: impl Iterator<Item = usize>,
        rows: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for cell in of {
            let Timed { step, rows: in_all } = self.cells[cell];
            let Some(step) = step else {
                return Some(cell);
            };
            let score = (rows(cell) as f64).powi(2) / (step * in_all);
            if best.is_none_or(|(_, highest)| score > highest) {
                best = Some((cell, score));
            }
        }
        best.map(|(cell, _)| cell)
    }

    /// `worker` runs a batch of `cell`; `has_rows` says which cells have rows that it may take.
    pub fn taken(&mut self, worker: WorkerId, cell: usize, has_rows: impl Fn(usize) -> bool) {
        for (other, skips) in self.skips[worker.0].iter_mut().enumerate() {
            *skips = if other != cell && has_rows(other) {
                *skips + 1
            } else {
                0
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(0);

    /// The next of two idle cells with these rows.
    fn next(selector: &CellSelector, rows: [usize; 2]) -> Option<usize> {
        selector.next(|cell| rows[cell], |_| true)
    }

    /// A selector for which a step of both cells took as long, with as many rows.
    fn even() -> CellSelector {
        let mut selector = CellSelector::new(2, 1);
        for cell in [0, 1] {
            selector.measured(cell, 10, Duration::from_millis(1));
        }
        selector
    }

    #[test]
    fn more_rows_go_first() {
        for (few, more) in (0..20).flat_map(|few| (few + 1..30).map(move |more| (few, more))) {
            assert_eq!(next(&even(), [few, more]), Some(1));
            assert_eq!(next(&even(), [more, few]), Some(0));
        }
        assert_eq!(next(&even(), [0, 0]), None);
    }

    #[test]
    fn of_equal_rows_the_faster_cell_goes_first() {
        for slow in [0, 1] {
            let mut selector = even();
            for cell in [0, 1] {
                let took = if cell == slow { 2 } else { 1 };
                selector.measured(cell, 10, Duration::from_millis(took));
            }
            assert_eq!(next(&selector, [5, 5]), Some(1 - slow));
        }
    }

    #[test]
    fn a_cell_that_was_never_timed_goes_first() {
        let mut selector = CellSelector::new(2, 1);
        assert_eq!(next(&selector, [50, 1]), Some(1), "the latest in graphs");
        selector.measured(1, 1, Duration::from_millis(1));
        assert_eq!(next(&selector, [1, 50]), Some(0));
    }

    /// However long one step took, its cell is not taken for hundreds of times slower.
    #[test]
    fn one_stall_changes_the_average_little() {
        let mut selector = even();
        selector.measured(1, 10, Duration::from_secs(1));
        selector.measured(0, 10, Duration::from_millis(1));
        assert_eq!(next(&selector, [4, 8]), Some(1));
    }

    #[test]
    fn old_rows_are_forgotten() {
        let mut selector = even();
        let mut both = |cells: &[usize], steps| {
            for cell in (0..steps).flat_map(|_| cells) {
                selector.measured(*cell, 64, Duration::from_millis(1));
            }
            next(&selector, [6, 5])
        };
        assert_eq!(both(&[0], 100_000), Some(1));
        assert_eq!(both(&[0, 1], 1000), Some(0));
    }

    /// Whatever rows and times there are, and whichever cells are busy.
    #[test]
    fn no_cell_with_rows_is_skipped_without_bound() {
        let mut rng = fastrand::Rng::with_seed(1);
        for cells in 2..6 {
            let mut selector = CellSelector::new(cells, 1);
            let mut skips = vec![0; cells];
            for _ in 0..2000 {
                let rows: Vec<usize> = (0..cells).map(|_| rng.usize(1..100)).collect();
                let busy = rng.usize(..cells);
                let next = || selector.next(|cell| rows[cell], |cell| cell != busy);
                let cell = selector.overdue(WORKER, |_| true).or_else(next);
                let cell = cell.expect("all have rows");
                selector.taken(WORKER, cell, |_| true);
                let took = Duration::from_micros(rng.u64(1..10_000));
                selector.measured(cell, rows[cell], took);
                for (other, skips) in skips.iter_mut().enumerate() {
                    *skips = if other == cell { 0 } else { *skips + 1 };
                    // The cell, and all others that were skipped as often.
                    assert!(*skips < MAX_SKIPS + cells, "{skips}");
                }
            }
        }
    }
}
