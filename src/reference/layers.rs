//! The specification of the layers around a recurrent core.
//!
//! A sum along a row of data has 16 parts: part `i` takes the terms `i`, `i + 16`, `i + 32`, and so
//! on, in order. The parts are then added by halves.

use super::activation::exp_of_nonpositive;
use super::{activate, dense};
use crate::model::{Activation, Matrix};

/// Parts of a sum.
const PARTS: usize = 16;

/// The sum of the parts: the second half is added to the first until one is left.
fn sum_of_parts(mut parts: Vec<f32>) -> f32 {
    while parts.len() > 1 {
        let second = parts.split_off(parts.len() / 2);
        parts = parts.iter().zip(&second).map(|(a, b)| a + b).collect();
    }
    parts[0]
}

/// `Σ_k a[k] · b[k]`.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut parts = vec![0.0; PARTS];
    for (k, (a, b)) in a.iter().zip(b).enumerate() {
        parts[k % PARTS] = a.mul_add(*b, parts[k % PARTS]);
    }
    sum_of_parts(parts)
}

/// The greatest of `values`, and the exponential of each less the greatest.
fn exponentials(values: &[f32]) -> (f32, Vec<f32>) {
    let mut greatest = f32::NEG_INFINITY;
    for &value in values {
        if value.is_nan() || value > greatest {
            greatest = value;
        }
        if greatest.is_nan() {
            break;
        }
    }
    let exp = |value: &f32| exp_of_nonpositive(value - greatest);
    (greatest, values.iter().map(exp).collect())
}

/// The sum of the exponentials in parts.
fn sum_of(exponentials: &[f32]) -> f32 {
    let mut parts = vec![0.0; PARTS];
    for (k, e) in exponentials.iter().enumerate() {
        parts[k % PARTS] += e;
    }
    sum_of_parts(parts)
}

/// `ln Σ_k exp(x[k])` in parts: the greatest x, and the sum of the exponentials of the
/// differences from it.
pub fn exp_sum(values: &[f32]) -> (f32, f32) {
    let (greatest, exponentials) = exponentials(values);
    (greatest + 0.0, sum_of(&exponentials)) // of two zeros, the positive one
}

/// `exp(x[k]) / Σ exp(x)`.
pub fn softmax(values: &[f32]) -> Vec<f32> {
    let (_, exponentials) = exponentials(values);
    let sum = sum_of(&exponentials);
    exponentials.iter().map(|e| e / sum).collect()
}

/// `Σ_k weights[k] · tanh(x[k] + row[k])`: the additive score of attention.
pub fn additive_score(x: &[f32], row: &[f32], weights: &[f32]) -> f32 {
    let sums = x.iter().zip(row).map(|(x, row)| x + row);
    let tanh: Vec<f32> = sums.map(|sum| activate(Activation::Tanh, sum)).collect();
    dot(weights, &tanh)
}

/// `Σ_i weights[i] · rows[i]`, with as many rows, all of the same width.
pub fn weighted_sum(weights: &[f32], rows: &[f32]) -> Vec<f32> {
    let width = rows.len() / weights.len().max(1);
    let mut sum = vec![0.0; width];
    for (weight, row) in weights.iter().zip(rows.chunks(width.max(1))) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum = weight.mul_add(*value, *sum);
        }
    }
    sum
}

/// A dense layer and its activation.
pub fn dense_activated(
    weights: &Matrix,
    bias: &[f32],
    activation: Option<Activation>,
    x: &[f32],
) -> Vec<f32> {
    let mut y = dense(weights, bias, x);
    if let Some(activation) = activation {
        y.iter_mut().for_each(|y| *y = activate(activation, *y));
    }
    y
}

/// `t · h + (1 − t) · x`: one layer of a highway network, after its two dense layers (Srivastava
/// and others, *Highway Networks*, 2015, equation 3).
pub fn highway(gate: &[f32], transform: &[f32], x: &[f32]) -> Vec<f32> {
    let mut y = Vec::new();
    for i in 0..x.len() {
        y.push(gate[i].mul_add(transform[i], (1.0 - gate[i]) * x[i]));
    }
    y
}

/// The greater of two numbers, the first of equal ones; NaN where either is NaN.
pub fn greater(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (_, true) => b,
        (true, _) => a,
        _ if a < b => b,
        _ => a,
    }
}

/// The cosine of the angle between two rows, as PyTorch's `cosine_similarity` has it: each length
/// is at least `eps`.
pub fn cosine_similarity(a: &[f32], b: &[f32], eps: f32) -> f32 {
    let length = |row: &[f32]| greater(eps, dot(row, row).sqrt());
    dot(a, b) / (length(a) * length(b))
}
