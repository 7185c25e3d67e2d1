//! The products of one worker's part: of a hoisted input projection, and of one phase of a step,
//! whether of a sequence or of a tree.

use std::ops::Range;

use super::part::{PackedPart, PackedProduct, scratch_words};
use crate::model::OperandSource;
use crate::schedule::PanelOrder;
use gatestream_kernels::{
    Blocking, Kernels, NextProduct, Product, RowsRef, Scratch, Shared, Start, Sweep,
};

/// One worker's part of a step, and its scratch.
#[derive(Clone, Copy)]
pub(super) struct Products<'a> {
    pub kernels: &'a dyn Kernels,
    pub part: &'a PackedPart,
    /// Slots of pre-activations per unit.
    pub slots: usize,
    /// How the products of a step read their weights.
    pub blocking: Blocking,
    /// This worker's own, for one product at a time.
    pub scratch: Shared<'a, u32>,
}

/// Some rows of an operand.
#[derive(Clone, Copy)]
pub(super) struct InputRows<'a> {
    pub rows: RowsRef<'a>,
    /// Row `r` is row `order[r]` of `rows`; `None` is row `r`.
    pub order: Option<&'a [usize]>,
    pub count: usize,
}

impl<'a> InputRows<'a> {
    /// The first `count` rows.
    pub fn new(rows: RowsRef<'a>, count: usize) -> InputRows<'a> {
        InputRows {
            rows,
            order: None,
            count,
        }
    }
}

/// The way through the panels at a step, of which `is_odd` tells whether an odd number were run
/// before.
pub(super) fn sweep(order: PanelOrder, is_odd: bool) -> Sweep {
    match (order, is_odd) {
        (PanelOrder::Cyclic, _) => Sweep::Wide,
        (PanelOrder::Serpentine, false) => Sweep::Forth,
        (PanelOrder::Serpentine, true) => Sweep::Back,
    }
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

impl<'a> Products<'a> {
    /// Values of pre-activations per row.
    pub fn z_row(&self) -> usize {
        self.part.z_row(self.kernels.lanes(), self.slots)
    }

    /// The hoisted input projection: `z = bias + W x`.
    pub fn ahead(&self, input: InputRows<'_>, z: &mut [f32]) {
        for (index, product) in self.part.ahead.iter().enumerate() {
            let call = Call {
                panels: 0..product.weights.panels(),
                start: self.start(index),
                sweep: Sweep::Wide,
                // A panel serves so many rows that prefetching gains nothing.
                blocking: Blocking::default(),
                next: NextProduct::NONE,
                scratch: self.empty_scratch(0..product.weights.scratch_words(input.count)),
            };
            self.product(product, input, call, z);
        }
    }

    /// The products of one phase with rows of each operand, added to `z`. Where nothing is
    /// hoisted, the first one starts the chains.
    ///
    /// Several with panels in serpentine order take a panel each in turn: what a cache still holds
    /// of the sweep before is then of all of them, where this one begins.
    pub fn phase<'r>(
        &self,
        phase: usize,
        operand: impl Fn(OperandSource) -> InputRows<'r>,
        sweep: Sweep,
        z: &mut [f32],
    ) {
        let products = &self.part.phases[phase];
        let panels = products.first().map_or(0, |p| p.weights.panels());
        let panels_per_call = match sweep {
            Sweep::Forth | Sweep::Back if products.len() > 1 => 1,
            _ => panels.max(1),
        };
        let blocks = panels.div_ceil(panels_per_call);
        let calls = blocks * products.len();
        let place = |call: usize| {
            let (block, index) = (call / products.len(), call % products.len());
            let block = match sweep {
                Sweep::Wide | Sweep::Forth => block,
                Sweep::Back => blocks - 1 - block,
            };
            let of = block * panels_per_call..((block + 1) * panels_per_call).min(panels);
            (index, of)
        };
        for call in 0..calls {
            let (index, of) = place(call);
            let product = &products[index];
            let input = operand(product.operand);
            let start = if self.part.ahead.is_empty() && phase == 0 {
                self.start(index)
            } else {
                Start::Continue
            };
            let next = if call + 1 < calls {
                let (index, of) = place(call + 1);
                products[index].weights.first_tile(of)
            } else {
                NextProduct::NONE
            };
            // Products in turns each have scratch of their own, which their first turn packs.
            let end = scratch_words(&products[..=index], input.count);
            let words = end - product.weights.scratch_words(input.count)..end;
            let call = Call {
                panels: of,
                start,
                sweep,
                blocking: self.blocking,
                next,
                scratch: if call < products.len() && !product.takes_scratch {
                    self.empty_scratch(words)
                } else {
                    self.packed_scratch(words)
                },
            };
            self.product(product, input, call, z);
        }
    }

    /// The first product of all starts the chains.
    fn start(&self, index: usize) -> Start<'a> {
        match index {
            0 => Start::Bias(&self.part.bias),
            _ => Start::Continue,
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
            order: input.order,
            row_count: input.count,
            weights: &product.weights,
            slots: &product.slots,
            start: call.start,
            z,
            z_slots: self.slots,
            sweep: call.sweep,
            blocking: call.blocking,
            next: call.next,
        };
        self.kernels.product_of(job, call.panels, call.scratch);
    }

    /// Scratch that a product packs first.
    pub fn empty_scratch(&self, words: Range<usize>) -> Scratch<'a> {
        // SAFETY: the buffer belongs to this worker alone, which runs one product at a time.
        Scratch::Empty(unsafe { self.scratch.write(words) })
    }

    /// Scratch that an earlier call has packed.
    fn packed_scratch(&self, words: Range<usize>) -> Scratch<'a> {
        // SAFETY: as above.
        Scratch::Packed(unsafe { self.scratch.read(words) })
    }
}
