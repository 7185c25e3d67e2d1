//! What one worker owns of one direction: its weights, cut and packed product by product as the
//! schedule asks for them.

use std::ops::Range;

use super::recurrence::Recurrence;
use crate::kernels::{Aligned, Blocking, PackedMatrix, Source, pack_vectors};
use crate::model::{Cell, Direction, Matrix, ResetForm};
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
        let recurrence = Recurrence::of(direction);
        let weights = direction.weights();
        let hidden = direction.hidden_size();
        let units = plan.partition.units[worker].clone();
        let product = |operand, matrix: &Matrix, slots: &[usize], gates: Vec<usize>| {
            let source = Source {
                numbers: matrix.numbers(),
                depth: matrix.cols(),
                units: hidden,
            };
            (!gates.is_empty()).then(|| PackedProduct {
                operand,
                weights: PackedMatrix::new(lanes, source, &gates, units.clone(), plan.blocking),
                slots: gates.iter().map(|&gate| slots[gate]).collect(),
            })
        };
        let at = |places: &[PhasePlacement], place: PhasePlacement| -> Vec<usize> {
            let gates = places.iter().enumerate().filter(|(_, p)| **p == place);
            gates.map(|(gate, _)| gate).collect()
        };
        let (input, recurrent) = (&plan.schedule.input, &plan.schedule.recurrent);
        let with_input = |place| {
            let gates = at(input, place);
            product(
                Operand::Input,
                &weights.input,
                recurrence.input_slots(),
                gates,
            )
        };
        let phase = |phase: u8| -> Vec<PackedProduct> {
            let place = PhasePlacement::Phase(phase);
            // In the second phase of a GRU only the candidate takes the reset state.
            let (late, now): (Vec<_>, Vec<_>) =
                (at(recurrent, place).into_iter()).partition(|&gate| phase == 1 && gate == 2);
            let with = |operand, gates| {
                product(operand, &weights.recurrent, recurrence.state_slots(), gates)
            };
            let products = [
                with_input(place),
                with(Operand::State, now),
                with(Operand::Between, late),
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
    pub fn z_row(&self, lanes: usize, recurrence: Recurrence) -> usize {
        self.units.len().next_multiple_of(lanes) * recurrence.z_slots()
    }

    /// Words in which the products of a step of `rows` rows, and one taken ahead of `ahead` rows, quantise what they multiply
    /// with, or lay it out.
    pub fn room(&self, rows: usize, ahead: usize) -> usize {
        let ahead = self.ahead.iter().map(|product| product.weights.room(ahead));
        // Products of a phase may take turns, and keep what they have made of their rows.
        let phases = self.phases.iter().map(|products| {
            let rooms = products.iter().map(|product| product.weights.room(rows));
            rooms.fold(0, usize::saturating_add)
        });
        let projection = self.projection.iter().map(|weights| weights.room(rows));
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

/// Both biases added, except where the two parts of a candidate stay apart.
fn pack_bias(lanes: usize, direction: &Direction, units: &Range<usize>) -> Aligned {
    let weights = direction.weights();
    let hidden = direction.hidden_size();
    let block = |bias: &[f32], gate: usize| bias[gate * hidden..(gate + 1) * hidden].to_vec();
    let mut starts: Vec<Vec<f32>> = (0..direction.cell().kind().gates())
        .map(|gate| {
            let input = block(&weights.input_bias, gate);
            let recurrent = block(&weights.recurrent_bias, gate);
            input.iter().zip(&recurrent).map(|(a, b)| a + b).collect()
        })
        .collect();
    if let Cell::Gru {
        reset: ResetForm::After,
        ..
    } = direction.cell()
    {
        starts[2] = block(&weights.input_bias, 2);
        starts.push(block(&weights.recurrent_bias, 2));
    }
    let slices: Vec<&[f32]> = starts.iter().map(Vec::as_slice).collect();
    pack_vectors(lanes, &slices, units.clone())
}
