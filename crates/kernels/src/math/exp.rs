//! The exponential that softmax, sigmoid, ELU and softplus share, in pieces: e^-x = 2^n e^-g.

use super::super::simd::Simd;

/// Adding this to a number below 2²² in magnitude rounds it to an integer, which then stands in the
/// low bits of the sum.
pub(super) const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

use std::f32::consts::LOG2_E;
/// ln 2 = `LN_2_HIGH + LN_2_LOW` to 48 bits. The product of a small integer and the first, inside a
/// fused multiply-add, cancels without error against a number near it.
const LN_2_HIGH: f32 = std::f32::consts::LN_2;
const LN_2_LOW: f32 = -1.904_654_2e-9;

/// e^-x for `|x| <= 104` as `2^n (1 + tail)`.
pub(super) struct Exp<S: Simd> {
    /// An integer in its low bits (two's complement), above them only what a shift left by 22
    /// removes.
    pub n: S::I32,
    /// `e^-g` is `1 - g + g² tail`, and `|g|` is at most half of ln 2.
    pub g: S::F32,
    /// See `g`.
    pub tail: S::F32,
}

/// Splits e^-x. `tail` errs by 0.06 of 2⁻²⁴, relative to e^-g, before rounding.
#[inline(always)]
pub(super) fn exp_of_minus<S: Simd>(s: S, x: S::F32) -> Exp<S> {
    let round = s.splat(ROUND);
    let rounded = s.fma(x, s.splat(-LOG2_E), round);
    let n = s.sub(rounded, round);
    let g = s.fma(n, s.splat(LN_2_HIGH), x);
    let g = s.fma(n, s.splat(LN_2_LOW), g);
    let tail = s.splat(0.001_383_890_2);
    let tail = s.fma(tail, g, s.splat(-0.008_369_192_5));
    let tail = s.fma(tail, g, s.splat(0.041_668_102));
    let tail = s.fma(tail, g, s.splat(-0.166_665_17));
    let tail = s.fma(tail, g, s.splat(0.499_999_94));
    Exp {
        n: s.to_bits(rounded),
        g,
        tail,
    }
}

/// `1 - g + g² tail`, as 1 plus a small number: rounded in this order it never decreases where e^-g
/// grows, which Horner's rule would not give.
#[inline(always)]
pub(super) fn fraction<S: Simd>(s: S, exp: &Exp<S>) -> S::F32 {
    let minus_g = s.sub(s.splat(-0.0), exp.g);
    s.add(s.splat(1.0), s.fma(s.mul(exp.g, exp.g), exp.tail, minus_g))
}

/// `2^-⌊n/2⌋` and `2^(n - ⌊n/2⌋)`: a scale in two halves, since 2^n may lie outside of `f32`.
#[inline(always)]
pub(super) fn halves<S: Simd>(s: S, n: S::I32) -> (S::F32, S::F32) {
    let exponents = s.splat_i32(0xff80_0000u32.cast_signed());
    let half = s.and_i32(s.shl_i32::<22>(n), exponents);
    let first = s.sub_i32(s.splat_i32(1.0f32.to_bits().cast_signed()), half);
    let second = s.add_i32(first, s.shl_i32::<23>(n));
    (s.from_bits(first), s.from_bits(second))
}

/// `2^n p`, also where 2^n lies outside of `f32`.
#[inline(always)]
pub(super) fn scaled<S: Simd>(s: S, p: S::F32, n: S::I32) -> S::F32 {
    let (inverse, second) = halves(s, n);
    let two_exponents = s.splat_i32(2 * 1.0f32.to_bits().cast_signed());
    let first = s.from_bits(s.sub_i32(two_exponents, s.to_bits(inverse)));
    s.mul(s.mul(p, second), first)
}

/// `e^x` for `x <= 0`, within 2 units in the last place; exactly 1 for 0, and 0 below -104.
#[inline(always)]
pub(crate) fn exp_of_nonpositive<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let minus_x = s.sub(s.splat(0.0), x);
    let exp = exp_of_minus(s, s.min(s.splat(104.0), minus_x));
    let p = fraction(s, &exp);
    scaled(s, p, exp.n)
}
