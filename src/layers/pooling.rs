//! Maximum over the steps of a sequence.

use super::deal::Work;
use super::error::expect;
use super::{LayerError, Sequences};
use crate::execute::team::SharedTeam;
use gatestream_kernels::{Combine, Isa, RowKernels, row_kernels};

/// The greatest value of each feature over the steps of a sequence (PyTorch
/// `torch.max(x, dim=1)`): of equal ones the first, NaN where one of them is NaN.
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::Isa;
/// use gatestream::layers::{MaxOverTime, Sequences};
///
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let pooling = MaxOverTime::new(Isa::select()?)?;
/// let x = [1.0, 5.0, 3.0, 2.0, 9.0, 9.0]; // three steps of two features
/// let mut y = [0.0; 2];
/// pooling.run(&team, &Sequences::new(&x, 1, 3, 2).lengths(&[2]), &mut y)?;
/// assert_eq!(y, [3.0, 5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MaxOverTime {
    kernels: Box<dyn RowKernels>,
}

impl MaxOverTime {
    /// For the instruction set `isa`.
    ///
    /// # Errors
    /// [`LayerError::Isa`].
    pub fn new(isa: Isa) -> Result<MaxOverTime, LayerError> {
        let kernels = row_kernels(isa)?;
        Ok(MaxOverTime { kernels })
    }

    /// Writes the maxima of each sequence to `y` `[batch, features]`. Allocates nothing.
    ///
    /// # Errors
    /// [`LayerError::Values`] for slices of other sizes, [`LayerError::Length`] for a sequence
    /// without steps; nothing has been written then. [`LayerError::Team`].
    pub fn run(
        &self,
        team: &SharedTeam,
        x: &Sequences<'_>,
        y: &mut [f32],
    ) -> Result<(), LayerError> {
        let features = x.features;
        x.check("x", features)?;
        expect("y", y.len(), x.batch * features)?;
        if features == 0 {
            return Ok(());
        }
        let parts = y.chunks_mut(features).enumerate();
        Work::new(team, x.values.len()).deal(parts, |_, (sequence, y)| {
            let (first, others) = x.sequence(sequence).split_at(features);
            y.copy_from_slice(first);
            for step in others.chunks(features) {
                self.kernels.combine(Combine::Max, y, step);
            }
        })
    }
}
