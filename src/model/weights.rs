//! Weight matrices in row-major order, gates stacked along the rows in PyTorch's order.

use super::{CellKind, ModelError};
use crate::kernels::Values;

/// A dense row-major `f32` matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: Values,
}

impl Matrix {
    /// A matrix of `rows` × `cols` from row-major `data`.
    ///
    /// # Errors
    /// [`ModelError::Shape`] when `data` does not hold `rows * cols` values.
    pub fn new(rows: usize, cols: usize, data: Vec<f32>) -> Result<Matrix, ModelError> {
        Matrix::from_values(rows, cols, data.into())
    }

    /// As [`Matrix::new`], from memory that a loader has chosen.
    pub(super) fn from_values(
        rows: usize,
        cols: usize,
        data: Values,
    ) -> Result<Matrix, ModelError> {
        if rows.checked_mul(cols) != Some(data.len()) {
            return Err(ModelError::Shape {
                tensor: "matrix",
                expected: format!("{rows} x {cols} values"),
                found: format!("{} values", data.len()),
            });
        }
        Ok(Matrix { rows, cols, data })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// All values, row after row.
    pub fn data(&self) -> &[f32] {
        &self.data
    }
}

/// The LSTM's diagonal connections from the cell state to the gates, each `[hidden]` (Gers et al.;
/// ONNX input `P`, reordered).
#[derive(Clone, Debug, PartialEq)]
pub struct Peepholes {
    /// To the input gate.
    pub input: Vec<f32>,
    /// To the forget gate.
    pub forget: Vec<f32>,
    /// To the output gate.
    pub output: Vec<f32>,
}

/// The weights of one direction of one layer. `G` is [`CellKind::gates`], `H` the hidden size,
/// `E` the input size, `R` the size of the recurrent state (`H`, or the projection's rows).
///
/// Gate order along `G * H`: LSTM input, forget, candidate, output; GRU reset, update, new.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// `W`, `[G * H, E]` (PyTorch `weight_ih`).
    pub input: Matrix,
    /// `U`, `[G * H, R]` (PyTorch `weight_hh`).
    pub recurrent: Matrix,
    /// Bias of the input product, `[G * H]` (PyTorch `bias_ih`, ONNX `Wb`).
    pub input_bias: Vec<f32>,
    /// Bias of the recurrent product, `[G * H]` (PyTorch `bias_hh`, ONNX `Rb`).
    pub recurrent_bias: Vec<f32>,
    /// LSTM only.
    pub peepholes: Option<Peepholes>,
    /// LSTM only: `[R, H]`, the state is `projection · h` (PyTorch `weight_hr`, `proj_size`).
    pub projection: Option<Matrix>,
}

impl Weights {
    /// Number of values over all tensors.
    pub fn values(&self) -> usize {
        self.input.data.len()
            + self.recurrent.data.len()
            + self.input_bias.len()
            + self.recurrent_bias.len()
            + self.peepholes.as_ref().map_or(0, |p| 3 * p.input.len())
            + self.projection.as_ref().map_or(0, |p| p.data.len())
    }

    /// Checks every shape against the input's, and returns the hidden size.
    pub(super) fn check(&self, kind: CellKind) -> Result<usize, ModelError> {
        let gates = kind.gates();
        let rows = self.input.rows;
        if rows == 0 || !rows.is_multiple_of(gates) {
            return Err(shape(
                "input weights",
                format!("a multiple of {gates} rows, at least {gates}, for {kind}"),
                format!("{rows} rows"),
            ));
        }
        let hidden = rows / gates;
        let state = self.projection.as_ref().map_or(hidden, |p| p.rows);
        if (self.projection.is_some() || self.peepholes.is_some()) && kind != CellKind::Lstm {
            return Err(ModelError::LstmOnly {
                what: if self.projection.is_some() {
                    "a projection"
                } else {
                    "peephole weights"
                },
                kind,
            });
        }
        expect_matrix("recurrent weights", &self.recurrent, rows, state)?;
        expect_len("input bias", &self.input_bias, rows)?;
        expect_len("recurrent bias", &self.recurrent_bias, rows)?;
        if let Some(p) = &self.peepholes {
            expect_len("input peephole", &p.input, hidden)?;
            expect_len("forget peephole", &p.forget, hidden)?;
            expect_len("output peephole", &p.output, hidden)?;
        }
        if let Some(p) = &self.projection {
            if p.rows == 0 {
                return Err(shape(
                    "projection",
                    "at least one row".into(),
                    "none".into(),
                ));
            }
            expect_matrix("projection", p, p.rows, hidden)?;
        }
        Ok(hidden)
    }
}

fn expect_len(tensor: &'static str, values: &[f32], expected: usize) -> Result<(), ModelError> {
    if values.len() == expected {
        return Ok(());
    }
    Err(shape(
        tensor,
        format!("{expected} values"),
        format!("{} values", values.len()),
    ))
}

fn expect_matrix(
    tensor: &'static str,
    matrix: &Matrix,
    rows: usize,
    cols: usize,
) -> Result<(), ModelError> {
    if (matrix.rows, matrix.cols) == (rows, cols) {
        return Ok(());
    }
    Err(shape(
        tensor,
        format!("{rows} x {cols}"),
        format!("{} x {}", matrix.rows, matrix.cols),
    ))
}

fn shape(tensor: &'static str, expected: String, found: String) -> ModelError {
    ModelError::Shape {
        tensor,
        expected,
        found,
    }
}
