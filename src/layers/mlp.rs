//! A multilayer perceptron: dense layers, each with an activation.

use super::error::{expect, fits};
use super::{Dense, LayerError};
use crate::execute::team::SharedTeam;
use crate::model::{Activation, Matrix};
use gatestream_kernels::{Isa, RowKernels, row_kernels};

/// Dense layers that feed each other (PyTorch `torch.nn.Sequential` of `Linear` and activations).
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::{Activation, Isa};
/// use gatestream::layers::Mlp;
/// use gatestream::model::Matrix;
///
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let mut mlp = Mlp::new(Isa::select()?)?;
/// mlp.push(&team, &Matrix::new(2, 1, vec![1.0, -1.0])?, &[0.0; 2], Some(Activation::Relu))?;
/// mlp.push(&team, &Matrix::new(1, 2, vec![1.0, 10.0])?, &[0.5], None)?;
/// let mut y = [0.0; 2];
/// mlp.run(&team, &[3.0, -3.0], &mut y)?;
/// assert_eq!(y, [3.5, 30.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mlp {
    layers: Vec<(Dense, Option<Activation>)>,
    kernels: Box<dyn RowKernels>,
    /// The rows between two layers, before and after the layer that runs.
    between: [Vec<f32>; 2],
}

impl Mlp {
    /// No layers yet: add them with [`Mlp::push`].
    ///
    /// # Errors
    /// [`LayerError::Isa`].
    pub fn new(isa: Isa) -> Result<Mlp, LayerError> {
        Ok(Mlp {
            layers: Vec::new(),
            kernels: row_kernels(isa)?,
            between: [Vec::new(), Vec::new()],
        })
    }

    /// Adds a layer with `weights` `[outputs, inputs]` and `bias` `[outputs]`, packed on `team`.
    ///
    /// # Errors
    /// [`LayerError::DoesNotFit`] unless it takes the features that the layer before gives; as
    /// [`Dense::on_team`].
    pub fn push(
        &mut self,
        team: &SharedTeam,
        weights: &Matrix,
        bias: &[f32],
        activation: Option<Activation>,
    ) -> Result<(), LayerError> {
        if let Some((last, _)) = self.layers.last() {
            fits(
                "a dense layer",
                weights.cols(),
                "the layer before",
                last.outputs(),
            )?;
        }
        let dense = Dense::on_team(weights, bias, self.kernels.isa(), team)?;
        self.layers.push((dense, activation));
        Ok(())
    }

    /// Features of an input row; 0 without layers.
    pub fn inputs(&self) -> usize {
        self.layers.first().map_or(0, |(dense, _)| dense.inputs())
    }

    /// Features of an output row; 0 without layers.
    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |(dense, _)| dense.outputs())
    }

    /// Computes `y` `[rows, outputs]` from `x` `[rows, inputs]`; the number of rows is that of `y`.
    /// Allocates where no call before had as many rows.
    ///
    /// # Errors
    /// [`LayerError::Values`] unless both hold the same number of whole rows; nothing has been
    /// written then. [`LayerError::Team`].
    pub fn run(&mut self, team: &SharedTeam, x: &[f32], y: &mut [f32]) -> Result<(), LayerError> {
        let rows = y.len() / self.outputs().max(1);
        expect("y", y.len(), rows * self.outputs())?;
        expect("x", x.len(), rows * self.inputs())?;
        let kernels = &*self.kernels;
        let [before, after] = &mut self.between;
        let last = self.layers.len().saturating_sub(1);
        for (index, (dense, activation)) in self.layers.iter().enumerate() {
            let x = if index == 0 { x } else { &before[..] };
            let y = if index == last {
                &mut y[..]
            } else {
                after.resize(rows * dense.outputs(), 0.0);
                &mut after[..]
            };
            dense.run_then(team, x, y, |part| {
                if let Some(activation) = *activation {
                    kernels.activate(activation, part);
                }
            })?;
            std::mem::swap(before, after);
        }
        Ok(())
    }
}
