//! Runs tasks: one worker's cells on its team, and the way of values from node to node.
//!
//! A worker has a [`Bench`] for each cell. No clock but for the times that it reports, no thread of its
//! own, no lock but those of the requests' values: [`super::engine`] calls it.

mod bench;
#[cfg(all(test, not(loom)))]
mod tests;
mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub(super) use bench::{Failure, Work, message};
pub(super) use values::{RequestValues, Values};

use super::cell_graph::{CellError, CellId, Cells, Gave, Growth, Place, Unfolded};
use super::engine::RequestError;
use super::scheduler::RequestKey;
use bench::Bench;

/// One worker; `R` is whom requests reply to.
pub(super) struct Worker<R> {
    cells: Cells,
    benches: Vec<Bench<R>>,
    places: Vec<Place>,
}

/// What came of a task.
#[derive(Default)]
pub(super) struct Outcome {
    /// Requests whose graphs have grown.
    pub grown: Vec<(RequestKey, Unfolded)>,
    /// Requests that cannot go on.
    pub failed: Vec<(RequestKey, RequestError)>,
    pub spent: Spent,
}

/// Where a task's time went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// Values into the batch.
    pub gather: Duration,
    /// The cell.
    pub run: Duration,
    /// Values out of the batch.
    pub hand_on: Duration,
}

impl<R> Worker<R> {
    /// Prepares every cell, each for its own number of rows.
    pub fn new(cells: &Cells, places: Vec<Place>) -> Result<Worker<R>, (CellId, CellError)> {
        let bench = |((id, cell), place): ((CellId, &std::sync::Arc<_>), &Place)| {
            Bench::new(std::sync::Arc::clone(cell), place).map_err(|why| (id, why))
        };
        let benches = cells.iter().zip(&places).map(bench);
        Ok(Worker {
            benches: benches.collect::<Result<_, _>>()?,
            cells: cells.clone(),
            places,
        })
    }

    /// Runs one task: those of its rows whose requests have not ended.
    pub fn run(&mut self, cell: CellId, work: &[Work<R>], padding: usize) -> Outcome {
        let mut outcome = Outcome::default();
        let begin = Instant::now();
        if self.benches[cell.index()].rows() < work.len() + padding {
            unreachable!("policies form no batch of more rows than were prepared for");
        }
        for row in self.benches[cell.index()].place(work, padding) {
            let node = row.node.index();
            outcome
                .failed
                .push((row.request, RequestError::Lost { node }));
        }
        let placed = Instant::now();
        let bench = &mut self.benches[cell.index()];
        let ran = bench.run(&self.places[cell.index()]);
        let done = Instant::now();
        match ran {
            Ok(()) => {
                let rows: Vec<_> = bench.placed().collect();
                for (row, index) in rows {
                    let work = &work[index];
                    let mut values = work.values.lock();
                    // Looked at under the lock: whoever replies has marked it as ended before, and takes
                    // the answer under the lock.
                    if work.values.has_ended() {
                        continue;
                    }
                    if values.is_watched(work.row.node) {
                        grow(&self.cells, bench, work, &mut values, row, &mut outcome);
                    }
                    bench.hand_on(work, &mut values, row);
                }
            }
            Err(failure) => {
                let name = self.cells.get(cell).map_or("", |c| c.name()).to_owned();
                let error = match failure {
                    Failure::Cell(why) => RequestError::Cell { cell: name, why },
                    Failure::Panicked(message) => RequestError::CellPanicked {
                        cell: name,
                        message,
                    },
                };
                let all = work.iter().map(|w| (w.row.request, error.clone()));
                outcome.failed.extend(all);
            }
        }
        outcome.spent = Spent {
            gather: placed - begin,
            run: done - placed,
            hand_on: done.elapsed(),
        };
        outcome
    }

    /// Puts the states of a request where other workers find them.
    pub fn evict(&mut self, request: RequestKey) {
        for bench in &mut self.benches {
            bench.evict_request(request);
        }
    }

    /// Lets go of requests that have ended, and whose states still rest in rows.
    pub fn forget_ended(&mut self) {
        for bench in &mut self.benches {
            bench.forget_ended();
        }
    }

    /// Rows of states moved, loaded or kept so far, by cell.
    #[cfg(all(test, not(loom)))]
    pub fn moved(&self, cell: CellId) -> u64 {
        self.benches[cell.index()].moved
    }
}

/// Lets a request's function see what its watched node gave.
fn grow<R>(
    cells: &Cells,
    bench: &Bench<R>,
    work: &Work<R>,
    values: &mut Values<R>,
    row: usize,
    outcome: &mut Outcome,
) {
    let (request, node) = (work.row.request, work.row.node);
    let Some(mut function) = values.take_grow() else {
        return;
    };
    let rows = bench.gave(row);
    // What a panic leaves half done is the request's, which ends.
    let grown = catch_unwind(AssertUnwindSafe(|| {
        values.grow_by(cells, |graph| {
            let mut more = Growth::new(graph);
            function.grow(node, Gave::new(&rows), &mut more);
            more.failure().cloned()
        })
    }));
    match grown {
        Ok(Ok((Some(why), _))) => {
            outcome
                .failed
                .push((request, RequestError::GrowFailed { why }));
        }
        Ok(Ok((None, unfolded))) => outcome.grown.extend(unfolded.map(|u| (request, u))),
        Ok(Err(why)) => outcome.failed.push((request, RequestError::Graph(why))),
        Err(panic) => {
            let message = message(&*panic);
            outcome
                .failed
                .push((request, RequestError::GrowPanicked { message }));
        }
    }
    values.put_grow(function);
}
