//! One cell at one worker: its weights, and the rows that it is run on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::rows::Rows;
use crate::serve::cell_graph::{Cell, CellError, Place, PreparedCell};
use crate::serve::engine::RequestError;

/// See the [module](self).
pub(super) struct Bench<R> {
    cell: Arc<dyn Cell>,
    /// `None` after a panic, until it has been prepared anew.
    prepared: Option<Box<dyn PreparedCell>>,
    pub rows: Rows<R>,
}

impl<R: Send> Bench<R> {
    /// Room for `place.rows` rows.
    pub fn new(cell: Arc<dyn Cell>, place: &Place) -> Result<Bench<R>, CellError> {
        Ok(Bench {
            prepared: Some(cell.prepare(place)?),
            rows: Rows::new(cell.ports(), place),
            cell,
        })
    }

    /// Runs the cell on the batch that was placed; an error is that of all requests in it.
    pub fn run(&mut self, place: &Place) -> Result<(), RequestError> {
        let mut prepared = match self.prepared.take() {
            Some(prepared) => prepared,
            None => attempt(&*self.cell, || self.cell.prepare(place))?,
        };
        let mut batch = self.rows.batch();
        let ran = attempt(&*self.cell, || prepared.run(&mut batch));
        // After a panic the cell is prepared anew, and nothing of the batch is read.
        match ran {
            Err(RequestError::CellPanicked { .. }) => {
                // What is half done may panic once more.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(prepared)));
            }
            _ => self.prepared = Some(prepared),
        }
        ran
    }

    /// Why a batch of so many rows cannot be run, which no policy of ours forms.
    pub fn too_many(&self, rows: usize) -> RequestError {
        let most = self.rows.most_rows();
        let why = format!("the policy formed a batch of {rows} rows, where {most} are the most");
        RequestError::Cell {
            cell: self.cell.name().to_owned(),
            why: CellError::new(why),
        }
    }
}

/// What a cell does, which may panic.
fn attempt<T>(
    cell: &dyn Cell,
    work: impl FnOnce() -> Result<T, CellError>,
) -> Result<T, RequestError> {
    let name = || cell.name().to_owned();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(why)) => Err(RequestError::Cell { cell: name(), why }),
        Err(panic) => Err(RequestError::CellPanicked {
            cell: name(),
            message: message(&*panic),
        }),
    }
}

/// What a panic said.
pub(super) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".into())
}
