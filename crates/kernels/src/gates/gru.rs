//! GRU: reset and update gates, the candidate, and the blend with the old state.
//!
//! Resetting after the product takes one pass. Resetting before it takes two, since every worker
//! needs the whole reset state before any can compute its candidates.

use super::{Dynamic, Functions, GateJob, Standard, clamp, flush, rows_together, store_part};
use crate::Activation;
use crate::simd::Simd;

/// The activations of a GRU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GruFunctions {
    /// Activation of the reset and update gates.
    pub gate: Activation,
    /// Activation of the candidate.
    pub candidate: Activation,
    /// Bound on the input of every activation.
    pub clip: Option<f32>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: no thread writes `before`, no other thread accesses `h` and `y`.
#[inline(always)]
pub(super) unsafe fn gru_gates<S: Simd>(s: S, f: GruFunctions, job: GateJob<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (f.gate, f.candidate, f.clip) {
            (Activation::Sigmoid, Activation::Tanh, None) => {
                step::<S, false>(s, None, &job, Standard)
            }
            (Activation::Sigmoid, Activation::Tanh, clip) => {
                step::<S, true>(s, clip, &job, Standard)
            }
            (gate, candidate, clip) => {
                step::<S, true>(s, clip, &job, Dynamic([gate, candidate, candidate]));
            }
        }
    }
}

/// # Safety
/// As [`gru_gates`].
#[inline(always)]
unsafe fn step<S: Simd, const CLIP: bool>(
    s: S,
    clip: Option<f32>,
    job: &GateJob<'_>,
    apply: impl Functions,
) {
    let clip = if CLIP { clip } else { None };
    let len = job.units.next_multiple_of(S::LANES);
    let together = rows_together(job.units.div_ceil(S::LANES));
    let mut first = 0;
    while first < job.rows {
        let end = (first + together).min(job.rows);
        for row in first..end {
            let z = &job.z[row * 4 * len..][..4 * len];
            // SAFETY: these are this job's units.
            let new = unsafe { job.h.write(row, 0..len) };
            // The candidate's input is kept where the new state will be, which no thread reads
            // meanwhile.
            for (z, new) in z
                .chunks_exact(4 * S::LANES)
                .zip(new.chunks_exact_mut(S::LANES))
            {
                let r = apply.gate(s, clamp(s, clip, s.load(z)));
                let (input, state) = (s.load(&z[2 * S::LANES..]), s.load(&z[3 * S::LANES..]));
                s.store(clamp(s, clip, s.fma(r, state, input)), new);
            }
        }
        for row in first..end {
            let z = &job.z[row * 4 * len..][..4 * len];
            // SAFETY: these are this job's units.
            let mut states = unsafe { States::new(job, row, len) };
            for (panel, z) in z.chunks_exact(4 * S::LANES).enumerate() {
                let update = apply.gate(s, clamp(s, clip, s.load(&z[S::LANES..])));
                let n = apply.candidate(s, s.load(&states.new[panel * S::LANES..]));
                states.blend(s, update, n, panel);
            }
        }
        first = end;
    }
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: no thread writes `before`, no other thread accesses `h`.
#[inline(always)]
pub(super) unsafe fn gru_reset<S: Simd>(s: S, f: GruFunctions, job: GateJob<'_>) {
    let apply = Dynamic([f.gate; 3]);
    let len = job.units.next_multiple_of(S::LANES);
    for row in 0..job.rows {
        let z = &job.z[row * 3 * len..][..3 * len];
        // SAFETY: these are this job's units.
        let (before, reset) = unsafe { (job.before.read(row, 0..len), job.h.write(row, 0..len)) };
        let vectors = z
            .chunks_exact(3 * S::LANES)
            .zip(before.chunks_exact(S::LANES));
        for ((z, before), reset) in vectors.zip(reset.chunks_exact_mut(S::LANES)) {
            let z = clamp(s, f.clip, s.load(z));
            let r = match f.gate {
                Activation::Sigmoid => Standard.gate(s, z),
                _ => apply.gate(s, z),
            };
            s.store(s.mul(r, s.load(before)), reset);
        }
    }
}

/// Runs the job.
///
/// # Safety
/// As [`gru_gates`].
#[inline(always)]
pub(super) unsafe fn gru_candidate<S: Simd>(s: S, f: GruFunctions, job: GateJob<'_>) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (f.gate, f.candidate) {
            (Activation::Sigmoid, Activation::Tanh) => blend::<S, 3>(s, f.clip, job, Standard),
            (gate, candidate) => {
                blend::<S, 3>(s, f.clip, job, Dynamic([gate, candidate, candidate]));
            }
        }
    }
}

/// The new state from `SLOTS` slots, of which the last two are the update gate and the candidate.
///
/// # Safety
/// As [`gru_gates`].
#[inline(always)]
pub(super) unsafe fn blend<S: Simd, const SLOTS: usize>(
    s: S,
    clip: Option<f32>,
    job: GateJob<'_>,
    apply: impl Functions,
) {
    let len = job.units.next_multiple_of(S::LANES);
    for row in 0..job.rows {
        let z = &job.z[row * SLOTS * len..][..SLOTS * len];
        // SAFETY: these are this job's units.
        let mut states = unsafe { States::new(&job, row, len) };
        for (panel, z) in z.chunks_exact(SLOTS * S::LANES).enumerate() {
            let update = apply.gate(s, clamp(s, clip, s.load(&z[(SLOTS - 2) * S::LANES..])));
            let n = apply.candidate(s, clamp(s, clip, s.load(&z[(SLOTS - 1) * S::LANES..])));
            states.blend(s, update, n, panel);
        }
    }
}

/// One row of the states that a GRU blends.
struct States<'a> {
    before: &'a [f32],
    new: &'a mut [f32],
    y: Option<&'a mut [f32]>,
}

impl<'a> States<'a> {
    /// # Safety
    /// As [`gru_gates`], for `row`, and `h` and `y` are not borrowed elsewhere.
    #[inline(always)]
    unsafe fn new(job: &GateJob<'a>, row: usize, len: usize) -> States<'a> {
        // SAFETY: the caller's promise.
        unsafe {
            States {
                before: job.before.read(row, 0..len),
                new: job.h.write(row, 0..len),
                y: match &job.y {
                    Some(y) => Some(y.write(row, 0..job.units)),
                    None => None,
                },
            }
        }
    }

    /// `h' = (1 - z) n + z h`.
    #[inline(always)]
    fn blend<S: Simd>(&mut self, s: S, z: S::F32, n: S::F32, panel: usize) {
        let first = panel * S::LANES;
        let before = s.load(&self.before[first..]);
        let h = flush(s, s.fma(z, before, s.mul(s.sub(s.splat(1.0), z), n)));
        s.store(h, &mut self.new[first..]);
        if let Some(y) = &mut self.y {
            store_part(s, h, &mut y[first..]);
        }
    }
}
