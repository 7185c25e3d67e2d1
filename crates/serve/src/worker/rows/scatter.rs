//! Scatters the results of a batch: to responses and to readers; states may stay in their rows.

use std::ops::DerefMut;

use super::super::buffer_pool::BufferPool;
use super::super::copies::{ParallelCopy, Shares};
use super::super::values::{InputRow, Values};
use super::{BatchRows, Placed, TaskRow, row_of};

impl<R: Send> BatchRows<R> {
    /// The results of a row at a step, by port; the states are those after its last step.
    pub fn outputs(&self, row: usize, step: usize) -> Vec<&[f32]> {
        if !self.written.is_empty() {
            return self.written.iter().map(|rows| &rows[row][..]).collect();
        }
        let ports = &self.ports;
        let states = self.states.iter().zip(ports.states());
        let outputs = self.outputs.iter().zip(ports.outputs());
        let at = self.at(row, step);
        let states = states.map(|(buffer, port)| row_of(buffer, port.width(), row));
        let outputs = outputs.map(|(buffer, port)| row_of(buffer, port.width(), at));
        states.chain(outputs).collect()
    }

    /// Whether a step is the last of a row in this batch.
    pub fn is_last(&self, row: usize, step: usize) -> bool {
        self.lengths[row] == step + 1
    }

    /// Scatters the results of a row at a step. `true` after its last step if a successor may
    /// follow: then its states [stay](BatchRows::set_resident) there.
    pub fn scatter(
        &mut self,
        work: &TaskRow<R>,
        values: &mut Values<R>,
        (row, step): (usize, usize),
        pool: &mut BufferPool,
    ) -> bool {
        let mut written = std::mem::take(&mut self.written);
        let resident = self.scatter_from(&mut written, row, (work, values), (row, step), pool);
        self.written = written;
        resident
    }

    /// The same, with gathered results in row `at` of `written`.
    fn scatter_from(
        &self,
        written: &mut [impl DerefMut<Target = [Box<[f32]>]>],
        at: usize,
        (work, values): (&TaskRow<R>, &mut Values<R>),
        (row, step): (usize, usize),
        pool: &mut BufferPool,
    ) -> bool {
        let node = work.row.node;
        let is_last = self.is_last(row, step);
        let resident = is_last && !self.states.is_empty() && values.stays_resident(node);
        let count = self.states.len();
        for (port, declared) in self.ports.writes().enumerate() {
            let is_state = port < count;
            if is_state && !is_last || !values.is_taken(node, port) {
                continue;
            }
            let width = declared.width();
            match written.get_mut(port) {
                Some(rows) if is_state && resident => values.store(node, port, &rows[at], pool),
                Some(rows) => values.store_owned(node, port, &mut rows[at], pool),
                None if is_state => {
                    values.store(node, port, row_of(&self.states[port], width, row), pool);
                }
                None => {
                    let output = row_of(&self.outputs[port - count], width, self.at(row, step));
                    values.store(node, port, output, pool);
                }
            }
        }
        if resident {
            values.set_slot(node, row);
        }
        resident
    }

    /// [Scatters](BatchRows::scatter) the rows of the only task of a batch, except those of ended
    /// requests.
    pub fn scatter_all(
        &mut self,
        work: &[TaskRow<R>],
        copy: ParallelCopy<'_>,
        pools: &mut [BufferPool],
    ) {
        let each = copy.share(self.places.len());
        debug_assert!(self.places.len() <= each * pools.len(), "a pool each");
        let mut scattered = std::mem::take(&mut self.scattered);
        scattered.resize(self.places.len(), None);
        let (mut all_input_rows, mut all_written) = (
            std::mem::take(&mut self.input_rows),
            std::mem::take(&mut self.written),
        );
        let ports = &self.ports;
        let mut input_rows = Shares::new(&mut all_input_rows, ports.inputs(), (each, |_| 1));
        let mut written = Shares::new(&mut all_written, ports.writes(), (each, |_| 1));
        let firsts = (0..).step_by(each);
        let shares = scattered.chunks_mut(each).zip(firsts).zip(pools);
        let shares = shares.map(|(share, pool)| (share, input_rows.cut(), written.cut(), pool));
        drop(
            copy.run(shares, |((scattered, first), input_rows, written, pool)| {
                for (at, scattered) in scattered.iter_mut().enumerate() {
                    let row = *first + at;
                    let Some(Placed { index, .. }) = self.places[row] else {
                        continue;
                    };
                    release(input_rows, at, pool);
                    let work = &work[index];
                    let mut values = work.values.lock();
                    // Checked under the lock, as in `super::super::scatter`.
                    if !work.values.has_ended() {
                        let of = (work, &mut *values);
                        *scattered = Some(self.scatter_from(written, at, of, (row, 0), pool));
                    }
                }
            }),
        );
        self.scattered = scattered;
        (self.input_rows, self.written) = (all_input_rows, all_written);
    }

    /// Releases the retained inputs of a row's step.
    pub fn release(&mut self, row: usize, step: usize, pool: &mut BufferPool) {
        let at = self.at(row, step);
        release(&mut self.input_rows, at, pool);
    }

    /// A row of a state or output, of a cell that gathers all ports.
    #[cfg(all(test, not(loom)))]
    pub fn written(&self, port: usize, row: usize) -> &[f32] {
        &self.written[port][row]
    }

    /// Whether no input rows are retained.
    #[cfg(all(test, not(loom)))]
    pub fn holds_no_inputs(&self) -> bool {
        self.input_rows.iter().flatten().all(Option::is_none)
    }

    /// Releases the retained inputs of all rows.
    pub fn release_all(&mut self, pool: &mut BufferPool) {
        let rows = self.input_rows.iter().map(Vec::len).max().unwrap_or(0);
        (0..rows).for_each(|at| release(&mut self.input_rows, at, pool));
    }

    /// Whether the states of a row stay there; `None` unless [scattered](BatchRows::scatter_all).
    pub fn scattered(&self, row: usize) -> Option<bool> {
        self.scattered.get(row).copied().flatten()
    }

    /// Keeps the computed states of a row in place.
    pub fn set_resident(&mut self, work: TaskRow<R>, row: usize) {
        self.slots[row] = Some(work);
    }
}

fn release(
    input_rows: &mut [impl DerefMut<Target = [Option<InputRow>]>],
    at: usize,
    pool: &mut BufferPool,
) {
    for of_port in input_rows {
        if let Some(InputRow::Retained(kept)) = of_port.get_mut(at).and_then(Option::take) {
            pool.put(kept);
        }
    }
}
