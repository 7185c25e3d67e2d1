//! The values of a task that the host reads, and their readers.

use super::super::buffer_pool::BufferPool;
use super::super::{Outcome, Phase, PhaseCell, TaskRow, WorkerTask, grow};
use crate::cell_graph::Ports;
use cellstream::execute::{ResultOf, ResultRow};

/// Which values of a task are copied to the host, port by port, and where they are in the copy.
#[derive(Default)]
pub(super) struct Results {
    pub rows: Vec<ResultRow>,
    /// By row and then port: the first value, if it is copied.
    places: Vec<Option<usize>>,
    /// By port.
    widths: Vec<usize>,
}

impl Results {
    /// Lists the values of the rows of a task that have readers, or that a growing graph looks at.
    pub fn list<R>(&mut self, ports: &Ports, work: &[TaskRow<R>]) {
        let states = ports.states().len();
        self.widths.clear();
        self.widths.extend(ports.writes().map(|port| port.width()));
        let all = self.widths.len();
        self.places.clear();
        for work in work {
            let (node, values) = (work.row.node, work.values.lock());
            let is_read = |port| {
                // Outputs stay in no slot for readers that are added later.
                let is_kept = port < states || !values.is_watched(node);
                values.is_taken(node, port) || values.is_looked_at(node, port) || !is_kept
            };
            // Places follow, when all rows are known.
            let places = (0..all).map(|port| is_read(port).then_some(0));
            self.places.extend(places);
        }
        self.rows.clear();
        let mut next = 0;
        for (port, width) in self.widths.iter().enumerate() {
            for row in 0..work.len() {
                if let Some(place) = &mut self.places[row * all + port] {
                    *place = next;
                    next += width;
                    let of = match port < states {
                        true => ResultOf::State(port),
                        false => ResultOf::Output,
                    };
                    self.rows.push(ResultRow { row, of });
                }
            }
        }
    }

    fn value<'a>(&self, values: &'a [f32], row: usize, port: usize) -> Option<&'a [f32]> {
        let place = self.places[row * self.widths.len() + port]?;
        values.get(place..place + self.widths[port])
    }

    /// Passes the copied `values` to their readers. Returns the rows of which a growing graph has
    /// added readers of other values.
    pub fn scatter<R: Send>(
        &self,
        values: &[f32],
        task: &WorkerTask<R>,
        (pool, phase): (&mut BufferPool, &PhaseCell),
        outcome: &mut Outcome,
    ) -> Vec<usize> {
        let all = self.widths.len();
        let mut late = Vec::new();
        for (row, work) in task.work.iter().enumerate() {
            let node = work.row.node;
            let mut locked = work.values.lock();
            // Checked under the lock, as in the scatter of rows in the host's memory.
            if work.values.has_ended() {
                continue;
            }
            // First: added nodes may read the results of their node.
            if work.values.grows() && locked.is_watched(node) {
                let of = |port| self.value(values, row, port).unwrap_or_default();
                let outputs: Vec<&[f32]> = (0..all).map(of).collect();
                phase.set(Phase::Growth);
                grow(&outputs, work, &mut locked, outcome);
                phase.set(Phase::Cell);
            }
            let mut is_late = false;
            for port in (0..all)
                .filter(|port| locked.is_taken(node, *port))
                .collect::<Vec<_>>()
            {
                match self.value(values, row, port) {
                    Some(value) => locked.store(node, port, value, pool),
                    None => is_late = true,
                }
            }
            if is_late {
                late.push(row);
            }
        }
        late
    }

    /// Whether a value is copied.
    pub fn has(&self, row: usize, port: usize) -> bool {
        self.places[row * self.widths.len() + port].is_some()
    }
}
