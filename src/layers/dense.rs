//! A fully connected layer: `y = W x + b`.
//!
//! ```text
//! for row in rows
//!   for j in 0..outputs
//!     y[row][j] = b[j];  for k in 0..inputs { y[row][j] = fma(x[row][k], W[j][k], y[row][j]) }
//! ```
//!
//! The real code cuts the outputs into blocks, and takes a few rows at a time: the product writes
//! whole vectors, so a ragged number of outputs needs room of its own, and a block of few rows has
//! it on the stack. All rows pass over one block before the next, whose weights stay in the cache.

use std::ops::Range;
use std::sync::OnceLock;

use super::LayerError;
use super::error::expect;
use crate::execute::team::SharedTeam;
use crate::kernels::{
    Aligned, Isa, Kernels, Numbers, PackedMatrix, Product, Rows, Source, Start, Sweep, kernels,
    pack_vectors,
};
use crate::model::Matrix;

/// Outputs of a block: a whole number of vectors on every instruction set.
const BLOCK: usize = 64;
/// Rows taken together: those of the tallest tile.
const ROWS: usize = 6;

/// `y = W x + b` (PyTorch `torch.nn.Linear`), with `W` `[outputs, inputs]` and `b` `[outputs]`.
///
/// Each output is one chain of fused multiply-adds that starts from the bias and takes the inputs
/// in order, as in [`crate::reference`]: the same bits on every instruction set and for every
/// number of rows.
///
/// ```
/// use cellstream::layers::Dense;
/// use cellstream::model::Matrix;
///
/// let weights = Matrix::new(2, 3, vec![1.0, 0.0, 0.0, 1.0, 2.0, 3.0])?;
/// let dense = Dense::new(&weights, &[0.5, 0.0])?;
/// let mut y = [0.0; 2];
/// dense.run(&[1.0, 1.0, 1.0], &mut y)?;
/// assert_eq!(y, [1.5, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dense {
    pub(super) kernels: Box<dyn Kernels>,
    blocks: Vec<Block>,
    inputs: usize,
    outputs: usize,
}

/// Up to [`BLOCK`] outputs.
struct Block {
    weights: PackedMatrix,
    bias: Aligned,
}

impl Dense {
    /// Packs `weights` `[outputs, inputs]` and `bias` `[outputs]` for the best instruction set of
    /// this CPU (or the one that `CELLSTREAM_ISA` names).
    ///
    /// # Errors
    /// [`LayerError::Values`] for a bias of another size, [`LayerError::Isa`].
    pub fn new(weights: &Matrix, bias: &[f32]) -> Result<Dense, LayerError> {
        Dense::for_isa(weights, bias, Isa::select()?)
    }

    /// As [`Dense::new`], for a given instruction set.
    ///
    /// # Errors
    /// As [`Dense::new`].
    pub fn for_isa(weights: &Matrix, bias: &[f32], isa: Isa) -> Result<Dense, LayerError> {
        Dense::packed(weights, bias, isa, |blocks, pack| {
            (0..blocks).for_each(pack);
            Ok(())
        })
    }

    /// As [`Dense::for_isa`], each block packed by the worker of `team` that [`Dense::argmax_on`] has
    /// compute it.
    ///
    /// # Errors
    /// As [`Dense::new`]; [`LayerError::Team`].
    pub fn on_team(
        weights: &Matrix,
        bias: &[f32],
        isa: Isa,
        team: &SharedTeam,
    ) -> Result<Dense, LayerError> {
        Dense::packed(weights, bias, isa, |blocks, pack| {
            let workers = team.threads();
            team.run(|worker| share(blocks, worker.index, workers).for_each(pack))?;
            Ok(())
        })
    }

    /// `each` calls its second argument with every number below the first, once.
    fn packed(
        weights: &Matrix,
        bias: &[f32],
        isa: Isa,
        each: impl FnOnce(usize, &(dyn Fn(usize) + Sync)) -> Result<(), LayerError>,
    ) -> Result<Dense, LayerError> {
        expect("bias", bias.len(), weights.rows())?;
        let kernels = kernels(isa)?;
        let lanes = kernels.lanes();
        // Whatever they are kept as: the products of int8 would quantise the input, too.
        let values = weights.data();
        let source = Source {
            numbers: Numbers::F32(&values),
            depth: weights.cols(),
            units: weights.rows(),
        };
        let blocks = weights.rows().div_ceil(BLOCK);
        let blocks: Vec<OnceLock<Block>> = (0..blocks).map(|_| OnceLock::new()).collect();
        let pack = |index: usize| {
            let units = index * BLOCK..((index + 1) * BLOCK).min(weights.rows());
            blocks[index].get_or_init(|| Block {
                weights: PackedMatrix::new(lanes, source, &[0], units.clone()),
                bias: pack_vectors(lanes, &[bias], units),
            });
        };
        each(blocks.len(), &pack)?;
        Ok(Dense {
            blocks: blocks
                .into_iter()
                .filter_map(OnceLock::into_inner)
                .collect(),
            kernels,
            inputs: weights.cols(),
            outputs: weights.rows(),
        })
    }

    /// Features of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Features of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Computes `y` `[rows, outputs]` from `x` `[rows, inputs]`; the number of rows is that of `y`.
    /// Allocates nothing.
    ///
    /// # Errors
    /// [`LayerError::Values`] unless both hold the same number of whole rows; nothing has been
    /// written then.
    pub fn run(&self, x: &[f32], y: &mut [f32]) -> Result<(), LayerError> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let rows = y.len() / outputs.max(1);
        expect("y", y.len(), rows * outputs)?;
        expect("x", x.len(), rows * inputs)?;
        self.blocks(0..self.blocks.len(), x, rows, |row, first, logits| {
            let to = row * outputs + first;
            y[to..to + logits.len()].copy_from_slice(logits);
        });
        Ok(())
    }

    /// Which blocks are computed by one of so many workers: those that follow each other.
    pub(super) fn share(&self, worker: usize, workers: usize) -> Range<usize> {
        share(self.blocks.len(), worker, workers)
    }

    /// Computes some blocks, and calls `take` with a row, its first output of a block, and its outputs
    /// of that block.
    pub(super) fn blocks(
        &self,
        blocks: Range<usize>,
        x: &[f32],
        rows: usize,
        mut take: impl FnMut(usize, usize, &[f32]),
    ) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let mut z = [0.0; ROWS * BLOCK];
        for index in blocks {
            let block = &self.blocks[index];
            let units = BLOCK.min(outputs - index * BLOCK);
            let padded = block.weights.panels() * block.weights.lanes();
            for first in (0..rows).step_by(ROWS) {
                let row_count = ROWS.min(rows - first);
                self.kernels.product(Product {
                    a: &x[first * inputs..],
                    rows: Rows::Strided(inputs),
                    row_count,
                    weights: &block.weights,
                    slots: &[0],
                    start: Start::Bias(&block.bias),
                    z: &mut z,
                    z_slots: 1,
                    sweep: Sweep::Wide,
                    then: None,
                });
                for row in 0..row_count {
                    take(first + row, index * BLOCK, &z[row * padded..][..units]);
                }
            }
        }
    }
}

/// The part of `count` that falls to one of so many workers.
fn share(count: usize, worker: usize, workers: usize) -> Range<usize> {
    worker * count / workers..(worker + 1) * count / workers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
        (0..count).map(|_| 2.0 * rng.f32() - 1.0).collect()
    }

    /// The specification, as the file's head says it.
    fn plain(weights: &Matrix, bias: &[f32], x: &[f32]) -> Vec<f32> {
        let mut y = Vec::new();
        for row in x.chunks_exact(weights.cols()) {
            for (j, &bias) in bias.iter().enumerate() {
                let mut z = bias;
                for (k, x) in row.iter().enumerate() {
                    z = x.mul_add(weights.row(j)[k], z);
                }
                y.push(z);
            }
        }
        y
    }

    #[test]
    fn every_size_and_instruction_set_gives_the_bits_of_the_plain_loops() {
        let mut rng = fastrand::Rng::with_seed(1);
        let sizes = [
            1, 2, 3, 4, 7, 8, 15, 16, 17, 41, 63, 64, 65, 100, 127, 128, 129, 200,
        ];
        for isa in Isa::available() {
            for outputs in sizes {
                for inputs in [1, 5, 64, 131] {
                    let weights = random(&mut rng, outputs * inputs);
                    let weights = Matrix::new(outputs, inputs, weights).unwrap();
                    let bias = random(&mut rng, outputs);
                    let dense = Dense::for_isa(&weights, &bias, isa).unwrap();
                    for rows in [0, 1, 2, 5, 6, 7, 12, 13] {
                        let x = random(&mut rng, rows * inputs);
                        let mut y = vec![f32::NAN; rows * outputs];
                        dense.run(&x, &mut y).unwrap();
                        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                        assert_eq!(
                            bits(&y),
                            bits(&plain(&weights, &bias, &x)),
                            "{isa}, {rows} rows, {inputs} to {outputs}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn slices_that_do_not_fit_are_refused() {
        let weights = Matrix::new(3, 2, vec![1.0; 6]).unwrap();
        let values = |name, expected, found| {
            Some(LayerError::Values {
                name,
                expected,
                found,
            })
        };
        assert_eq!(Dense::new(&weights, &[0.0; 2]).err(), values("bias", 3, 2));
        let dense = Dense::new(&weights, &[0.0; 3]).unwrap();
        let mut y = [7.0; 7];
        assert_eq!(dense.run(&[0.0; 4], &mut y).err(), values("y", 6, 7));
        assert_eq!(dense.run(&[0.0; 3], &mut y[..6]).err(), values("x", 4, 3));
        assert_eq!(y, [7.0; 7]);
    }
}
