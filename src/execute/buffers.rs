//! Everything a run writes to besides the caller's output, allocated before it.

use super::packed::{PackedDirection, PackedLayer, PackedModel};
use crate::kernels::{Aligned, Shared, zeroed};
use crate::model::Merge;
use crate::plan::UNIT_GRANULE;

/// A buffer that the workers of one run share.
pub(super) struct Buffer(Aligned);

// SAFETY: the contents are only reached through `Shared`, whose unsafe methods ask their callers to
// keep threads apart.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(len: usize) -> Buffer {
        Buffer(zeroed(len))
    }

    /// A handle for one worker.
    pub fn share(&self) -> Shared<'_> {
        // SAFETY: the vector keeps a raw pointer to its elements, so writing through a copy of it
        // breaks no borrow; and no method of this type reads or writes them any other way.
        unsafe { Shared::from_raw(self.0.as_ptr().cast_mut(), self.0.len()) }
    }
}

/// Rows padded to whole groups of units, so that every worker's columns start on a cache line.
pub(super) fn padded(units: usize) -> usize {
    units.next_multiple_of(UNIT_GRANULE)
}

/// The states of one direction, rows in the order of [`super::active::Active`].
pub(super) struct DirectionBuffers {
    /// `[batch, padded state]`, twice: the step before and the step after, in turn.
    pub h: [Buffer; 2],
    /// `[batch, padded hidden]`; empty where the cell has none.
    pub c: Buffer,
    /// `[batch, padded hidden]`: what the first phase hands to the second; empty where there is
    /// none.
    pub between: Buffer,
    /// `[rows of all steps, state]`: output kept apart until both directions can be summed.
    pub apart: Buffer,
}

/// All buffers of a session.
pub(super) struct Buffers {
    pub batch: usize,
    pub steps: usize,
    /// Per layer, per direction.
    pub states: Vec<Vec<DirectionBuffers>>,
    /// Per worker, per direction of a layer: pre-activations of a chunk, then of the second phase.
    pub z: Vec<[Buffer; 2]>,
    /// Per worker: pre-activations of the second phase.
    pub second: Vec<Buffer>,
    /// `[rows of all steps, features]`: outputs of even and of odd layers but the last.
    pub between_layers: [Buffer; 2],
}

impl Buffers {
    /// Buffers for up to `batch` sequences of up to `steps` steps.
    pub fn new(model: &PackedModel, batch: usize, steps: usize) -> Buffers {
        let rows = batch * steps;
        let lanes = model.kernels.lanes();
        let states = model.layers.iter().map(|layer| {
            let summed = layer.directions.len() == 2 && layer.merge == Merge::Sum;
            layer
                .directions
                .iter()
                .map(|direction| {
                    let recurrence = direction.recurrence;
                    let hidden = |needed: bool| match needed {
                        true => Buffer::new(batch * padded(direction.hidden)),
                        false => Buffer::new(0),
                    };
                    let h = || Buffer::new(batch * padded(direction.state));
                    DirectionBuffers {
                        h: [h(), h()],
                        c: hidden(recurrence.is_lstm()),
                        between: hidden(recurrence.has_second_phase()),
                        apart: Buffer::new(if summed { rows * direction.state } else { 0 }),
                    }
                })
                .collect()
        });
        let states = states.collect();
        let most =
            |worker: usize, size: &dyn Fn(&PackedLayer, &PackedDirection, usize) -> usize| {
                let all = model.layers.iter().flat_map(|layer| {
                    let directions = layer.directions.iter();
                    directions.map(|direction| size(layer, direction, worker))
                });
                all.max().unwrap_or(0)
            };
        let z = |layer: &PackedLayer, direction: &PackedDirection, worker: usize| {
            let panels = direction.parts[worker].units.len().div_ceil(lanes);
            let chunk = layer.chunk_steps.min(steps) * batch;
            chunk * panels * direction.recurrence.z_slots() * lanes
        };
        let second = |_: &PackedLayer, direction: &PackedDirection, worker: usize| {
            let part = &direction.parts[worker];
            let projects = part.second.is_some() && direction.recurrence.is_lstm();
            match projects {
                true => batch * part.second_units.len().next_multiple_of(lanes),
                false => 0,
            }
        };
        let workers = 0..model.plan.threads;
        let (upper, _) = model.layers.split_at(model.layers.len() - 1);
        let widest = |parity: usize| {
            let layers = upper.iter().skip(parity).step_by(2);
            rows * layers.map(|layer| layer.features).max().unwrap_or(0)
        };
        Buffers {
            batch,
            steps,
            states,
            z: workers
                .clone()
                .map(|w| [0, 1].map(|_| Buffer::new(most(w, &z))))
                .collect(),
            second: workers.map(|w| Buffer::new(most(w, &second))).collect(),
            between_layers: [0, 1].map(|parity| Buffer::new(widest(parity))),
        }
    }
}
