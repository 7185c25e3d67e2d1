//! Matrices in row-major order, in memory as the numbers that they are: an int8 matrix takes a byte for
//! each.

use std::borrow::Cow;

use super::precision::{as_bf16, as_int8, check_depth, from_bf16};
use super::{ModelError, Precision};
use crate::kernels::{Numbers, Values};

/// A dense row-major matrix of one precision.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    stored: Stored,
}

/// Row after row.
#[derive(Clone, Debug)]
enum Stored {
    F32(Values),
    /// Upper halves of binary32.
    Bf16(Values<u16>),
    /// And a scale for each row; a row whose scale is 0 holds zeros.
    Int8(Values<i8>, Vec<f32>),
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
        Matrix::of(rows, cols, data.len(), Stored::F32(data))
    }

    /// As [`Matrix::from_values`], of bf16: `[rows, cols]` upper halves of binary32.
    #[cfg(feature = "safetensors")]
    pub(super) fn from_bf16(
        rows: usize,
        cols: usize,
        halves: Values<u16>,
    ) -> Result<Matrix, ModelError> {
        Matrix::of(rows, cols, halves.len(), Stored::Bf16(halves))
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
        let mut copy = Values::zeroed(values.len());
        copy.copy_from_slice(values);
        Matrix::from_whole(rows, cols, copy, scales)
    }

    /// As [`Matrix::from_int8`], from memory that a loader has chosen.
    pub(super) fn from_whole(
        rows: usize,
        cols: usize,
        mut values: Values<i8>,
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
        if values.len() == rows.saturating_mul(cols) {
            // One way to write a row of zeros, so that equal matrices make equal files.
            let each = values.chunks_mut(cols.max(1)).zip(&scales);
            each.filter(|(_, scale)| **scale == 0.0)
                .for_each(|(row, _)| row.fill(0));
        }
        Matrix::of(rows, cols, values.len(), Stored::Int8(values, scales))
    }

    fn of(rows: usize, cols: usize, len: usize, stored: Stored) -> Result<Matrix, ModelError> {
        match rows.checked_mul(cols) == Some(len) {
            true => Ok(Matrix { rows, cols, stored }),
            false => Err(ModelError::Shape {
                tensor: "matrix",
                expected: format!("{rows} x {cols} values"),
                found: format!("{len} values"),
            }),
        }
    }

    /// The same matrix kept as other numbers, rounded as [`Precision`] says. What has that precision
    /// already stays as it is.
    ///
    /// # Errors
    /// For int8: [`ModelError::NotQuantisable`] for values that are not finite,
    /// [`ModelError::TooDeepForInt8`].
    pub fn in_precision(&self, precision: Precision) -> Result<Matrix, ModelError> {
        if precision == self.precision() {
            return Ok(self.clone());
        }
        let stored = match precision {
            Precision::F32 => Stored::F32(self.widened()),
            Precision::Bf16 => Stored::Bf16(as_bf16(self)),
            Precision::Int8 => {
                let (values, scales) = as_int8(self)?;
                Stored::Int8(values, scales)
            }
        };
        Ok(Matrix { stored, ..*self })
    }

    /// As [`Matrix::in_precision`], for who needs only the result: what has that precision already is
    /// not copied.
    ///
    /// # Errors
    /// As [`Matrix::in_precision`].
    pub fn into_precision(self, precision: Precision) -> Result<Matrix, ModelError> {
        match precision == self.precision() {
            true => Ok(self),
            false => self.in_precision(precision),
        }
    }

    /// All values, in memory of their own.
    fn widened(&self) -> Values {
        let mut values = Values::zeroed(self.len());
        for (row, values) in values.chunks_mut(self.cols.max(1)).enumerate() {
            values.copy_from_slice(&self.row(row));
        }
        values
    }

    /// All values, row after row, not copied where they are `f32`.
    pub(crate) fn into_values(self) -> Values {
        match self.stored {
            Stored::F32(values) => values,
            _ => self.widened(),
        }
    }

    /// The numbers that it is kept as.
    pub fn precision(&self) -> Precision {
        match self.stored {
            Stored::F32(_) => Precision::F32,
            Stored::Bf16(_) => Precision::Bf16,
            Stored::Int8(..) => Precision::Int8,
        }
    }

    /// The numbers themselves, row after row, as they are in memory.
    ///
    /// ```
    /// use cellstream::kernels::Numbers;
    /// use cellstream::model::Matrix;
    /// let matrix = Matrix::from_int8(2, 2, &[1, 2, 3, 4], vec![0.5, 0.25])?;
    /// let Numbers::Int8 { whole, scales } = matrix.numbers() else {
    ///     panic!("made of int8");
    /// };
    /// assert_eq!((whole, scales), (&[1, 2, 3, 4][..], &[0.5, 0.25][..]));
    /// # Ok::<(), cellstream::model::ModelError>(())
    /// ```
    pub fn numbers(&self) -> Numbers<'_> {
        match &self.stored {
            Stored::F32(values) => Numbers::F32(values),
            Stored::Bf16(halves) => Numbers::Bf16(halves),
            Stored::Int8(whole, scales) => Numbers::Int8 { whole, scales },
        }
    }

    /// As [`Matrix::numbers`], of one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_numbers(&self, row: usize) -> Numbers<'_> {
        self.numbers().row(row, self.cols)
    }

    /// Of int8 the scale of each row, `[rows]`; else empty.
    pub fn scales(&self) -> &[f32] {
        match &self.stored {
            Stored::Int8(_, scales) => scales,
            _ => &[],
        }
    }

    /// Of int8 the whole numbers of a row: values over the scale; 0 where that is 0. None of others.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn whole_row(&self, row: usize) -> impl ExactSizeIterator<Item = i8> {
        let whole = match self.row_numbers(row) {
            Numbers::Int8 { whole, .. } => whole,
            _ => &[],
        };
        whole.iter().copied()
    }

    /// Bytes of the numbers and scales.
    pub fn bytes(&self) -> usize {
        self.precision().bytes() * self.len() + 4 * self.scales().len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// One row, as values: those in memory where they are `f32`, else computed.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> Cow<'_, [f32]> {
        match self.row_numbers(row) {
            Numbers::F32(values) => Cow::Borrowed(values),
            Numbers::Bf16(halves) => halves.iter().copied().map(from_bf16).collect(),
            Numbers::Int8 { whole, scales } => {
                let scale = scales[0];
                whole.iter().map(|&q| scale * f32::from(q)).collect()
            }
        }
    }

    /// All values, row after row: those in memory where they are `f32`, else computed, which takes four
    /// bytes for each. [`Matrix::numbers`] takes none.
    pub fn data(&self) -> Cow<'_, [f32]> {
        match &self.stored {
            Stored::F32(values) => Cow::Borrowed(values),
            _ => {
                let mut values = Vec::with_capacity(self.rows * self.cols);
                (0..self.rows).for_each(|row| values.extend_from_slice(&self.row(row)));
                Cow::Owned(values)
            }
        }
    }
}

/// As values compare: NaN differs from itself, and both zeros are the same.
impl PartialEq for Matrix {
    fn eq(&self, other: &Matrix) -> bool {
        let numbers = match (&self.stored, &other.stored) {
            (Stored::F32(a), Stored::F32(b)) => a == b,
            (Stored::Bf16(a), Stored::Bf16(b)) => {
                let values = |&half: &u16| from_bf16(half);
                a.iter().map(values).eq(b.iter().map(values))
            }
            (Stored::Int8(a, of_a), Stored::Int8(b, of_b)) => a == b && of_a == of_b,
            _ => false,
        };
        (self.rows, self.cols) == (other.rows, other.cols) && numbers
    }
}
