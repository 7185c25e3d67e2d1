//! Probabilities from logits.

use super::LayerError;
use super::deal::Work;
use super::error::expect;
use crate::execute::team::SharedTeam;
use gatestream_kernels::{Isa, RowKernels, row_kernels};

/// `exp(x[k]) / Σ exp(x)` of each row (PyTorch `torch.softmax(x, dim=-1)`).
///
/// A logit of minus infinity has probability 0. A row is NaN where one of its logits is NaN or
/// infinity, or all are minus infinity.
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::Isa;
/// use gatestream::layers::Softmax;
///
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let mut rows = [1.0, 1.0, 0.0, f32::NEG_INFINITY];
/// Softmax::new(Isa::select()?)?.run(&team, &mut rows, 2)?;
/// assert_eq!(rows, [0.5, 0.5, 1.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Softmax {
    kernels: Box<dyn RowKernels>,
}

/// Multiply-adds that take as long as one exponential.
pub(super) const EXP_WORK: usize = 8;

impl Softmax {
    /// For the instruction set `isa`.
    ///
    /// # Errors
    /// [`LayerError::Isa`].
    pub fn new(isa: Isa) -> Result<Softmax, LayerError> {
        let kernels = row_kernels(isa)?;
        Ok(Softmax { kernels })
    }

    /// Replaces each row of `rows` `[rows, width]` by its probabilities. Allocates nothing.
    ///
    /// # Errors
    /// [`LayerError::Values`] unless `rows` holds whole rows; nothing has been written then.
    /// [`LayerError::Team`].
    pub fn run(&self, team: &SharedTeam, rows: &mut [f32], width: usize) -> Result<(), LayerError> {
        let width_or_one = width.max(1);
        let count = rows.len() / width_or_one;
        expect("rows", rows.len(), count * width)?;
        let work = Work::new(team, EXP_WORK * rows.len());
        let parts = rows.chunks_mut(width_or_one * work.part_rows(count));
        work.deal(parts, |_, part| {
            for row in part.chunks_mut(width_or_one) {
                self.kernels.softmax(row);
            }
        })
    }
}
