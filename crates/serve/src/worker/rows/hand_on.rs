//! What a batch gave, handed on: to the answer, to nodes that take it, and to rest in its row.

use std::ops::DerefMut;

use super::super::copies::{Copiers, Shares};
use super::super::spare::Spare;
use super::super::values::{Lent, Values};
use super::{Placed, Rows, Work, row_of};

impl<R: Send> Rows<R> {
    /// What the node in a row gave at a step, by port; states are those after the row's last.
    pub fn gave(&self, row: usize, step: usize) -> Vec<&[f32]> {
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

    /// Hands on what the node in a row gave at a step. `true` after its last, if something may follow: then its states
    /// [rest](Rows::rest) there.
    pub fn hand_on(
        &mut self,
        work: &Work<R>,
        values: &mut Values<R>,
        (row, step): (usize, usize),
        spare: &mut Spare,
    ) -> bool {
        let mut written = std::mem::take(&mut self.written);
        let rests = self.hand_on_from(&mut written, row, (work, values), (row, step), spare);
        self.written = written;
        rests
    }

    /// The same, where what lies apart is in row `at` of `written`.
    fn hand_on_from(
        &self,
        written: &mut [impl DerefMut<Target = [Box<[f32]>]>],
        at: usize,
        (work, values): (&Work<R>, &mut Values<R>),
        (row, step): (usize, usize),
        spare: &mut Spare,
    ) -> bool {
        let node = work.row.node;
        let is_last = self.is_last(row, step);
        let rests = is_last && !self.states.is_empty() && values.rests(node);
        let count = self.states.len();
        for (port, declared) in self.ports.gives().enumerate() {
            let is_state = port < count;
            if is_state && !is_last || !values.is_taken(node, port) {
                continue;
            }
            let width = declared.width();
            match written.get_mut(port) {
                Some(rows) if is_state && rests => values.give(node, port, &rows[at], spare),
                Some(rows) => values.give_away(node, port, &mut rows[at], spare),
                None if is_state => {
                    values.give(node, port, row_of(&self.states[port], width, row), spare);
                }
                None => {
                    let output = row_of(&self.outputs[port - count], width, self.at(row, step));
                    values.give(node, port, output, spare);
                }
            }
        }
        if rests {
            values.set_seat(node, row);
        }
        rests
    }

    /// [Hands on](Rows::hand_on) the rows of the batch's only task, but for those whose requests have ended.
    pub fn hand_on_all(&mut self, work: &[Work<R>], copiers: Copiers<'_>, spares: &mut [Spare]) {
        let each = copiers.share(self.places.len());
        debug_assert!(self.places.len() <= each * spares.len(), "a spare each");
        let mut handed = std::mem::take(&mut self.handed);
        handed.resize(self.places.len(), None);
        let (mut all_lent, mut all_written) = (
            std::mem::take(&mut self.lent),
            std::mem::take(&mut self.written),
        );
        let ports = &self.ports;
        let mut lent = Shares::new(&mut all_lent, ports.inputs(), (each, |_| 1));
        let mut written = Shares::new(&mut all_written, ports.gives(), (each, |_| 1));
        let firsts = (0..).step_by(each);
        let shares = handed.chunks_mut(each).zip(firsts).zip(spares);
        let shares = shares.map(|(share, spare)| (share, lent.cut(), written.cut(), spare));
        drop(
            copiers.run(shares, |((handed, first), lent, written, spare)| {
                for (at, handed) in handed.iter_mut().enumerate() {
                    let row = *first + at;
                    let Some(Placed { index, .. }) = self.places[row] else {
                        continue;
                    };
                    put_back(lent, at, spare);
                    let work = &work[index];
                    let mut values = work.values.lock();
                    // Looked at under the lock, as ever.
                    if !work.values.has_ended() {
                        let of = (work, &mut *values);
                        *handed = Some(self.hand_on_from(written, at, of, (row, 0), spare));
                    }
                }
            }),
        );
        self.handed = handed;
        (self.lent, self.written) = (all_lent, all_written);
    }

    /// What was lent for a row's step is not read any more.
    pub fn put_back(&mut self, row: usize, step: usize, spare: &mut Spare) {
        let at = self.at(row, step);
        put_back(&mut self.lent, at, spare);
    }

    /// What a row of a state or output of a cell that writes them apart is.
    #[cfg(all(test, not(loom)))]
    pub fn written(&self, port: usize, row: usize) -> &[f32] {
        &self.written[port][row]
    }

    /// Whether nothing is lent.
    #[cfg(all(test, not(loom)))]
    pub fn lends_nothing(&self) -> bool {
        self.lent.iter().flatten().all(Option::is_none)
    }

    /// Nothing of the batch is read any more.
    pub fn put_all_back(&mut self, spare: &mut Spare) {
        let most = self.lent.iter().map(Vec::len).max().unwrap_or(0);
        (0..most).for_each(|at| put_back(&mut self.lent, at, spare));
    }

    /// Whether the states in a row rest there, if [it was handed on](Rows::hand_on_all).
    pub fn handed(&self, row: usize) -> Option<bool> {
        self.handed.get(row).copied().flatten()
    }

    /// The states that were just computed in a row stay there.
    pub fn rest(&mut self, work: Work<R>, row: usize) {
        self.seats[row] = Some(work);
    }
}

fn put_back(lent: &mut [impl DerefMut<Target = [Option<Lent>]>], at: usize, spare: &mut Spare) {
    for of_port in lent {
        if let Some(Lent::Kept(kept)) = of_port.get_mut(at).and_then(Option::take) {
            spare.put(kept);
        }
    }
}
