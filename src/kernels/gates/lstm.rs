//! LSTM: four pre-activations and the old cell state to the new cell and hidden state.

use super::{Chosen, Functions, Units, Usual, clamp, flush, load_state, store_state, store_units};
use crate::kernels::simd::Simd;
use crate::kernels::{Activation, Columns};

/// The elementwise part of an LSTM as data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LstmFunctions {
    /// Activation of input, forget and output gates.
    pub gate: Activation,
    /// Activation of the candidate.
    pub candidate: Activation,
    /// Activation of the new cell state.
    pub output: Activation,
    /// Forget gate is one minus the input gate.
    pub input_forget: bool,
    /// Bound on the input of the gates and the candidate.
    pub clip: Option<f32>,
}

/// One step of one worker's hidden units.
#[derive(Clone, Copy, Debug)]
pub struct LstmGates<'a> {
    /// `[rows][panels][4][lanes]`: input, forget, candidate, output.
    pub z: &'a [f32],
    /// Sequences that are still running.
    pub rows: usize,
    /// Hidden units of this worker.
    pub units: usize,
    /// Its activations.
    pub functions: LstmFunctions,
    /// `[panels][3][lanes]`: input, forget, output.
    pub peepholes: Option<&'a [f32]>,
    /// Cell state, read and written.
    pub c: Columns<'a>,
    /// New hidden state, written.
    pub h: Columns<'a>,
    /// The layer's output, written.
    pub y: Option<Columns<'a>>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: nobody else touches `c`, and nobody else reads or writes `h` and `y`.
#[inline(always)]
pub(in crate::kernels) unsafe fn lstm_gates<S: Simd>(s: S, job: LstmGates<'_>) {
    let f = job.functions;
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (f.gate, f.candidate, f.output) {
            (Activation::Sigmoid, Activation::Tanh, Activation::Tanh) => step(s, job, Usual),
            (gate, candidate, output) => step(s, job, Chosen([gate, candidate, output])),
        }
    }
}

/// # Safety
/// As [`lstm_gates`].
#[inline(always)]
unsafe fn step<S: Simd>(s: S, job: LstmGates<'_>, apply: impl Functions) {
    let panels = job.units.div_ceil(S::LANES);
    let LstmFunctions {
        clip, input_forget, ..
    } = job.functions;
    for row in 0..job.rows {
        for panel in 0..panels {
            let z = &job.z[(row * panels + panel) * 4 * S::LANES..][..4 * S::LANES];
            let [zi, zf, zg, zo] = [0, 1, 2, 3].map(|slot| s.load(&z[slot * S::LANES..]));
            let peep = |slot: usize, z: S::F32, c: S::F32| match job.peepholes {
                None => z,
                Some(p) => s.fma(s.load(&p[(panel * 3 + slot) * S::LANES..]), c, z),
            };
            // SAFETY: these are this job's units.
            let c = unsafe { load_state(s, &job.c, row, panel) };
            let i = apply.gate(s, clamp(s, clip, peep(0, zi, c)));
            let f = match input_forget {
                true => s.sub(s.splat(1.0), i),
                false => apply.gate(s, clamp(s, clip, peep(1, zf, c))),
            };
            let g = apply.candidate(s, clamp(s, clip, zg));
            let c = flush(s, s.fma(f, c, s.mul(i, g)));
            let o = apply.gate(s, clamp(s, clip, peep(2, zo, c)));
            let h = flush(s, s.mul(o, apply.output(s, c)));
            // SAFETY: these are this job's units.
            unsafe {
                store_state(s, c, &job.c, row, panel);
                store_state(s, h, &job.h, row, panel);
                if let Some(y) = &job.y {
                    store_units(s, h, y, row, Units::of_panel(panel, S::LANES, job.units));
                }
            }
        }
    }
}
