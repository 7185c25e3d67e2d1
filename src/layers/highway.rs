//! Highway layers, which pass on a part of their input as it is.
//!
//! ```text
//! for each layer
//!   t = sigmoid(gate(x));  h = activation(transform(x));  x = t · h + (1 − t) · x
//! ```

use super::deal::Work;
use super::error::{expect, fits};
use super::{Dense, LayerError};
use crate::execute::team::SharedTeam;
use crate::model::{Activation, Matrix};
use gatestream_kernels::{Isa, RowKernels, row_kernels};

/// The weights of one highway layer, `[features, features]` and `[features]` each.
#[derive(Clone, Copy, Debug)]
pub struct HighwayWeights<'a> {
    /// Weights of the transform h.
    pub transform: &'a Matrix,
    /// Its bias.
    pub transform_bias: &'a [f32],
    /// Weights of the gate t.
    pub gate: &'a Matrix,
    /// Its bias.
    pub gate_bias: &'a [f32],
    /// Activation of the transform. The gate's is the sigmoid.
    pub activation: Activation,
}

/// Highway layers, one after the other (Srivastava and others, *Highway Networks*, 2015).
///
/// ```
/// use gatestream::execute::team::{SharedTeam, Team};
/// use gatestream::kernels::{Activation, Isa};
/// use gatestream::layers::{Highway, HighwayWeights};
/// use gatestream::model::Matrix;
///
/// let (transform, gate) = (Matrix::new(1, 1, vec![2.0])?, Matrix::new(1, 1, vec![0.0])?);
/// let weights = HighwayWeights {
///     transform: &transform,
///     transform_bias: &[0.0],
///     gate: &gate,
///     gate_bias: &[0.0],
///     activation: Activation::Relu,
/// };
/// let team = SharedTeam::new(Team::with_threads(1)?);
/// let mut highway = Highway::new(&team, &[weights], Isa::select()?)?;
/// let mut x = [4.0, -4.0];
/// highway.run(&team, &mut x)?;
/// assert_eq!(x, [0.5 * 8.0 + 0.5 * 4.0, 0.5 * -4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Highway {
    layers: Vec<Layer>,
    features: usize,
    kernels: Box<dyn RowKernels>,
    /// `[rows, features]` each.
    gate: Vec<f32>,
    transform: Vec<f32>,
}

struct Layer {
    transform: Dense,
    gate: Dense,
    activation: Activation,
}

impl Highway {
    /// Packs the weights of `layers` on `team`.
    ///
    /// # Errors
    /// [`LayerError::DoesNotFit`] unless all matrices are square and of one size; as
    /// [`Dense::on_team`].
    pub fn new(
        team: &SharedTeam,
        layers: &[HighwayWeights<'_>],
        isa: Isa,
    ) -> Result<Highway, LayerError> {
        let features = layers.first().map_or(0, |layer| layer.transform.cols());
        let pack = |layer: &HighwayWeights<'_>| {
            for (name, weights) in [("a transform", layer.transform), ("a gate", layer.gate)] {
                fits(name, weights.cols(), "the first layer", features)?;
                fits("a highway layer", features, name, weights.rows())?;
            }
            Ok(Layer {
                transform: Dense::on_team(layer.transform, layer.transform_bias, isa, team)?,
                gate: Dense::on_team(layer.gate, layer.gate_bias, isa, team)?,
                activation: layer.activation,
            })
        };
        Ok(Highway {
            layers: layers.iter().map(pack).collect::<Result<_, LayerError>>()?,
            features,
            kernels: row_kernels(isa)?,
            gate: Vec::new(),
            transform: Vec::new(),
        })
    }

    /// Features of a row; 0 without layers.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Replaces each row of `x` `[rows, features]`. Allocates where no call before had as many
    /// rows.
    ///
    /// # Errors
    /// [`LayerError::Values`] unless `x` holds whole rows; nothing has been written then.
    /// [`LayerError::Team`].
    pub fn run(&mut self, team: &SharedTeam, x: &mut [f32]) -> Result<(), LayerError> {
        let features = self.features;
        let rows = x.len() / features.max(1);
        expect("x", x.len(), rows * features)?;
        self.gate.resize(x.len(), 0.0);
        self.transform.resize(x.len(), 0.0);
        let kernels = &*self.kernels;
        for layer in &self.layers {
            layer.gate.run_then(team, x, &mut self.gate, |part| {
                kernels.activate(Activation::Sigmoid, part);
            })?;
            (layer.transform).run_then(team, x, &mut self.transform, |part| {
                kernels.activate(layer.activation, part);
            })?;
            let work = Work::new(team, x.len());
            let part = (work.part_rows(rows) * features).max(1);
            let (gate, transform) = (self.gate.chunks(part), self.transform.chunks(part));
            let parts = x.chunks_mut(part).zip(gate.zip(transform));
            work.deal(parts, |_, (x, (gate, transform))| {
                kernels.highway(gate, transform, x);
            })?;
        }
        Ok(())
    }
}
