//! Reports for each 8-bit matrix of a file whether the model has the file's integers.
//!
//! Int8 here is symmetric: a row is a scale times integers from -127 to 127
//! ([`Precision`](super::Precision)). A file may also hold 8-bit weights with a zero point, or with
//! -128. A loader that supports such files quantises those matrices again and reports it here.

use std::fmt;

use super::{Model, Precision};

/// The product of a direction that a matrix belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixKind {
    /// [`Weights::input`](super::Weights::input).
    Input,
    /// [`Weights::recurrent`](super::Weights::recurrent).
    Recurrent,
}

impl fmt::Display for MatrixKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MatrixKind::Input => "input",
            MatrixKind::Recurrent => "recurrent",
        })
    }
}

/// Why a matrix does not have the integers and scales of its file. Its values were computed as
/// `(q - zero point) · scale`, rounded to `f32`, and quantised again as
/// [`Matrix::in_precision`](super::Matrix::in_precision) does. The error of a value is at most half
/// of its row's new scale, which is the row's largest magnitude / 127.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requantised {
    /// A zero point is not the middle of the range: 0 for int8, 128 for uint8.
    ZeroPoint,
    /// A weight is -128 times its scale.
    Lowest,
}

impl fmt::Display for Requantised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Requantised::ZeroPoint => "its zero points are not all 0 (uint8: 128)",
            Requantised::Lowest => "it holds -128, but the range of int8 is -127 to 127",
        })
    }
}

/// A weight matrix that the file stored in 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantisedMatrix {
    /// Its layer, from 0.
    pub layer: usize,
    /// Whether its direction runs in reverse.
    pub reverse: bool,
    /// The product that it belongs to.
    pub matrix: MatrixKind,
    /// The name of its tensor in the file.
    pub tensor: String,
    /// Why its integers and scales are not those of the file; `None` if they are.
    pub requantised: Option<Requantised>,
}

impl Model {
    /// The matrices that an ONNX file stored in 8 bits and that still are int8 (see
    /// [`Model::in_precision`]), in the order of layers, forward before reverse, input before
    /// recurrent. Empty for all other models: int8 in a safetensors file is used unchanged or
    /// refused.
    pub fn quantised(&self) -> &[QuantisedMatrix] {
        &self.quantised
    }

    /// Keeps only the reports of layers that are int8 in `precisions`.
    pub(super) fn retain_quantised(&mut self, precisions: &[Precision]) {
        self.quantised
            .retain(|matrix| precisions[matrix.layer] == Precision::Int8);
    }
}
