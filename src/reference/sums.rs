//! The orders in which the terms of a product with the state are added.

use super::{chain, widened};
use crate::model::Matrix;
use cellstream_kernels::Numbers;

/// The order in which the terms of a product with the state (or of a projection) are added.
///
/// An order belongs to a kind of device: all plans, batches and batch-mates of a device give the
/// same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SumOrder {
    /// Of CPUs: one chain, which goes on from the input's.
    #[default]
    Chain,
    /// Of GPUs: each of the 32 threads of a warp has a chain of its own, and the chains are added
    /// in pairs.
    ///
    /// ```text
    /// lane l of 32:  s[l] = 0;  for i in 0.., k in 128 i + 4 l .. + 4 { s[l] = fma(h[k], U[j][k], s[l]) }
    /// for m in 16, 8, 4, 2, 1 { s[l] = s[l] + s[l xor m], for all l at once }
    /// z = z + s[0]
    /// ```
    ///
    /// Terms past the end of the state, up to a multiple of 128, are products of zeros. Products
    /// with int8 weights are as in [`SumOrder::Chain`], whose integers have no order.
    Lanes,
}

/// Threads of a warp.
const LANES: usize = 32;
/// Neighbouring terms that a thread adds: one read of 16 bytes.
const NEIGHBOURS: usize = 4;

impl SumOrder {
    /// `start + Σ_k values[k] · matrix[row][k]` in this order.
    pub(super) fn add(self, start: f32, matrix: &Matrix, row: usize, values: &[f32]) -> f32 {
        match (self, matrix.row_numbers(row)) {
            (SumOrder::Lanes, Numbers::F32(weights)) => start + lanes(values, |k| weights[k]),
            (SumOrder::Lanes, Numbers::Bf16(weights)) => {
                start + lanes(values, |k| widened(weights[k]))
            }
            _ => chain(start, matrix, row, values),
        }
    }
}

fn lanes(values: &[f32], weight: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    for k in 0..values.len().next_multiple_of(LANES * NEIGHBOURS) {
        let sum = &mut sums[k / NEIGHBOURS % LANES];
        let (value, weight) = match values.get(k) {
            Some(value) => (*value, weight(k)),
            None => (0.0, 0.0),
        };
        *sum = value.mul_add(weight, *sum);
    }
    let mut others = LANES / 2;
    while others > 0 {
        sums = std::array::from_fn(|lane| sums[lane] + sums[lane ^ others]);
        others /= 2;
    }
    sums[0]
}
