//! LSTM: four pre-activations and the old cell state to the new cell and hidden state.

use super::{Dynamic, Functions, GateJob, Standard, clamp, flush, rows_together, store_part};
use crate::Activation;
use crate::simd::Simd;

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
    /// Bound on the input of the output activation.
    pub output_clip: Option<f32>,
}

/// A job with its functions.
#[derive(Clone, Copy)]
struct Step<'a> {
    functions: LstmFunctions,
    job: GateJob<'a>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: no other thread accesses `c`, `h` and `y`.
#[inline(always)]
pub(super) unsafe fn lstm_gates<S: Simd>(s: S, f: LstmFunctions, job: GateJob<'_>) {
    let usual = (f.gate, f.candidate, f.output)
        == (Activation::Sigmoid, Activation::Tanh, Activation::Tanh);
    let is_clipped = f.clip.is_some() || f.output_clip.is_some();
    let plain = !is_clipped && !f.input_forget && job.peepholes.is_none();
    let of = Step { functions: f, job };
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match (usual, plain) {
            (true, true) => step::<S, true>(s, &of, Standard),
            (true, false) => step::<S, false>(s, &of, Standard),
            _ => step::<S, false>(s, &of, Dynamic([f.gate, f.candidate, f.output])),
        }
    }
}

/// `PLAIN`: no clip, no peepholes, a forget gate of its own.
///
/// # Safety
/// As [`lstm_gates`].
#[inline(always)]
unsafe fn step<S: Simd, const PLAIN: bool>(s: S, of: &Step<'_>, apply: impl Functions) {
    let together = rows_together(of.job.units.div_ceil(S::LANES));
    let mut first = 0;
    while first < of.job.rows {
        let end = (first + together).min(of.job.rows);
        for row in first..end {
            // SAFETY: the caller's promise is passed on.
            unsafe { cell_state::<S, PLAIN>(s, of, apply, row) };
        }
        for row in first..end {
            // SAFETY: the caller's promise is passed on.
            unsafe { hidden_state::<S, PLAIN>(s, of, apply, row) };
        }
        first = end;
    }
}

/// A row's pre-activations.
#[inline(always)]
fn row_of_z<'a, S: Simd>(of: &Step<'a>, row: usize) -> &'a [f32] {
    let len = of.job.units.div_ceil(S::LANES) * 4 * S::LANES;
    &of.job.z[row * len..][..len]
}

/// A pre-activation, with its peephole and clipped.
#[inline(always)]
fn gate_input<S: Simd, const PLAIN: bool>(
    s: S,
    of: &Step<'_>,
    (panel, peephole): (usize, usize),
    z: S::F32,
    c: S::F32,
) -> S::F32 {
    if PLAIN {
        return z;
    }
    let z = match of.job.peepholes {
        None => z,
        Some(p) => s.fma(s.load(&p[(panel * 3 + peephole) * S::LANES..]), c, z),
    };
    clamp(s, of.functions.clip, z)
}

/// `c' = f c + i g`.
///
/// # Safety
/// As [`lstm_gates`].
#[inline(always)]
unsafe fn cell_state<S: Simd, const PLAIN: bool>(
    s: S,
    of: &Step<'_>,
    apply: impl Functions,
    row: usize,
) {
    let z = row_of_z::<S>(of, row);
    // SAFETY: these are this job's units.
    let states = unsafe { of.job.c.write(row, 0..z.len() / 4) };
    let vectors = z
        .chunks_exact(4 * S::LANES)
        .zip(states.chunks_exact_mut(S::LANES));
    for (panel, (z, state)) in vectors.enumerate() {
        let c = s.load(state);
        let i = gate_input::<S, PLAIN>(s, of, (panel, 0), s.load(z), c);
        let i = apply.gate(s, i);
        let f = if !PLAIN && of.functions.input_forget {
            s.sub(s.splat(1.0), i)
        } else {
            let f = gate_input::<S, PLAIN>(s, of, (panel, 1), s.load(&z[S::LANES..]), c);
            apply.gate(s, f)
        };
        let g = s.load(&z[2 * S::LANES..]);
        let g = if PLAIN {
            g
        } else {
            clamp(s, of.functions.clip, g)
        };
        let g = apply.candidate(s, g);
        s.store(flush(s, s.fma(f, c, s.mul(i, g))), state);
    }
}

/// `h' = o φ(c')`, of the new cell state.
///
/// # Safety
/// As [`lstm_gates`].
#[inline(always)]
unsafe fn hidden_state<S: Simd, const PLAIN: bool>(
    s: S,
    of: &Step<'_>,
    apply: impl Functions,
    row: usize,
) {
    let z = row_of_z::<S>(of, row);
    let len = z.len() / 4;
    // SAFETY: these are this job's units.
    let (states, new) = unsafe { (of.job.c.read(row, 0..len), of.job.h.write(row, 0..len)) };
    // SAFETY: as above.
    let mut y = of
        .job
        .y
        .as_ref()
        .map(|y| unsafe { y.write(row, 0..of.job.units) });
    let vectors = z
        .chunks_exact(4 * S::LANES)
        .zip(states.chunks_exact(S::LANES));
    let vectors = vectors.zip(new.chunks_exact_mut(S::LANES)).enumerate();
    for (panel, ((z, c), new)) in vectors {
        let c = s.load(c);
        let o = gate_input::<S, PLAIN>(s, of, (panel, 2), s.load(&z[3 * S::LANES..]), c);
        let c = if PLAIN {
            c
        } else {
            clamp(s, of.functions.output_clip, c)
        };
        let h = flush(s, s.mul(apply.gate(s, o), apply.output(s, c)));
        s.store(h, new);
        if let Some(y) = &mut y {
            store_part(s, h, &mut y[panel * S::LANES..]);
        }
    }
}
