//! The specification: plain loops that define every bit of an answer.
//!
//! Each sequence is run alone, one step after the other, one output after the other. Kernels,
//! schedules, batches and threads must give these bits exactly.
//!
//! # Rounding
//!
//! A pre-activation is one chain of fused multiply-adds that starts from the bias, takes the input
//! features in order, then the state in order:
//!
//! ```text
//! z = b_j;  for k in 0..E { z = fma(x[k], W[j][k], z) };  for k in 0..R { z = fma(h[k], U[j][k], z) }
//! ```
//!
//! where `b_j` is the sum of the two biases, rounded once. A GRU that resets after the product
//! has two chains for its candidate, each with its own bias. Every other operation is one IEEE-754
//! binary32 operation, in the order written here.
//!
//! A product with weights of int8 is no chain but one term, `fma(sum, scale, z)`; see
//! [`Precision`](crate::model::Precision) and [`quantize`].
//!
//! # Tiny states
//!
//! A new state smaller in magnitude than [`TINY_STATE`] becomes `0`. A state that decays towards
//! zero would otherwise end in subnormal numbers, which many CPUs compute on many times more
//! slowly, and the flush-to-zero modes of different CPUs do not agree with each other.

mod activation;

pub use activation::activate;

use crate::kernels::Numbers;
use crate::model::{
    Activation, Cell, Direction, Input, InputError, Layer, Matrix, Merge, Model, Output, ResetForm,
    Weights,
};

/// New states below this magnitude become zero: 2⁻⁶⁴, so that a product of a state and any weight
/// above 2⁻⁶² is a normal number.
pub const TINY_STATE: f32 = 1.0 / (1u64 << 63) as f32 / 2.0;

/// Rows whose greatest magnitude is below 2⁻¹⁰⁰ are quantised to zeros.
const TINY_ROW: f32 = 1.0 / (1u128 << 100) as f32;

/// Runs `model` over `input` and writes what `output` asks for.
///
/// # Errors
/// Slices that do not have the sizes of [`Model::signature`].
pub fn run(model: &Model, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), InputError> {
    input.check(&model.signature(), output)?;
    let features = model.signature().output;
    if let Some(values) = output.values.as_deref_mut() {
        values.fill(0.0);
    }
    let layout = input.layout_for(&model.signature());
    for sequence in 0..input.batch {
        let row = |step| layout.row(step, input.steps, sequence, input.batch);
        let mut xs: Vec<Vec<f32>> = (0..input.length(sequence))
            .map(|step| {
                let size = model.signature().input;
                input.values[row(step) * size..][..size].to_vec()
            })
            .collect();
        // Offsets of this sequence's rows in the state blocks of h and c.
        let (mut h_block, mut c_block) = (0, 0);
        for layer in model.layers() {
            let mut outputs = Vec::new();
            for direction in layer.directions() {
                let h_size = direction.output_size();
                let c_size = direction.cell_state_size();
                let h_at = h_block + sequence * h_size..h_block + (sequence + 1) * h_size;
                let c_at = c_block + sequence * c_size..c_block + (sequence + 1) * c_size;
                let mut state = State {
                    h: input
                        .h0
                        .map_or(vec![0.0; h_size], |h| h[h_at.clone()].to_vec()),
                    c: input
                        .c0
                        .map_or(vec![0.0; c_size], |c| c[c_at.clone()].to_vec()),
                };
                outputs.push(run_direction(direction, &xs, &mut state));
                if let Some(hn) = output.hn.as_deref_mut() {
                    hn[h_at].copy_from_slice(&state.h);
                }
                if let Some(cn) = output.cn.as_deref_mut() {
                    cn[c_at].copy_from_slice(&state.c);
                }
                h_block += input.batch * h_size;
                c_block += input.batch * c_size;
            }
            xs = merge(layer, outputs);
        }
        if let Some(values) = output.values.as_deref_mut() {
            for (step, y) in xs.iter().enumerate() {
                values[row(step) * features..][..features].copy_from_slice(y);
            }
        }
    }
    Ok(())
}

/// The state of one sequence in one direction: `h` `[R]`, and `c` `[H]` for an LSTM.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Hidden state.
    pub h: Vec<f32>,
    /// Cell state; empty for GRU and RNN.
    pub c: Vec<f32>,
}

/// One sequence through one direction. Returns the state after each step, in the order of `xs`.
fn run_direction(direction: &Direction, xs: &[Vec<f32>], state: &mut State) -> Vec<Vec<f32>> {
    let mut ys = vec![Vec::new(); xs.len()];
    for i in 0..xs.len() {
        let step = if direction.is_reverse() {
            xs.len() - 1 - i
        } else {
            i
        };
        step_cell(direction, &xs[step], state);
        ys[step] = state.h.clone();
    }
    ys
}

/// The layer's output from its directions' outputs.
fn merge(layer: &Layer, mut outputs: Vec<Vec<Vec<f32>>>) -> Vec<Vec<f32>> {
    let forward = outputs.remove(0);
    let Some(reverse) = outputs.pop() else {
        return forward;
    };
    let pairs = forward.into_iter().zip(reverse);
    pairs
        .map(|(f, r)| match layer.merge() {
            Merge::Concat => [f, r].concat(),
            Merge::Sum => f.iter().zip(&r).map(|(f, r)| f + r).collect(),
        })
        .collect()
}

/// One step of one direction: `x` `[E]` and the state before it, to the state after it.
///
/// # Panics
/// If the state has not the sizes of the direction.
pub fn step_cell(direction: &Direction, x: &[f32], state: &mut State) {
    let weights = direction.weights();
    let clip = |z: f32| match direction.clip() {
        Some(bound) if z > bound => bound,
        Some(bound) if z < -bound => -bound,
        _ => z,
    };
    match *direction.cell() {
        Cell::Lstm {
            gate,
            candidate,
            output,
            input_forget,
        } => {
            let activations = LstmActivations {
                gate,
                candidate,
                output,
                input_forget,
            };
            step_lstm(
                weights,
                direction.hidden_size(),
                activations,
                clip,
                x,
                state,
            );
        }
        Cell::Gru {
            gate,
            candidate,
            reset,
        } => step_gru(weights, gate, candidate, reset, clip, x, state),
        Cell::Rnn { activation } => {
            let h = (0..state.h.len())
                .map(|j| {
                    flush(activate(
                        activation,
                        clip(pre_activation(weights, j, x, &state.h)),
                    ))
                })
                .collect();
            state.h = h;
        }
    }
}

struct LstmActivations {
    gate: Activation,
    candidate: Activation,
    output: Activation,
    input_forget: bool,
}

fn step_lstm(
    weights: &Weights,
    hidden: usize,
    activations: LstmActivations,
    clip: impl Fn(f32) -> f32,
    x: &[f32],
    state: &mut State,
) {
    let peephole = |z: f32, weights: Option<f32>, c: f32| weights.map_or(z, |p| p.mul_add(c, z));
    let mut h = vec![0.0; hidden];
    for (j, h) in h.iter_mut().enumerate() {
        let [i, f, g, o] = [0, 1, 2, 3].map(|gate| {
            let row = gate * hidden + j;
            pre_activation(weights, row, x, &state.h)
        });
        let p = weights.peepholes.as_ref();
        let c = state.c[j];
        let i = activate(
            activations.gate,
            clip(peephole(i, p.map(|p| p.input[j]), c)),
        );
        let f = match activations.input_forget {
            true => 1.0 - i,
            false => activate(
                activations.gate,
                clip(peephole(f, p.map(|p| p.forget[j]), c)),
            ),
        };
        let g = activate(activations.candidate, clip(g));
        let c = flush(f.mul_add(c, i * g));
        let o = activate(
            activations.gate,
            clip(peephole(o, p.map(|p| p.output[j]), c)),
        );
        *h = flush(o * activate(activations.output, c));
        state.c[j] = c;
    }
    state.h = match &weights.projection {
        None => h,
        Some(projection) => (0..projection.rows())
            .map(|j| flush(chain(0.0, projection, j, &h)))
            .collect(),
    };
}

fn step_gru(
    weights: &Weights,
    gate: Activation,
    candidate: Activation,
    reset: ResetForm,
    clip: impl Fn(f32) -> f32,
    x: &[f32],
    state: &mut State,
) {
    let hidden = state.h.len();
    let gate_at = |row| activate(gate, clip(pre_activation(weights, row, x, &state.h)));
    let r: Vec<f32> = (0..hidden).map(gate_at).collect();
    let z: Vec<f32> = (hidden..2 * hidden).map(gate_at).collect();
    let reset_h: Vec<f32> = r.iter().zip(&state.h).map(|(r, h)| r * h).collect();
    let h = (0..hidden).map(|j| {
        let row = 2 * hidden + j;
        let n = match reset {
            ResetForm::Before => pre_activation(weights, row, x, &reset_h),
            ResetForm::After => {
                let input = chain(weights.input_bias[row], &weights.input, row, x);
                let state = chain(
                    weights.recurrent_bias[row],
                    &weights.recurrent,
                    row,
                    &state.h,
                );
                r[j].mul_add(state, input)
            }
        };
        let n = activate(candidate, clip(n));
        flush(z[j].mul_add(state.h[j], (1.0 - z[j]) * n))
    });
    state.h = h.collect();
}

/// The chain of one row: bias, then input, then state.
fn pre_activation(weights: &Weights, row: usize, x: &[f32], h: &[f32]) -> f32 {
    let bias = weights.input_bias[row] + weights.recurrent_bias[row];
    let z = chain(bias, &weights.input, row, x);
    chain(z, &weights.recurrent, row, h)
}

/// A fully connected layer: `W x + b`, with `weights` `[outputs, inputs]`, `bias` `[outputs]`, `x`
/// `[inputs]`.
///
/// # Panics
/// If there are fewer biases than outputs.
pub fn dense(weights: &Matrix, bias: &[f32], x: &[f32]) -> Vec<f32> {
    (0..weights.rows())
        .map(|j| chain(bias[j], weights, j, x))
        .collect()
}

/// `start + Σ_k values[k] · matrix[row][k]`, rounded after each term; for int8 see
/// [`Precision`](crate::model::Precision).
fn chain(start: f32, matrix: &Matrix, row: usize, values: &[f32]) -> f32 {
    match matrix.row_numbers(row) {
        Numbers::F32(weights) => {
            let terms = values.iter().zip(weights);
            terms.fold(start, |z, (value, weight)| value.mul_add(*weight, z))
        }
        Numbers::Bf16(weights) => {
            let terms = values.iter().zip(weights);
            terms.fold(start, |z, (value, half)| {
                let weight = f32::from_bits(u32::from(*half) << 16);
                value.mul_add(weight, z)
            })
        }
        Numbers::Int8 { whole, scales } => {
            let (q, scale) = quantize(values);
            let terms = q.iter().zip(whole);
            let sum: i64 = terms.map(|(q, w)| q * i64::from(*w)).sum();
            (sum as f32).mul_add(scale * scales[0], start)
        }
    }
}

/// Whole numbers from -127 to 127 and their scale, for the left operand of a product with int8. The
/// scale is NaN where a value is not finite, and 0 where all are tiny.
pub fn quantize(values: &[f32]) -> (Vec<i64>, f32) {
    if values.iter().any(|v| !v.is_finite()) {
        return (vec![0; values.len()], f32::NAN);
    }
    let most = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    if most < TINY_ROW {
        return (vec![0; values.len()], 0.0);
    }
    let q = values
        .iter()
        .map(|v| (v * (127.0 / most)).round_ties_even());
    (q.map(|q| q as i64).collect(), most / 127.0)
}

/// Zero where the state is tiny; NaN stays NaN.
fn flush(state: f32) -> f32 {
    if state.abs() < TINY_STATE { 0.0 } else { state }
}
