//! One phase of one step of one worker: the products and gates that it owns.

use std::ops::Range;

use super::buffers::DirectionBuffers;
use super::packed::PackedDirection;
use super::part::{Operand, PackedPart, PackedProduct};
use super::trace::{Activity, Probe};
use crate::kernels::{
    Blocking, Columns, GateJob, Kernels, NextProduct, Product, RowsRef, Scratch, Shared, Start,
    Sweep,
};

/// What a phase of one direction needs, the same for all steps.
#[derive(Clone, Copy)]
pub(super) struct Phases<'a, P> {
    pub kernels: &'a dyn Kernels,
    pub direction: &'a PackedDirection,
    pub part: &'a PackedPart,
    pub buffers: &'a DirectionBuffers,
    /// The cell states, from the direction's first unit on.
    pub c: Columns<'a>,
    /// Pre-activations of a projection, this worker's own.
    pub projected: Shared<'a>,
    /// This worker's scratch for products.
    pub scratch: Shared<'a, u32>,
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

/// Some rows of a layer's input.
#[derive(Clone, Copy)]
pub(super) struct InputRows<'a> {
    pub rows: RowsRef<'a>,
    pub count: usize,
}

/// How one call of a product is made.
struct Call<'a> {
    panels: Range<usize>,
    start: Start<'a>,
    sweep: Sweep,
    blocking: Blocking,
    /// The weights that are read afterwards.
    next: NextProduct,
    scratch: Scratch<'a>,
}

impl<'a, P: Probe> Phases<'a, P> {
    /// Values of pre-activations per row.
    pub fn z_row(&self) -> usize {
        self.part
            .z_row(self.kernels.lanes(), self.direction.step.slots())
    }

    /// The input products that are taken ahead: `z = bias + W x`.
    pub fn take_ahead(&self, input: InputRows<'_>, z: &mut [f32]) {
        if let Some(product) = &self.part.ahead {
            let words = 0..product.weights.scratch_words(input.count);
            let call = Call {
                panels: 0..product.weights.panels(),
                start: Start::Bias(&self.part.bias),
                sweep: Sweep::Wide,
                // A panel serves so many rows that prefetching gains nothing.
                blocking: Blocking::default(),
                next: NextProduct::NONE,
                scratch: self.empty_scratch(words),
            };
            self.product(product, input, call, z);
            self.probe.lap(Activity::Ahead);
        }
    }

    fn product(
        &self,
        product: &PackedProduct,
        input: InputRows<'_>,
        call: Call<'_>,
        z: &mut [f32],
    ) {
        let job = Product {
            rows: input.rows,
            row_count: input.count,
            weights: &product.weights,
            slots: &product.slots,
            start: call.start,
            z,
            z_slots: self.direction.step.slots(),
            sweep: call.sweep,
            blocking: call.blocking,
            next: call.next,
        };
        self.kernels.product_of(job, call.panels, call.scratch);
    }

    /// Scratch that a product packs first.
    fn empty_scratch(&self, words: Range<usize>) -> Scratch<'a> {
        // SAFETY: the buffer belongs to this worker alone, which runs one product at a time.
        Scratch::Empty(unsafe { self.scratch.write(words) })
    }

    /// Scratch that an earlier call has packed.
    fn packed_scratch(&self, words: Range<usize>) -> Scratch<'a> {
        // SAFETY: as above.
        Scratch::Packed(unsafe { self.scratch.read(words) })
    }

    /// The products of one phase, added to `z`. Where nothing is taken ahead, the first one starts
    /// the chains.
    ///
    /// Where there are several and panels go to and fro, they take a panel each in turn: what a
    /// cache still holds of the sweep before is then of all of them, where this one begins.
    ///
    /// # Safety
    /// Nobody writes what the products read: the old state, and in the second phase the buffer
    /// between the phases.
    unsafe fn products(&self, phase: usize, step: &Step<'a>, z: &mut [f32]) {
        let products = &self.part.phases[phase];
        let panels = products.first().map_or(0, |p| p.weights.panels());
        let panels_per_call = match step.sweep {
            Sweep::Forth | Sweep::Back if products.len() > 1 => 1,
            _ => panels.max(1),
        };
        let blocks = panels.div_ceil(panels_per_call);
        let calls = blocks * products.len();
        let place = |call: usize| {
            let (block, index) = (call / products.len(), call % products.len());
            let block = match step.sweep {
                Sweep::Wide | Sweep::Forth => block,
                Sweep::Back => blocks - 1 - block,
            };
            let of = block * panels_per_call..((block + 1) * panels_per_call).min(panels);
            (index, of)
        };
        for call in 0..calls {
            let (index, of) = place(call);
            let product = &products[index];
            let count = step.rows;
            let input = match product.operand {
                Operand::Input => step.input,
                Operand::State => InputRows {
                    // SAFETY: the caller's promise.
                    rows: unsafe { self.before(step) },
                    count,
                },
                Operand::Between => InputRows {
                    // SAFETY: the caller's promise.
                    rows: unsafe { self.between() },
                    count,
                },
            };
            let start = match (phase, index, &self.part.ahead) {
                (0, 0, None) => Start::Bias(&self.part.bias),
                _ => Start::Continue,
            };
            let next = if call + 1 < calls {
                let (index, of) = place(call + 1);
                products[index].weights.first_tile(of)
            } else {
                NextProduct::NONE
            };
            // Those that take turns each have scratch of their own, which their first turn packs.
            let words = |products: &[PackedProduct]| -> usize {
                (products.iter().map(|p| p.weights.scratch_words(step.rows))).sum()
            };
            let words = words(&products[..index])..words(&products[..=index]);
            let call = Call {
                panels: of,
                start,
                sweep: step.sweep,
                blocking: self.direction.blocking,
                next,
                scratch: if call < products.len() {
                    self.empty_scratch(words)
                } else {
                    self.packed_scratch(words)
                },
            };
            self.product(product, input, call, z);
        }
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
    /// Nobody writes it during the phase.
    unsafe fn before(&self, step: &Step<'_>) -> RowsRef<'a> {
        // SAFETY: the caller's promise.
        unsafe { self.buffers.hidden(self.direction, step.taken).read_all() }
    }

    /// What the first phase handed over, all columns.
    ///
    /// # Safety
    /// Nobody writes it during the phase.
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
    /// Until all workers have met again, nobody writes the old state, and nobody else touches this
    /// part's columns of the new state, the cell state, the buffer between the phases, or the output.
    pub unsafe fn first(&self, step: Step<'a>, z: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.products(0, &step, z) };
        self.probe.lap(Activity::Products);
        // SAFETY: the caller's promise.
        unsafe { self.gates(0, &step, z, self.part.units.clone()) };
        self.probe.lap(Activity::Gates);
    }

    /// The second phase, of products with what the first has handed over. `z` is what the first
    /// phase left.
    ///
    /// # Safety
    /// All workers have met since the first phase. Until they meet again, nobody writes the buffer
    /// between the phases or the old state, and nobody else touches this part's columns of the new
    /// state or the output.
    pub unsafe fn second(&self, step: Step<'a>, z: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.products(1, &step, z) };
        self.probe.lap(Activity::SecondProducts);
        // SAFETY: the caller's promise.
        unsafe { self.gates(1, &step, z, self.part.units.clone()) };
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
            peepholes: self.part.peepholes.as_deref(),
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
        };
        // SAFETY: the columns are this worker's own, or the old state's, by the caller's promise.
        unsafe { self.kernels.gates(direction.gate_kernels[phase], job) };
    }

    /// The second phase of a projected LSTM: the projection of the whole hidden state.
    ///
    /// # Safety
    /// As [`Phases::second`].
    pub unsafe fn project(&self, step: Step<'a>) {
        let Some(weights) = &self.part.projection else {
            return;
        };
        let projected = self.part.projected.clone();
        // SAFETY: the buffer belongs to this worker alone.
        let z = unsafe { self.projected.write(0..self.projected.len()) };
        // SAFETY: the caller's promise.
        let rows = unsafe { self.between() };
        let row_count = step.rows;
        let product = Product {
            rows,
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
        let scratch = self.empty_scratch(0..weights.scratch_words(row_count));
        self.kernels.product_in(product, scratch);
        self.probe.lap(Activity::SecondProducts);
        // SAFETY: the columns are this worker's own, by the caller's promise.
        unsafe { self.gates(1, &step, z, projected) };
        self.probe.lap(Activity::SecondGates);
    }
}
