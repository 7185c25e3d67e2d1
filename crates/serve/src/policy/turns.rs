//! Which of several cells a worker works on next, where none has a full batch.
//!
//! ```text
//! next(worker, S):                                          S: cells with ready rows
//!   if a cell of S has been passed over in eight turns or more: of those the one in the most
//!   if no task is running of some of S: S = those                             (rule 2 of Algorithm 1)
//!   if of some of S no batch has been timed: of those the latest in graphs    (the paper's priority)
//!   the one with the most rows² / (time of a step · rows in all)
//! ```
//!
//! The paper takes the latest, so that requests end sooner; but its worker asks while its last task is in flight, and by the
//! second rule of Algorithm 1 turns to another cell then. Ours asks when its last task has been run: by priority alone a decoder
//! that is never at a loss for ready nodes would keep all encoders waiting until the last sentence under way has ended, and who
//! comes then could join none of them. If they took turns, an encoder whose step takes a third of a decoder's would get as many
//! steps as that, of as few rows as have come meanwhile, and both would be read as often. The balance is elsewhere. A request
//! needs `T` steps of a cell, whose batches take `a` and a little for each row; at `s` batches a second it is there for `T / s`:
//!
//! ```text
//! least Σ T / s  where  Σ s · a = what the rows themselves leave of a second     =>     s ∝ √(T / a)
//! ready rows     n = rate · T / s                                                =>     n² / (a · rate · T) is equal for all
//! ```
//!
//! (The square-root rule, as of broadcasts that answer all who wait for an item.) So the cell that is above the balance goes
//! next; `rate · T` are the rows that it had in the last while. Encoders and decoders of 1024 units, simulated with measured times
//! (`tuning/serving/simulate_translation.py`): p50, p90 and p99 are 12 to 13 % less than in turns, at half of what merging bears,
//! and half as long where sentences have eight times the words of their translations. A cell that has been passed over in eight
//! turns goes before all that have not, but for full batches, which the first rule of Algorithm 1 puts above all.

use std::time::Duration;

use crate::scheduler::WorkerId;

/// See the [module](self).
pub(super) struct Turns {
    cells: Vec<Timed>,
    /// Of each worker, by cell: in how many of its turns in a row another went while this had ready rows.
    passed_over: Vec<Vec<usize>>,
}

/// What is known of a cell's batches.
#[derive(Clone, Copy, Default)]
struct Timed {
    /// Seconds of a step, of late; `None` before the first.
    step: Option<f64>,
    /// Rows of all its steps of late.
    rows: f64,
}

/// Turns in a row in which a cell with ready rows is passed over at most, unless others' batches are full or have waited for
/// longer.
const PATIENCE: usize = 8;
/// The weight of a step in what steps take of late: noise of single ones is evened out, and a change of rows seen soon.
const WEIGHT: f64 = 0.25;
/// How many times what steps took of late one counts as at most: that the machine stood still is not the cell's fault.
const STALL: f64 = 4.0;
/// Rows of a cell beyond which those of all cells count half: what was long ago is forgotten.
const LATE: f64 = 4096.0;

impl Turns {
    pub fn new(cells: usize, workers: usize) -> Turns {
        Turns {
            cells: vec![Timed::default(); cells],
            passed_over: vec![vec![0; cells]; workers],
        }
    }

    /// A step of so many rows of a cell took so long.
    pub fn measured(&mut self, cell: usize, rows: usize, took: Duration) {
        let took = took.as_secs_f64().max(1e-9);
        let timed = &mut self.cells[cell];
        timed.step = Some(match timed.step {
            Some(step) => step + WEIGHT * (took.min(STALL * step) - step),
            None => took,
        });
        timed.rows += rows as f64;
        if timed.rows > LATE {
            for timed in &mut self.cells {
                timed.rows /= 2.0;
            }
        }
    }

    /// The cell whose turn it is at `worker`, of those with so many `rows` that it may take.
    pub fn next(
        &self,
        worker: WorkerId,
        rows: impl Fn(usize) -> usize,
        is_idle: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let passed_over = &self.passed_over[worker.0];
        // The latest in graphs first.
        let all = || (0..self.cells.len()).rev().filter(|&cell| rows(cell) > 0);
        let impatient = all().filter(|&cell| passed_over[cell] >= PATIENCE);
        // Of equals, the last is taken.
        let most = impatient.rev().max_by_key(|&cell| passed_over[cell]);
        most.or_else(|| self.worthiest(all().filter(|&cell| is_idle(cell)), &rows))
            .or_else(|| self.worthiest(all(), &rows))
    }

    /// The first that was never timed, or else the one whose rows are worth most.
    fn worthiest(
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
            let worth = (rows(cell) as f64).powi(2) / (step * in_all);
            if best.is_none_or(|(_, most)| worth > most) {
                best = Some((cell, worth));
            }
        }
        best.map(|(cell, _)| cell)
    }

    /// Is told which cell `worker` works on, and which others have rows that it may take.
    pub fn taken(&mut self, worker: WorkerId, cell: usize, has_rows: impl Fn(usize) -> bool) {
        for (other, turns) in self.passed_over[worker.0].iter_mut().enumerate() {
            *turns = match other != cell && has_rows(other) {
                true => *turns + 1,
                false => 0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(0);

    /// The cell that goes next, of two with so many rows, both idle.
    fn next(turns: &Turns, rows: [usize; 2]) -> Option<usize> {
        turns.next(WORKER, |cell| rows[cell], |_| true)
    }

    /// Two cells whose steps take a millisecond, with as many rows.
    fn even() -> Turns {
        let mut turns = Turns::new(2, 1);
        for cell in [0, 1, 0, 1] {
            turns.measured(cell, 10, Duration::from_millis(1));
        }
        turns
    }

    #[test]
    fn more_rows_go_first_and_of_as_many_those_that_take_less() {
        let mut turns = even();
        assert_eq!(next(&turns, [5, 4]), Some(0));
        assert_eq!(next(&turns, [4, 5]), Some(1));
        assert_eq!(next(&turns, [0, 0]), None);
        turns.measured(1, 10, Duration::from_millis(2));
        turns.measured(0, 10, Duration::from_millis(1));
        assert_eq!(next(&turns, [5, 5]), Some(0));
    }

    #[test]
    fn a_cell_that_was_never_timed_goes_first() {
        let mut turns = Turns::new(2, 1);
        assert_eq!(next(&turns, [50, 1]), Some(1), "the latest");
        turns.measured(1, 1, Duration::from_millis(1));
        assert_eq!(next(&turns, [1, 50]), Some(0));
    }

    #[test]
    fn a_machine_that_stood_still_once_changes_little() {
        let mut turns = even();
        turns.measured(1, 10, Duration::from_secs(1));
        turns.measured(0, 10, Duration::from_millis(1));
        // 1.75 times as long.
        assert_eq!(next(&turns, [4, 6]), Some(1));
        assert_eq!(next(&turns, [5, 6]), Some(0));
    }

    #[test]
    fn how_many_rows_there_were_long_ago_is_forgotten() {
        let mut turns = even();
        let mut both = |cells: &[usize], steps| {
            for cell in (0..steps).flat_map(|_| cells) {
                turns.measured(*cell, 64, Duration::from_millis(1));
            }
            next(&turns, [6, 5])
        };
        assert_eq!(both(&[0], 100_000), Some(1));
        assert_eq!(both(&[0, 1], 1000), Some(0));
    }

    #[test]
    fn who_has_been_passed_over_eight_times_goes_though_another_worker_is_at_it() {
        let mut turns = even();
        let rows = |cell: usize| [9, 1][cell];
        for turn in 0..20 {
            let cell = turns.next(WORKER, rows, |cell| cell == 0).unwrap();
            assert_eq!(cell, usize::from(turn % 9 == 8), "turn {turn}");
            turns.taken(WORKER, cell, |_| true);
        }
    }
}
