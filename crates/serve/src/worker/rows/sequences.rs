//! Rows of output sequences: each has the length that its node says, so they are allocated for each
//! batch.

use super::{BatchRows, TaskRow};
use crate::cell_graph::Port;

impl<R: Send> BatchRows<R> {
    /// Allocates the rows of the placed batch, of one task.
    pub fn make_sequences(&mut self, work: &[TaskRow<R>]) {
        for (port, rows) in self.written.iter_mut().enumerate() {
            if !self.ports.writes().nth(port).is_some_and(Port::is_sequence) {
                continue;
            }
            for (work, &row) in work.iter().zip(&self.rows) {
                let width = work.values.lock().written_width(work.row.node, port);
                rows[row] = vec![0.0; width].into();
            }
        }
    }

    /// Frees what is left of them.
    pub fn free_sequences(&mut self) {
        for (port, rows) in self.ports.writes().zip(&mut self.written) {
            if port.is_sequence() {
                rows.fill_with(Box::default);
            }
        }
    }
}
