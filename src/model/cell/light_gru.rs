//! Light GRU: an update gate and a ReLU candidate, without a reset gate (Ravanelli, Brakel, Omologo
//! and Bengio 2018, "Light Gated Recurrent Units for Speech Recognition").

use super::step::{CellStep, Operand, input, recurrent};
use super::{Activation, Cell, NamedCell};
use crate::model::{Builder, Matrix, ModelError, Precision, Weights};
use gatestream_kernels::{GateKernel, LightGruFunctions};

const H: Operand = Operand::STATE;

/// Update gate, candidate.
pub(super) const STEP: CellStep = CellStep {
    gates: &["z", "n"],
    products: &[
        input(0, 0),
        input(1, 1),
        recurrent(0, H, 0),
        recurrent(1, H, 1),
    ],
    has_cell_state: false,
    activations: 3,
};

/// One phase.
pub(super) fn gate_kernels(functions: LightGruFunctions) -> Vec<GateKernel> {
    vec![GateKernel::LightGru(functions)]
}

pub(super) const NAMED: NamedCell = NamedCell {
    name: "light_gru",
    argument: "light-gru",
    about: "Light gated recurrent unit: update gate and relu candidate, no reset gate",
    cell: Cell::LIGHT_GRU,
};

impl Cell {
    /// The light GRU of the paper: sigmoid gate, relu candidate.
    pub const LIGHT_GRU: Cell = Cell::LightGru {
        gate: Activation::Sigmoid,
        candidate: Activation::Relu,
    };
}

/// Builds light GRU models.
pub type LightGru = Builder<LightGruCell>;

/// The kind of [`LightGru`].
#[derive(Clone, Debug)]
pub struct LightGruCell;

impl LightGru {
    /// One forward layer of `hidden` units over `input` features.
    ///
    /// ```
    /// use gatestream::model::LightGru;
    ///
    /// let model = LightGru::new(40, 128).layers(2).random(1)?;
    /// assert_eq!(model.signature().output, 128);
    /// # Ok::<(), gatestream::model::ModelError>(())
    /// ```
    pub fn new(input: usize, hidden: usize) -> LightGru {
        Builder::of(Cell::LIGHT_GRU, input, hidden)
    }
}

/// Batch normalisation of a cell's input products with the statistics of training:
/// `γ∘(W x - mean) / √(variance + eps) + β`, each `[G * H]` in the order of the gates.
///
/// At inference it is an affine function, so it can be folded into the weights.
///
/// ```
/// use gatestream::model::{BatchNorm, LightGru};
///
/// let norm = BatchNorm {
///     mean: vec![0.0; 2 * 16],
///     variance: vec![1.0; 2 * 16],
///     gamma: vec![0.1; 2 * 16],
///     beta: vec![0.0; 2 * 16],
///     eps: 1e-5,
/// };
/// let trained = LightGru::new(8, 16).random(1)?;
/// let weights = trained.layers()[0].directions()[0].weights();
/// let folded = norm.fold(weights)?;
/// let model = LightGru::new(8, 16).build(|_| folded.clone())?;
/// # assert_eq!(model.signature().input, 8);
/// # Ok::<(), gatestream::model::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// Running mean.
    pub mean: Vec<f32>,
    /// Running variance.
    pub variance: Vec<f32>,
    /// Scale, PyTorch's `weight`.
    pub gamma: Vec<f32>,
    /// Offset, PyTorch's `bias`.
    pub beta: Vec<f32>,
    /// Added to the variance.
    pub eps: f32,
}

impl BatchNorm {
    /// `weights` whose input products give normalised values. It is computed in `f64` and rounded
    /// once; the input weights keep their precision.
    ///
    /// # Errors
    /// [`ModelError::Shape`] names the vector that has not one value per row of the input weights;
    /// [`ModelError::Variance`] a variance that is not finite, or not positive with `eps` added;
    /// [`ModelError::NotQuantisable`] is for int8 where a folded weight is not finite.
    pub fn fold(&self, weights: &Weights) -> Result<Weights, ModelError> {
        let (rows, cols) = (weights.input.rows(), weights.input.cols());
        let vectors = [
            ("batch normalisation mean", &self.mean),
            ("batch normalisation variance", &self.variance),
            ("batch normalisation gamma", &self.gamma),
            ("batch normalisation beta", &self.beta),
            ("input bias", &weights.input_bias),
        ];
        for (tensor, values) in vectors {
            if values.len() != rows {
                return Err(ModelError::Shape {
                    tensor,
                    expected: format!("{rows} values"),
                    found: format!("{} values", values.len()),
                });
            }
        }
        let wide = f64::from;
        let mut folded = weights.clone();
        let mut values = Vec::with_capacity(rows * cols);
        for row in 0..rows {
            let (variance, eps) = (self.variance[row], self.eps);
            let square = wide(variance) + wide(eps);
            if !square.is_finite() || square <= 0.0 {
                return Err(ModelError::Variance { variance, eps });
            }
            let scale = wide(self.gamma[row]) / square.sqrt();
            let of_row = weights.input.row(row);
            values.extend(of_row.iter().map(|&weight| (wide(weight) * scale) as f32));
            let centred = wide(weights.input_bias[row]) - wide(self.mean[row]);
            folded.input_bias[row] = (centred * scale + wide(self.beta[row])) as f32;
        }
        let input = Matrix::new(rows, cols, values)?;
        folded.input = match weights.input.precision() {
            Precision::F32 => input,
            other => input.in_precision(other)?,
        };
        Ok(folded)
    }
}
