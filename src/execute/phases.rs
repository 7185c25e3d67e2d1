//! One phase of one step of one worker: the products and gates that it owns.

use super::buffers::{DirectionBuffers, padded};
use super::packed::{PackedDirection, Part, Recurrence};
use crate::kernels::{
    Activation, Columns, GruCandidate, GruGates, GruReset, Kernels, LstmGates, PackedMatrix,
    PlainState, Product, Rows, Shared, Start,
};
use crate::model::ResetForm;

/// What a phase of one direction needs, the same for all steps.
#[derive(Clone, Copy)]
pub(super) struct Phases<'a> {
    pub kernels: &'a dyn Kernels,
    pub direction: &'a PackedDirection,
    pub part: &'a Part,
    pub buffers: &'a DirectionBuffers,
    /// Pre-activations of a projection, this worker's own.
    pub projected: Shared<'a>,
}

/// One step of one direction.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    /// Steps this direction has taken before: which of the two states is the old one.
    pub taken: usize,
    /// Sequences that run.
    pub rows: usize,
    /// The layer's output at this step, first column that of the direction; `None` to write none.
    pub y: Option<Columns<'a>>,
}

impl<'a> Phases<'a> {
    /// Values of pre-activations per row.
    pub fn z_row(&self) -> usize {
        let lanes = self.kernels.lanes();
        self.part.units.len().next_multiple_of(lanes) * self.direction.recurrence.z_slots()
    }

    /// The input products of a chunk of steps: `z = bias + W x`.
    pub fn input_product(&self, a: &[f32], rows: Rows<'_>, row_count: usize, z: &mut [f32]) {
        self.kernels.product(Product {
            a,
            rows,
            row_count,
            weights: &self.part.input,
            slots: self.direction.recurrence.input_slots(),
            start: Start::Bias(&self.part.bias),
            z,
            z_slots: self.direction.recurrence.z_slots(),
        });
    }

    /// This worker's columns of a padded state.
    fn own(&self, memory: Shared<'a>, size: usize, first: usize) -> Columns<'a> {
        Columns {
            memory,
            first,
            stride: padded(size),
            order: None,
        }
    }

    /// The output columns that start at unit `first` of the direction.
    fn output(step: &Step<'a>, first: usize) -> Option<Columns<'a>> {
        step.y.map(|y| Columns {
            first: y.first + first,
            ..y
        })
    }

    /// The state before the step, all columns of the running rows.
    ///
    /// # Safety
    /// Nobody writes it during the phase.
    unsafe fn before(&self, step: &Step<'_>) -> &'a [f32] {
        let rows = 0..step.rows * padded(self.direction.state);
        // SAFETY: the caller's promise.
        unsafe { self.buffers.h[step.taken % 2].share().read(rows) }
    }

    /// The first phase. `z` holds the input products of the running rows.
    ///
    /// # Safety
    /// Until all workers have met again, nobody writes the old state, and nobody else touches this
    /// part's columns of the new state, the cell state, the buffer between the phases, or the output.
    pub unsafe fn first(&self, step: Step<'a>, z: &mut [f32]) {
        let direction = self.direction;
        let hidden = direction.hidden;
        let units = self.part.units.clone();
        self.kernels.product(Product {
            // SAFETY: the caller's promise.
            a: unsafe { self.before(&step) },
            rows: Rows::Strided(padded(direction.state)),
            row_count: step.rows,
            weights: &self.part.recurrent,
            slots: direction.recurrence.state_slots(),
            start: Start::Continue,
            z,
            z_slots: direction.recurrence.z_slots(),
        });
        let before = self.buffers.h[step.taken % 2].share();
        let before = self.own(before, direction.state, units.start);
        let after = self.after(&step, units.start);
        let between = self.own(self.buffers.between.share(), hidden, units.start);
        let y = Self::output(&step, units.start);
        // SAFETY: the columns are this worker's own, or the old state's, by the caller's promise.
        unsafe {
            match direction.recurrence {
                Recurrence::Lstm {
                    functions,
                    projected,
                } => self.kernels.lstm_gates(LstmGates {
                    z,
                    rows: step.rows,
                    units: units.len(),
                    functions,
                    peepholes: self.part.peepholes.as_deref(),
                    c: self.own(self.buffers.c.share(), hidden, units.start),
                    h: if projected { between } else { after },
                    y: if projected { None } else { y },
                }),
                Recurrence::Gru {
                    gate,
                    candidate,
                    clip,
                    reset: ResetForm::After,
                } => self.kernels.gru_gates(GruGates {
                    z,
                    rows: step.rows,
                    units: units.len(),
                    gate,
                    candidate,
                    clip,
                    before,
                    h: after,
                    y,
                }),
                Recurrence::Gru { gate, clip, .. } => self.kernels.gru_reset(GruReset {
                    z,
                    rows: step.rows,
                    units: units.len(),
                    gate,
                    clip,
                    before,
                    reset: between,
                }),
                Recurrence::Rnn { activation, clip } => self.kernels.plain_state(PlainState {
                    z,
                    rows: step.rows,
                    units: units.len(),
                    activation: Some(activation),
                    clip,
                    h: after,
                    y,
                }),
            }
        }
    }

    /// What the first phase handed over, all columns of the running rows.
    ///
    /// # Safety
    /// Nobody writes it during the phase.
    unsafe fn between(&self, step: &Step<'_>) -> &'a [f32] {
        let rows = 0..step.rows * padded(self.direction.hidden);
        // SAFETY: the caller's promise.
        unsafe { self.buffers.between.share().read(rows) }
    }

    /// The new state, columns from unit `first`.
    fn after(&self, step: &Step<'_>, first: usize) -> Columns<'a> {
        let after = self.buffers.h[(step.taken + 1) % 2].share();
        self.own(after, self.direction.state, first)
    }

    /// The second phase of a GRU that resets before the product: the candidate over the reset state,
    /// and the blend. `z` is what the first phase left.
    ///
    /// # Safety
    /// All workers have met since the first phase. Until they meet again, nobody writes the buffer
    /// between the phases or the old state, and nobody else touches this part's columns of the new
    /// state or the output.
    unsafe fn candidate(
        &self,
        step: Step<'a>,
        weights: &PackedMatrix,
        (candidate, clip): (Activation, Option<f32>),
        z: &mut [f32],
    ) {
        let units = self.part.second_units.clone();
        self.kernels.product(Product {
            // SAFETY: the caller's promise.
            a: unsafe { self.between(&step) },
            rows: Rows::Strided(padded(self.direction.hidden)),
            row_count: step.rows,
            weights,
            slots: &[2],
            start: Start::Continue,
            z: &mut *z,
            z_slots: self.direction.recurrence.z_slots(),
        });
        let before = self.buffers.h[step.taken % 2].share();
        // SAFETY: the columns are this worker's own, by the caller's promise.
        unsafe {
            self.kernels.gru_candidate(GruCandidate {
                z,
                rows: step.rows,
                units: units.len(),
                candidate,
                clip,
                before: self.own(before, self.direction.state, units.start),
                h: self.after(&step, units.start),
                y: Self::output(&step, units.start),
            });
        }
    }

    /// The second phase of a projected LSTM: the projection of the whole hidden state.
    ///
    /// # Safety
    /// As [`Phases::candidate`].
    unsafe fn project(&self, step: Step<'a>, weights: &PackedMatrix) {
        let units = self.part.second_units.clone();
        // SAFETY: the buffer belongs to this worker alone.
        let z = unsafe { self.projected.write(0..self.projected.len()) };
        self.kernels.product(Product {
            // SAFETY: the caller's promise.
            a: unsafe { self.between(&step) },
            rows: Rows::Strided(padded(self.direction.hidden)),
            row_count: step.rows,
            weights,
            slots: &[0],
            start: Start::Zero,
            z: &mut *z,
            z_slots: 1,
        });
        // SAFETY: the columns are this worker's own, by the caller's promise.
        unsafe {
            self.kernels.plain_state(PlainState {
                z,
                rows: step.rows,
                units: units.len(),
                activation: None,
                clip: None,
                h: self.after(&step, units.start),
                y: Self::output(&step, units.start),
            });
        }
    }

    /// The second phase, where there is one. `z` gives what the first phase left; a projection does
    /// not ask for it, since its owner may own no hidden units.
    ///
    /// # Safety
    /// As [`Phases::candidate`].
    pub unsafe fn second<'z>(&self, step: Step<'a>, z: impl FnOnce() -> &'z mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match (&self.part.second, self.direction.recurrence) {
                (None, _) => {}
                (
                    Some(weights),
                    Recurrence::Gru {
                        candidate, clip, ..
                    },
                ) => self.candidate(step, weights, (candidate, clip), z()),
                (Some(weights), _) => self.project(step, weights),
            }
        }
    }
}
