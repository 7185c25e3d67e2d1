//! The similarity of rows.

use super::LayerError;
use super::error::expect;
use gatestream_kernels::{Isa, RowKernels, row_kernels};

/// The cosine of the angle between rows (PyTorch `torch.nn.functional.cosine_similarity`):
/// `a·b / (max(|a|, eps) · max(|b|, eps))`.
///
/// ```
/// use gatestream::kernels::Isa;
/// use gatestream::layers::CosineSimilarity;
///
/// let cosine = CosineSimilarity::new(1e-8, Isa::select()?)?;
/// let mut similarity = [0.0; 3];
/// cosine.run(&[2.0, 0.0], &[5.0, 0.0, 0.0, 1.0, -3.0, 4.0], &mut similarity)?;
/// assert_eq!(similarity, [1.0, 0.0, -0.6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CosineSimilarity {
    kernels: Box<dyn RowKernels>,
    eps: f32,
}

impl CosineSimilarity {
    /// With the least length `eps` of a row (PyTorch: 1e-8), for the instruction set `isa`.
    ///
    /// # Errors
    /// [`LayerError::Isa`].
    pub fn new(eps: f32, isa: Isa) -> Result<CosineSimilarity, LayerError> {
        let kernels = row_kernels(isa)?;
        Ok(CosineSimilarity { kernels, eps })
    }

    /// Writes the similarity of `x` `[features]` and each of `rows` `[rows, features]` to
    /// `similarity` `[rows]`. Allocates nothing.
    ///
    /// # Errors
    /// [`LayerError::Values`] for slices of other sizes; nothing has been written then.
    pub fn run(&self, x: &[f32], rows: &[f32], similarity: &mut [f32]) -> Result<(), LayerError> {
        let features = x.len();
        expect("rows", rows.len(), similarity.len() * features)?;
        let length = |row: &[f32]| {
            let mut square = [0.0];
            self.kernels.dots(row, row, &mut square);
            let length = square[0].sqrt();
            if self.eps < length || length.is_nan() {
                length
            } else {
                self.eps
            }
        };
        self.kernels.dots(x, rows, similarity);
        let x_length = length(x);
        for (row, similarity) in similarity.iter_mut().enumerate() {
            let row = &rows[row * features..][..features];
            *similarity /= x_length * length(row);
        }
        Ok(())
    }
}
