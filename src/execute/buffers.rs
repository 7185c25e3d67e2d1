//! Everything a run writes to besides the caller's output, allocated before it.

use super::packed::{PackedDirection, PackedLayer, PackedModel, Part};
use crate::kernels::{Aligned, Shared, try_zeroed};
use crate::model::Merge;
use crate::plan::UNIT_GRANULE;

/// A buffer that the workers of one run share.
pub(super) struct Buffer(Aligned);

impl Buffer {
    /// `rows` times `columns` zeros; `None` where there is no memory for them.
    fn new(rows: usize, columns: usize) -> Option<Buffer> {
        Some(Buffer(try_zeroed(rows.checked_mul(columns)?)?))
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
    /// Per worker, per direction of a layer: pre-activations of a chunk of steps.
    pub z: Vec<[Buffer; 2]>,
    /// Per worker: pre-activations of a projection.
    pub projected: Vec<Buffer>,
    /// `[rows of all steps, features]`: outputs of even and of odd layers but the last.
    pub between_layers: [Buffer; 2],
}

impl Buffers {
    /// Buffers for up to `batch` sequences of up to `steps` steps; `None` where there is no memory
    /// for them.
    pub fn new(model: &PackedModel, batch: usize, steps: usize) -> Option<Buffers> {
        let rows = batch.checked_mul(steps)?;
        let lanes = model.kernels.lanes();
        let mut states = Vec::with_capacity(model.layers.len());
        for layer in &model.layers {
            let directions = layer.directions.iter();
            let buffers: Option<Vec<_>> = directions
                .map(|direction| DirectionBuffers::new(layer, direction, batch, rows))
                .collect();
            states.push(buffers?);
        }
        // The widest rows that a worker needs in any layer.
        let widest = |worker: usize, width: &dyn Fn(&PackedDirection, &Part) -> usize| {
            let directions = model.layers.iter().flat_map(|layer| &layer.directions);
            let widths = directions.map(|direction| width(direction, &direction.parts[worker]));
            widths.max().unwrap_or(0)
        };
        let mut z = Vec::with_capacity(model.plan.threads);
        let mut projected = Vec::with_capacity(model.plan.threads);
        for worker in 0..model.plan.threads {
            let chunk = |index: usize| {
                let mut most = 0;
                for layer in &model.layers {
                    let Some(direction) = layer.directions.get(index) else {
                        continue;
                    };
                    let units = direction.parts[worker].units.len().next_multiple_of(lanes);
                    let row = units.checked_mul(direction.recurrence.z_slots())?;
                    let chunk = layer.chunk_steps.min(steps).checked_mul(batch)?;
                    most = most.max(chunk.checked_mul(row)?);
                }
                Buffer::new(most, 1)
            };
            z.push([chunk(0)?, chunk(1)?]);
            let rows_of = |direction: &PackedDirection, part: &Part| {
                let projects = part.second.is_some() && direction.recurrence.is_lstm();
                if projects {
                    part.second_units.len().next_multiple_of(lanes)
                } else {
                    0
                }
            };
            projected.push(Buffer::new(batch, widest(worker, &rows_of))?);
        }
        let upper = &model.layers[..model.layers.len() - 1];
        let between_layers = |parity: usize| {
            let layers = upper.iter().skip(parity).step_by(2);
            Buffer::new(rows, layers.map(|layer| layer.features).max().unwrap_or(0))
        };
        Some(Buffers {
            batch,
            steps,
            states,
            z,
            projected,
            between_layers: [between_layers(0)?, between_layers(1)?],
        })
    }
}

impl DirectionBuffers {
    fn new(
        layer: &PackedLayer,
        direction: &PackedDirection,
        batch: usize,
        rows: usize,
    ) -> Option<DirectionBuffers> {
        let summed = layer.directions.len() == 2 && layer.merge == Merge::Sum;
        let recurrence = direction.recurrence;
        let needed = |needed: bool| if needed { padded(direction.hidden) } else { 0 };
        let h = || Buffer::new(batch, padded(direction.state));
        Some(DirectionBuffers {
            h: [h()?, h()?],
            c: Buffer::new(batch, needed(recurrence.is_lstm()))?,
            between: Buffer::new(batch, needed(direction.two_phase))?,
            apart: Buffer::new(rows, if summed { direction.state } else { 0 })?,
        })
    }
}
