//! One phase of one step of one worker: the products and gates that it owns.

use std::ops::Range;

use super::buffers::{DirectionBuffers, padded};
use super::packed::PackedDirection;
use super::part::{Operand, PackedPart, PackedProduct};
use super::trace::{Activity, Probe};
use crate::kernels::{
    Blocking, Columns, GateJob, Kernels, NextProduct, Product, Room, Rows, Shared, Start, Sweep,
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
    /// Where this worker's products quantise what they multiply with, or lay it out.
    pub room: Shared<'a, u32>,
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
    pub rows: Rows<'a>,
    pub count: usize,
}

/// How a product reads its operands.
struct Reading<'a> {
    panels: Range<usize>,
    blocking: Blocking,
    /// The weights that are read afterwards.
    next: NextProduct,
    room: Room<'a>,
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
            let room = self.room(0..product.weights.room(input.count), false);
            self.product(
                product,
                (input.rows, input.count),
                Start::Bias(&self.part.bias),
                Sweep::Wide,
                Reading {
                    panels: 0..product.weights.panels(),
                    // A panel serves so many rows that prefetching gains nothing.
                    blocking: Blocking::default(),
                    next: NextProduct::NONE,
                    room,
                },
                z,
            );
            self.probe.lap(Activity::Ahead);
        }
    }

    fn product(
        &self,
        product: &PackedProduct,
        (rows, row_count): (Rows<'_>, usize),
        start: Start<'_>,
        sweep: Sweep,
        reading: Reading<'_>,
        z: &mut [f32],
    ) {
        let product = Product {
            rows,
            row_count,
            weights: &product.weights,
            slots: &product.slots,
            start,
            z,
            z_slots: self.direction.step.slots(),
            sweep,
            blocking: reading.blocking,
            next: reading.next,
        };
        self.kernels
            .product_of(product, reading.panels, reading.room);
    }

    /// Words in which a product has its rows quantised, or laid out.
    fn room(&self, words: Range<usize>, is_filled: bool) -> Room<'a> {
        // SAFETY: the buffer belongs to this worker alone, which runs one product at a time.
        unsafe {
            match is_filled {
                true => Room::Filled(self.room.read(words)),
                false => Room::ToFill(self.room.write(words)),
            }
        }
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
            let operand = match product.operand {
                Operand::Input => (step.input.rows, step.input.count),
                // SAFETY: the caller's promise.
                Operand::State => (unsafe { self.before(step) }, step.rows),
                // SAFETY: the caller's promise.
                Operand::Between => (unsafe { self.between(step) }, step.rows),
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
            // Those that take turns each have a room of their own, which their first turn fills.
            let words = |products: &[PackedProduct]| -> usize {
                (products.iter().map(|p| p.weights.room(step.rows))).sum()
            };
            let room = words(&products[..index])..words(&products[..=index]);
            let room = self.room(room, call >= products.len());
            self.product(
                product,
                operand,
                start,
                step.sweep,
                Reading {
                    panels: of,
                    blocking: self.direction.blocking,
                    next,
                    room,
                },
                z,
            );
        }
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
    unsafe fn before(&self, step: &Step<'_>) -> Rows<'a> {
        let stride = padded(self.direction.state);
        let h = self.buffers.h[step.taken % 2].share();
        // SAFETY: the caller's promise.
        Rows::strided(unsafe { h.read(0..step.rows * stride) }, stride)
    }

    /// What the first phase handed over, all columns of the running rows.
    ///
    /// # Safety
    /// Nobody writes it during the phase.
    unsafe fn between(&self, step: &Step<'_>) -> Rows<'a> {
        let stride = padded(self.direction.hidden);
        // SAFETY: the caller's promise.
        let values = unsafe { self.buffers.between.share().read(0..step.rows * stride) };
        Rows::strided(values, stride)
    }

    /// The new state, columns from unit `first`.
    fn after(&self, step: &Step<'_>, first: usize) -> Columns<'a> {
        let after = self.buffers.h[(step.taken + 1) % 2].share();
        self.own(after, self.direction.state, first)
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
        let before = self.buffers.h[step.taken % 2].share();
        let between = || self.own(self.buffers.between.share(), direction.hidden, units.start);
        let job = GateJob {
            z,
            rows: step.rows,
            units: units.len(),
            peepholes: self.part.peepholes.as_deref(),
            before: self.own(before, direction.state, units.start),
            c: Columns {
                first: self.c.first + units.start,
                ..self.c
            },
            h: if is_last {
                self.after(step, units.start)
            } else {
                between()
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
        let rows = unsafe { self.between(&step) };
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
        let room = self.room(0..weights.room(row_count), false);
        self.kernels.product_in(product, room);
        self.probe.lap(Activity::SecondProducts);
        // SAFETY: the columns are this worker's own, by the caller's promise.
        unsafe { self.gates(1, &step, z, projected) };
        self.probe.lap(Activity::SecondGates);
    }
}
