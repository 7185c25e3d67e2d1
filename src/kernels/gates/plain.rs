//! A state that is one pre-activation: the vanilla RNN's, and an LSTM's projected one.

use super::{Chosen, Functions, Units, Usual, clamp, flush, store_state, store_units};
use crate::kernels::simd::Simd;
use crate::kernels::{Activation, Columns};

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
pub(in crate::kernels) unsafe fn plain_state<S: Simd>(s: S, job: PlainState<'_>) {
    let panels = job.units.div_ceil(S::LANES);
    for row in 0..job.rows {
        for panel in 0..panels {
            let z = s.load(&job.z[(row * panels + panel) * S::LANES..]);
            let h = match job.activation {
                None => z,
                Some(Activation::Tanh) => Usual.candidate(s, clamp(s, job.clip, z)),
                Some(other) => Chosen([other; 3]).gate(s, clamp(s, job.clip, z)),
            };
            let h = flush(s, h);
            // SAFETY: these are this job's units.
            unsafe {
                store_state(s, h, &job.h, row, panel);
                if let Some(y) = &job.y {
                    store_units(s, h, y, row, Units::of_panel(panel, S::LANES, job.units));
                }
            }
        }
    }
}
