//! Row-major matrices, stored in their precision: an int8 matrix takes one byte for each value.

use std::borrow::Cow;

use super::precision::{Int8Values, as_bf16, as_int8, check_depth, from_bf16};
use super::{ModelError, Precision};
use gatestream_kernels::{Numbers, Values};

/// A dense row-major matrix in one precision.
///
/// ```
/// use gatestream::model::{Matrix, Precision};
/// let matrix = Matrix::new(2, 3, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(*matrix.row(1), [4.0, 5.0, 6.0]);
/// let int8 = matrix.in_precision(Precision::Int8)?;
/// assert_eq!(int8.scales(), [3.0 / 127.0, 6.0 / 127.0]);
/// # Ok::<(), gatestream::model::ModelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    storage: Storage,
}

/// The numbers, row after row.
#[derive(Clone, Debug)]
enum Storage {
    F32(Values),
    /// The upper halves of binary32 values.
    Bf16(Values<u16>),
    Int8 {
        integers: Values<i8>,
        /// One for each row. A row with scale 0 holds zeros.
        scales: Vec<f32>,
    },
}

impl Matrix {
    /// An f32 matrix `[rows, cols]` from row-major `data`.
    ///
    /// # Errors
    /// [`ModelError::Shape`] if `data` does not hold `rows * cols` values.
    pub fn new(rows: usize, cols: usize, data: Vec<f32>) -> Result<Matrix, ModelError> {
        Matrix::from_values(rows, cols, data.into())
    }

    /// As [`Matrix::new`], without a copy.
    pub(super) fn from_values(
        rows: usize,
        cols: usize,
        data: Values,
    ) -> Result<Matrix, ModelError> {
        Matrix::of(rows, cols, data.len(), Storage::F32(data))
    }

    /// A bf16 matrix from the upper halves of binary32 values, `[rows, cols]`.
    #[cfg(feature = "safetensors")]
    pub(super) fn from_bf16(
        rows: usize,
        cols: usize,
        halves: Values<u16>,
    ) -> Result<Matrix, ModelError> {
        Matrix::of(rows, cols, halves.len(), Storage::Bf16(halves))
    }

    /// An int8 matrix from row-major `values` `[rows, cols]` and `scales` `[rows]`: row `j` holds
    /// `scales[j] · values[j][k]`.
    ///
    /// # Errors
    /// [`ModelError::Shape`] for a wrong number of values or scales. [`ModelError::NotQuantisable`]
    /// for a value of -128, or a scale that is negative or makes a weight infinite.
    /// [`ModelError::TooDeepForInt8`] for too many columns.
    pub fn from_int8(
        rows: usize,
        cols: usize,
        values: &[i8],
        scales: Vec<f32>,
    ) -> Result<Matrix, ModelError> {
        let mut copy = Values::zeroed(values.len());
        copy.copy_from_slice(values);
        Matrix::from_int8_values(rows, cols, copy, scales)
    }

    /// As [`Matrix::from_int8`], without a copy.
    pub(super) fn from_int8_values(
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
        if let Some(value) = scales.iter().copied().find(|s| !is_scale(*s)) {
            return Err(ModelError::NotQuantisable { value });
        }
        if values.contains(&-128) {
            return Err(ModelError::NotQuantisable { value: -128.0 });
        }
        if values.len() == rows.saturating_mul(cols) {
            // A row of zeros has one representation, so that equal matrices give equal files.
            for (row, &scale) in values.chunks_mut(cols.max(1)).zip(&scales) {
                if scale == 0.0 {
                    row.fill(0);
                }
            }
        }
        let len = values.len();
        let integers = values;
        Matrix::of(rows, cols, len, Storage::Int8 { integers, scales })
    }

    fn of(rows: usize, cols: usize, len: usize, storage: Storage) -> Result<Matrix, ModelError> {
        if rows.checked_mul(cols) != Some(len) {
            return Err(ModelError::Shape {
                tensor: "matrix",
                expected: format!("{rows} x {cols} values"),
                found: format!("{len} values"),
            });
        }
        Ok(Matrix {
            rows,
            cols,
            storage,
        })
    }

    /// The same matrix converted to `precision`, rounded as described at [`Precision`].
    ///
    /// # Errors
    /// For int8: [`ModelError::NotQuantisable`] for values that are not finite,
    /// [`ModelError::TooDeepForInt8`] for too many columns.
    pub fn in_precision(&self, precision: Precision) -> Result<Matrix, ModelError> {
        if precision == self.precision() {
            return Ok(self.clone());
        }
        let storage = match precision {
            Precision::F32 => Storage::F32(self.widened()),
            Precision::Bf16 => Storage::Bf16(as_bf16(self)),
            Precision::Int8 => {
                let Int8Values { integers, scales } = as_int8(self)?;
                Storage::Int8 { integers, scales }
            }
        };
        Ok(Matrix { storage, ..*self })
    }

    /// As [`Matrix::in_precision`], without a copy if the matrix has that precision already.
    ///
    /// # Errors
    /// As [`Matrix::in_precision`].
    pub fn into_precision(self, precision: Precision) -> Result<Matrix, ModelError> {
        if precision == self.precision() {
            return Ok(self);
        }
        self.in_precision(precision)
    }

    /// A copy of all values as f32.
    fn widened(&self) -> Values {
        let mut values = Values::zeroed(self.len());
        for (row, values) in values.chunks_mut(self.cols.max(1)).enumerate() {
            values.copy_from_slice(&self.row(row));
        }
        values
    }

    /// All values as f32, row after row, without a copy if they are f32.
    pub(crate) fn into_values(self) -> Values {
        match self.storage {
            Storage::F32(values) => values,
            _ => self.widened(),
        }
    }

    /// The precision in which the matrix is stored.
    pub fn precision(&self) -> Precision {
        match self.storage {
            Storage::F32(_) => Precision::F32,
            Storage::Bf16(_) => Precision::Bf16,
            Storage::Int8 { .. } => Precision::Int8,
        }
    }

    /// The stored numbers, row after row.
    ///
    /// ```
    /// use gatestream::kernels::Numbers;
    /// use gatestream::model::Matrix;
    /// let matrix = Matrix::from_int8(2, 2, &[1, 2, 3, 4], vec![0.5, 0.25])?;
    /// let Numbers::Int8 { whole, scales } = matrix.numbers() else {
    ///     panic!("made of int8");
    /// };
    /// assert_eq!((whole, scales), (&[1, 2, 3, 4][..], &[0.5, 0.25][..]));
    /// # Ok::<(), gatestream::model::ModelError>(())
    /// ```
    pub fn numbers(&self) -> Numbers<'_> {
        match &self.storage {
            Storage::F32(values) => Numbers::F32(values),
            Storage::Bf16(halves) => Numbers::Bf16(halves),
            Storage::Int8 { integers, scales } => Numbers::Int8 {
                whole: integers,
                scales,
            },
        }
    }

    /// The stored numbers of one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_numbers(&self, row: usize) -> Numbers<'_> {
        self.numbers().row(row, self.cols)
    }

    /// The scale of each row, `[rows]`, if the matrix is int8; else empty.
    pub fn scales(&self) -> &[f32] {
        match &self.storage {
            Storage::Int8 { scales, .. } => scales,
            _ => &[],
        }
    }

    /// The integers of one row, `[cols]`, if the matrix is int8; else empty. A value is its integer
    /// times the scale of the row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn int8_row(&self, row: usize) -> &[i8] {
        match self.row_numbers(row) {
            Numbers::Int8 { whole, .. } => whole,
            _ => &[],
        }
    }

    /// Bytes of the numbers of one row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.cols() * self.precision().bytes()
    }

    /// Bytes of all numbers and scales.
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

    /// The values of one row, `[cols]`: borrowed if they are f32, else computed.
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

    /// All values, row after row: borrowed if they are f32, else a computed copy of four bytes for
    /// each. [`Matrix::numbers`] never copies.
    pub fn data(&self) -> Cow<'_, [f32]> {
        match &self.storage {
            Storage::F32(values) => Cow::Borrowed(values),
            _ => {
                let mut values = Vec::with_capacity(self.len());
                for row in 0..self.rows {
                    values.extend_from_slice(&self.row(row));
                }
                Cow::Owned(values)
            }
        }
    }
}

/// Compares as floats compare: NaN differs from itself, and both zeros are equal.
impl PartialEq for Matrix {
    fn eq(&self, other: &Matrix) -> bool {
        let numbers = match (&self.storage, &other.storage) {
            (Storage::F32(a), Storage::F32(b)) => a == b,
            (Storage::Bf16(a), Storage::Bf16(b)) => {
                let values = |&half: &u16| from_bf16(half);
                a.iter().map(values).eq(b.iter().map(values))
            }
            (
                Storage::Int8 { integers, scales },
                Storage::Int8 {
                    integers: other_integers,
                    scales: other_scales,
                },
            ) => integers == other_integers && scales == other_scales,
            _ => false,
        };
        (self.rows, self.cols) == (other.rows, other.cols) && numbers
    }
}
