//! The exponential linear unit.

use super::super::simd::Simd;
use super::abs;
use super::exp::exp_of_minus;

/// e^-40 vanishes beside 1.
const SATURATED: f32 = 40.0;

/// `x` where `x >= 0`, else `alpha (e^x - 1)`; within 4 units in the last place.
///
/// e^x - 1 = (2^n - 1) + 2^n (e^-g - 1), where the second term keeps all its digits when n = 0.
#[inline(always)]
pub(super) fn elu<S: Simd>(s: S, alpha: f32, x: S::F32) -> S::F32 {
    let exp = exp_of_minus(s, s.min(s.splat(SATURATED), abs(s, x)));
    let one = s.splat(1.0);
    let scale = s.from_bits(s.add_i32(s.to_bits(one), s.shl_i32::<23>(exp.n)));
    // (e^-g - 1) / g
    let slope = s.fma(exp.g, exp.tail, s.splat(-1.0));
    let less_one = s.fma(s.mul(scale, exp.g), slope, s.sub(scale, one));
    s.select(s.le(s.splat(0.0), x), x, s.mul(s.splat(alpha), less_one))
}
