//! The maximum of a slice.

use super::simd::Simd;

/// The greatest of `values`; NaN where one of them is NaN, minus infinity where there is none.
#[inline(always)]
pub(super) fn max<S: Simd>(s: S, values: &[f32]) -> f32 {
    let mut seen = (s.splat(f32::NEG_INFINITY), s.splat(0.0));
    let mut whole = values.chunks_exact(S::LANES);
    for lanes in &mut whole {
        seen = take(s, seen, s.load(lanes));
    }
    let rest = whole.remainder();
    let mut lanes = [f32::NEG_INFINITY; 16];
    if !rest.is_empty() {
        lanes[..rest.len()].copy_from_slice(rest);
        seen = take(s, seen, s.load(&lanes));
    }
    let (max, not_numbers) = seen;
    // Lanes past the vector's own stay what they are: no value is below minus infinity.
    lanes = [f32::NEG_INFINITY; 16];
    s.store(max, &mut lanes);
    let mut others = [0.0f32; 16];
    s.store(not_numbers, &mut others);
    if others.iter().any(|v| v.is_nan()) {
        f32::NAN
    } else {
        lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// The greatest of each lane, and what was no number, with one vector more.
#[inline(always)]
fn take<S: Simd>(s: S, (max, not_numbers): (S::F32, S::F32), v: S::F32) -> (S::F32, S::F32) {
    (s.max(v, max), s.select(s.le(v, v), not_numbers, v))
}
