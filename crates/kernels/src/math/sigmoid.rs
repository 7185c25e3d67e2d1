//! The logistic function, 1 / (1 + e^-x).
//!
//! ```text
//! e^-x = 2^n p                       p near 1, n from -150 to 150
//! c = 2^-⌊n/2⌋, d = 2^(n - ⌊n/2⌋)    so d/c = 2^n
//! 1 / (1 + 2^n p) = c / (c + d p)
//! ```
//!
//! With the scale split in two halves nothing overflows, and the division alone rounds into the
//! subnormal results below -87.3. Each step is monotonic as rounded, hence so is the whole.

use super::super::simd::Simd;
use super::exp::{exp_of_minus, fraction, halves};

/// The result is 0 at -104 and below; from 17.4 it is 1.
const SATURATED: f32 = 104.0;

/// `1 / (1 + e^-x)`, within 2 units in the last place, never decreasing, exactly 0 and 1 at the
/// ends.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let x = s.min(s.splat(SATURATED), x);
    let x = s.max(s.splat(-SATURATED), x);
    let exp = exp_of_minus(s, x);
    let p = fraction(s, &exp);
    let (c, d) = halves(s, exp.n);
    s.div(c, s.fma(p, d, c))
}
