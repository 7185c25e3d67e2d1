//! Constants of a graph as rows and matrices.

use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

use tract_onnx::pb::NodeProto;

use super::{Terms, Value};
use crate::tensor::Data;

/// Columns of a constant matrix, stored row by row.
#[derive(Clone, Debug)]
pub(in crate::fusion) struct Matrix {
    values: Rc<[f32]>,
    width: usize,
    columns: Range<usize>,
    rows: Range<usize>,
}

impl Matrix {
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    pub fn row(&self, row: usize) -> &[f32] {
        let start = (self.rows.start + row) * self.width;
        &self.values[start..][self.columns.clone()]
    }

    /// These of its rows.
    pub fn rows_of(&self, range: Range<usize>) -> Matrix {
        let start = self.rows.start;
        Matrix {
            rows: start + range.start..start + range.end,
            ..self.clone()
        }
    }

    /// These of its columns; `None`: all.
    pub fn columns_of(&self, range: Option<Range<usize>>) -> Option<Matrix> {
        let Some(range) = range else {
            return Some(self.clone());
        };
        let fits = range.start <= range.end && range.end <= self.columns.len();
        let start = self.columns.start;
        fits.then(|| Matrix {
            columns: start + range.start..start + range.end,
            ..self.clone()
        })
    }

    /// Whether both have the same elements. Steps of a layer mostly share the constant.
    pub fn equals(&self, other: &Matrix) -> bool {
        let is_shared = Rc::ptr_eq(&self.values, &other.values);
        if is_shared && self.columns == other.columns && self.rows == other.rows {
            return true;
        }
        self.columns() == other.columns()
            && self.rows() == other.rows()
            && (0..self.rows()).all(|row| self.row(row) == other.row(row))
    }
}

/// A constant; each is read once.
pub(super) struct Constant {
    shape: Vec<usize>,
    /// `None`: of integers, which are in `integers`.
    floats: Option<Rc<[f32]>>,
    /// Made when it is needed first.
    transposed: OnceCell<Rc<[f32]>>,
    integers: Vec<i64>,
}

impl Terms<'_> {
    fn constant(&self, name: &str) -> Option<Rc<Constant>> {
        if let Some(known) = self.constants.borrow().get(name) {
            return known.clone();
        }
        let read = (self.constant)(name).map(|value| {
            let integers = match value.data() {
                Data::I64(values) => values.clone(),
                Data::I32(values) => values.iter().map(|&value| i64::from(value)).collect(),
                _ => Vec::new(),
            };
            Rc::new(Constant {
                shape: value.shape().to_vec(),
                floats: value.floats().map(Rc::from),
                transposed: OnceCell::new(),
                integers,
            })
        });
        let mut constants = self.constants.borrow_mut();
        constants.insert(name.to_owned(), read.clone());
        read
    }

    pub(super) fn integers(&self, node: &NodeProto, input: usize) -> Option<Vec<i64>> {
        let name = node.input.get(input).filter(|name| !name.is_empty())?;
        let constant = self.constant(name)?;
        constant.floats.is_none().then(|| constant.integers.clone())
    }

    /// A constant with an axis for the features alone, as its elements.
    pub(super) fn row(&self, name: &str) -> Option<Vec<f32>> {
        let constant = self.constant(name)?;
        let floats = constant.floats.as_ref()?;
        // More axes would add axes to the values of the cell.
        matches!(*constant.shape.as_slice(), [] | [_] | [1, _]).then(|| floats.to_vec())
    }

    /// A constant of two axes.
    pub(super) fn matrix(&self, name: &str, is_transposed: bool) -> Option<Matrix> {
        let constant = self.constant(name)?;
        let values = constant.floats.as_ref()?;
        let [rows, columns] = *constant.shape.as_slice() else {
            return None;
        };
        let (values, rows, columns) = if is_transposed {
            let at = |index: usize| values[index % rows * columns + index / rows];
            let transposed = || (0..rows * columns).map(at).collect();
            let values = constant.transposed.get_or_init(transposed);
            (Rc::clone(values), columns, rows)
        } else {
            (Rc::clone(values), rows, columns)
        };
        Some(Matrix {
            values,
            width: columns,
            columns: 0..columns,
            rows: 0..rows,
        })
    }

    /// A constant of one element.
    pub(super) fn scalar(&self, name: &str) -> Option<f32> {
        match self.row(name)?.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// Whether a value is a constant of zeros, of any shape.
    pub fn is_zero(&self, value: &Value) -> bool {
        let constant = self.constant(&value.name);
        let floats = constant
            .as_ref()
            .and_then(|constant| constant.floats.as_ref());
        floats.is_some_and(|floats| floats.iter().all(|&value| value == 0.0))
    }
}
