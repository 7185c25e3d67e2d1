//! One cell at one worker: its weights and its rows, in the host's memory or on a device.

use std::sync::Arc;

use super::WorkerTask;
use super::resident::ResidentRunner;
use super::rows::BatchRows;
use crate::RequestError;
use crate::cell_graph::{Cell, CellError, PreparedCell, WorkerEnv};
use gatestream::execute::team::{SharedTeam, catch_panic, without_pin};

/// A cell at a worker.
pub(crate) enum Runner<R> {
    /// Values and states are in the host's memory.
    Host(Box<CellRunner<R>>),
    /// States stay on a device.
    Resident(Box<ResidentRunner<R>>),
}

impl<R: Send> Runner<R> {
    /// Capacity for `env.rows` rows, on the cell's device if it keeps states.
    pub fn new(cell: Arc<dyn Cell>, env: WorkerEnv) -> Result<Runner<R>, CellError> {
        let resident = without_pin(|| ResidentRunner::new(&cell, &env))?;
        Ok(match resident {
            Some(resident) => Runner::Resident(Box::new(resident)),
            None => Runner::Host(Box::new(CellRunner::new(cell, env)?)),
        })
    }

    /// The runner in the host's memory, if it is one.
    pub fn on_host(&self) -> Option<&CellRunner<R>> {
        match self {
            Runner::Host(runner) => Some(runner),
            Runner::Resident(_) => None,
        }
    }
}

/// A cell that runs in the host's memory.
pub(crate) struct CellRunner<R> {
    cell: Arc<dyn Cell>,
    env: WorkerEnv,
    /// `None` after a panic, until the cell is prepared again.
    prepared: Option<Box<dyn PreparedCell>>,
    pub(super) rows: BatchRows<R>,
}

impl<R: Send> CellRunner<R> {
    /// Capacity for `env.rows` rows.
    pub fn new(cell: Arc<dyn Cell>, env: WorkerEnv) -> Result<CellRunner<R>, CellError> {
        Ok(CellRunner {
            prepared: Some(prepare(&*cell, &env)?),
            rows: BatchRows::new(&*cell, &env),
            cell,
            env,
        })
    }

    /// The team of the worker.
    pub(super) fn team(&self) -> SharedTeam {
        self.env.team.clone()
    }

    /// Runs the cell on the placed batch of `tasks`; an error ends all requests in it.
    pub(super) fn run(&mut self, tasks: &[WorkerTask<R>]) -> Result<(), RequestError> {
        let mut prepared = match self.prepared.take() {
            Some(prepared) => prepared,
            None => attempt(&*self.cell, || prepare(&*self.cell, &self.env))?,
        };
        let cell = &*self.cell;
        let ran = (self.rows).with_batch(tasks, |batch| attempt(cell, || prepared.run(batch)));
        // After a panic the cell is prepared again, and nothing of the batch is read.
        match ran {
            Err(RequestError::CellPanicked { .. }) => {
                // The drop may panic, too.
                let _ = catch_panic(|| drop(prepared));
            }
            _ => self.prepared = Some(prepared),
        }
        ran
    }

    /// The error of a batch with too many rows, which no policy of this crate forms.
    pub(super) fn too_many(&self, rows: usize) -> RequestError {
        RequestError::TooManyRows {
            cell: self.cell.name().to_owned(),
            rows,
            max: self.rows.max_rows(),
        }
    }
}

/// Prepares a cell without the pin of its worker, so that threads that it starts may run anywhere.
pub(crate) fn prepare(
    cell: &dyn Cell,
    env: &WorkerEnv,
) -> Result<Box<dyn PreparedCell>, CellError> {
    without_pin(|| cell.prepare(env))
}

/// Calls a function of a cell, which may panic.
pub(super) fn attempt<T>(
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
