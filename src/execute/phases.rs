//! One phase of one step of one worker: the products and gates that it owns.

use super::buffers::{DirectionBuffers, padded};
use super::packed::{PackedDirection, Part, Recurrence};
use crate::kernels::{
    Columns, GruCandidate, GruGates, GruReset, Kernels, LstmGates, PlainState, Product, Rows,
    Shared, Start,
};
use crate::model::ResetForm;

/// What a phase of one direction needs, the same for all steps.
#[derive(Clone, Copy)]
pub(super) struct Phases<'a> {
    pub kernels: &'a dyn Kernels,
    pub direction: &'a PackedDirection,
    pub part: &'a Part,
    pub buffers: &'a DirectionBuffers,
    /// Pre-activations of the second phase, this worker's own.
    pub second: Shared<'a>,
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
        let [even, odd] = [0, 1].map(|i| self.buffers.h[i].share());
        let (before, after) = if step.taken.is_multiple_of(2) {
            (even, odd)
        } else {
            (odd, even)
        };
        let before = self.own(before, direction.state, units.start);
        let after = self.own(after, direction.state, units.start);
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

    /// The second phase, of a projected LSTM or a GRU that resets before the product. `z` is what
    /// the first phase left.
    ///
    /// # Safety
    /// All workers have met since the first phase. Until they meet again, nobody writes the buffer
    /// between the phases or the old state, and nobody else touches this part's columns of the new
    /// state or the output.
    pub unsafe fn second(&self, step: Step<'a>, z: &mut [f32]) {
        let Some(weights) = &self.part.second else {
            return;
        };
        let direction = self.direction;
        let units = self.part.second_units.clone();
        let stride = padded(direction.hidden);
        let after = self.own(
            self.buffers.h[(step.taken + 1) % 2].share(),
            direction.state,
            units.start,
        );
        let y = Self::output(&step, units.start);
        let product = Product {
            // SAFETY: the caller's promise.
            a: unsafe { self.buffers.between.share().read(0..step.rows * stride) },
            rows: Rows::Strided(stride),
            row_count: step.rows,
            weights,
            slots: &[0],
            start: Start::Zero,
            z: &mut [],
            z_slots: 1,
        };
        match direction.recurrence {
            Recurrence::Gru {
                candidate, clip, ..
            } => {
                self.kernels.product(Product {
                    slots: &[2],
                    start: Start::Continue,
                    z: &mut *z,
                    z_slots: direction.recurrence.z_slots(),
                    ..product
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
                        before: self.own(before, direction.state, units.start),
                        h: after,
                        y,
                    });
                }
            }
            _ => {
                // SAFETY: the buffer belongs to this worker alone.
                let z = unsafe { self.second.write(0..self.second.len()) };
                self.kernels.product(Product {
                    z: &mut *z,
                    ..product
                });
                // SAFETY: the columns are this worker's own, by the caller's promise.
                unsafe {
                    self.kernels.plain_state(PlainState {
                        z,
                        rows: step.rows,
                        units: units.len(),
                        activation: None,
                        clip: None,
                        h: after,
                        y,
                    });
                }
            }
        }
    }
}
