//! Which of several cells a worker works on next, where none has a full batch.
//!
//! ```text
//! next(worker, S):                                          S: cells with ready rows
//!   if a cell of S has been passed over eight times in a row: that
//!   if the time of each is known: the one with the most rows² / (time of a step · rows in all)
//!   else: the one that comes latest in graphs, of those that have not had a turn since all others had one
//! ```
//!
//! The paper takes the latest, so that requests end sooner; but its worker asks while its last task is in flight, and by the
//! second rule of Algorithm 1 turns to another cell then. In turns, an encoder whose step takes a third of a decoder's gets as
//! many steps as that, of as few rows as have come meanwhile, and both are read as often. The balance is elsewhere. A request
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
//! and half as long where sentences have eight times the words of their translations. Nobody is kept waiting by it for more than
//! eight batches of other cells.

use std::time::Duration;

use crate::serve::scheduler::WorkerId;

/// See the [module](self).
pub(super) struct Turns {
    cells: Vec<Timed>,
    /// Of each worker, by cell.
    workers: Vec<Vec<Turn>>,
}

/// What is known of a cell's batches.
#[derive(Clone, Copy, Default)]
struct Timed {
    /// Seconds of a step, of late; `None` before the first.
    step: Option<f64>,
    /// Rows of all its steps of late.
    rows: f64,
}

/// How a cell stands with a worker.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// It has had a turn since all others that could had theirs.
    had: bool,
    /// How often in a row another one went while this had ready rows.
    passed_over: usize,
}

/// Most turns in a row in which a cell with ready rows is passed over: it gets the next.
pub(super) const PATIENCE: usize = 8;
/// The weight of a step in what steps take of late: noise of single ones is evened out, and a change of rows seen soon.
const WEIGHT: f64 = 0.25;
/// Rows of a cell beyond which those of all cells count half: what was long ago is forgotten.
const LATE: f64 = 4096.0;

impl Turns {
    pub fn new(cells: usize, workers: usize) -> Turns {
        Turns {
            cells: vec![Timed::default(); cells],
            workers: vec![vec![Turn::default(); cells]; workers],
        }
    }

    /// A step of so many rows of a cell took so long.
    pub fn measured(&mut self, cell: usize, rows: usize, took: Duration) {
        let took = took.as_secs_f64().max(1e-9);
        let timed = &mut self.cells[cell];
        timed.step = Some(
            timed
                .step
                .map_or(took, |step| step + WEIGHT * (took - step)),
        );
        timed.rows += rows as f64;
        if timed.rows > LATE {
            for timed in &mut self.cells {
                timed.rows /= 2.0;
            }
        }
    }

    /// The cell whose turn it is at `worker`, of those with so many `rows` that it may take: of those that no task is running of,
    /// if there are any.
    pub fn next(
        &mut self,
        worker: WorkerId,
        rows: impl Fn(usize) -> usize,
        is_idle: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let turns = &mut self.workers[worker.0];
        // The latest in graphs first.
        let all = (0..self.cells.len()).rev().filter(|&cell| rows(cell) > 0);
        let idle = all.clone().filter(|&cell| is_idle(cell));
        let worthiest = match idle.clone().next() {
            Some(_) => worthiest(&self.cells, turns, idle.clone(), &rows),
            None => worthiest(&self.cells, turns, all.clone(), &rows),
        };
        let mut others = idle.filter(|&cell| !turns[cell].had);
        let cell = worthiest.or_else(|| others.next());
        cell.or_else(|| {
            let latest = all.clone().next();
            turns.iter_mut().for_each(|turn| turn.had = false);
            latest
        })
    }

    /// Is told which cell `worker` works on, and which others have rows that it may take.
    pub fn taken(&mut self, worker: WorkerId, cell: usize, has_rows: impl Fn(usize) -> bool) {
        for (other, turn) in self.workers[worker.0].iter_mut().enumerate() {
            turn.passed_over = match other != cell && has_rows(other) {
                true => turn.passed_over + 1,
                false => 0,
            };
        }
        self.workers[worker.0][cell].had = true;
    }
}

/// The first of those that are worth most, or have waited for too long; `None` where the time of one is not known.
fn worthiest(
    cells: &[Timed],
    turns: &[Turn],
    of: impl Iterator<Item = usize>,
    rows: impl Fn(usize) -> usize,
) -> Option<usize> {
    let mut best: Option<(usize, (usize, f64))> = None;
    for cell in of {
        let Timed { step, rows: in_all } = cells[cell];
        let rows = rows(cell) as f64;
        let late = turns[cell].passed_over / PATIENCE;
        let worth = (late, rows * rows / (step? * in_all));
        if best.is_none_or(|(_, most)| worth > most) {
            best = Some((cell, worth));
        }
    }
    best.map(|(cell, _)| cell)
}
