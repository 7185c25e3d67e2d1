//! The values of a task that the host reads, and their readers.

use super::super::buffer_pool::BufferPool;
use super::super::values::Values;
use super::super::{Outcome, Phase, PhaseCell, WorkerTask, grow};
use crate::cell_graph::{NodeId, Ports};
use gatestream::execute::{ResultOf, ResultRow};

/// Which values of a task are copied to the host, port by port, and where they are in the copy.
#[derive(Default)]
pub(super) struct Results {
    pub rows: Vec<ResultRow>,
    /// By row and then port: the first value, if it is copied.
    places: Vec<Option<usize>>,
    /// By port.
    widths: Vec<usize>,
    /// Number of ports that are states, the first ones.
    states: usize,
}

impl Results {
    /// Begins the list of a task of a cell with these ports.
    pub fn begin(&mut self, ports: &Ports) {
        self.states = ports.states().len();
        self.widths.clear();
        self.widths.extend(ports.writes().map(|port| port.width()));
        self.places.clear();
    }

    /// Adds the next row, with the values that have readers or that a growing graph reads.
    pub fn add<R>(&mut self, values: &Values<R>, node: NodeId) {
        let states = self.states;
        let is_copied = |port| {
            // Outputs stay in no slot for readers that are added later.
            let may_be_read_later = port >= states && values.is_watched(node);
            values.is_taken(node, port) || values.is_read_by_growth(node, port) || may_be_read_later
        };
        // Places follow, when all rows are known.
        let places = (0..self.widths.len()).map(|port| is_copied(port).then_some(0));
        self.places.extend(places);
    }

    /// Ends the list: finds the place of each value.
    pub fn end(&mut self) {
        let all = self.widths.len();
        let mut next = 0;
        self.rows.clear();
        for (port, width) in self.widths.iter().enumerate() {
            let of = if port < self.states {
                ResultOf::State(port)
            } else {
                ResultOf::Output
            };
            for (row, places) in self.places.chunks_mut(all).enumerate() {
                if let Some(place) = &mut places[port] {
                    *place = next;
                    next += width;
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
            for port in 0..all {
                if !locked.is_taken(node, port) {
                    continue;
                }
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
