//! The specification: plain loops that define every bit of an output.
//!
//! The loops run one sequence, one step and one output value at a time. All kernels, schedules,
//! batches and threads must give exactly these bits.
//!
//! # Rounding
//!
//! A pre-activation is one chain of fused multiply-adds. It starts from the bias and adds the input
//! features in order, then the state in order:
//!
//! ```text
//! z = b_j
//! for k in 0..E { z = fma(x[k], W[j][k], z) }
//! for k in 0..R { z = fma(h[k], U[j][k], z) }
//! ```
//!
//! where `b_j` is the sum of the two biases, rounded once. A GRU that resets after the product
//! has two chains for its candidate, each with its own bias. Every other operation is one IEEE-754
//! binary32 operation, in the order written here.
//!
//! A product with int8 weights is not a chain but one term, `fma(sum, scale, z)`; see
//! [`Precision`](crate::model::Precision) and [`quantize`].
//!
//! A GPU adds the terms of the state in another order, [`SumOrder::Lanes`]; all else is the same.
//!
//! # Tiny states
//!
//! A new state of smaller magnitude than [`TINY_STATE`] becomes `0`. Otherwise a state that decays
//! towards zero would become subnormal, which slows down many CPUs. The flush-to-zero modes of CPUs
//! are not used because they differ.

mod activation;
mod layers;
mod sums;
mod tree;

pub use activation::activate;
pub use layers::{
    additive_score, cosine_similarity, dense_activated, dot, exp_sum, greater, highway, softmax,
    weighted_sum,
};
pub use sums::SumOrder;
pub use tree::tree_step;

use crate::model::{
    Activation, Cell, Direction, Input, InputError, Layer, Matrix, Merge, Model, Output, ResetForm,
    Weights,
};
use gatestream_kernels::Numbers;

/// New states below this magnitude become zero. It is 2⁻⁶⁴, so that the product of a state with any
/// weight of at least 2⁻⁶² is a normal number.
pub const TINY_STATE: f32 = 1.0 / (1u64 << 63) as f32 / 2.0;

/// Vectors whose largest magnitude is below 2⁻¹⁰⁰ are quantised to zeros.
const TINY_ROW: f32 = 1.0 / (1u128 << 100) as f32;

/// Runs `model` over `input` and writes the buffers that `output` holds.
///
/// ```
/// use gatestream::model::{Gru, Input, Output};
/// use gatestream::reference;
///
/// let model = Gru::new(3, 4).random(1)?;
/// let (steps, batch) = (5, 2);
/// let (mut y, mut hn) = (vec![0.0; steps * batch * 4], vec![0.0; batch * 4]);
/// let x = vec![0.5; steps * batch * 3];
/// let mut output = Output::new(&mut y).hn(&mut hn);
/// reference::run(&model, &Input::new(&x, steps, batch), &mut output)?;
/// assert_eq!(hn, y[(steps - 1) * batch * 4..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`InputError`] if a slice does not have the size that [`Model::signature`] requires.
pub fn run(model: &Model, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), InputError> {
    run_in(SumOrder::Chain, model, input, output)
}

/// As [`run`], with the terms of the state added in `order`.
///
/// # Errors
/// As [`run`].
pub fn run_in(
    order: SumOrder,
    model: &Model,
    input: &Input<'_>,
    output: &mut Output<'_>,
) -> Result<(), InputError> {
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
        // Offsets of the state blocks of h and c of the current layer and direction.
        let (mut h_block, mut c_block) = (0, 0);
        for layer in model.layers() {
            let mut outputs = Vec::new();
            for direction in layer.directions() {
                let h_size = direction.output_size();
                let c_size = direction.cell_state_size();
                let h_at = h_block + sequence * h_size..h_block + (sequence + 1) * h_size;
                let c_at = c_block + sequence * c_size..c_block + (sequence + 1) * c_size;
                let mut state = DirectionState {
                    h: match input.h0 {
                        Some(h0) => h0[h_at.clone()].to_vec(),
                        None => vec![0.0; h_size],
                    },
                    c: match input.c0 {
                        Some(c0) => c0[c_at.clone()].to_vec(),
                        None => vec![0.0; c_size],
                    },
                };
                outputs.push(run_direction(order, direction, &xs, &mut state));
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

/// The state of one sequence in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionState {
    /// Hidden state, `[R]`.
    pub h: Vec<f32>,
    /// Cell state, `[H]` for an LSTM; empty for a GRU or RNN.
    pub c: Vec<f32>,
}

/// Runs one sequence through one direction. Returns the hidden state after each step, in the order
/// of `xs`.
fn run_direction(
    order: SumOrder,
    direction: &Direction,
    xs: &[Vec<f32>],
    state: &mut DirectionState,
) -> Vec<Vec<f32>> {
    let mut ys = vec![Vec::new(); xs.len()];
    for i in 0..xs.len() {
        let step = if direction.is_reverse() {
            xs.len() - 1 - i
        } else {
            i
        };
        step_cell_in(order, direction, &xs[step], state);
        ys[step] = state.h.clone();
    }
    ys
}

/// The output of a layer from the outputs of its directions.
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

/// One step of one direction: replaces the state before the step with the state after it, for the
/// input `x` `[E]`.
///
/// # Panics
/// If the state does not have the sizes of the direction.
pub fn step_cell(direction: &Direction, x: &[f32], state: &mut DirectionState) {
    step_cell_in(SumOrder::Chain, direction, x, state);
}

fn step_cell_in(order: SumOrder, direction: &Direction, x: &[f32], state: &mut DirectionState) {
    let weights = direction.weights();
    let clamp = |bound: Option<f32>, z: f32| match bound {
        Some(bound) if z > bound => bound,
        Some(bound) if z < -bound => -bound,
        _ => z,
    };
    let clip = |z: f32| clamp(direction.clip(), z);
    let output_clip = |c: f32| clamp(direction.output_clip(), c);
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
                order,
                weights,
                direction.hidden_size(),
                activations,
                [&clip, &output_clip],
                x,
                state,
            );
        }
        Cell::Gru {
            gate,
            candidate,
            reset,
        } => {
            let form = GruForm {
                gate,
                candidate,
                reset,
            };
            step_gru(order, weights, form, clip, x, state);
        }
        Cell::LightGru { gate, candidate } => {
            let hidden = state.h.len();
            let row =
                |row, of| activate(of, clip(pre_activation(order, weights, row, x, &state.h)));
            let h = (0..hidden).map(|j| {
                let (z, n) = (row(j, gate), row(hidden + j, candidate));
                flush(z.mul_add(state.h[j], (1.0 - z) * n))
            });
            state.h = h.collect();
        }
        Cell::Rnn { activation } => {
            let h = (0..state.h.len())
                .map(|j| {
                    flush(activate(
                        activation,
                        clip(pre_activation(order, weights, j, x, &state.h)),
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
    order: SumOrder,
    weights: &Weights,
    hidden: usize,
    activations: LstmActivations,
    [clip, output_clip]: [&dyn Fn(f32) -> f32; 2],
    x: &[f32],
    state: &mut DirectionState,
) {
    let peephole = |z: f32, weights: Option<f32>, c: f32| weights.map_or(z, |p| p.mul_add(c, z));
    let mut h = vec![0.0; hidden];
    for (j, h) in h.iter_mut().enumerate() {
        let [i, f, g, o] = [0, 1, 2, 3].map(|gate| {
            let row = gate * hidden + j;
            pre_activation(order, weights, row, x, &state.h)
        });
        let p = weights.peepholes.as_ref();
        let c = state.c[j];
        let i = activate(
            activations.gate,
            clip(peephole(i, p.map(|p| p.input[j]), c)),
        );
        let f = if activations.input_forget {
            1.0 - i
        } else {
            activate(
                activations.gate,
                clip(peephole(f, p.map(|p| p.forget[j]), c)),
            )
        };
        let g = activate(activations.candidate, clip(g));
        let c = flush(f.mul_add(c, i * g));
        let o = activate(
            activations.gate,
            clip(peephole(o, p.map(|p| p.output[j]), c)),
        );
        *h = flush(o * activate(activations.output, output_clip(c)));
        state.c[j] = c;
    }
    state.h = match &weights.projection {
        None => h,
        Some(projection) => (0..projection.rows())
            .map(|j| flush(order.add(0.0, projection, j, &h)))
            .collect(),
    };
}

struct GruForm {
    gate: Activation,
    candidate: Activation,
    reset: ResetForm,
}

fn step_gru(
    order: SumOrder,
    weights: &Weights,
    form: GruForm,
    clip: impl Fn(f32) -> f32,
    x: &[f32],
    state: &mut DirectionState,
) {
    let GruForm {
        gate,
        candidate,
        reset,
    } = form;
    let hidden = state.h.len();
    let gate_at = |row| activate(gate, clip(pre_activation(order, weights, row, x, &state.h)));
    let r: Vec<f32> = (0..hidden).map(gate_at).collect();
    let z: Vec<f32> = (hidden..2 * hidden).map(gate_at).collect();
    let reset_h: Vec<f32> = r.iter().zip(&state.h).map(|(r, h)| r * h).collect();
    let h = (0..hidden).map(|j| {
        let row = 2 * hidden + j;
        let n = match reset {
            ResetForm::Before => pre_activation(order, weights, row, x, &reset_h),
            ResetForm::After => {
                let input = chain(weights.input_bias[row], &weights.input, row, x);
                let state = order.add(
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

/// The pre-activation of one row: a chain over bias, input and state.
fn pre_activation(order: SumOrder, weights: &Weights, row: usize, x: &[f32], h: &[f32]) -> f32 {
    let bias = weights.input_bias[row] + weights.recurrent_bias[row];
    let z = chain(bias, &weights.input, row, x);
    order.add(z, &weights.recurrent, row, h)
}

/// A fully connected layer: `W x + b` `[outputs]`, with `weights` `[outputs, inputs]`, `bias`
/// `[outputs]` and `x` `[inputs]`.
///
/// # Panics
/// If `bias` is shorter than the number of outputs.
pub fn dense(weights: &Matrix, bias: &[f32], x: &[f32]) -> Vec<f32> {
    (0..weights.rows())
        .map(|j| chain(bias[j], weights, j, x))
        .collect()
}

/// `start + Σ_k values[k] · matrix[row][k]`, rounded after each term. For int8 see
/// [`Precision`](crate::model::Precision).
fn chain(start: f32, matrix: &Matrix, row: usize, values: &[f32]) -> f32 {
    match matrix.row_numbers(row) {
        Numbers::F32(weights) => {
            let terms = values.iter().zip(weights);
            terms.fold(start, |z, (value, weight)| value.mul_add(*weight, z))
        }
        Numbers::Bf16(weights) => {
            let terms = values.iter().zip(weights);
            terms.fold(start, |z, (value, half)| value.mul_add(widened(*half), z))
        }
        Numbers::Int8 { whole, scales } => {
            let (q, scale) = quantize(values);
            let terms = q.iter().zip(whole);
            let sum: i64 = terms.map(|(q, w)| q * i64::from(*w)).sum();
            (sum as f32).mul_add(scale * scales[0], start)
        }
    }
}

/// The value of a bfloat16.
fn widened(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Quantises the lhs of a product with int8 weights: integers from -127 to 127, and their scale.
/// The scale is NaN if a value is not finite, and 0 if all values are tiny.
pub fn quantize(values: &[f32]) -> (Vec<i64>, f32) {
    if values.iter().any(|v| !v.is_finite()) {
        return (vec![0; values.len()], f32::NAN);
    }
    let max = values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
    if max < TINY_ROW {
        return (vec![0; values.len()], 0.0);
    }
    let quantise = |v: &f32| (v * (127.0 / max)).round_ties_even() as i64;
    (values.iter().map(quantise).collect(), max / 127.0)
}

/// Zero if the state is tiny; NaN stays NaN.
fn flush(state: f32) -> f32 {
    if state.abs() < TINY_STATE { 0.0 } else { state }
}
