//! What one worker owns of one direction: its weights, cut and packed product by product as the
//! schedule asks for them.

use std::ops::Range;

use crate::model::{Matrix, OperandSource, StepProduct, StepWeights};
use crate::plan::DirectionPlan;
use crate::schedule::PhasePlacement;
use gatestream_kernels::{Aligned, Blocking, PackedMatrix, Source, pack_vectors};

/// Most gates that one product packs together.
const MAX_GATES: usize = 4;
/// Most phases of a step.
const MAX_PHASES: usize = 2;

/// One product: gates that share an operand and a place are fused into it.
pub(super) struct PackedProduct {
    pub operand: OperandSource,
    pub weights: PackedMatrix,
    /// Slot of the pre-activations that each gate adds to.
    pub slots: Vec<usize>,
    /// It uses the scratch that the product before it has packed, of the same operand.
    pub takes_scratch: bool,
}

/// One worker's part of a direction's partition, packed.
pub(super) struct PackedPart {
    pub units: Range<usize>,
    /// The hoisted input projection.
    pub ahead: Vec<PackedProduct>,
    /// The products of each phase, in the order of a gate's chain; a projection is not among them.
    pub phases: [Vec<PackedProduct>; MAX_PHASES],
    pub projection: Option<PackedMatrix>,
    /// Rows of the projection.
    pub projected: Range<usize>,
    /// `[panels][z_slots][lanes]`, where the chains start.
    pub bias: Aligned,
    /// `[panels][3][lanes]`.
    pub peepholes: Option<Aligned>,
}

impl PackedPart {
    pub fn pack(
        lanes: usize,
        weights: &StepWeights<'_>,
        plan: &DirectionPlan,
        worker: usize,
    ) -> PackedPart {
        // Products of a third phase would never be computed.
        assert!(weights.step.phases() <= MAX_PHASES, "phases of a step");
        let units = plan.partition.units[worker].clone();
        let placed = |place: PhasePlacement| -> Vec<PackedProduct> {
            let products = weights.step.products.iter();
            let placed = products.filter(|p| plan.schedule.placement(p.product) == Some(place));
            let placed: Vec<&StepProduct> = placed.collect();
            let mut packed: Vec<PackedProduct> = Vec::new();
            let fused = placed.chunk_by(|a, b| a.operand.source == b.operand.source);
            for products in
                fused.flat_map(|all| all.chunks(all.len().div_ceil(all.len().div_ceil(MAX_GATES))))
            {
                let (Some(matrix), _) = weights.of(products[0].product) else {
                    continue;
                };
                let gates: Vec<usize> = products.iter().filter_map(|p| p.product.gate()).collect();
                let source = source(matrix, weights.hidden);
                let matrix = PackedMatrix::new(lanes, source, &gates, units.clone(), plan.blocking);
                let operand = products[0].operand.source;
                packed.push(PackedProduct {
                    operand,
                    takes_scratch: packed.last().is_some_and(|before| {
                        before.operand == operand && before.weights.packs_as(&matrix)
                    }),
                    weights: matrix,
                    slots: products.iter().map(|product| product.slot).collect(),
                });
            }
            packed
        };
        let projected = plan.partition.projected[worker].clone();
        let projection = weights.projection.map(|projection| {
            let source = source(projection, projection.rows());
            PackedMatrix::new(lanes, source, &[0], projected.clone(), Blocking::default())
        });
        PackedPart {
            ahead: placed(PhasePlacement::Ahead),
            phases: std::array::from_fn(|phase| placed(PhasePlacement::Phase(phase as u8))),
            projection,
            projected,
            bias: pack_bias(lanes, weights, &units),
            peepholes: (weights.peepholes)
                .map(|p| pack_vectors(lanes, &[&p.input, &p.forget, &p.output], units.clone())),
            units,
        }
    }

    /// Values of pre-activations per row.
    pub fn z_row(&self, lanes: usize, slots: usize) -> usize {
        self.units.len().next_multiple_of(lanes) * slots
    }

    /// Words of scratch for the products of a step of `rows` rows, and a hoisted input projection
    /// of `ahead` rows.
    pub fn scratch_words(&self, rows: usize, ahead: usize) -> usize {
        let phases = self
            .phases
            .iter()
            .map(|products| scratch_words(products, rows));
        let projection = self.projection.iter().map(|p| p.scratch_words(rows));
        let all = phases
            .chain(projection)
            .chain([scratch_words(&self.ahead, ahead)]);
        all.max().unwrap_or(0)
    }

    /// Columns of the recurrent state that the owner writes.
    pub fn state_units(&self) -> &Range<usize> {
        match self.projection {
            Some(_) => &self.projected,
            None => &self.units,
        }
    }

    /// Bytes of packed weights and biases.
    pub fn bytes(&self) -> usize {
        let vectors = self.bias.len() + self.peepholes.as_ref().map_or(0, |p| p.len());
        let products = self.phases.iter().flatten().chain(&self.ahead);
        let products: usize = products.map(|p| p.weights.bytes()).sum();
        let projection = self.projection.as_ref().map_or(0, PackedMatrix::bytes);
        products + projection + 4 * vectors
    }
}

/// Words of scratch in which some products of a phase keep what they have made of `rows` rows: they
/// may take turns.
pub(super) fn scratch_words(products: &[PackedProduct], rows: usize) -> usize {
    let own = products.iter().filter(|product| !product.takes_scratch);
    own.map(|product| product.weights.scratch_words(rows))
        .fold(0, usize::saturating_add)
}

/// A matrix with `units` rows per gate.
fn source(matrix: &Matrix, units: usize) -> Source<'_> {
    Source {
        numbers: matrix.numbers(),
        depth: matrix.cols(),
        units,
    }
}

/// Where each slot's chain starts: the biases of its products, added.
fn pack_bias(lanes: usize, weights: &StepWeights<'_>, units: &Range<usize>) -> Aligned {
    let (step, hidden) = (weights.step, weights.hidden);
    let mut starts: Vec<Vec<f32>> = vec![Vec::new(); step.slots()];
    for product in step.products {
        let (_, bias) = weights.of(product.product);
        let Some(gate) = product.product.gate().filter(|_| !bias.is_empty()) else {
            continue;
        };
        let bias = &bias[gate * hidden..(gate + 1) * hidden];
        let start = &mut starts[product.slot];
        if start.is_empty() {
            *start = bias.to_vec();
        } else {
            start
                .iter_mut()
                .zip(bias)
                .for_each(|(sum, bias)| *sum += bias);
        }
    }
    let slices: Vec<&[f32]> = starts.iter().map(Vec::as_slice).collect();
    pack_vectors(lanes, &slices, units.clone())
}
