//! Reads the weights of `DynamicQuantizeLSTM` nodes (domain `com.microsoft`, version 1; ONNX
//! Runtime's `docs/ContribOperators.md`): 8-bit integers with scales and zero points.
//!
//! ```text
//! q [D, K, 4·H]    K is E for W and H for R: W and R of LSTM transposed; columns in ONNX's order
//! scale, zero      [D], or [D, 4·H] with one for each column
//! weight of row j = (q[d][k][j] - zero) · scale
//!
//! if all zero points are the middle (int8: 0, uint8: 128) and no q - zero is -128:
//!     the matrix has q - zero and scale
//! else:
//!     the weights are rounded to f32 and quantised by rows as any other matrix
//! ```
//!
//! Zero points may differ between columns. ONNX Runtime refuses that, but the operator defines it.

use super::constants::Constants;
use super::gate_order::gate_columns;
use super::node::Node;
use super::tensor::{Data, Tensor};
use crate::model::{LoadError, Matrix, ModelError, Precision, Requantised};

/// W or R of a node, with all directions.
pub(super) struct QuantisedTensor<'a> {
    node: Node<'a>,
    label: String,
    integers: &'a Tensor,
    scales: &'a [f32],
    zeros: &'a Data,
}

/// The matrix of one direction.
pub(super) struct RequantisedMatrix {
    pub matrix: Matrix,
    /// Why its integers are not those of the file, if they are not.
    pub reason: Option<Requantised>,
}

impl<'a> QuantisedTensor<'a> {
    /// Checks the scales and zero points of `integers`, whose shape the caller has checked.
    pub(super) fn read(
        node: Node<'a>,
        inputs: Constants<'a>,
        index: usize,
        integers: &'a Tensor,
    ) -> Result<QuantisedTensor<'a>, LoadError> {
        // W (1) has its scale at 8, R (2) at 10; the zero point follows.
        let (scale, zero) = (6 + 2 * index, 7 + 2 * index);
        let shape = [
            integers.dims.first().copied(),
            integers.dims.last().copied(),
        ];
        let shapes = [&shape[..1], &shape];
        let scales = inputs.required_floats(scale)?;
        inputs.expect(scale, scales, &shapes)?;
        let zeros = inputs.required_bytes(zero)?;
        inputs.expect(zero, zeros, &shapes)?;
        let (scales, zeros) = (scales.as_floats().unwrap_or_default(), &*zeros.data);
        if std::mem::discriminant(zeros) != std::mem::discriminant(&*integers.data) {
            return Err(node.error(format!(
                "{} is {}; it must be {}, as {} is",
                inputs.label(zero),
                zeros.kind(),
                integers.data.kind(),
                inputs.label(index)
            )));
        }
        // 255 is the largest distance of an integer from its zero point.
        let is_scale = |s: &&f32| **s >= 0.0 && (255.0 * **s).is_finite();
        if let Some(bad) = scales.iter().find(|s| !is_scale(s)) {
            return Err(node.error(format!(
                "{} holds {bad}; scales must not be negative, and every weight must be finite",
                inputs.label(scale)
            )));
        }
        Ok(QuantisedTensor {
            node,
            label: inputs.label(index),
            integers,
            scales,
            zeros,
        })
    }

    /// The matrix of direction `at` of `count`, with this crate's order of rows.
    pub(super) fn direction(
        &self,
        at: usize,
        count: usize,
    ) -> Result<RequantisedMatrix, LoadError> {
        let [_, depth, rows] = self.integers.dims[..] else {
            return Err(self.node.error(format!("{} must have 3 axes", self.label)));
        };
        // A direction has one scale and zero point, or one for each column.
        let index = |len: usize, column: usize| {
            if len == count { at } else { at * rows + column }
        };
        let columns: Vec<usize> = gate_columns(rows).collect();
        let scale = |column: &usize| self.scales[index(self.scales.len(), *column)];
        let scales: Vec<f32> = columns.iter().map(scale).collect();
        // Distances from the zero points, row after row.
        let mut distances = Vec::with_capacity(rows * depth);
        let mut symmetric = true;
        for &column in &columns {
            let zero = integer(self.zeros, index(self.zeros.len(), column));
            symmetric &= zero == middle(self.zeros);
            distances.extend((0..depth).map(|k| {
                let q = integer(&self.integers.data, (at * depth + k) * rows + column);
                q - zero
            }));
        }
        let reason = if !symmetric {
            Some(Requantised::ZeroPoint)
        } else if distances.contains(&-128) {
            Some(Requantised::Lowest)
        } else {
            None
        };
        let matrix = if reason.is_none() {
            let integers: Vec<i8> = distances.iter().map(|&q| q as i8).collect();
            Matrix::from_int8(rows, depth, &integers, scales)
        } else {
            let pairs = distances.iter().enumerate();
            let values = pairs.map(|(at, &q)| f32::from(q) * scales[at / depth]);
            Matrix::new(rows, depth, values.collect())
                .and_then(|matrix| matrix.in_precision(Precision::Int8))
        };
        let named = |e: ModelError| self.node.error(format!("{}: {e}", self.label));
        Ok(RequantisedMatrix {
            matrix: matrix.map_err(named)?,
            reason,
        })
    }
}

/// One 8-bit integer.
fn integer(data: &Data, at: usize) -> i16 {
    match data {
        Data::Int8(v) => v[at].into(),
        Data::Uint8(v) => v[at].into(),
        // `read` refuses other types.
        Data::Float(_) | Data::Int(_) => 0,
    }
}

/// The middle of the range: the zero point of symmetric quantisation.
fn middle(data: &Data) -> i16 {
    match data {
        Data::Uint8(_) => 128,
        _ => 0,
    }
}
