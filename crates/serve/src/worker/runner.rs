//! One cell at one worker: its weights, and the rows that it is run on.

use std::sync::Arc;

use super::WorkerTask;
use super::rows::BatchRows;
use crate::RequestError;
use crate::cell_graph::{Cell, CellError, PreparedCell, WorkerEnv};
use cellstream::execute::team::catch_panic;

/// See the [module](self).
pub(super) struct CellRunner<R> {
    cell: Arc<dyn Cell>,
    /// `None` after a panic, until it has been prepared anew.
    prepared: Option<Box<dyn PreparedCell>>,
    pub rows: BatchRows<R>,
}

impl<R: Send> CellRunner<R> {
    /// Capacity for `env.rows` rows.
    pub fn new(cell: Arc<dyn Cell>, env: &WorkerEnv) -> Result<CellRunner<R>, CellError> {
        Ok(CellRunner {
            prepared: Some(cell.prepare(env)?),
            rows: BatchRows::new(&*cell, env),
            cell,
        })
    }

    /// Runs the cell on the batch of `tasks` that was placed; an error is that of all requests in it.
    pub fn run(&mut self, env: &WorkerEnv, tasks: &[WorkerTask<R>]) -> Result<(), RequestError> {
        let mut prepared = match self.prepared.take() {
            Some(prepared) => prepared,
            None => attempt(&*self.cell, || self.cell.prepare(env))?,
        };
        let cell = &*self.cell;
        let ran = (self.rows).with_batch(tasks, |batch| attempt(cell, || prepared.run(batch)));
        // After a panic the cell is prepared anew, and nothing of the batch is read.
        match ran {
            Err(RequestError::CellPanicked { .. }) => {
                // What is half done may panic once more.
                let _ = catch_panic(|| drop(prepared));
            }
            _ => self.prepared = Some(prepared),
        }
        ran
    }

    /// Why a batch of so many rows cannot be run, which no policy of ours forms.
    pub fn too_many(&self, rows: usize) -> RequestError {
        RequestError::TooManyRows {
            cell: self.cell.name().to_owned(),
            rows,
            max: self.rows.max_rows(),
        }
    }
}

/// What a cell does, which may panic.
fn attempt<T>(
    cell: &dyn Cell,
    work: impl FnOnce() -> Result<T, CellError>,
) -> Result<T, RequestError> {
    let name = || cell.name().to_owned();
    match catch_panic(work) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(why)) => Err(RequestError::Cell { cell: name(), why }),
        Err(panicked) => Err(RequestError::CellPanicked {
            cell: name(),
            message: panicked.message(),
        }),
    }
}
