//! GRU: reset and update gates, the candidate, and the blend with the old state.
//!
//! Resetting after the product takes one pass. Resetting before it takes two, since every worker
//! needs the whole reset state before any can compute its candidates.

use super::{Chosen, Functions, Units, Usual, clamp, flush, load_state, store_state, store_units};
use crate::kernels::simd::Simd;
use crate::kernels::{Activation, Columns};

/// One step of one worker's hidden units, reset after the product.
#[derive(Clone, Copy, Debug)]
pub struct GruGates<'a> {
    /// `[rows][panels][4][lanes]`: reset, update, input part and state part of the candidate.
    pub z: &'a [f32],
    /// Sequences that are still running.
    pub rows: usize,
    /// Hidden units of this worker.
    pub units: usize,
    /// Activation of the reset and update gates.
    pub gate: Activation,
    /// Activation of the candidate.
    pub candidate: Activation,
    /// Bound on the input of every activation.
    pub clip: Option<f32>,
    /// Old hidden state, read.
    pub before: Columns<'a>,
    /// New hidden state, written.
    pub h: Columns<'a>,
    /// The layer's output, written.
    pub y: Option<Columns<'a>>,
}

/// First pass of a step that resets before the product.
#[derive(Debug)]
pub struct GruReset<'a> {
    /// `[rows][panels][3][lanes]`; only the reset gate, the first slot, need be complete.
    pub z: &'a [f32],
    /// Sequences that are still running.
    pub rows: usize,
    /// Hidden units of this worker.
    pub units: usize,
    /// Activation of the gate.
    pub gate: Activation,
    /// Bound on the input of every activation.
    pub clip: Option<f32>,
    /// Old hidden state, read.
    pub before: Columns<'a>,
    /// Reset gate times old state, written.
    pub reset: Columns<'a>,
}

/// Second pass of a step that resets before the product.
#[derive(Clone, Copy, Debug)]
pub struct GruCandidate<'a> {
    /// `[rows][panels][3][lanes]`: the second slot the update gate, the third the candidate.
    pub z: &'a [f32],
    /// Sequences that are still running.
    pub rows: usize,
    /// Hidden units of this worker.
    pub units: usize,
    /// Activation of the update gate.
    pub gate: Activation,
    /// Activation of the candidate.
    pub candidate: Activation,
    /// Bound on the input of every activation.
    pub clip: Option<f32>,
    /// Old hidden state, read.
    pub before: Columns<'a>,
    /// New hidden state, written.
    pub h: Columns<'a>,
    /// The layer's output, written.
    pub y: Option<Columns<'a>>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: nobody writes `before`, nobody else touches `h` and `y`.
#[inline(always)]
pub(in crate::kernels) unsafe fn gru_gates<S: Simd>(s: S, job: GruGates<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (job.gate, job.candidate) {
            (Activation::Sigmoid, Activation::Tanh) => step(s, job, Usual),
            (gate, candidate) => step(s, job, Chosen([gate, candidate, candidate])),
        }
    }
}

/// # Safety
/// As [`gru_gates`].
#[inline(always)]
unsafe fn step<S: Simd>(s: S, job: GruGates<'_>, apply: impl Functions) {
    let panels = job.units.div_ceil(S::LANES);
    for row in 0..job.rows {
        for panel in 0..panels {
            let z = &job.z[(row * panels + panel) * 4 * S::LANES..][..4 * S::LANES];
            let [zr, zz, input, state] = [0, 1, 2, 3].map(|slot| s.load(&z[slot * S::LANES..]));
            let r = apply.gate(s, clamp(s, job.clip, zr));
            let z = apply.gate(s, clamp(s, job.clip, zz));
            let n = apply.candidate(s, clamp(s, job.clip, s.fma(r, state, input)));
            let out = Blend {
                before: job.before,
                h: job.h,
                y: job.y,
                units: job.units,
            };
            // SAFETY: these are this job's units.
            unsafe { out.store(s, z, n, row, panel) };
        }
    }
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: nobody writes `before`, nobody else touches `reset`.
#[inline(always)]
pub(in crate::kernels) unsafe fn gru_reset<S: Simd>(s: S, job: GruReset<'_>) {
    let apply = Chosen([job.gate; 3]);
    let panels = job.units.div_ceil(S::LANES);
    for row in 0..job.rows {
        for panel in 0..panels {
            let z = clamp(
                s,
                job.clip,
                s.load(&job.z[(row * panels + panel) * 3 * S::LANES..]),
            );
            let r = match job.gate {
                Activation::Sigmoid => Usual.gate(s, z),
                _ => apply.gate(s, z),
            };
            // SAFETY: these are this job's units.
            unsafe {
                let before = load_state(s, &job.before, row, panel);
                store_state(s, s.mul(r, before), &job.reset, row, panel);
            }
        }
    }
}

/// Runs the job.
///
/// # Safety
/// As [`gru_gates`].
#[inline(always)]
pub(in crate::kernels) unsafe fn gru_candidate<S: Simd>(s: S, job: GruCandidate<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (job.gate, job.candidate) {
            (Activation::Sigmoid, Activation::Tanh) => blend(s, job, Usual),
            (gate, candidate) => blend(s, job, Chosen([gate, candidate, candidate])),
        }
    }
}

/// # Safety
/// As [`gru_gates`].
#[inline(always)]
unsafe fn blend<S: Simd>(s: S, job: GruCandidate<'_>, apply: impl Functions) {
    let panels = job.units.div_ceil(S::LANES);
    let out = Blend {
        before: job.before,
        h: job.h,
        y: job.y,
        units: job.units,
    };
    for row in 0..job.rows {
        for panel in 0..panels {
            let z = &job.z[(row * panels + panel) * 3 * S::LANES..][..3 * S::LANES];
            let [update, n] = [1, 2].map(|slot| clamp(s, job.clip, s.load(&z[slot * S::LANES..])));
            let (update, n) = (apply.gate(s, update), apply.candidate(s, n));
            // SAFETY: these are this job's units.
            unsafe { out.store(s, update, n, row, panel) };
        }
    }
}

/// The last line of every GRU: `h' = (1 - z) n + z h`.
struct Blend<'a> {
    before: Columns<'a>,
    h: Columns<'a>,
    y: Option<Columns<'a>>,
    units: usize,
}

impl Blend<'_> {
    /// # Safety
    /// As [`gru_gates`], for this panel of `row`.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, z: S::F32, n: S::F32, row: usize, panel: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let before = load_state(s, &self.before, row, panel);
            let h = flush(s, s.fma(z, before, s.mul(s.sub(s.splat(1.0), z), n)));
            store_state(s, h, &self.h, row, panel);
            if let Some(y) = &self.y {
                store_units(s, h, y, row, Units::of_panel(panel, S::LANES, self.units));
            }
        }
    }
}
