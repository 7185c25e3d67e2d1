//! The hyperbolic tangent.
//!
//! ```text
//! a = |x|
//! a < 0.625:  a + a³ r(a²)
//! else:       1 - 2 / (e^2a + 1)
//! with the sign of x
//! ```
//!
//! Both are computed and one is selected. In each, the last operation adds a small correction to an
//! exact number, so errors before it shrink: 1.4 units in the last place at worst, at the seam.
//! The seam lies as high as the five terms of r reach: the higher, the less of the error of e^2a
//! gets through (a third of it at 0.625).

use super::super::simd::Simd;
use super::exp::ROUND;
use super::{abs, with_sign_of};

const SEAM: f32 = 0.625;
/// From here on the result is 1 (it is so from 9.011).
const SATURATED: f32 = 9.02;

/// `tanh x`, within 2 units in the last place, odd, never decreasing, exactly -1 and 1 at the ends.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let magnitude = abs(s, x);
    let small = small(s, magnitude);
    let large = large(s, s.min(s.splat(SATURATED), magnitude));
    let result = s.select(s.lt(magnitude, s.splat(SEAM)), small, large);
    with_sign_of(s, result, x)
}

/// For `x` from 0 to 0.625.
#[inline(always)]
fn small<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let w = s.mul(x, x);
    let r = s.splat(-0.005_668_687);
    let r = s.fma(r, w, s.splat(0.020_610_35));
    let r = s.fma(r, w, s.splat(-0.053_732_33));
    let r = s.fma(r, w, s.splat(0.133_313_76));
    let r = s.fma(r, w, s.splat(-0.333_332_8));
    s.fma(s.mul(x, w), r, x)
}

/// For `x` from 0.625 to 9.02.
#[inline(always)]
fn large<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // e^2x = 2^n e^2g. What ln 2 / 2 lacks beyond 24 bits is lost, n * 1e-9; where n is large
    // enough for that to matter, e^2x no longer does.
    let round = s.splat(ROUND);
    let rounded = s.fma(x, s.splat(2.0 * std::f32::consts::LOG2_E), round);
    let n = s.sub(rounded, round);
    let g = s.fma(n, s.splat(-0.5 * std::f32::consts::LN_2), x);
    let p = s.splat(0.088_568_97);
    let p = s.fma(p, g, s.splat(0.267_814_16));
    let p = s.fma(p, g, s.splat(0.666_689_63));
    let p = s.fma(p, g, s.splat(1.333_321_3));
    let p = s.fma(p, g, s.splat(1.999_999_8));
    let p = s.fma(p, g, s.splat(2.0));
    let p = s.fma(p, g, s.splat(1.0));
    let one = s.splat(1.0);
    let scale = s.add_i32(s.to_bits(one), s.shl_i32::<23>(s.to_bits(rounded)));
    let denominator = s.fma(p, s.from_bits(scale), one);
    s.sub(one, s.div(s.splat(2.0), denominator))
}
