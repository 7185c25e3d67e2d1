//! Single outputs of a dense layer, each along a row of weights as it was given, not packed.
//!
//! ```text
//! for i in listed
//!   for k in 0..depth
//!     z[i] = fma(x[k], weights[listed[i]][k], z[i])        in this order of k, as the product has it
//! ```
//!
//! A lane of a vector would have to gather its weights from rows that lie apart; single numbers come from their row's
//! cache line at once. Several chains at a time keep the multiply-adds from waiting for each other.

/// Chains at a time: as many as two pipelines of four cycles hold.
const TOGETHER: usize = 8;

/// Adds `Σ_k x[k] · weights[row][k]` to `z` of each of the listed rows.
#[inline(always)]
pub(super) fn chains(x: &[f32], weights: &[f32], listed: &[usize], z: &mut [f32]) {
    assert!(listed.len() == z.len());
    let row = |&row: &usize| &weights[row * x.len()..][..x.len()];
    let mut listed = listed.chunks_exact(TOGETHER);
    let mut z = z.chunks_exact_mut(TOGETHER);
    for (listed, z) in (&mut listed).zip(&mut z) {
        let rows: [&[f32]; TOGETHER] = std::array::from_fn(|i| row(&listed[i]));
        let mut sums: [f32; TOGETHER] = std::array::from_fn(|i| z[i]);
        for (k, x) in x.iter().enumerate() {
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = x.mul_add(row[k], *sum);
            }
        }
        z.copy_from_slice(&sums);
    }
    for (listed, z) in listed.remainder().iter().zip(z.into_remainder()) {
        let terms = x.iter().zip(row(listed));
        *z = terms.fold(*z, |z, (x, weight)| x.mul_add(*weight, z));
    }
}
