//! What one worker owns of one direction: its weights, cut and packed product by product as the
//! schedule asks for them.

use std::ops::Range;

use crate::kernels::{Aligned, Blocking, PackedMatrix, Source, pack_vectors};
use crate::model::{Direction, Matrix, OperandSource, Product};
use crate::plan::DirectionPlan;
use crate::schedule::PhasePlacement;

/// What a product multiplies its weights with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// The layer's input.
    Input,
    /// The state before the step.
    State,
    /// What the first phase handed over.
    Between,
}

impl Operand {
    fn of(source: OperandSource) -> Operand {
        match source {
            OperandSource::Input => Operand::Input,
            OperandSource::State => Operand::State,
            OperandSource::Gates(_) => Operand::Between,
        }
    }
}

/// One product: gates that share an input and a place are fused into it.
pub(super) struct PackedProduct {
    pub operand: Operand,
    pub weights: PackedMatrix,
    /// Slot of the pre-activations that each gate adds to.
    pub slots: Vec<usize>,
}

/// One worker's part of a direction's partition, packed.
pub(super) struct PackedPart {
    pub units: Range<usize>,
    /// The product that is taken ahead of the steps, if any is.
    pub ahead: Option<PackedProduct>,
    /// The products of each phase, in the order of a gate's chain: input first. Those of a projection
    /// stand apart, in `projection`.
    pub phases: [Vec<PackedProduct>; 2],
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
        direction: &Direction,
        plan: &DirectionPlan,
        worker: usize,
    ) -> PackedPart {
        let step = direction.step();
        let weights = direction.weights();
        let hidden = direction.hidden_size();
        let units = plan.partition.units[worker].clone();
        // The gates whose products of one matrix have one operand and one placement are fused.
        let fused = |products: Vec<Product>, matrix: &Matrix, operand| {
            let found = products.iter().filter_map(|product| step.find(*product));
            let slots: Vec<usize> = found.map(|product| product.slot).collect();
            let gates: Vec<usize> = products.iter().filter_map(|p| p.gate()).collect();
            let source = Source {
                numbers: matrix.numbers(),
                depth: matrix.cols(),
                units: hidden,
            };
            (!gates.is_empty()).then(|| PackedProduct {
                operand,
                weights: PackedMatrix::new(lanes, source, &gates, units.clone(), plan.blocking),
                slots,
            })
        };
        let schedule = &plan.schedule;
        let with_input = |place| {
            let placed = (0..).map(Product::Input).zip(&schedule.input);
            let products = placed.filter(|(_, each)| **each == place);
            let products = products.map(|(product, _)| product).collect();
            fused(products, &weights.input, Operand::Input)
        };
        let phase = |phase: u8| -> Vec<PackedProduct> {
            let place = PhasePlacement::Phase(phase);
            let with = |operand| {
                let placed = (0..).map(Product::Recurrent).zip(&schedule.recurrent);
                let products = placed.filter(|(product, each)| {
                    let found = step.find(*product);
                    **each == place && found.map(|p| Operand::of(p.operand.source)) == Some(operand)
                });
                let products = products.map(|(product, _)| product).collect();
                fused(products, &weights.recurrent, operand)
            };
            let products = [
                with_input(place),
                with(Operand::State),
                with(Operand::Between),
            ];
            products.into_iter().flatten().collect()
        };
        let projected = plan.partition.projected[worker].clone();
        let projection = weights.projection.as_ref().map(|projection| {
            let source = Source {
                numbers: projection.numbers(),
                depth: projection.cols(),
                units: projection.rows(),
            };
            PackedMatrix::new(lanes, source, &[0], projected.clone(), Blocking::default())
        });
        let peepholes = weights.peepholes.as_ref();
        PackedPart {
            ahead: with_input(PhasePlacement::Ahead),
            phases: [phase(0), phase(1)],
            projection,
            projected,
            bias: pack_bias(lanes, direction, &units),
            peepholes: peepholes
                .map(|p| pack_vectors(lanes, &[&p.input, &p.forget, &p.output], units.clone())),
            units,
        }
    }

    /// Values of pre-activations per row.
    pub fn z_row(&self, lanes: usize, slots: usize) -> usize {
        self.units.len().next_multiple_of(lanes) * slots
    }

    /// Words in which the products of a step of `rows` rows, and one taken ahead of `ahead` rows, quantise what they multiply
    /// with, or lay it out.
    pub fn scratch_words(&self, rows: usize, ahead: usize) -> usize {
        let ahead = self
            .ahead
            .iter()
            .map(|product| product.weights.scratch_words(ahead));
        // Products of a phase may take turns, and keep what they have made of their rows.
        let phases = self.phases.iter().map(|products| {
            let words = products
                .iter()
                .map(|product| product.weights.scratch_words(rows));
            words.fold(0, usize::saturating_add)
        });
        let projection = self
            .projection
            .iter()
            .map(|weights| weights.scratch_words(rows));
        ahead.chain(phases).chain(projection).max().unwrap_or(0)
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

/// Where each slot's chain starts: the biases of its products, added.
fn pack_bias(lanes: usize, direction: &Direction, units: &Range<usize>) -> Aligned {
    let (weights, step) = (direction.weights(), direction.step());
    let hidden = direction.hidden_size();
    let mut starts: Vec<Vec<f32>> = vec![Vec::new(); step.slots()];
    for product in step.products {
        let bias = match product.product {
            Product::Input(_) => &weights.input_bias,
            Product::Recurrent(_) => &weights.recurrent_bias,
            Product::Projection => continue,
        };
        let gate = product.product.gate().unwrap_or(0);
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
