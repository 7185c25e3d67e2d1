//! Single outputs of a dense layer, each along a row of weights as it was given, not packed.
//!
//! ```text
//! for i in listed
//!   for k in 0..depth
//!     z[i] = fma(x[k], weights[listed[i]][k], z[i])      in this order of k, as the product has it
//! ```
//!
//! Each chain has a vector of its own, all of whose lanes hold the same value: broadcasting a
//! weight costs nothing beside its multiply-add, but gathering one weight of each row into a vector
//! is slow, and compilers gather where chains are scalars. Several chains at a time hide the
//! latency of the multiply-adds.

use super::simd::Simd;

/// Chains at a time: as many as two pipelines of four cycles hold.
const CHAINS_AT_ONCE: usize = 8;

/// Adds `Σ_k x[k] · weights[row][k]` to `z` of each of the listed rows.
#[inline(always)]
pub(super) fn chains<S: Simd>(s: S, x: &[f32], weights: &[f32], listed: &[usize], z: &mut [f32]) {
    assert!(listed.len() == z.len());
    for (listed, z) in listed
        .chunks(CHAINS_AT_ONCE)
        .zip(z.chunks_mut(CHAINS_AT_ONCE))
    {
        // Of fewer, the last stands for those that are not there: chains take their time, however
        // many there are.
        let last = listed.len() - 1;
        let mut rows: [&[f32]; CHAINS_AT_ONCE] = [&[]; CHAINS_AT_ONCE];
        let mut sums = [s.splat(0.0); CHAINS_AT_ONCE];
        for i in 0..CHAINS_AT_ONCE {
            let first = listed[i.min(last)].checked_mul(x.len());
            rows[i] = &weights[first.expect("a row of the weights")..][..x.len()];
            sums[i] = s.splat(z[i.min(last)]);
        }
        for (k, x) in x.iter().enumerate() {
            let x = s.splat(*x);
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = s.fma(x, s.splat(row[k]), *sum);
            }
        }
        let mut lanes = [0.0; 16];
        for (z, sum) in z.iter_mut().zip(sums) {
            s.store(sum, &mut lanes);
            *z = lanes[0];
        }
    }
}
