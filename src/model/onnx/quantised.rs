//! The weights of `DynamicQuantizeLSTM` nodes (domain `com.microsoft`, version 1; ONNX Runtime's
//! `docs/ContribOperators.md`): 8-bit whole numbers with scales and zero points.
//!
//! ```text
//! q [D, K, 4·H]    K is E for W, H for R: transposed against LSTM's; columns in ONNX's gate order
//! scale, zero      [D], or [D, 4·H]: one for each column
//! weight of row j = (q[d][k][j] - zero) · scale
//!
//! every zero point the middle (0 of int8, 128 of uint8), no q - zero = -128:  q - zero and scale kept
//! else:              the weights, rounded to f32, quantised by rows as any other matrix
//! ```
//!
//! Zero points may differ from column to column, which ONNX Runtime refuses: their meaning is
//! plain.

use super::constants::Constants;
use super::gate_order::gate_columns;
use super::node::Node;
use super::tensor::{Data, Tensor};
use crate::model::{LoadError, Matrix, ModelError, Precision, Requantised};

/// W or R of a node, with all directions.
pub(super) struct Quantised<'a> {
    node: Node<'a>,
    label: String,
    numbers: &'a Tensor,
    scales: &'a [f32],
    zeros: &'a Data,
}

impl<'a> Quantised<'a> {
    /// Checks the scales and zero points that go with `numbers`, whose shape is right.
    pub(super) fn read(
        node: Node<'a>,
        inputs: Constants<'a>,
        index: usize,
        numbers: &'a Tensor,
    ) -> Result<Quantised<'a>, LoadError> {
        // W (1) has its scale at 8, R (2) at 10; the zero point follows.
        let (scale, zero) = (6 + 2 * index, 7 + 2 * index);
        let shape = [numbers.dims.first().copied(), numbers.dims.last().copied()];
        let shapes = [&shape[..1], &shape];
        let scales = inputs.required_floats(scale)?;
        inputs.expect(scale, scales, &shapes)?;
        let zeros = inputs.required_bytes(zero)?;
        inputs.expect(zero, zeros, &shapes)?;
        let (scales, zeros) = (scales.as_floats().unwrap_or_default(), &*zeros.data);
        if std::mem::discriminant(zeros) != std::mem::discriminant(&*numbers.data) {
            return Err(node.error(format!(
                "{} is {}; it must be {}, as {} is",
                inputs.label(zero),
                zeros.kind(),
                numbers.data.kind(),
                inputs.label(index)
            )));
        }
        // The most that a number can be from its zero point.
        let is_scale = |s: &&f32| **s >= 0.0 && (255.0 * **s).is_finite();
        if let Some(bad) = scales.iter().find(|s| !is_scale(s)) {
            return Err(node.error(format!(
                "{} holds {bad}; scales must not be negative, and leave every weight finite",
                inputs.label(scale)
            )));
        }
        Ok(Quantised {
            node,
            label: inputs.label(index),
            numbers,
            scales,
            zeros,
        })
    }

    /// The matrix of one of `of` directions, with this crate's rows.
    pub(super) fn matrix(
        &self,
        at: usize,
        of: usize,
    ) -> Result<(Matrix, Option<Requantised>), LoadError> {
        let [_, depth, rows] = self.numbers.dims[..] else {
            return Err(self.node.error(format!("{} has no 3 axes", self.label)));
        };
        // Scales and zero points of a direction: one, or one for each column.
        let place = |all: usize, column: usize| match all == of {
            true => at,
            false => at * rows + column,
        };
        let columns: Vec<usize> = gate_columns(rows).collect();
        let scales: Vec<f32> = columns
            .iter()
            .map(|c| self.scales[place(self.scales.len(), *c)])
            .collect();
        // Distances from the zero points, row after row.
        let mut distances = Vec::with_capacity(rows * depth);
        let mut symmetric = true;
        for &column in &columns {
            let zero = number(self.zeros, place(self.zeros.len(), column));
            symmetric &= zero == middle(self.zeros);
            distances.extend((0..depth).map(|k| {
                let q = number(&self.numbers.data, (at * depth + k) * rows + column);
                q - zero
            }));
        }
        let requantised = match (symmetric, distances.contains(&-128)) {
            (false, _) => Some(Requantised::ZeroPoint),
            (true, true) => Some(Requantised::Lowest),
            (true, false) => None,
        };
        let matrix = match requantised {
            None => {
                let kept: Vec<i8> = distances.iter().map(|&q| q as i8).collect();
                Matrix::from_int8(rows, depth, &kept, scales)
            }
            Some(_) => {
                let scale = |at: usize| scales[at / depth];
                let values = distances.iter().enumerate();
                let values = values.map(|(at, &q)| f32::from(q) * scale(at)).collect();
                Matrix::new(rows, depth, values).and_then(|m| m.in_precision(Precision::Int8))
            }
        };
        let named = |e: ModelError| self.node.error(format!("{}: {e}", self.label));
        Ok((matrix.map_err(named)?, requantised))
    }
}

/// One whole number of 8 bits.
fn number(data: &Data, at: usize) -> i16 {
    match data {
        Data::Int8(v) => v[at].into(),
        Data::Uint8(v) => v[at].into(),
        // `read` lets no other type pass.
        Data::Float(_) | Data::Int(_) => 0,
    }
}

/// The zero point of symmetric quantisation.
fn middle(data: &Data) -> i16 {
    match data {
        Data::Uint8(_) => 128,
        _ => 0,
    }
}
