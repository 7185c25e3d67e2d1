//! One cell at one worker: its weights, and the rows that it is run on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::rows::Rows;
use crate::serve::cell_graph::{Cell, CellError, Place, PreparedCell};

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

    /// Runs the cell on the batch that was placed.
    pub fn run(&mut self, place: &Place) -> Result<(), Failure> {
        if self.prepared.is_none() {
            let again = catch_unwind(AssertUnwindSafe(|| self.cell.prepare(place)));
            match again {
                Ok(Ok(prepared)) => self.prepared = Some(prepared),
                Ok(Err(why)) => return Err(Failure::Cell(why)),
                Err(panic) => return Err(Failure::Panicked(message(&*panic))),
            }
        }
        let Some(prepared) = &mut self.prepared else {
            unreachable!("prepared above");
        };
        let mut batch = self.rows.batch();
        // After a panic the cell is prepared anew, and nothing of the batch is read.
        match catch_unwind(AssertUnwindSafe(|| prepared.run(&mut batch))) {
            Ok(outcome) => outcome.map_err(Failure::Cell),
            Err(panic) => {
                self.prepared = None;
                Err(Failure::Panicked(message(&*panic)))
            }
        }
    }
}

/// Why a batch was not computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Failure {
    /// The cell said so.
    Cell(CellError),
    /// The cell panicked, with this message.
    Panicked(String),
}

/// What a panic said.
pub(in crate::serve) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".into())
}
