//! The orders in which the terms of a product with the state are added.

use super::{chain, widened};
use crate::model::Matrix;
use gatestream_kernels::Numbers;

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
    /// for l in 0..32 { s[l] = 0;  for i in 0.. { for k in 128 i + 4 l .. 128 i + 4 l + 4 {
    ///     s[l] = fma(h[k], U[j][k], s[l])
    /// } } }
    /// for m in [16, 8, 4, 2, 1] { s[l] = s[l] + s[l xor m], for all l at once }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
        (0..count).map(|_| 2.0 * rng.f32() - 1.0).collect()
    }

    #[test]
    fn integers_have_one_sum_in_every_order() {
        let mut rng = fastrand::Rng::with_seed(1);
        for count in [0, 1, 4, 31, 128, 129, 1000] {
            let mut integers = || {
                (0..count)
                    .map(|_| f32::from(rng.i8(..)))
                    .collect::<Vec<_>>()
            };
            let (values, weights) = (integers(), integers());
            let matrix = Matrix::new(1, count, weights).unwrap();
            let [chain, lanes] =
                [SumOrder::Chain, SumOrder::Lanes].map(|order| order.add(3.0, &matrix, 0, &values));
            assert_eq!(chain, lanes, "{count}");
        }
    }

    #[test]
    fn lanes_are_within_rounding_of_the_exact_sum() {
        let mut rng = fastrand::Rng::with_seed(2);
        for count in [5, 300, 4096] {
            let (values, weights) = (random(&mut rng, count), random(&mut rng, count));
            let terms = || {
                values
                    .iter()
                    .zip(&weights)
                    .map(|(v, w)| f64::from(*v) * f64::from(*w))
            };
            let (exact, magnitude) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            let matrix = Matrix::new(1, count, weights.clone()).unwrap();
            let sum = f64::from(SumOrder::Lanes.add(0.0, &matrix, 0, &values));
            // A term is rounded once for each later one of its lane, and for each pair.
            let roundings = (count.div_ceil(LANES * NEIGHBOURS) * NEIGHBOURS + 6) as f64;
            let bound = roundings * f64::from(f32::EPSILON) / 2.0 * magnitude;
            assert!((sum - exact).abs() <= bound, "{count}: {sum} {exact}");
        }
    }

    /// Beside a large number a small one is lost: the sum tells which terms were added first.
    #[test]
    fn lanes_add_in_their_order() {
        const LARGE: f32 = 1e8;
        let sum = |places: &[(usize, f32)]| {
            let mut values = vec![0.0; 256];
            places.iter().for_each(|&(k, value)| values[k] = value);
            let matrix = Matrix::new(1, 256, vec![1.0; 256]).unwrap();
            SumOrder::Lanes.add(0.0, &matrix, 0, &values)
        };
        // Terms 0, 3 and 128 are of lane 0: 1 is lost beside the large number before it leaves.
        assert_eq!(sum(&[(0, LARGE), (3, 1.0), (128, -LARGE)]), 0.0);
        // Term 4 is of lane 1.
        assert_eq!(sum(&[(0, LARGE), (4, 1.0), (128, -LARGE)]), 1.0);
        // Lane 16 meets lane 0 first, then lane 8 does.
        assert_eq!(sum(&[(0, LARGE), (4 * 16, -LARGE), (4 * 8, 1.0)]), 1.0);
        assert_eq!(sum(&[(0, LARGE), (4 * 8, -LARGE), (4 * 16, 1.0)]), 0.0);
    }
}
