//! How far an output of a dense layer in int8 is, at most, from the same output in f32.
//!
//! In f32 an output is a chain of n fused multiply-adds of `x` and `w` that starts from `b`. In
//! int8 it is `b + x'·w'`, where `x'` and `w'` are `x` and `w` rounded to whole numbers times a
//! scale. Without rounding on the way the two would differ by
//!
//! ```text
//! x·w - x'·w'  =  x'·(w - w') + (x - x')·w
//!              <=  |x'| |w - w'| + |x - x'| |w|                             (Cauchy-Schwarz)
//! ```
//!
//! The chain rounds n times, each time a sum that is at most `|b| + |x| |w|` but for roundings
//! before; int8 three times: its sum, the product of the scales, and what these add to `b`; and
//! the caller rounds once more: the output minus or plus the bound. With m = n + 16 and u
//! = 2^-24 all that is below `m u / (1 - m u)` times `|b| + (|x'| + |x - x'|) (|w| + |w - w'|)`
//! (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). What underflows on the
//! way is below [`UNDERFLOW`] altogether.
//!
//! So the bound is a sum of three products: of what is known of an output, and of what is known of
//! a row of `x`. Each factor is computed in f64 and rounded up by more than the sum can round down.

use gatestream_kernels::{Kernels, RowNorms};

/// Relative, of a factor.
const UP: f64 = 1e-6;

/// More than the least subnormal times the greatest sum of int8, and times the longest chain.
const UNDERFLOW: f32 = 1.0 / (1u128 << 100) as f32;

/// Beyond this, a chain might overflow on its way.
pub const LARGE: f64 = 1e37;

/// Never less than `value`.
fn up(value: f64) -> f32 {
    (value * (1.0 + UP)) as f32 + f32::MIN_POSITIVE
}

/// What is known of an output, or of each of several: `|w - w'|`, `|w|` and `|b|`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OfOutput([f32; 3]);

impl OfOutput {
    /// Of a row of weights, the same as whole numbers of this scale, and its bias.
    pub fn new(weights: &[f32], whole: &[i8], scale: f32, bias: f32) -> OfOutput {
        let (mut lost, mut all) = (0.0, 0.0);
        for (&weight, &q) in weights.iter().zip(whole) {
            let weight = f64::from(weight);
            let rounding = weight - f64::from(scale) * f64::from(q);
            lost += rounding * rounding;
            all += weight * weight;
        }
        OfOutput([lost.sqrt(), all.sqrt(), f64::from(bias).abs()].map(up))
    }

    /// What bounds both.
    pub fn or(self, other: OfOutput) -> OfOutput {
        OfOutput(std::array::from_fn(|i| self.0[i].max(other.0[i])))
    }
}

/// What is known of a row of `x`: what the three of an output are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OfRow {
    Bounded([f32; 3]),
    /// Too large, or infinite: outputs may be anything.
    Unbounded,
    /// NaN is among the values, and so every output is NaN.
    NotANumber,
}

impl OfRow {
    /// Of a row, before outputs that `most` bounds.
    pub fn new(x: &[f32], most: OfOutput, kernels: &dyn Kernels) -> OfRow {
        let RowNorms {
            magnitude,
            quantized,
            error,
        } = kernels.row_norms(x);
        if magnitude.is_nan() {
            return OfRow::NotANumber;
        }
        if magnitude == f32::INFINITY {
            return OfRow::Unbounded;
        }
        let both = quantized + error;
        let [most_lost, most_weight, most_bias] = most.0.map(f64::from);
        let greatest = most_bias + both * (most_weight + most_lost);
        // Not a number where 0 is multiplied by what is beyond f32.
        if greatest.is_nan() || greatest >= LARGE {
            return OfRow::Unbounded;
        }
        let roundings = (x.len() + 16) as f64 / (1 << 24) as f64;
        let rounding = roundings / (1.0 - roundings);
        OfRow::Bounded(
            [
                quantized + rounding * both,
                error + rounding * both,
                rounding,
            ]
            .map(up),
        )
    }
}

/// Largest difference of the output and its equivalent in int8.
pub fn bound(row: [f32; 3], output: OfOutput) -> f32 {
    let [lost, all, bias] = output.0;
    row[0] * lost + row[1] * all + row[2] * bias + UNDERFLOW
}
