//! The specification of the activation functions.
//!
//! Every line is one or a few IEEE-754 binary32 operations in a fixed order. `mul_add` rounds once,
//! as does every other operation. The polynomials are minimax fits of the functions that they are
//! named after.

use gatestream_kernels::Activation;
use std::f32::consts::{LN_2, LOG2_E};

/// `activation` of `x`: the exact bits of every kernel, except for the payload of a NaN.
///
/// The result for NaN is NaN. The error over all `f32`, in units in the last place of the correctly
/// rounded value, is at most 2 for `Sigmoid` and `Tanh`, and at most 4 for `Elu` (with `alpha = 1`)
/// and `Softplus`. `Sigmoid` and `Tanh` never decrease and reach their limits exactly. `Tanh` is
/// odd.
///
/// ```
/// use gatestream::{kernels::Activation, reference::activate};
/// assert_eq!(activate(Activation::Sigmoid, 0.0), 0.5);
/// assert_eq!(activate(Activation::Softplus, 100.0), 100.0);
/// ```
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => tanh(x),
        Activation::Relu => at_least(0.0, x),
        Activation::Affine { alpha, beta } => alpha.mul_add(x, beta),
        Activation::LeakyRelu { alpha } => {
            if x >= 0.0 {
                x
            } else {
                alpha * x
            }
        }
        Activation::ThresholdedRelu { alpha } => {
            if x < alpha {
                0.0
            } else {
                x
            }
        }
        Activation::ScaledTanh { alpha, beta } => alpha * tanh(beta * x),
        Activation::HardSigmoid { alpha, beta } => {
            at_most(1.0, at_least(0.0, alpha.mul_add(x, beta)))
        }
        Activation::Elu { alpha } => {
            if x >= 0.0 {
                x
            } else {
                alpha * exp_less_one(x)
            }
        }
        Activation::Softsign => {
            // Replaces infinities, whose quotient would be NaN, by the largest finite numbers.
            let x = at_least(-f32::MAX, at_most(f32::MAX, x));
            x / (1.0 + x.abs())
        }
        Activation::Softplus => softplus(x),
    }
}

/// The maximum of `x` and `bound`, or NaN if `x` is NaN. (`f32::max` would return the bound.)
fn at_least(bound: f32, x: f32) -> f32 {
    if bound > x { bound } else { x }
}

/// The minimum of `x` and `bound`, or NaN if `x` is NaN.
fn at_most(bound: f32, x: f32) -> f32 {
    if bound < x { bound } else { x }
}

/// `2^n` for the exponents of normal numbers. For a NaN `n` is arbitrary and must not panic.
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `factor * x` rounded to the nearest integer, ties to even, for magnitudes below 2^22: after
/// adding 1.5 * 2^23, no bits are left for a fraction.
fn nearest(factor: f32, x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    x.mul_add(factor, ROUND) - ROUND
}

/// `e^-x = 2^n (1 - g + g² tail)` with `|g| <= ln 2 / 2`.
struct ReducedExp {
    n: i32,
    g: f32,
    tail: f32,
}

/// `e^-x` for `|x| <= 104`.
fn exp_of_minus(x: f32) -> ReducedExp {
    let n = nearest(-LOG2_E, x);
    let g = n.mul_add(-1.904_654_2e-9, n.mul_add(LN_2, x)); // x + n ln 2, with 48 bits of ln 2
    let coefficients = [
        0.001_383_890_2,
        -0.008_369_192_5,
        0.041_668_102,
        -0.166_665_17,
        0.499_999_94,
    ];
    ReducedExp {
        n: n as i32,
        g,
        tail: horner(&coefficients, g),
    }
}

/// The polynomial in `x` with these coefficients, highest power first.
fn horner(coefficients: &[f32], x: f32) -> f32 {
    let (first, rest) = coefficients.split_first().unwrap_or((&0.0, &[]));
    rest.iter().fold(*first, |sum, &c| sum.mul_add(x, c))
}

/// `1 / (1 + e^-x)`. With `e^-x = 2^n p` it is `c / (c + d p)` where `d / c = 2^n`. `c` and `d` are
/// powers of two with half the exponent, because `2^n` may be out of the range of `f32`.
fn sigmoid(x: f32) -> f32 {
    let x = at_least(-104.0, at_most(104.0, x)); // 0 and 1 beyond
    let ReducedExp { n, g, tail } = exp_of_minus(x);
    let p = 1.0 + (g * g).mul_add(tail, -g);
    let half = n.div_euclid(2);
    let (c, d) = (power_of_two(-half), power_of_two(n - half));
    c / p.mul_add(d, c)
}

/// With `a = |x|`: `a + a³ r(a²)` near zero, `1 - 2 / (e^2a + 1)` elsewhere; with the sign of `x`.
fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let magnitude = if a < 0.625 {
        let w = a * a;
        let coefficients = [
            -0.005_668_687,
            0.020_610_35,
            -0.053_732_33,
            0.133_313_76,
            -0.333_332_8,
        ];
        (a * w).mul_add(horner(&coefficients, w), a)
    } else {
        let a = at_most(9.02, a); // 1 beyond
        let n = nearest(2.0 * LOG2_E, a);
        let g = n.mul_add(-0.5 * LN_2, a);
        let exp_of_2g = [
            0.088_568_97,
            0.267_814_16,
            0.666_689_63,
            1.333_321_3,
            1.999_999_8,
            2.0,
            1.0,
        ];
        let p = horner(&exp_of_2g, g);
        1.0 - 2.0 / p.mul_add(power_of_two(n as i32), 1.0)
    };
    magnitude.copysign(x)
}

/// `e^x - 1` for `x < 0`, as `(2^n - 1) + 2^n (e^-g - 1)`.
fn exp_less_one(x: f32) -> f32 {
    let ReducedExp { n, g, tail } = exp_of_minus(at_most(40.0, x.abs())); // -1 beyond
    let scale = power_of_two(n);
    (scale * g).mul_add(g.mul_add(tail, -1.0), scale - 1.0)
}

/// `ln(1 + e^x)` as `max(0, x) + ln(1 + u)` with `u = e^-|x|`, which cannot overflow, and
/// `ln(1 + u) = 2 artanh(t / 2)` with `t = u / (1 + u / 2)`.
fn softplus(x: f32) -> f32 {
    let u = exp_of_nonpositive(-x.abs());
    let t = u / u.mul_add(0.5, 1.0);
    let w = t * t;
    let coefficients = [
        0.000_547_197_53,
        0.002_187_613_6,
        0.012_506_718,
        0.083_333_02,
    ];
    let logarithm = (t * w).mul_add(horner(&coefficients, w), t);
    at_least(0.0, x) + logarithm
}

/// `e^x` for `x <= 0`. Where `2^n` is out of the range of `f32`, its two halves are not.
pub(super) fn exp_of_nonpositive(x: f32) -> f32 {
    let ReducedExp { n, g, tail } = exp_of_minus(at_most(104.0, 0.0 - x)); // 0 beyond
    let p = 1.0 + (g * g).mul_add(tail, -g);
    let half = n.div_euclid(2);
    p * power_of_two(n - half) * power_of_two(half)
}
