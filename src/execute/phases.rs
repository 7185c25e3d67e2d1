//! One phase of one step of one worker: the products and gates that it owns.

use std::ops::Range;

use super::buffers::DirectionBuffers;
use super::packed::PackedDirection;
use super::products::{InputRows, Products};
use super::trace::{Activity, Probe};
use crate::model::OperandSource;
use gatestream_kernels::{
    Blocking, Columns, GateJob, NextProduct, Product, RowsRef, Shared, Start, Sweep,
};

/// What a phase of one direction needs, the same for all steps.
#[derive(Clone, Copy)]
pub(super) struct Phases<'a, P> {
    pub direction: &'a PackedDirection,
    /// Of this worker's part, or of the part that it takes rows for.
    pub products: Products<'a>,
    pub buffers: &'a DirectionBuffers,
    /// The cell states, from the direction's first unit on.
    pub c: Columns<'a>,
    /// Pre-activations of a projection, this worker's own.
    pub projected: Shared<'a>,
    pub probe: P,
}

/// One step of one direction.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    /// Steps this direction has taken before: which of the two states is the old one.
    pub taken: usize,
    /// Sequences that run.
    pub rows: usize,
    /// The rows of the layer's input at this step.
    pub input: InputRows<'a>,
    pub sweep: Sweep,
    /// The layer's output at this step, first column that of the direction; `None` to write none.
    pub y: Option<Columns<'a>>,
}

impl<'a, P: Probe> Phases<'a, P> {
    /// The hoisted input projection: `z = bias + W x`.
    pub fn take_ahead(&self, input: InputRows<'_>, z: &mut [f32]) {
        if !self.products.part.ahead.is_empty() {
            self.products.ahead(input, z);
            self.probe.lap(Activity::Ahead);
        }
    }

    /// The products of one phase.
    ///
    /// # Safety
    /// No thread writes what the products read: the old state, and in the second phase the buffer
    /// between the phases.
    unsafe fn run_products(&self, phase: usize, step: &Step<'a>, z: &mut [f32]) {
        let operand = |source| {
            let rows = match source {
                OperandSource::Input => return step.input,
                // SAFETY: the caller's promise.
                OperandSource::State => unsafe { self.before(step) },
                // SAFETY: the caller's promise.
                OperandSource::Gates(_) => unsafe { self.between() },
                OperandSource::Child => RowsRef::EMPTY,
            };
            InputRows::new(rows, step.rows)
        };
        self.products.phase(phase, operand, step.sweep, z);
    }

    /// The output columns that start at unit `first` of the direction.
    fn output(step: &Step<'a>, first: usize) -> Option<Columns<'a>> {
        step.y.map(|y| Columns {
            first: y.first + first,
            ..y
        })
    }

    /// The state before the step, all columns.
    ///
    /// # Safety
    /// No thread writes it during the phase.
    unsafe fn before(&self, step: &Step<'_>) -> RowsRef<'a> {
        // SAFETY: the caller's promise.
        unsafe { self.buffers.hidden(self.direction, step.taken).read_all() }
    }

    /// What the first phase handed over, all columns.
    ///
    /// # Safety
    /// No thread writes it during the phase.
    unsafe fn between(&self) -> RowsRef<'a> {
        // SAFETY: the caller's promise.
        unsafe { self.buffers.between(self.direction).read_all() }
    }

    /// The new state, columns from unit `first`.
    fn after(&self, step: &Step<'_>, first: usize) -> Columns<'a> {
        Columns::new(self.buffers.hidden(self.direction, step.taken + 1), first)
    }

    /// The first phase. `z` holds what was taken ahead for the running rows, if anything was.
    ///
    /// # Safety
    /// Until all workers have met again, no thread writes the old state, and no other thread
    /// accesses this part's columns of the new state, the cell state, the buffer between the
    /// phases, or the output.
    pub unsafe fn first(&self, step: Step<'a>, z: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.run_products(0, &step, z) };
        self.probe.lap(Activity::Products);
        // SAFETY: the caller's promise.
        unsafe { self.gates(0, &step, z, self.products.part.units.clone()) };
        self.probe.lap(Activity::Gates);
    }

    /// The second phase, of products with what the first has handed over. `z` is what the first
    /// phase left.
    ///
    /// # Safety
    /// All workers have met since the first phase. Until they meet again, no thread writes the
    /// buffer between the phases or the old state, and no other thread accesses this part's columns
    /// of the new state or the output.
    pub unsafe fn second(&self, step: Step<'a>, z: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.run_products(1, &step, z) };
        self.probe.lap(Activity::SecondProducts);
        // SAFETY: the caller's promise.
        unsafe { self.gates(1, &step, z, self.products.part.units.clone()) };
        self.probe.lap(Activity::SecondGates);
    }

    /// The elementwise part of a phase for these `units`, or columns of a projected state. The last
    /// phase writes the new state and the output, one before it the buffer between the phases.
    ///
    /// # Safety
    /// As [`Phases::first`] or [`Phases::second`].
    unsafe fn gates(&self, phase: usize, step: &Step<'a>, z: &[f32], units: Range<usize>) {
        let direction = self.direction;
        let is_last = phase + 1 == direction.gate_kernels.len();
        let before = self.buffers.hidden(direction, step.taken);
        let between = self.buffers.between(direction);
        let job = GateJob {
            z,
            rows: step.rows,
            units: units.len(),
            peepholes: self.products.part.peepholes.as_deref(),
            before: Columns::new(before, units.start),
            c: Columns {
                first: self.c.first + units.start,
                ..self.c
            },
            h: if is_last {
                self.after(step, units.start)
            } else {
                Columns::new(between, units.start)
            },
            y: Self::output(step, units.start).filter(|_| is_last),
            child: None,
        };
        // SAFETY: the columns are this worker's own, or the old state's, by the caller's promise.
        unsafe {
            self.products
                .kernels
                .gates(direction.gate_kernels[phase], job)
        };
    }

    /// The second phase of a projected LSTM: the projection of the whole hidden state.
    ///
    /// # Safety
    /// As [`Phases::second`].
    pub unsafe fn project(&self, step: Step<'a>) {
        let Some(weights) = &self.products.part.projection else {
            return;
        };
        let projected = self.products.part.projected.clone();
        // SAFETY: the buffer belongs to this worker alone.
        let z = unsafe { self.projected.write(0..self.projected.len()) };
        // SAFETY: the caller's promise.
        let rows = unsafe { self.between() };
        let row_count = step.rows;
        let product = Product {
            rows,
            order: None,
            row_count,
            weights,
            slots: &[0],
            start: Start::Zero,
            z: &mut *z,
            z_slots: 1,
            sweep: step.sweep,
            blocking: Blocking::default(),
            next: NextProduct::NONE,
        };
        let scratch = self
            .products
            .empty_scratch(0..weights.scratch_words(row_count));
        self.products.kernels.product_in(product, scratch);
        self.probe.lap(Activity::SecondProducts);
        // SAFETY: the columns are this worker's own, by the caller's promise.
        unsafe { self.gates(1, &step, z, projected) };
        self.probe.lap(Activity::SecondGates);
    }
}
