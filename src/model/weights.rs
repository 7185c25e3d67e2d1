//! The weights of one direction, gates stacked along the rows in PyTorch's order.

use std::fmt;

use super::{CellKind, Matrix, ModelError};

/// The diagonal connections of an LSTM from the cell state to the gates, each `[H]` (Gers et al.;
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
    /// Peephole weights, LSTM only.
    pub peepholes: Option<Peepholes>,
    /// Projection of the hidden state, `[R, H]`, LSTM only: the state is `projection · h` (PyTorch
    /// `weight_hr`, `proj_size`).
    pub projection: Option<Matrix>,
}

impl Weights {
    /// Number of values over all tensors.
    pub fn values(&self) -> usize {
        self.input.len()
            + self.recurrent.len()
            + self.input_bias.len()
            + self.recurrent_bias.len()
            + self.peepholes.as_ref().map_or(0, |p| 3 * p.input.len())
            + self.projection.as_ref().map_or(0, Matrix::len)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        let vectors = self.input_bias.len()
            + self.recurrent_bias.len()
            + self.peepholes.as_ref().map_or(0, |p| 3 * p.input.len());
        let projection = self.projection.as_ref().map_or(0, Matrix::bytes);
        self.input.bytes() + self.recurrent.bytes() + projection + 4 * vectors
    }

    /// Checks all shapes against the input weights. Returns the hidden size.
    pub(super) fn check(&self, kind: CellKind) -> Result<usize, ModelError> {
        let gates = kind.gates();
        let hidden = hidden_size(&self.input, gates, kind)?;
        let rows = self.input.rows();
        let state = self.projection.as_ref().map_or(hidden, Matrix::rows);
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
            if p.rows() == 0 {
                return Err(shape(
                    "projection",
                    "at least one row".into(),
                    "none".into(),
                ));
            }
            expect_matrix("projection", p, p.rows(), hidden)?;
        }
        Ok(hidden)
    }
}

/// Hidden units of input weights `[gates * hidden, _]`, at least one.
pub(super) fn hidden_size(
    input: &Matrix,
    gates: usize,
    cell: impl fmt::Display,
) -> Result<usize, ModelError> {
    match input.rows() {
        rows if rows > 0 && rows.is_multiple_of(gates) => Ok(rows / gates),
        rows => Err(shape(
            "input weights",
            format!("{gates} rows per hidden unit, and at least one unit, for {cell}"),
            format!("{rows} rows"),
        )),
    }
}

pub(super) fn expect_len(
    tensor: &'static str,
    values: &[f32],
    expected: usize,
) -> Result<(), ModelError> {
    if values.len() == expected {
        return Ok(());
    }
    Err(shape(
        tensor,
        format!("{expected} values"),
        format!("{} values", values.len()),
    ))
}

pub(super) fn expect_matrix(
    tensor: &'static str,
    matrix: &Matrix,
    rows: usize,
    cols: usize,
) -> Result<(), ModelError> {
    if (matrix.rows(), matrix.cols()) == (rows, cols) {
        return Ok(());
    }
    Err(shape(
        tensor,
        format!("{rows} x {cols}"),
        format!("{} x {}", matrix.rows(), matrix.cols()),
    ))
}

fn shape(tensor: &'static str, expected: String, found: String) -> ModelError {
    ModelError::Shape {
        tensor,
        expected,
        found,
    }
}
