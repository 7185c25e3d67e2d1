//! Single outputs of a dense layer, each along a row of weights as it was given, not packed.
//!
//! ```text
//! for i in listed
//!   for k in 0..depth
//!     z[i] = fma(x[k], weights[listed[i]][k], z[i])        in this order of k, as the product has it
//! ```
//!
//! Each chain has a vector to itself, all of whose lanes hold the same: a broadcast weight comes with its multiply-add for
//! nothing, where to gather one of each row into the lanes of one vector took 17 times as long (AVX-512; and so did single
//! numbers, which the compiler gathers). Several chains at a time keep the multiply-adds from waiting for each other.

use super::simd::Simd;

/// Chains at a time: as many as two pipelines of four cycles hold.
const TOGETHER: usize = 8;

/// Adds `Σ_k x[k] · weights[row][k]` to `z` of each of the listed rows.
#[inline(always)]
pub(super) fn chains<S: Simd>(s: S, x: &[f32], weights: &[f32], listed: &[usize], z: &mut [f32]) {
    assert!(listed.len() == z.len());
    let row = |&row: &usize| &weights[row * x.len()..][..x.len()];
    let mut listed = listed.chunks_exact(TOGETHER);
    let mut z = z.chunks_exact_mut(TOGETHER);
    for (listed, z) in (&mut listed).zip(&mut z) {
        some(
            s,
            x,
            std::array::from_fn::<_, TOGETHER, _>(|i| row(&listed[i])),
            z,
        );
    }
    for (listed, z) in listed
        .remainder()
        .iter()
        .zip(z.into_remainder().chunks_mut(1))
    {
        some(s, x, [row(listed)], z);
    }
}

/// As many chains as there are `rows`, each as long as `x`.
#[inline(always)]
fn some<S: Simd, const N: usize>(s: S, x: &[f32], rows: [&[f32]; N], z: &mut [f32]) {
    let mut sums: [S::F32; N] = std::array::from_fn(|i| s.splat(z[i]));
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
