//! A run, as its workers see it, and what they copy rather than compute: states into and out of a
//! run's buffers, the two directions' sum, and the zeros past the ends of sequences.

use std::ops::Range;

use super::active::{Active, step_rows};
use super::buffers::{Buffers, DirectionBuffers, padded};
use super::packed::{PackedConfiguration, PackedDirection};
use super::team::{Share, Track};
use crate::model::Layout;
use gatestream_kernels::{Columns, Kernels, RowsRef, Shared, SharedRows};

/// A run, as all workers of a group see it. Slices have been checked against the model's signature.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub kernels: &'a dyn Kernels,
    pub configuration: &'a PackedConfiguration,
    pub buffers: &'a Buffers,
    pub active: &'a Active,
    pub layout: Layout,
    pub steps: usize,
    pub batch: usize,
    /// The runs before had an odd number of steps: the first step goes through the panels the other
    /// way, starting with what the last one left in the caches.
    pub is_odd: bool,
    /// Rows of all steps, in the layout.
    pub input: RowsRef<'a>,
    /// In the order of [`super::Session::step_rows`].
    pub states: &'a [CallerState<'a>],
    /// The output: rows of all steps, in the layout.
    pub values: Option<SharedRows<'a>>,
}

/// The workers of the group that does a run, of which this thread stands for some.
#[derive(Clone, Copy)]
pub(super) struct Members<'s> {
    pub share: &'s Share<'s>,
    /// The team's index of the group's first.
    pub first: usize,
    /// How many the group has.
    pub size: usize,
}

impl<'s> Members<'s> {
    /// Those of this thread, by their index in the group.
    #[inline]
    pub fn own(self) -> impl Iterator<Item = usize> + 's {
        let group = self.first..self.first + self.size;
        let own = self
            .share
            .iter()
            .filter(move |worker| group.contains(worker));
        own.map(move |worker| worker - self.first)
    }

    #[inline]
    pub fn advance(&self, member: usize, track: Track) {
        self.share.advance(self.first + member, track);
    }

    #[inline]
    pub fn wait_for(&self, member: usize, track: Track, count: u32) {
        self.share.wait_for(self.first + member, track, count);
    }
}

/// Where the caller keeps a state, a row a sequence.
#[derive(Clone, Copy)]
pub(super) struct CallerState<'a> {
    /// Before the run; zero where there is none.
    pub before: Option<SharedRows<'a>>,
    /// After it.
    pub after: Option<SharedRows<'a>>,
    /// The rows are the same before and after it. Then a cell state of whole groups of units is
    /// computed there: only the owner of a column accesses it. Others are copied, as gates store
    /// whole vectors, beyond the last unit of a row. So are hidden states, as all workers read
    /// those before a step while their owners write those after it; each worker reads its columns
    /// of the caller's before it writes them.
    pub is_in_place: bool,
}

impl<'a> CallerState<'a> {
    /// The state whose block of `[batch, size]` starts at element `first` of the blocks before the
    /// run and after it.
    pub fn of_blocks(
        blocks: [Option<Shared<'a>>; 2],
        first: usize,
        size: usize,
    ) -> CallerState<'a> {
        let rows = |memory: Shared<'a>| SharedRows::contiguous(memory.skip(first), size);
        let [before, after] = blocks.map(|memory| memory.map(rows));
        CallerState {
            before,
            after,
            is_in_place: false,
        }
    }

    /// A state that goes from before the run to after it.
    pub fn in_place(rows: SharedRows<'a>) -> CallerState<'a> {
        CallerState {
            before: Some(rows),
            after: Some(rows),
            is_in_place: true,
        }
    }
}

/// Two directions' outputs that are to be added.
pub(super) struct Sum<'a> {
    pub features: usize,
    /// Rows of all steps.
    pub directions: [SharedRows<'a>; 2],
    /// Rows of all steps, or the caller's sequences.
    pub target: SharedRows<'a>,
    pub to_caller: bool,
    /// Which of how many workers: rows are dealt out to them in turn.
    pub share: (usize, usize),
}

impl<'a> Run<'a> {
    /// Where the caller keeps the hidden state of a direction.
    fn hidden_state(&self, direction: &PackedDirection) -> CallerState<'a> {
        self.states[direction.first_state]
    }

    /// Where the caller keeps the cell state of a direction that has one.
    fn cell_state(&self, direction: &PackedDirection) -> Option<CallerState<'a>> {
        let is_lstm = direction.step.has_cell_state;
        is_lstm.then(|| self.states[direction.first_state + 1])
    }

    /// The cell state of a direction, if it is computed in the caller's memory.
    fn cell_in_place(&self, direction: &PackedDirection) -> Option<SharedRows<'a>> {
        let is_whole = direction.hidden == padded(direction.hidden);
        let state = self.cell_state(direction)?;
        state.after.filter(|_| state.is_in_place && is_whole)
    }

    /// The cell states of a direction, from its first unit on.
    pub fn cell_states(
        &self,
        direction: &PackedDirection,
        states: &'a DirectionBuffers,
    ) -> Columns<'a> {
        match self.cell_in_place(direction) {
            Some(rows) => Columns {
                order: Some(self.active.order()),
                ..Columns::new(rows, 0)
            },
            None => Columns::new(states.cell(direction), 0),
        }
    }

    /// Where the caller keeps the cell state of a direction that is not computed there.
    fn copied_cell(&self, direction: &PackedDirection) -> Option<CallerState<'a>> {
        let is_copied = self.cell_in_place(direction).is_none();
        self.cell_state(direction).filter(|_| is_copied)
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
                let row = first + self.active.order()[row] * stride;
                // SAFETY: no phase touches rows past their sequence's end, and no other worker has
                // this sequence.
                unsafe { values.write(row, 0..layer.features) }.fill(0.0);
            }
        }
    }

    /// Copies the member's columns of the initial states into the state buffers: a reverse
    /// direction's sequences start at different steps, so at either parity.
    ///
    /// # Safety
    /// No other thread accesses these columns.
    pub unsafe fn load_states(
        &self,
        member: usize,
        direction: &PackedDirection,
        states: &DirectionBuffers,
    ) {
        let part = &direction.parts[member];
        let h = self.hidden_state(direction).before;
        let c = self.copied_cell(direction);
        let parities = if direction.reverse { 0..2 } else { 0..1 };
        for (row, &sequence) in self.active.order().iter().enumerate() {
            for parity in parities.clone() {
                let to = (states.hidden(direction, parity), row);
                // SAFETY: the member's columns.
                unsafe { copy_row(to, h.map(|h| (h, sequence)), part.state_units()) };
            }
            if let Some(c) = c {
                let from = c.before.map(|c| (c, sequence));
                // SAFETY: the member's columns.
                unsafe { copy_row((states.cell(direction), row), from, &part.units) };
            }
        }
    }

    /// Copies the member's columns of the final states to the caller.
    ///
    /// # Safety
    /// No other thread accesses these columns.
    pub unsafe fn store_states(
        &self,
        member: usize,
        direction: &PackedDirection,
        states: &DirectionBuffers,
    ) {
        let part = &direction.parts[member];
        let h = self.hidden_state(direction).after;
        let c = self.copied_cell(direction).and_then(|c| c.after);
        for (row, &sequence) in self.active.order().iter().enumerate() {
            // The last step that wrote this row: a forward sequence ends at its own length, a
            // reverse one with the run.
            let taken = if direction.reverse {
                self.active.steps()
            } else {
                self.active.length(row)
            };
            if let Some(h) = h {
                let from = (states.hidden(direction, taken), row);
                // SAFETY: the member's columns.
                unsafe { copy_row((h, sequence), Some(from), part.state_units()) };
            }
            if let Some(c) = c {
                let from = (states.cell(direction), row);
                // SAFETY: the member's columns.
                unsafe { copy_row((c, sequence), Some(from), &part.units) };
            }
        }
    }

    /// Adds the two directions' outputs.
    ///
    /// # Safety
    /// Both outputs are complete, and no other thread accesses this worker's rows of the target.
    pub unsafe fn sum_directions(&self, sum: Sum<'_>) {
        let [forward, reverse] = sum.directions;
        let features = 0..sum.features;
        let (me, owners) = sum.share;
        for step in 0..self.active.steps() {
            let span = self.active.span(step..step + 1);
            let (first, stride) = step_rows(self.layout, step, self.steps, self.batch);
            let start = span.start;
            for row in span.skip(me).step_by(owners) {
                let to = if sum.to_caller {
                    first + self.active.order()[row - start] * stride
                } else {
                    row
                };
                // SAFETY: the caller's promise; rows are this worker's own.
                let (sum, forward, reverse) = unsafe {
                    (
                        sum.target.write(to, features.clone()),
                        forward.read(row, features.clone()),
                        reverse.read(row, features.clone()),
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
/// No other thread accesses these columns of either row.
unsafe fn copy_row(
    (to, to_row): (SharedRows<'_>, usize),
    from: Option<(SharedRows<'_>, usize)>,
    units: &Range<usize>,
) {
    if units.is_empty() {
        return;
    }
    // SAFETY: the caller's promise.
    let to = unsafe { to.write(to_row, units.clone()) };
    match from {
        None => to.fill(0.0),
        // SAFETY: the caller's promise.
        Some((from, row)) => to.copy_from_slice(unsafe { from.read(row, units.clone()) }),
    }
}
