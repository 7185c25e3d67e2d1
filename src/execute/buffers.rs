//! Everything a run writes to besides the caller's output, allocated before it.

use super::packed::{PackedConfiguration, PackedDirection, PackedLayer};
use crate::plan::UNIT_GRANULE;
use gatestream_kernels::{Aligned, Shared, SharedRows, Word, try_zeroed};

/// A buffer that the workers of one run share.
pub(super) struct Buffer<T: Word = f32>(Aligned<T>);

impl<T: Word> Buffer<T> {
    /// `rows` times `columns` zeros; `None` where there is no memory for them.
    pub fn new(rows: usize, columns: usize) -> Option<Buffer<T>> {
        Some(Buffer(try_zeroed(rows.checked_mul(columns)?)?))
    }

    /// A handle for one worker.
    pub fn share(&self) -> Shared<'_, T> {
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
    /// `[rows of all steps, state]`: outputs of one direction, until both can be summed.
    pub unsummed: Buffer,
}

/// All buffers of one group of workers.
pub(super) struct Buffers {
    /// Per layer, per direction.
    pub states: Vec<Vec<DirectionBuffers>>,
    /// Per worker, per direction of a layer: pre-activations of a chunk of steps, or of two
    /// where one is taken while the other is in use.
    pub z: Vec<[Buffer; 2]>,
    /// Per worker: pre-activations of a projection.
    pub projected: Vec<Buffer>,
    /// Per worker: scratch in which its products quantise what they multiply with, or lay it out.
    pub scratch: Vec<Buffer<u32>>,
    /// `[rows of all steps, features]`: outputs of layers but the last. Two of them, taken in turn,
    /// or one per layer where a layer is read while it is written.
    pub between_layers: Vec<Buffer>,
}

impl Buffers {
    /// Buffers for up to `batch` sequences of up to `steps` steps, run by any of `configurations`;
    /// `None` where there is no memory for them.
    pub fn new(
        lanes: usize,
        configurations: &[&PackedConfiguration],
        batch: usize,
        steps: usize,
    ) -> Option<Buffers> {
        let rows = batch.checked_mul(steps)?;
        let layers = &configurations.first()?.layers;
        let mut states = Vec::with_capacity(layers.len());
        for layer in layers {
            let directions = layer.directions.iter();
            let buffers: Option<Vec<_>> = directions
                .map(|direction| DirectionBuffers::new(layer, direction, batch, rows))
                .collect();
            states.push(buffers?);
        }
        let workers = configurations.iter().map(|c| c.group_size()).max()?;
        let mut z = Vec::with_capacity(workers);
        let mut projected = Vec::with_capacity(workers);
        let mut scratch = Vec::with_capacity(workers);
        // The largest that a worker needs in any layer of any configuration.
        let all = || configurations.iter().flat_map(|c| &c.layers);
        for worker in 0..workers {
            let chunk = |index: usize| {
                let mut most = 0;
                for layer in all() {
                    let Some(direction) = layer.directions.get(index) else {
                        continue;
                    };
                    let Some(part) = direction.parts.get(worker) else {
                        continue;
                    };
                    let row = part.z_row(lanes, direction.step.slots());
                    let steps_kept = if layer.keeps_two_chunks(direction) {
                        layer.chunk_steps.min(steps).checked_mul(2)?
                    } else {
                        layer.chunk(direction).min(steps)
                    };
                    let chunk = steps_kept.checked_mul(batch)?;
                    most = most.max(chunk.checked_mul(row)?);
                }
                Buffer::new(most, 1)
            };
            z.push([chunk(0)?, chunk(1)?]);
            let parts = all().flat_map(|l| &l.directions);
            let parts = parts.filter_map(|d| d.parts.get(worker));
            let widths = parts.map(|part| part.projected.len().next_multiple_of(lanes));
            projected.push(Buffer::new(batch, widths.max().unwrap_or(0))?);
            // Taking rows ahead for other workers uses their weights: of any worker's part.
            let mut most = 0;
            for layer in all() {
                for direction in &layer.directions {
                    let ahead = layer.chunk(direction).min(steps).checked_mul(batch)?;
                    let parts = direction.parts.iter().enumerate();
                    let parts = parts
                        .filter(|&(owner, _)| owner == worker || layer.keeps_two_chunks(direction));
                    let words = parts.map(|(_, part)| part.scratch_words(batch, ahead));
                    most = most.max(words.max().unwrap_or(0));
                }
            }
            scratch.push(Buffer::new(most, 1)?);
        }
        let upper = &layers[..layers.len() - 1];
        let apart = if configurations.iter().any(|c| c.meetings.is_pipelined()) {
            upper.len()
        } else {
            upper.len().min(2)
        };
        let between_layers = (0..apart).map(|first| {
            let layers = upper.iter().skip(first).step_by(apart);
            Buffer::new(rows, layers.map(|layer| layer.features).max().unwrap_or(0))
        });
        Some(Buffers {
            states,
            z,
            projected,
            scratch,
            between_layers: between_layers.collect::<Option<_>>()?,
        })
    }
}

impl DirectionBuffers {
    /// The hidden states after `taken` steps.
    pub fn hidden(&self, direction: &PackedDirection, taken: usize) -> SharedRows<'_> {
        SharedRows::contiguous(self.h[taken % 2].share(), padded(direction.state))
    }

    /// The cell states.
    pub fn cell(&self, direction: &PackedDirection) -> SharedRows<'_> {
        SharedRows::contiguous(self.c.share(), padded(direction.hidden))
    }

    /// What the first phase hands to the second.
    pub fn between(&self, direction: &PackedDirection) -> SharedRows<'_> {
        SharedRows::contiguous(self.between.share(), padded(direction.hidden))
    }

    fn new(
        layer: &PackedLayer,
        direction: &PackedDirection,
        batch: usize,
        rows: usize,
    ) -> Option<DirectionBuffers> {
        let needed = |needed: bool| if needed { padded(direction.hidden) } else { 0 };
        let h = || Buffer::new(batch, padded(direction.state));
        let unsummed = if layer.is_summed() {
            direction.state
        } else {
            0
        };
        Some(DirectionBuffers {
            h: [h()?, h()?],
            c: Buffer::new(batch, needed(direction.step.has_cell_state))?,
            between: Buffer::new(batch, needed(direction.step.phases() > 1))?,
            unsummed: Buffer::new(rows, unsummed)?,
        })
    }
}
