//! Light GRU: an update gate, a candidate, and the blend with the old state.

use super::gru::blend;
use super::{Dynamic, Functions, GateJob, Standard, math};
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
        Standard.gate(s, z)
    }
    #[inline(always)]
    fn candidate<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        math::activate(s, Activation::Relu, z)
    }
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: no thread writes `before`, no other thread accesses `h` and `y`.
#[inline(always)]
pub(super) unsafe fn light_gru_gates<S: Simd>(s: S, f: LightGruFunctions, job: GateJob<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (f.gate, f.candidate) {
            (Activation::Sigmoid, Activation::Relu) => blend::<S, 2>(s, f.clip, job, SigmoidRelu),
            (gate, candidate) => {
                blend::<S, 2>(s, f.clip, job, Dynamic([gate, candidate, candidate]));
            }
        }
    }
}
