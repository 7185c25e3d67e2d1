//! Whether a model has the whole numbers that its file held.
//!
//! Int8 here is symmetric: a row is a scale times whole numbers from -127 to 127
//! ([`Precision`](super::Precision)). A file may hold 8-bit weights that are not, with a zero point to
//! be subtracted, or with -128; a loader that takes such files rounds those matrices anew, and leaves
//! word of it here.

use std::fmt;

use super::{Model, Precision};

/// Which of a direction's two products a matrix is for.
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

/// Why a matrix does not have its file's whole numbers and scales. Its values were computed from them,
/// `(q - zero point) · scale`, rounded to `f32`, and then rounded as
/// [`Matrix::in_precision`](super::Matrix::in_precision) says: each by at most half of its row's new
/// scale, which is the row's greatest magnitude / 127.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requantised {
    /// A zero point that is not the middle: other than 0 of int8, or 128 of uint8.
    ZeroPoint,
    /// A weight of -128 scales.
    Lowest,
}

impl fmt::Display for Requantised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Requantised::ZeroPoint => "its zero points are not all 0 (of uint8: 128)",
            Requantised::Lowest => "it holds -128, and int8 is from -127 to 127 here",
        })
    }
}

/// A weight matrix that the file held in 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantisedMatrix {
    /// Its layer, from 0.
    pub layer: usize,
    /// Whether its direction runs from each sequence's end to its start.
    pub reverse: bool,
    /// What it is for.
    pub matrix: MatrixKind,
    /// The name of its tensor in the file.
    pub tensor: String,
    /// `None` where its whole numbers and scales are the file's, else why they are not.
    pub requantised: Option<Requantised>,
}

impl Model {
    /// Each matrix that an ONNX file held in 8 bits and that still is of int8 (see
    /// [`Model::in_precision`]): layers in their order, forward before reverse, input before recurrent.
    /// Empty for any other model: int8 in a safetensors file is taken as it is, or refused.
    pub fn quantised(&self) -> &[QuantisedMatrix] {
        &self.quantised
    }

    /// Forgets the matrices of layers that are to have another precision than int8.
    pub(super) fn forget_quantised(&mut self, precisions: &[Precision]) {
        self.quantised
            .retain(|matrix| precisions[matrix.layer] == Precision::Int8);
    }
}
