//! States into and out of a run's buffers, the two directions' sum, and the zeros past the ends of
//! sequences: what a worker copies rather than computes.

use std::ops::Range;

use super::active::step_rows;
use super::buffers::{DirectionBuffers, padded};
use super::packed::PackedDirection;
use super::sequence::Run;
use crate::kernels::Shared;

/// Two directions' outputs that are to be added.
pub(super) struct Sum<'a> {
    /// `[rows of all steps, features]`.
    pub apart: [Shared<'a>; 2],
    pub features: usize,
    /// Rows of all steps, or the caller's sequences.
    pub target: Shared<'a>,
    pub to_caller: bool,
    /// Which of how many workers: rows are dealt out to them in turn.
    pub share: (usize, usize),
}

impl Run<'_> {
    /// Zeroes the output past each sequence's end, sequences dealt out to workers in turn.
    pub fn clear_past_ends(&self, member: usize) {
        let (Some(values), Some(layer)) = (self.values, self.configuration.layers.last()) else {
            return;
        };
        let group_size = self.configuration.group_size();
        for row in (member..self.active.batch()).step_by(group_size) {
            for step in self.active.length(row)..self.steps {
                let (first, stride) = step_rows(self.layout, step, self.steps, self.batch);
                let at = (first + self.active.order()[row] * stride) * layer.features;
                // SAFETY: no phase touches rows past their sequence's end, and no other worker has
                // this sequence.
                unsafe { values.write(at..at + layer.features) }.fill(0.0);
            }
        }
    }

    /// Where a direction's blocks start in the caller's hidden and cell states.
    fn state_blocks(&self, direction: &PackedDirection) -> (usize, usize) {
        let (hidden, cell) = direction.states_before;
        (self.batch * hidden, self.batch * cell)
    }

    /// Copies the member's columns of the initial states into both state buffers: a reverse
    /// direction's sequences start at different steps, so at either parity.
    ///
    /// # Safety
    /// Nobody else touches these columns.
    pub unsafe fn load_states(
        &self,
        member: usize,
        direction: &PackedDirection,
        states: &DirectionBuffers,
    ) {
        let part = &direction.parts[member];
        let h_units = part.state_units();
        let (h_block, c_block) = self.state_blocks(direction);
        for (row, &sequence) in self.active.order().iter().enumerate() {
            for h in &states.h {
                let from = self.h0.map(|h0| (h0, h_block + sequence * direction.state));
                // SAFETY: the member's columns.
                unsafe { copy_row(h.share(), row * padded(direction.state), from, h_units) };
            }
            if direction.recurrence.is_lstm() {
                let from = self
                    .c0
                    .map(|c0| (c0, c_block + sequence * direction.hidden));
                let to = row * padded(direction.hidden);
                // SAFETY: the member's columns.
                unsafe { copy_row(states.c.share(), to, from, &part.units) };
            }
        }
    }

    /// Copies the member's columns of the final states to the caller.
    ///
    /// # Safety
    /// Nobody else touches these columns.
    pub unsafe fn store_states(
        &self,
        member: usize,
        direction: &PackedDirection,
        states: &DirectionBuffers,
    ) {
        let part = &direction.parts[member];
        let h_units = part.state_units();
        let (h_block, c_block) = self.state_blocks(direction);
        for (row, &sequence) in self.active.order().iter().enumerate() {
            // The last step that wrote this row: a forward sequence ends at its own length, a
            // reverse one with the run.
            let taken = match direction.reverse {
                false => self.active.length(row),
                true => self.active.steps(),
            };
            if let Some(hn) = self.hn {
                let from = (states.h[taken % 2].share(), row * padded(direction.state));
                let to = h_block + sequence * direction.state;
                // SAFETY: the member's columns.
                unsafe { copy_row(hn, to, Some(from), h_units) };
            }
            if let Some(cn) = self.cn
                && direction.recurrence.is_lstm()
            {
                let from = (states.c.share(), row * padded(direction.hidden));
                let to = c_block + sequence * direction.hidden;
                // SAFETY: the member's columns.
                unsafe { copy_row(cn, to, Some(from), &part.units) };
            }
        }
    }

    /// Adds the two directions' outputs.
    ///
    /// # Safety
    /// Both outputs are complete, and nobody else touches this worker's rows of the target.
    pub unsafe fn sum_directions(&self, sum: Sum<'_>) {
        let features = sum.features;
        let [forward, reverse] = sum.apart;
        let (me, owners) = sum.share;
        for step in 0..self.active.steps() {
            let span = self.active.span(step..step + 1);
            let (first, stride) = step_rows(self.layout, step, self.steps, self.batch);
            let start = span.start;
            for row in span.skip(me).step_by(owners) {
                let to = match sum.to_caller {
                    true => first + self.active.order()[row - start] * stride,
                    false => row,
                };
                let from = row * features..(row + 1) * features;
                // SAFETY: the caller's promise; rows are this worker's own.
                let (sum, forward, reverse) = unsafe {
                    (
                        sum.target.write(to * features..(to + 1) * features),
                        forward.read(from.clone()),
                        reverse.read(from),
                    )
                };
                for ((sum, f), r) in sum.iter_mut().zip(forward).zip(reverse) {
                    *sum = f + r;
                }
            }
        }
    }
}

/// Copies the `units` of one row, or zeroes them.
///
/// # Safety
/// Nobody else touches these columns of either buffer.
unsafe fn copy_row(
    to: Shared<'_>,
    to_row: usize,
    from: Option<(Shared<'_>, usize)>,
    units: &Range<usize>,
) {
    if units.is_empty() {
        return;
    }
    // SAFETY: the caller's promise.
    let to = unsafe { to.write(to_row + units.start..to_row + units.end) };
    match from {
        None => to.fill(0.0),
        Some((from, row)) => {
            // SAFETY: the caller's promise.
            to.copy_from_slice(unsafe { from.read(row + units.start..row + units.end) });
        }
    }
}
