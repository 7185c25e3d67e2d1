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
//! those of PyTorch's dynamic quantisation, but for its zero points and its scale over a whole batch.

use std::fmt;

use super::{Direction, Layer, Matrix, Model, ModelError, Weights};
use crate::kernels::{INT8_DEPTH, Numbers, TINY_ROW};

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

/// Values that a precision can hold, with the scale of each row where it has scales.
pub(super) struct Rounded {
    pub values: Vec<f32>,
    pub scales: Vec<f32>,
}

/// Rounds `values`, rows of `cols`, to what `precision` can hold.
pub(super) fn round(
    values: &[f32],
    (rows, cols): (usize, usize),
    precision: Precision,
) -> Result<Rounded, ModelError> {
    let mut values = values.to_vec();
    let mut scales = Vec::new();
    match precision {
        Precision::F32 => {}
        Precision::Bf16 => values.iter_mut().for_each(|v| *v = to_bf16(*v)),
        Precision::Int8 => {
            check_depth(cols)?;
            for row in 0..rows {
                let row = &mut values[row * cols..(row + 1) * cols];
                if let Some(value) = row.iter().find(|v| !v.is_finite()) {
                    return Err(ModelError::NotQuantisable { value: *value });
                }
                let most = row.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                let scale = if most < TINY_ROW { 0.0 } else { most / 127.0 };
                if !(127.0 * scale).is_finite() {
                    return Err(ModelError::NotQuantisable { value: most });
                }
                for value in row.iter_mut() {
                    let q = if scale == 0.0 { 0.0 } else { *value / scale };
                    *value = scale * q.round_ties_even().clamp(-127.0, 127.0);
                }
                scales.push(scale);
            }
        }
    }
    Ok(Rounded { values, scales })
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
fn to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    match value.is_nan() {
        true => f32::from_bits((bits | 0x0040_0000) & 0xffff_0000),
        false => f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000),
    }
}

impl Matrix {
    /// How kernels are to keep it.
    pub(crate) fn numbers(&self) -> Numbers<'_> {
        match self.precision() {
            Precision::F32 => Numbers::F32,
            Precision::Bf16 => Numbers::Bf16,
            Precision::Int8 => Numbers::Int8(self.scales()),
        }
    }
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
        if precisions.len() != self.layers().len() {
            return Err(ModelError::Shape {
                tensor: "precisions",
                expected: format!("{}, one for each layer", self.layers().len()),
                found: format!("{}", precisions.len()),
            });
        }
        let mut model = self.clone();
        model.forget_quantised(precisions);
        for (layer, &precision) in model.layers.iter_mut().zip(precisions) {
            layer.convert(precision)?;
        }
        Ok(model)
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
    fn convert(&mut self, precision: Precision) -> Result<(), ModelError> {
        for direction in self.directions_mut() {
            direction.convert(precision)?;
        }
        Ok(())
    }
}

impl Direction {
    fn convert(&mut self, precision: Precision) -> Result<(), ModelError> {
        *self.weights_mut() = self.weights().in_precision(precision)?;
        Ok(())
    }
}
