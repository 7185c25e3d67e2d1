//! Light GRU: an update gate, a candidate, and the blend with the old state.

use super::gru::States;
use super::{Chosen, Functions, GateJob, Usual, apply, clamp, math};
use crate::Activation;
use crate::simd::Simd;

/// The activations of a light GRU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LightGruFunctions {
    /// Activation of the update gate.
    pub gate: Activation,
    /// Activation of the candidate.
    pub candidate: Activation,
    /// Bound on the input of both activations.
    pub clip: Option<f32>,
}

/// Sigmoid gate and relu candidate, inlined.
#[derive(Clone, Copy)]
struct SigmoidRelu;

impl Functions for SigmoidRelu {
    #[inline(always)]
    fn gate<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        Usual.gate(s, z)
    }
    #[inline(always)]
    fn candidate<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        math::activate(s, Activation::Relu, z)
    }
    #[inline(always)]
    fn output<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        apply(s, Activation::Relu, z)
    }
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: nobody writes `before`, nobody else touches `h` and `y`.
#[inline(always)]
pub(super) unsafe fn light_gru_gates<S: Simd>(s: S, f: LightGruFunctions, job: GateJob<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (f.gate, f.candidate) {
            (Activation::Sigmoid, Activation::Relu) => step(s, f.clip, job, SigmoidRelu),
            (gate, candidate) => step(s, f.clip, job, Chosen([gate, candidate, candidate])),
        }
    }
}

/// # Safety
/// As [`light_gru_gates`].
#[inline(always)]
unsafe fn step<S: Simd>(s: S, clip: Option<f32>, job: GateJob<'_>, apply: impl Functions) {
    let len = job.units.next_multiple_of(S::LANES);
    for row in 0..job.rows {
        let z = &job.z[row * 2 * len..][..2 * len];
        // SAFETY: these are this job's units.
        let mut states = unsafe { States::new(job.before, job.h, job.y, row, job.units, len) };
        for (panel, z) in z.chunks_exact(2 * S::LANES).enumerate() {
            let update = apply.gate(s, clamp(s, clip, s.load(z)));
            let n = apply.candidate(s, clamp(s, clip, s.load(&z[S::LANES..])));
            states.blend(s, update, n, panel);
        }
    }
}
