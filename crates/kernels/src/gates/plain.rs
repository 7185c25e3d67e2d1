//! A state that is one pre-activation: the vanilla RNN's, and an LSTM's projected one.

use super::{Dynamic, Functions, GateJob, Standard, clamp, flush, store_part};
use crate::Activation;
use crate::simd::Simd;

/// The activation of a plain state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlainFunctions {
    /// The RNN's activation; `None` for a projection.
    pub activation: Option<Activation>,
    /// Bound on the input of the activation.
    pub clip: Option<f32>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job no other thread accesses `h` and `y`.
#[inline(always)]
pub(super) unsafe fn plain_state<S: Simd>(s: S, f: PlainFunctions, job: GateJob<'_>) {
    let len = job.units.next_multiple_of(S::LANES);
    for row in 0..job.rows {
        let z = &job.z[row * len..][..len];
        // SAFETY: these are this job's units.
        let new = unsafe { job.h.write(row, 0..len) };
        // SAFETY: as above.
        let mut y = job
            .y
            .as_ref()
            .map(|y| unsafe { y.write(row, 0..job.units) });
        let vectors = z.chunks_exact(S::LANES).zip(new.chunks_exact_mut(S::LANES));
        for (panel, (z, new)) in vectors.enumerate() {
            let z = s.load(z);
            let h = match f.activation {
                None => z,
                Some(Activation::Tanh) => Standard.candidate(s, clamp(s, f.clip, z)),
                Some(other) => Dynamic([other; 3]).gate(s, clamp(s, f.clip, z)),
            };
            let h = flush(s, h);
            s.store(h, new);
            if let Some(y) = &mut y {
                store_part(s, h, &mut y[panel * S::LANES..]);
            }
        }
    }
}
