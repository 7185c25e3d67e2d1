//! A state that is one pre-activation: the vanilla RNN's, and an LSTM's projected one.

use super::{Chosen, Functions, Usual, clamp, flush, store_part, write_row};
use crate::simd::Simd;
use crate::{Activation, Columns};

/// One step of one worker's units.
#[derive(Clone, Copy, Debug)]
pub struct PlainState<'a> {
    /// `[rows][panels][1][lanes]`.
    pub z: &'a [f32],
    /// Sequences that are still running.
    pub rows: usize,
    /// Units of this worker.
    pub units: usize,
    /// The RNN's activation; `None` for a projection.
    pub activation: Option<Activation>,
    /// Bound on the input of the activation.
    pub clip: Option<f32>,
    /// New hidden state, written.
    pub h: Columns<'a>,
    /// The layer's output, written.
    pub y: Option<Columns<'a>>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job nobody else touches `h` and `y`.
#[inline(always)]
pub(crate) unsafe fn plain_state<S: Simd>(s: S, job: PlainState<'_>) {
    let len = job.units.next_multiple_of(S::LANES);
    for row in 0..job.rows {
        let z = &job.z[row * len..][..len];
        // SAFETY: these are this job's units.
        let new = unsafe { write_row(&job.h, row, len) };
        // SAFETY: as above.
        let mut y = job
            .y
            .as_ref()
            .map(|y| unsafe { write_row(y, row, job.units) });
        let vectors = z.chunks_exact(S::LANES).zip(new.chunks_exact_mut(S::LANES));
        for (panel, (z, new)) in vectors.enumerate() {
            let z = s.load(z);
            let h = match job.activation {
                None => z,
                Some(Activation::Tanh) => Usual.candidate(s, clamp(s, job.clip, z)),
                Some(other) => Chosen([other; 3]).gate(s, clamp(s, job.clip, z)),
            };
            let h = flush(s, h);
            s.store(h, new);
            if let Some(y) = &mut y {
                store_part(s, h, &mut y[panel * S::LANES..]);
            }
        }
    }
}
