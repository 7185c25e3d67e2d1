//! ln(1 + e^x).
//!
//! ```text
//! ln(1 + e^x) = max(0, x) + ln(1 + u), u = e^-|x|      no overflow: softplus(100) = 100
//! ln(1 + u) = 2 artanh(h), h = u / (2 + u)             h at most 1/3, so the series is short
//! ```
//!
//! `t = 2h = u / (1 + u/2)` is computed in its place: it equals u where u is subnormal.

use super::super::simd::Simd;
use super::abs;
use super::exp::{exp_of_minus, fraction, scaled};

/// e^-104 rounds to zero.
const SATURATED: f32 = 104.0;

/// `ln(1 + e^x)`, within 4 units in the last place.
#[inline(always)]
pub(super) fn softplus<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let exp = exp_of_minus(s, s.min(s.splat(SATURATED), abs(s, x)));
    let u = scaled(s, fraction(s, &exp), exp.n);
    let t = s.div(u, s.fma(u, s.splat(0.5), s.splat(1.0)));
    let w = s.mul(t, t);
    let r = s.splat(0.000_547_197_53);
    let r = s.fma(r, w, s.splat(0.002_187_613_6));
    let r = s.fma(r, w, s.splat(0.012_506_718));
    let r = s.fma(r, w, s.splat(0.083_333_02));
    let logarithm = s.fma(s.mul(t, w), r, t);
    s.add(s.max(s.splat(0.0), x), logarithm)
}
