//! Rows of the left operand as whole numbers from -127 to 127 times one scale for each row.
//!
//! ```text
//! max = max |a[k]|
//! scale = max / 127;  q[k] = a[k] · (127 / max), rounded to the nearest even
//! ```
//!
//! The greatest is found among bits: without the sign they order as the floats do, with infinity
//! and NaN beyond all others, and no order of comparing changes the result.

use super::super::simd::Simd;

/// Rows whose greatest magnitude is below this are quantised to zeros, so that no division
/// overflows.
pub const TINY_ROW: f32 = 1.0 / (1u128 << 100) as f32;

/// Adding it rounds what is small to a whole number, which the lowest bits then hold.
const ROUND: f32 = 1.5 * (1 << 23) as f32;

/// Quantises one row of `depth` values into `depth / 4` words, rounded up; returns its scale, NaN
/// for a row that holds a value that is not finite (whose bytes then mean nothing).
#[inline(always)]
pub(super) fn quantize<S: Simd>(s: S, row: &[f32], quads: &mut [u32]) -> f32 {
    assert!(quads.len() == row.len().div_ceil(4));
    let whole = row.len() / S::LANES * S::LANES;
    let (scale, inverse) = scales(magnitude(s, row));
    let bytes = quads.as_mut_ptr().cast::<u8>();
    let (inverses, round) = (s.splat(inverse), s.splat(ROUND));
    // From the bits of a rounded sum to the byte.
    let offset = ROUND.to_bits() as i32 - S::BYTE_ZERO;
    let offsets = s.splat_i32(offset);
    let mut k = 0;
    while k < whole {
        let rounded = s.add(s.mul(s.load(&row[k..]), inverses), round);
        let q = s.sub_i32(s.to_bits(rounded), offsets);
        // SAFETY: `quads` has a byte for each value, and `k + LANES` is at most their number.
        unsafe { s.store_bytes(q, bytes.add(k)) };
        k += S::LANES;
    }
    for k in whole..4 * quads.len() {
        let value = if k < row.len() { row[k] * inverse } else { 0.0 };
        let q = (value + ROUND).to_bits() as i32 - offset;
        // SAFETY: k is below the number of bytes.
        unsafe { *bytes.add(k) = q as u8 };
    }
    scale
}

/// The greatest magnitude of a row: infinity or NaN where one of its values is.
#[inline(always)]
fn magnitude<S: Simd>(s: S, row: &[f32]) -> f32 {
    let mut max = s.splat_i32(0);
    let unsigned = s.splat_i32(i32::MAX);
    let vectors = row.chunks_exact(S::LANES);
    let rest = vectors.remainder();
    for values in vectors {
        max = s.max_i32(max, s.and_i32(s.to_bits(s.load(values)), unsigned));
    }
    let mut lanes = [0.0f32; 64];
    s.store(s.from_bits(max), &mut lanes);
    let mut max = 0;
    for value in lanes[..S::LANES].iter().chain(rest) {
        max = max.max(value.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(max)
}

/// The scale of a row whose greatest magnitude this is, and what its values are multiplied with.
#[inline(always)]
fn scales(max: f32) -> (f32, f32) {
    if max < TINY_ROW {
        (0.0, 0.0)
    } else if max < f32::INFINITY {
        (max / 127.0, 127.0 / max)
    } else {
        (f32::NAN, 0.0)
    }
}

/// Norms of a row of a left operand and of its quantisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNorms {
    /// The greatest magnitude: infinity or NaN where one of the values is, and then the norms mean
    /// nothing.
    pub magnitude: f32,
    /// Euclidean norm of the quantised row, with a relative error below 1e-12.
    pub quantized: f64,
    /// Euclidean norm of the quantisation error.
    pub error: f64,
}

/// See [`super::super::Kernels::row_norms`].
#[inline(always)]
pub(in super::super) fn row_norms<S: Simd>(s: S, row: &[f32]) -> RowNorms {
    let magnitude = magnitude(s, row);
    let (scale, inverse) = scales(magnitude);
    // Sums that do not wait for each other, and fill the widest vectors.
    let (mut quantized, mut error) = ([0.0; 16], [0.0; 16]);
    let mut some = [0.0; 16];
    for values in row.chunks(16) {
        // Zeros add nothing.
        some[values.len()..].fill(0.0);
        some[..values.len()].copy_from_slice(values);
        for i in 0..16 {
            let q = (some[i] * inverse + ROUND) - ROUND;
            let whole = f64::from(scale) * f64::from(q);
            let left = f64::from(some[i]) - whole;
            quantized[i] += whole * whole;
            error[i] += left * left;
        }
    }
    let norm = |sums: [f64; 16]| sums.iter().sum::<f64>().sqrt();
    RowNorms {
        magnitude,
        quantized: norm(quantized),
        error: norm(error),
    }
}
