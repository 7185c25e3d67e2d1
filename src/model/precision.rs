//! The precisions of weights, and the definition of their products.
//!
//! The precision is a property of a model's weights. A network in another precision is another
//! model with other outputs. They are exact in the same sense as in `f32`: every plan gives the
//! same bits.
//!
//! # Rounding
//!
//! - bf16: each weight is rounded to the nearest bfloat16, ties to even. Products and sums are
//!   those of `f32` on these values.
//! - int8: each row of a matrix (one gate of one unit) has a scale, its largest magnitude / 127.
//!   Each weight is rounded to the nearest multiple of the scale, ties to even. The vector that the
//!   matrix is multiplied with is quantised at run time, with one scale for each sequence and step:
//!
//! ```text
//! max   = max_k |x[k]|
//! scale = max / 127;  q[k] = x[k] · (127 / max), rounded to the nearest integer, ties to even
//! z     = fma(Σ_k q[k] · W_q[j][k], scale · scale_j, z)  the sum is exact, then rounded to f32
//!
//! max < 2^-100: all q[k] and the scale are 0;  some x[k] is not finite: z is NaN
//! ```
//!
//! PyTorch's dynamic quantisation with `per_channel_dynamic_qconfig` also has a symmetric scale for
//! each row and computes the scales of activations at run time. (Its default has one scale for a
//! whole matrix.) It differs in the zero points of activations and in their single scale for a
//! batch. States of an LSTM, a GRU or a tanh RNN are bounded by 1, but a fixed scale of 1 / 127
//! gave a larger RMS error in every model that was tried (`tuning/accuracy`).

use std::fmt;
use std::str::FromStr;

use super::{Layer, Matrix, Model, ModelError, Weights};
use gatestream_kernels::{INT8_DEPTH, TINY_ROW, Values};

/// The precision in which a matrix is stored.
///
/// `F32` and `Bf16` products are chains of `f32` fused multiply-adds; a bf16 weight is widened
/// first. An `Int8` matrix has a scale for each row, and the vector that it is multiplied with is
/// quantised, too, with one scale for each sequence and step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// IEEE-754 binary32.
    #[default]
    F32,
    /// bfloat16 in memory, `f32` in products.
    Bf16,
    /// Integers from -127 to 127 times a scale for each row, for both operands of a product.
    Int8,
}

impl Precision {
    /// All precisions, the most precise first.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Int8];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        }
    }

    /// Bytes of one weight.
    pub fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
            Precision::Int8 => 1,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = UnknownPrecision;

    /// The precision with this [name](Precision::name).
    fn from_str(name: &str) -> Result<Precision, UnknownPrecision> {
        let mut all = Precision::ALL.into_iter();
        let found = all.find(|precision| precision.name() == name);
        found.ok_or_else(|| UnknownPrecision(name.into()))
    }
}

/// No [`Precision`] has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of {names}", names = Precision::ALL.map(Precision::name).join(", "))]
pub struct UnknownPrecision(pub String);

/// All values rounded to bf16, row after row.
pub(super) fn as_bf16(matrix: &Matrix) -> Values<u16> {
    let cols = matrix.cols();
    let mut halves = Values::zeroed(matrix.rows() * cols);
    for (row, halves) in halves.chunks_mut(cols.max(1)).enumerate() {
        for (half, value) in halves.iter_mut().zip(matrix.row(row).iter()) {
            *half = to_bf16(*value);
        }
    }
    halves
}

/// A matrix quantised to int8.
pub(super) struct Int8Values {
    /// Row after row.
    pub integers: Values<i8>,
    /// One for each row.
    pub scales: Vec<f32>,
}

/// Quantises a matrix by rows.
pub(super) fn as_int8(matrix: &Matrix) -> Result<Int8Values, ModelError> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    check_depth(cols)?;
    let mut integers = Values::zeroed(rows * cols);
    let mut scales = Vec::with_capacity(rows);
    for row in 0..rows {
        let values = matrix.row(row);
        if let Some(value) = values.iter().find(|v| !v.is_finite()) {
            return Err(ModelError::NotQuantisable { value: *value });
        }
        let max = values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let scale = if max < TINY_ROW { 0.0 } else { max / 127.0 };
        if !(127.0 * scale).is_finite() {
            return Err(ModelError::NotQuantisable { value: max });
        }
        if scale != 0.0 {
            for (q, value) in integers[row * cols..].iter_mut().zip(values.iter()) {
                *q = (value / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
            }
        }
        scales.push(scale);
    }
    Ok(Int8Values { integers, scales })
}

/// Checks that the int8 sum of a row cannot overflow 32 bits.
pub(super) fn check_depth(cols: usize) -> Result<(), ModelError> {
    if cols > INT8_DEPTH {
        return Err(ModelError::TooDeepForInt8 {
            cols,
            max: INT8_DEPTH,
        });
    }
    Ok(())
}

/// Rounds to the nearest bfloat16, ties to even. Values beyond its range become infinity; NaN stays
/// NaN.
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = if value.is_nan() {
        bits | 0x0040_0000
    } else {
        bits + 0x7fff + (bits >> 16 & 1)
    };
    (rounded >> 16) as u16
}

/// Widens a bfloat16, exactly.
pub(super) fn from_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

impl Weights {
    /// The same weights with every matrix in `precision`. Biases and peepholes stay f32.
    ///
    /// # Errors
    /// As [`Matrix::in_precision`].
    pub fn in_precision(&self, precision: Precision) -> Result<Weights, ModelError> {
        let projection = match &self.projection {
            Some(projection) => Some(projection.in_precision(precision)?),
            None => None,
        };
        Ok(Weights {
            input: self.input.in_precision(precision)?,
            recurrent: self.recurrent.in_precision(precision)?,
            input_bias: self.input_bias.clone(),
            recurrent_bias: self.recurrent_bias.clone(),
            peepholes: self.peepholes.clone(),
            projection,
        })
    }

    /// As [`Weights::in_precision`], in place.
    fn convert(&mut self, precision: Precision) -> Result<(), ModelError> {
        let matrices = [&mut self.input, &mut self.recurrent];
        for matrix in matrices.into_iter().chain(&mut self.projection) {
            if matrix.precision() != precision {
                *matrix = matrix.in_precision(precision)?;
            }
        }
        Ok(())
    }

    /// The precisions of input weights, recurrent weights and projection.
    pub fn precisions(&self) -> [Option<Precision>; 3] {
        [
            Some(&self.input),
            Some(&self.recurrent),
            self.projection.as_ref(),
        ]
        .map(|matrix| matrix.map(Matrix::precision))
    }
}

impl Model {
    /// The same network with all weights converted to `precision`.
    ///
    /// ```
    /// use gatestream::model::{Lstm, Precision};
    /// let model = Lstm::new(64, 256).random(1)?;
    /// let small = model.in_precision(Precision::Int8)?;
    /// assert_eq!(small.precision(), Some(Precision::Int8));
    /// assert!(small.weight_bytes() * 3 < model.weight_bytes());
    /// # Ok::<(), gatestream::model::ModelError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Matrix::in_precision`].
    pub fn in_precision(&self, precision: Precision) -> Result<Model, ModelError> {
        self.in_precisions(&vec![precision; self.layers().len()])
    }

    /// As [`Model::in_precision`], with one precision for each layer.
    ///
    /// # Errors
    /// As [`Matrix::in_precision`]; [`ModelError::Shape`] if the number of precisions is not the
    /// number of layers.
    pub fn in_precisions(&self, precisions: &[Precision]) -> Result<Model, ModelError> {
        self.check_count(precisions)?;
        let pairs = self.layers.iter().zip(precisions);
        let layers = pairs.map(|(layer, &precision)| layer.in_precision(precision));
        let mut model = Model {
            layers: layers.collect::<Result<_, _>>()?,
            interface: self.interface.clone(),
            quantised: self.quantised.clone(),
        };
        model.retain_quantised(precisions);
        Ok(model)
    }

    /// As [`Model::in_precision`], but frees each matrix after converting it: the peak is the
    /// memory of this model and one converted matrix.
    ///
    /// # Errors
    /// As [`Matrix::in_precision`].
    pub fn into_precision(self, precision: Precision) -> Result<Model, ModelError> {
        let precisions = vec![precision; self.layers.len()];
        self.into_precisions(&precisions)
    }

    /// As [`Model::into_precision`], with one precision for each layer.
    ///
    /// # Errors
    /// As [`Model::in_precisions`].
    pub fn into_precisions(mut self, precisions: &[Precision]) -> Result<Model, ModelError> {
        self.check_count(precisions)?;
        self.retain_quantised(precisions);
        for (layer, &precision) in self.layers.iter_mut().zip(precisions) {
            for direction in layer.directions_mut() {
                direction.weights_mut().convert(precision)?;
            }
        }
        Ok(self)
    }

    fn check_count(&self, precisions: &[Precision]) -> Result<(), ModelError> {
        if precisions.len() == self.layers.len() {
            return Ok(());
        }
        Err(ModelError::Shape {
            tensor: "precisions",
            expected: format!("{}, one for each layer", self.layers.len()),
            found: format!("{}", precisions.len()),
        })
    }

    /// The precision of all weights; `None` if they differ.
    pub fn precision(&self) -> Option<Precision> {
        let directions = self.layers().iter().flat_map(Layer::directions);
        let mut all = directions.flat_map(|d| d.weights().precisions()).flatten();
        let first = all.next()?;
        all.all(|precision| precision == first).then_some(first)
    }
}

impl Layer {
    fn in_precision(&self, precision: Precision) -> Result<Layer, ModelError> {
        let directions = self.directions().iter().map(|direction| {
            let weights = direction.weights().in_precision(precision)?;
            Ok::<_, ModelError>(direction.with_weights(weights))
        });
        Ok(self.with_directions(directions.collect::<Result<_, _>>()?))
    }
}
