//! The activations without an exponential.

use super::super::simd::Simd;
use super::abs;

/// `max(0, x)`; NaN stays NaN.
#[inline(always)]
pub(super) fn relu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.max(s.splat(0.0), x)
}

/// `alpha x + beta`, rounded once.
#[inline(always)]
pub(super) fn affine<S: Simd>(s: S, alpha: f32, beta: f32, x: S::F32) -> S::F32 {
    s.fma(s.splat(alpha), x, s.splat(beta))
}

/// `x` where `x >= 0`, else `alpha x`.
#[inline(always)]
pub(super) fn leaky_relu<S: Simd>(s: S, alpha: f32, x: S::F32) -> S::F32 {
    s.select(s.le(s.splat(0.0), x), x, s.mul(s.splat(alpha), x))
}

/// `0` where `x < alpha`, else `x`, which keeps NaN.
#[inline(always)]
pub(super) fn thresholded_relu<S: Simd>(s: S, alpha: f32, x: S::F32) -> S::F32 {
    s.select(s.lt(x, s.splat(alpha)), s.splat(0.0), x)
}

/// `alpha x + beta` held between 0 and 1.
#[inline(always)]
pub(super) fn hard_sigmoid<S: Simd>(s: S, alpha: f32, beta: f32, x: S::F32) -> S::F32 {
    let line = affine(s, alpha, beta, x);
    s.min(s.splat(1.0), s.max(s.splat(0.0), line))
}

/// `x / (1 + |x|)`, with its limits at the infinities instead of their quotient.
#[inline(always)]
pub(super) fn softsign<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let x = s.max(s.splat(-f32::MAX), s.min(s.splat(f32::MAX), x));
    s.div(x, s.add(s.splat(1.0), abs(s, x)))
}
