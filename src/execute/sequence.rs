//! One worker's way through a run: the body of the parallel region.
//!
//! ```text
//! for layer in layers
//!   own columns of the states <- initial states
//!   for step in steps
//!     for direction in directions             forward at `step`, reverse at `last - step`
//!       every chunk of steps: z <- bias + W x        needs no state, so it is taken ahead
//!       first phase: own units of the new state      reads all of the old state
//!     meet                                           only where a direction is split
//!     second phase, where there is one; meet
//!   final states <- own columns of the states
//!   meet; directions to be summed: sum them, meet
//! ```
//!
//! Who may touch what between two meetings is written in README.md beside this file.

use super::active::{Active, step_rows};
use super::buffers::{Buffers, DirectionBuffers, padded};
use super::packed::{PackedDirection, PackedLayer, PackedModel};
use super::phases::{Phases, Step};
use super::team::Worker;
use crate::kernels::{Columns, Rows, Shared};
use crate::model::{Layout, Merge};

/// A run, as all workers see it. Slices have been checked against the model's signature.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub model: &'a PackedModel,
    pub buffers: &'a Buffers,
    pub active: &'a Active,
    pub layout: Layout,
    pub steps: usize,
    pub batch: usize,
    pub input: &'a [f32],
    /// Blocks of `[batch, size]` per layer and direction, as in [`crate::model::Input`].
    pub h0: Option<Shared<'a>>,
    pub c0: Option<Shared<'a>>,
    pub values: Option<Shared<'a>>,
    pub hn: Option<Shared<'a>>,
    pub cn: Option<Shared<'a>>,
}

/// The input of a layer.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The caller's sequences.
    Caller,
    /// The output of the layer below, rows of all running steps.
    Below(Shared<'a>),
}

impl<'a> Run<'a> {
    /// Computes this worker's part of everything.
    ///
    /// # Safety
    /// Every worker of the team calls this once, with equal runs; nobody else touches the buffers
    /// and output slices meanwhile.
    pub unsafe fn work(&self, worker: &Worker<'_>) {
        self.clear_past_ends(worker);
        let mut source = Source::Caller;
        let last = self.model.layers.len() - 1;
        for (index, layer) in self.model.layers.iter().enumerate() {
            let between = self.buffers.between_layers[index % 2].share();
            let to_caller = index == last;
            let target = if to_caller {
                self.values
            } else {
                Some(between)
            };
            let walk = LayerWalk {
                run: self,
                worker,
                layer,
                states: &self.buffers.states[index],
                source,
                target,
                to_caller,
            };
            // SAFETY: the caller's promise; layers are kept apart by the meetings at their ends.
            unsafe { walk.go() };
            source = Source::Below(between);
        }
    }

    /// Zeroes the output past each sequence's end, sequences dealt out to workers in turn.
    fn clear_past_ends(&self, worker: &Worker<'_>) {
        let (Some(values), Some(layer)) = (self.values, self.model.layers.last()) else {
            return;
        };
        for row in (worker.index..self.batch).step_by(worker.threads()) {
            for step in self.active.length(row)..self.steps {
                let (first, stride) = step_rows(self.layout, step, self.steps, self.batch);
                let at = (first + self.active.order()[row] * stride) * layer.features;
                // SAFETY: no phase touches rows past their sequence's end, and no other worker has
                // this sequence.
                unsafe { values.write(at..at + layer.features) }.fill(0.0);
            }
        }
    }
}

/// One layer of a run, as one worker goes through it.
struct LayerWalk<'a, 'w> {
    run: &'w Run<'a>,
    worker: &'w Worker<'w>,
    layer: &'a PackedLayer,
    states: &'a [DirectionBuffers],
    source: Source<'a>,
    target: Option<Shared<'a>>,
    to_caller: bool,
}

impl<'a> LayerWalk<'a, '_> {
    /// # Safety
    /// As [`Run::work`].
    unsafe fn go(&self) {
        let directions = &self.layer.directions;
        let steps = self.run.active.steps();
        for (direction, states) in directions.iter().zip(self.states) {
            // SAFETY: own columns only.
            unsafe { self.load_states(direction, states) };
        }
        self.meet();
        for taken in 0..steps {
            for index in 0..directions.len() {
                // SAFETY: all have met since the last phase that wrote what this one reads.
                unsafe { self.first_phase(index, taken) };
            }
            self.meet();
            if directions.iter().any(|d| d.two_phase) {
                for index in 0..directions.len() {
                    // SAFETY: all have met since the first phase.
                    unsafe { self.second_phase(index, taken) };
                }
                self.meet();
            }
        }
        for (direction, states) in directions.iter().zip(self.states) {
            // SAFETY: own columns only.
            unsafe { self.store_states(direction, states) };
        }
        if self.is_summed() {
            self.worker.barrier();
            // SAFETY: all have met since the directions wrote their outputs.
            unsafe { self.sum_directions() };
        }
        if !self.to_caller {
            self.worker.barrier();
        }
    }

    /// Waits for all workers, where some direction is split among them.
    fn meet(&self) {
        if self.layer.is_shared {
            self.worker.barrier();
        }
    }

    fn is_summed(&self) -> bool {
        self.layer.directions.len() == 2 && self.layer.merge == Merge::Sum && self.target.is_some()
    }

    fn phases(&self, index: usize) -> Phases<'a> {
        let direction = &self.layer.directions[index];
        Phases {
            kernels: &*self.run.model.kernels,
            direction,
            part: &direction.parts[self.worker.index],
            buffers: &self.states[index],
            projected: self.run.buffers.projected[self.worker.index].share(),
        }
    }

    /// The step of the sequence that a direction takes after `taken` others.
    fn step_of(&self, direction: &PackedDirection, taken: usize) -> usize {
        match direction.reverse {
            false => taken,
            true => self.run.active.steps() - 1 - taken,
        }
    }

    /// This worker's pre-activations of the running rows of `taken`, whose chunk has been taken.
    ///
    /// # Safety
    /// The result is dropped before the next call for this direction.
    unsafe fn z(&self, index: usize, taken: usize, phases: &Phases<'a>) -> &'a mut [f32] {
        let direction = &self.layer.directions[index];
        let step = self.step_of(direction, taken);
        let first = self.chunk(direction, taken).start;
        let rows = self.run.active.span(first..step).len();
        let count = self.run.active.rows(step);
        let z = self.run.buffers.z[self.worker.index][index].share();
        // SAFETY: the buffer is this worker's own; the caller keeps two borrows apart.
        unsafe { z.write(rows * phases.z_row()..(rows + count) * phases.z_row()) }
    }

    /// The steps of the chunk that `taken` belongs to.
    fn chunk(&self, direction: &PackedDirection, taken: usize) -> std::ops::Range<usize> {
        let steps = self.run.active.steps();
        let from = taken - taken % self.layer.chunk_steps;
        let to = (from + self.layer.chunk_steps).min(steps);
        match direction.reverse {
            false => from..to,
            true => steps - to..steps - from,
        }
    }

    /// # Safety
    /// As [`Phases::first`].
    unsafe fn first_phase(&self, index: usize, taken: usize) {
        let phases = self.phases(index);
        if phases.part.units.is_empty() {
            return;
        }
        let direction = &self.layer.directions[index];
        if taken.is_multiple_of(self.layer.chunk_steps) {
            self.take_chunk(index, self.chunk(direction, taken), &phases);
        }
        let step = self.step(index, taken);
        // SAFETY: the caller's promise; the slice is dropped with this call.
        unsafe { phases.first(step, self.z(index, taken, &phases)) };
    }

    /// # Safety
    /// As [`Phases::second`].
    unsafe fn second_phase(&self, index: usize, taken: usize) {
        let phases = self.phases(index);
        if phases.part.second_units.is_empty() {
            return;
        }
        let step = self.step(index, taken);
        // SAFETY: the caller's promise; the slice is dropped with this call.
        unsafe { phases.second(step, || self.z(index, taken, &phases)) };
    }

    /// The input products of all running rows of `steps`.
    fn take_chunk(&self, index: usize, steps: std::ops::Range<usize>, phases: &Phases<'a>) {
        let features = self.layer.directions[index].input;
        let span = self.run.active.span(steps);
        let z = self.run.buffers.z[self.worker.index][index].share();
        // SAFETY: the buffer is this worker's own, and nothing else holds a part of it now.
        let z = unsafe { z.write(0..span.len() * phases.z_row()) };
        match self.source {
            Source::Caller => {
                let rows = Rows::Listed {
                    rows: &self.run.active.input_rows()[span.clone()],
                    stride: features,
                };
                phases.input_product(self.run.input, rows, span.len(), z);
            }
            Source::Below(below) => {
                // SAFETY: the layer below has been written, and all have met since.
                let a = unsafe { below.read(span.start * features..span.end * features) };
                phases.input_product(a, Rows::Strided(features), span.len(), z);
            }
        }
    }

    /// What the phases need to know of a step.
    fn step(&self, index: usize, taken: usize) -> Step<'a> {
        let direction = &self.layer.directions[index];
        let step = self.step_of(direction, taken);
        let active = self.run.active;
        let row = active.span(0..step).len();
        let columns = |memory, row: usize, features: usize, column: usize| Columns {
            memory,
            first: row * features + column,
            stride: features,
            order: None,
        };
        let y = self.target.map(|target| {
            let features = self.layer.features;
            if self.is_summed() {
                let apart = self.states[index].apart.share();
                columns(apart, row, direction.state, 0)
            } else if self.to_caller {
                let (first, stride) =
                    step_rows(self.run.layout, step, self.run.steps, self.run.batch);
                Columns {
                    order: Some(active.order()),
                    stride: stride * features,
                    ..columns(target, first, features, index * direction.state)
                }
            } else {
                columns(target, row, features, index * direction.state)
            }
        });
        Step {
            taken,
            rows: active.rows(step),
            y,
        }
    }

    /// Where a direction's blocks start in the caller's hidden and cell states.
    fn state_blocks(&self, direction: &PackedDirection) -> (usize, usize) {
        let (hidden, cell) = direction.states_before;
        (self.run.batch * hidden, self.run.batch * cell)
    }

    /// Copies this worker's columns of the initial states into both state buffers: a reverse
    /// direction's sequences start at different steps, so at either parity.
    ///
    /// # Safety
    /// Nobody else touches these columns.
    unsafe fn load_states(&self, direction: &PackedDirection, states: &DirectionBuffers) {
        let part = &direction.parts[self.worker.index];
        let h_units = state_units(direction, part);
        let (h_block, c_block) = self.state_blocks(direction);
        for (row, &sequence) in self.run.active.order().iter().enumerate() {
            for h in &states.h {
                let from = self
                    .run
                    .h0
                    .map(|h0| (h0, h_block + sequence * direction.state));
                // SAFETY: own columns.
                unsafe { copy_row(h.share(), row * padded(direction.state), from, h_units) };
            }
            if direction.recurrence.is_lstm() {
                let from = self
                    .run
                    .c0
                    .map(|c0| (c0, c_block + sequence * direction.hidden));
                let to = row * padded(direction.hidden);
                // SAFETY: own columns.
                unsafe { copy_row(states.c.share(), to, from, &part.units) };
            }
        }
    }

    /// Copies this worker's columns of the final states to the caller.
    ///
    /// # Safety
    /// Nobody else touches these columns.
    unsafe fn store_states(&self, direction: &PackedDirection, states: &DirectionBuffers) {
        let part = &direction.parts[self.worker.index];
        let h_units = state_units(direction, part);
        let (h_block, c_block) = self.state_blocks(direction);
        for (row, &sequence) in self.run.active.order().iter().enumerate() {
            // The last step that wrote this row: a forward sequence ends at its own length, a
            // reverse one with the run.
            let taken = match direction.reverse {
                false => self.run.active.length(row),
                true => self.run.active.steps(),
            };
            if let Some(hn) = self.run.hn {
                let from = (states.h[taken % 2].share(), row * padded(direction.state));
                let to = h_block + sequence * direction.state;
                // SAFETY: own columns.
                unsafe { copy_row(hn, to, Some(from), h_units) };
            }
            if let Some(cn) = self.run.cn
                && direction.recurrence.is_lstm()
            {
                let from = (states.c.share(), row * padded(direction.hidden));
                let to = c_block + sequence * direction.hidden;
                // SAFETY: own columns.
                unsafe { copy_row(cn, to, Some(from), &part.units) };
            }
        }
    }

    /// Adds the two directions' outputs, rows dealt out to workers in turn.
    ///
    /// # Safety
    /// Both outputs are complete, and nobody else touches this worker's rows of the target.
    unsafe fn sum_directions(&self) {
        let Some(target) = self.target else { return };
        let active = self.run.active;
        let features = self.layer.features;
        let [forward, reverse] = [0, 1].map(|i| self.states[i].apart.share());
        for step in 0..active.steps() {
            let span = active.span(step..step + 1);
            let (first, stride) = step_rows(self.run.layout, step, self.run.steps, self.run.batch);
            let start = span.start;
            for row in span.skip(self.worker.index).step_by(self.worker.threads()) {
                let to = match self.to_caller {
                    true => first + active.order()[row - start] * stride,
                    false => row,
                };
                let from = row * features..(row + 1) * features;
                // SAFETY: the caller's promise; rows are this worker's own.
                let (sum, forward, reverse) = unsafe {
                    (
                        target.write(to * features..(to + 1) * features),
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

/// Columns of the recurrent state that a worker writes.
fn state_units<'p>(
    direction: &PackedDirection,
    part: &'p super::packed::Part,
) -> &'p std::ops::Range<usize> {
    match direction.two_phase {
        true => &part.second_units,
        false => &part.units,
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
    units: &std::ops::Range<usize>,
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
