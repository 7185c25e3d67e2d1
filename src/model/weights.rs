//! Weight matrices in row-major order, gates stacked along the rows in PyTorch's order.

use super::precision::{check_depth, round};
use super::{CellKind, ModelError, Precision};
use crate::kernels::Values;

/// A dense row-major matrix: its values, and the numbers they are kept as when they are packed.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: Values,
    precision: Precision,
    /// Of int8: one for each row.
    scales: Vec<f32>,
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
        Ok(Matrix {
            rows,
            cols,
            data,
            precision: Precision::F32,
            scales: Vec::new(),
        })
    }

    /// A matrix of int8 from row-major `values` `[rows, cols]` and `scales` `[rows]`: row `j` holds
    /// `scales[j] · values[j][k]`.
    ///
    /// # Errors
    /// [`ModelError::Shape`] for another number of values or scales,
    /// [`ModelError::NotQuantisable`] for a value of -128, or a scale that is negative or makes a weight infinite,
    /// [`ModelError::TooDeepForInt8`].
    pub fn from_int8(
        rows: usize,
        cols: usize,
        values: &[i8],
        scales: Vec<f32>,
    ) -> Result<Matrix, ModelError> {
        check_depth(cols)?;
        if scales.len() != rows {
            return Err(ModelError::Shape {
                tensor: "scales",
                expected: format!("{rows} values"),
                found: format!("{} values", scales.len()),
            });
        }
        let is_scale = |s: f32| s >= 0.0 && (127.0 * s).is_finite();
        let bad = scales.iter().copied().find(|s| !is_scale(*s));
        let bad = bad.or(values.contains(&-128).then_some(-128.0));
        if let Some(value) = bad {
            return Err(ModelError::NotQuantisable { value });
        }
        let scale = |at: usize| scales[at / cols.max(1)];
        let data = values.iter().enumerate();
        let data = if values.len() == rows.saturating_mul(cols) {
            data.map(|(at, &q)| scale(at) * f32::from(q)).collect()
        } else {
            vec![0.0; values.len()]
        };
        let matrix = Matrix::new(rows, cols, data)?;
        Ok(Matrix {
            precision: Precision::Int8,
            scales,
            ..matrix
        })
    }

    /// The same matrix kept as other numbers, rounded as [`Precision`] says. What has that precision
    /// already stays as it is.
    ///
    /// # Errors
    /// For int8: [`ModelError::NotQuantisable`] for values that are not finite,
    /// [`ModelError::TooDeepForInt8`].
    pub fn in_precision(&self, precision: Precision) -> Result<Matrix, ModelError> {
        if precision == self.precision {
            return Ok(self.clone());
        }
        let rounded = round(&self.data, (self.rows, self.cols), precision)?;
        Ok(Matrix {
            rows: self.rows,
            cols: self.cols,
            data: rounded.values.into(),
            precision,
            scales: rounded.scales,
        })
    }

    /// The numbers that it is kept as.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Of int8 the scale of each row, `[rows]`; else empty.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Of int8 the whole numbers of a row: values over the scale; 0 where that is 0. All 0 of others.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn whole_row(&self, row: usize) -> impl Iterator<Item = i8> {
        let scale = self.scales.get(row).copied().unwrap_or(0.0);
        let values = self.row(row).iter();
        values.map(move |value| match scale {
            0.0 => 0,
            _ => (value / scale).round_ties_even() as i8,
        })
    }

    /// Bytes of the numbers and scales.
    pub fn bytes(&self) -> usize {
        self.precision.bytes() * self.data.len() + 4 * self.scales.len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row, as values.
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

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        let vectors = self.input_bias.len()
            + self.recurrent_bias.len()
            + self.peepholes.as_ref().map_or(0, |p| 3 * p.input.len());
        let projection = self.projection.as_ref().map_or(0, Matrix::bytes);
        self.input.bytes() + self.recurrent.bytes() + projection + 4 * vectors
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
