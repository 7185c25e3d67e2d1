//! States into and out of a run's buffers, the two directions' sum, and the zeros past the ends of
//! sequences: what a worker copies rather than computes.

use std::ops::Range;

use super::active::step_rows;
use super::buffers::{DirectionBuffers, padded};
use super::packed::PackedDirection;
use super::sequence::Run;
use crate::kernels::{Columns, Shared};

/// Where the caller keeps the states of a run.
///
/// Where those before it and those after it are the same memory, cell states of whole groups of units are computed there:
/// only who owns a column ever touches it. Others are copied, as gates store whole vectors, beyond the last unit of a row.
/// So are hidden states, as all workers read those before a step while their owners write those after it; each worker reads
/// its columns of the caller's before it writes them.
#[derive(Clone, Copy)]
pub(super) enum StatePlaces<'a> {
    /// Blocks of `[batch, size]` per layer and direction, as in [`crate::model::Input`]: hidden states,
    /// and cell states.
    Blocks {
        initial: (Option<Shared<'a>>, Option<Shared<'a>>),
        last: (Option<Shared<'a>>, Option<Shared<'a>>),
    },
    /// Blocks that go from before the run to after it.
    Same(Shared<'a>, Shared<'a>),
    /// A buffer for each state, in the order of [`super::Session::step_layers`].
    Layers(&'a [Shared<'a>]),
}

/// A buffer, and where a direction's block begins in it.
type StateBlock<'a> = Option<(Shared<'a>, usize)>;

impl<'a> StatePlaces<'a> {
    /// Hidden and cell states of a direction before the run; zero where there are none.
    fn initial(
        &self,
        direction: &PackedDirection,
        batch: usize,
    ) -> (StateBlock<'a>, StateBlock<'a>) {
        match *self {
            StatePlaces::Blocks { initial, .. } => blocks(initial, direction, batch),
            StatePlaces::Same(..) | StatePlaces::Layers(_) => self.last(direction, batch),
        }
    }

    /// Where hidden and cell states of a direction go after the run, if anywhere.
    fn last(&self, direction: &PackedDirection, batch: usize) -> (StateBlock<'a>, StateBlock<'a>) {
        match *self {
            StatePlaces::Blocks { last, .. } => blocks(last, direction, batch),
            StatePlaces::Same(h, c) => blocks((Some(h), Some(c)), direction, batch),
            StatePlaces::Layers(states) => own_buffers(states, direction),
        }
    }

    /// Cell states of a direction, where they are computed in the caller's memory, `[batch, hidden]`.
    fn cell_in_place(&self, direction: &PackedDirection, batch: usize) -> StateBlock<'a> {
        if direction.hidden != padded(direction.hidden) {
            return None;
        }
        match self {
            StatePlaces::Blocks { .. } => None,
            StatePlaces::Same(..) | StatePlaces::Layers(_) => self.last(direction, batch).1,
        }
    }
}

fn blocks<'a>(
    (h, c): (Option<Shared<'a>>, Option<Shared<'a>>),
    direction: &PackedDirection,
    batch: usize,
) -> (StateBlock<'a>, StateBlock<'a>) {
    let (hidden, cell) = direction.states_before;
    (h.map(|h| (h, batch * hidden)), c.map(|c| (c, batch * cell)))
}

fn own_buffers<'a>(
    states: &[Shared<'a>],
    direction: &PackedDirection,
) -> (StateBlock<'a>, StateBlock<'a>) {
    let buffer = |at: usize| states.get(at).map(|&buffer| (buffer, 0));
    let h = direction.first_state;
    let c = direction.step.has_cell_state.then_some(h + 1);
    (buffer(h), c.and_then(buffer))
}

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

impl<'a> Run<'a> {
    /// The cell states of a direction, from its first unit on.
    pub fn cell_states(
        &self,
        direction: &PackedDirection,
        states: &'a DirectionBuffers,
    ) -> Columns<'a> {
        match self.states.cell_in_place(direction, self.batch) {
            Some((memory, first)) => Columns {
                memory,
                first,
                stride: direction.hidden,
                order: Some(self.active.order()),
            },
            None => Columns {
                memory: states.c.share(),
                first: 0,
                stride: padded(direction.hidden),
                order: None,
            },
        }
    }

    /// Whether a direction has cell states that are not computed in the caller's memory.
    fn copies_cell(&self, direction: &PackedDirection) -> bool {
        let in_place = self.states.cell_in_place(direction, self.batch);
        direction.step.has_cell_state && in_place.is_none()
    }

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

    /// Copies the member's columns of the initial states into the state buffers: a reverse direction's
    /// sequences start at different steps, so at either parity.
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
        let (h0, c0) = self.states.initial(direction, self.batch);
        let copies_cell = self.copies_cell(direction);
        let parities = if direction.reverse { 2 } else { 1 };
        for (row, &sequence) in self.active.order().iter().enumerate() {
            for h in &states.h[..parities] {
                let from = h0.map(|(h0, block)| (h0, block + sequence * direction.state));
                // SAFETY: the member's columns.
                unsafe { copy_row(h.share(), row * padded(direction.state), from, h_units) };
            }
            if copies_cell {
                let from = c0.map(|(c0, block)| (c0, block + sequence * direction.hidden));
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
        let (hn, cn) = self.states.last(direction, self.batch);
        let cn = cn.filter(|_| self.copies_cell(direction));
        for (row, &sequence) in self.active.order().iter().enumerate() {
            // The last step that wrote this row: a forward sequence ends at its own length, a
            // reverse one with the run.
            let taken = match direction.reverse {
                false => self.active.length(row),
                true => self.active.steps(),
            };
            if let Some((hn, block)) = hn {
                let from = (states.h[taken % 2].share(), row * padded(direction.state));
                let to = block + sequence * direction.state;
                // SAFETY: the member's columns.
                unsafe { copy_row(hn, to, Some(from), h_units) };
            }
            if let Some((cn, block)) = cn {
                let from = (states.c.share(), row * padded(direction.hidden));
                let to = block + sequence * direction.hidden;
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
