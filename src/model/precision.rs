//! The numbers that weights are kept as, and what a product of them means.
//!
//! A precision is a property of a model's weights: the same network in another precision is another
//! model, with other answers, which are then as exact as those in `f32`: every plan gives the same bits.
//!
//! # Rounding
//!
//! - bf16: each weight is rounded to the nearest bfloat16, ties to even. Products and sums are those of
//!   `f32`, over these values.
//! - int8: each row of a matrix (one gate of one unit) has a scale, its greatest magnitude / 127, and
//!   each weight is the nearest multiple, ties to even. What such a matrix is multiplied with is
//!   quantised, too, sequence by sequence and step by step, with one scale for its values:
//!
//! ```text
//! most  = max |x[k]|                                   less than 2^-100: all q are 0, and so is the scale
//! scale = most / 127;  q[k] = x[k] · (127 / most), rounded to the nearest even
//!                                                      some x[k] not finite: z is NaN
//! z     = fma(Σ_k q[k] · W_q[j][k], scale · scale_j, z)          the sum exact, then rounded to f32
//! ```
//!
//! Symmetric scales for each output channel, and scales for activations that follow the values, are
//! those of PyTorch's dynamic quantisation (with `per_channel_dynamic_qconfig`; by default its weights have
//! one scale for a matrix), but for its zero points and its scale over a whole batch.
//! The state of an LSTM, a GRU or a tanh RNN has no fixed scale, 1 / 127, though it is bounded by 1: with
//! that, the RMS error was larger in every model tried, random or trained (`tuning/accuracy`).

use std::fmt;

use super::{Layer, Matrix, Model, ModelError, Weights};
use crate::kernels::{INT8_DEPTH, TINY_ROW, Values};

/// The numbers that a matrix is kept as; see the module's text for what they mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// IEEE-754 binary32.
    #[default]
    F32,
    /// bfloat16 in memory, `f32` in products.
    Bf16,
    /// Whole numbers from -127 to 127 times a scale for each row, on both sides of a product.
    Int8,
}

impl Precision {
    /// All of them, most precise first.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Int8];

    /// As it is written on the command line and in files.
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

/// The nearest bf16 of each value, row after row.
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

/// Whole numbers, row after row, and the scale of each row.
pub(super) fn as_int8(matrix: &Matrix) -> Result<(Values<i8>, Vec<f32>), ModelError> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    check_depth(cols)?;
    let mut whole = Values::zeroed(rows * cols);
    let mut scales = Vec::with_capacity(rows);
    for row in 0..rows {
        let values = matrix.row(row);
        if let Some(value) = values.iter().find(|v| !v.is_finite()) {
            return Err(ModelError::NotQuantisable { value: *value });
        }
        let most = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let scale = if most < TINY_ROW { 0.0 } else { most / 127.0 };
        if !(127.0 * scale).is_finite() {
            return Err(ModelError::NotQuantisable { value: most });
        }
        if scale != 0.0 {
            for (q, value) in whole[row * cols..].iter_mut().zip(values.iter()) {
                *q = (value / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
            }
        }
        scales.push(scale);
    }
    Ok((whole, scales))
}

/// Longer sums of int8 could overflow 32 bits.
pub(super) fn check_depth(cols: usize) -> Result<(), ModelError> {
    match cols > INT8_DEPTH {
        true => Err(ModelError::TooDeepForInt8 {
            cols,
            most: INT8_DEPTH,
        }),
        false => Ok(()),
    }
}

/// The nearest bfloat16, ties to even; beyond the greatest, infinity; NaN stays NaN.
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = match value.is_nan() {
        true => bits | 0x0040_0000,
        false => bits + 0x7fff + (bits >> 16 & 1),
    };
    (rounded >> 16) as u16
}

/// The value of a bfloat16, exactly.
pub(super) fn from_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

impl Weights {
    /// Every matrix in `precision`; biases and peepholes, which are few, stay as they are.
    ///
    /// # Errors
    /// As [`Matrix::in_precision`].
    pub fn in_precision(&self, precision: Precision) -> Result<Weights, ModelError> {
        let projection = self.projection.as_ref();
        let projection = projection.map(|p| p.in_precision(precision)).transpose()?;
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

    /// The precisions of input weights, recurrent weights, and the projection's.
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
    /// The same network with all weights in `precision`, converted from the values they have now.
    ///
    /// ```
    /// use cellstream::model::{Lstm, Precision};
    /// let model = Lstm::new(64, 256).random(1)?;
    /// let small = model.in_precision(Precision::Int8)?;
    /// assert_eq!(small.precision(), Some(Precision::Int8));
    /// assert!(small.weight_bytes() * 3 < model.weight_bytes());
    /// # Ok::<(), cellstream::model::ModelError>(())
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
    /// As [`Matrix::in_precision`]; [`ModelError::Shape`] unless there is one for each layer.
    pub fn in_precisions(&self, precisions: &[Precision]) -> Result<Model, ModelError> {
        self.check_count(precisions)?;
        let layers = self.layers.iter().zip(precisions);
        let layers = layers.map(|(layer, &precision)| layer.in_precision(precision));
        let mut model = Model {
            layers: layers.collect::<Result<_, _>>()?,
            interface: self.interface.clone(),
            quantised: self.quantised.clone(),
        };
        model.forget_quantised(precisions);
        Ok(model)
    }

    /// As [`Model::in_precision`], giving each matrix's memory back once it has been converted: at no
    /// time is there more than this model and one matrix of the other.
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
        self.forget_quantised(precisions);
        for (layer, &precision) in self.layers.iter_mut().zip(precisions) {
            for direction in layer.directions_mut() {
                direction.weights_mut().convert(precision)?;
            }
        }
        Ok(self)
    }

    fn check_count(&self, precisions: &[Precision]) -> Result<(), ModelError> {
        match precisions.len() == self.layers.len() {
            true => Ok(()),
            false => Err(ModelError::Shape {
                tensor: "precisions",
                expected: format!("{}, one for each layer", self.layers.len()),
                found: format!("{}", precisions.len()),
            }),
        }
    }

    /// The precision of all weights; `None` where they differ.
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
