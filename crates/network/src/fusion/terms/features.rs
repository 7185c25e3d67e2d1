//! The features of a value: their number, and the operators that only select some of them.

use std::ops::Range;

use tract_onnx::pb::NodeProto;

use super::super::activation::Activation;
use super::{Terms, Value};
use crate::source::attributes::{attribute, integer};

/// Most operators that are passed, one after the other, before a pattern gives up.
pub(super) const MAX_DEPTH: usize = 24;

impl Terms<'_> {
    /// Passes the operators that only select or rename features.
    pub fn resolve(&self, value: &Value) -> Value {
        let mut at = value.clone();
        for _ in 0..MAX_DEPTH {
            match self.passed(&at) {
                Some(before) => at = before,
                None => break,
            }
        }
        at
    }

    /// One operator of [`Terms::resolve`].
    fn passed(&self, value: &Value) -> Option<Value> {
        let (node, output) = *self.producers.get(value.name.as_str())?;
        let input = node.input.first()?;
        match node.op_type.as_str() {
            "Identity" => Some(value.of(input)),
            "Split" | "Slice" => {
                let whole = Value::all(input);
                let width = self.width(&whole)?;
                let range = match node.op_type.as_str() {
                    "Split" => self.split(node, output, width)?,
                    _ => self.sliced(node, width)?,
                };
                let part = whole.slice(range.clone(), width)?;
                match &value.columns {
                    None => Some(part),
                    Some(columns) => part.slice(columns.clone(), range.len()),
                }
            }
            _ => None,
        }
    }

    /// The columns of an output of `Split` along `width` features.
    fn split(&self, node: &NodeProto, output: usize, width: usize) -> Option<Range<usize>> {
        // The values of a cell have two axes.
        if !matches!(integer(node, "axis", 0), 1 | -1) {
            return None;
        }
        let sizes = match attribute(node, "split") {
            Some(sizes) => sizes.ints.clone(),
            None if node.input.len() > 1 => self.integers(node, 1)?,
            None => {
                let parts = node.output.len();
                let each = width
                    .checked_div(parts)
                    .filter(|each| each * parts == width)?;
                vec![i64::try_from(each).ok()?; parts]
            }
        };
        let sizes: Option<Vec<usize>> = sizes.iter().map(|&size| size.try_into().ok()).collect();
        let sizes = sizes?;
        let total = sizes
            .iter()
            .try_fold(0usize, |all, &one| all.checked_add(one));
        let start: usize = sizes.get(..output)?.iter().sum();
        (total == Some(width)).then_some(start..start + sizes.get(output)?)
    }

    /// The columns that a `Slice` takes of `width`; `None` if it takes part of another axis.
    fn sliced(&self, node: &NodeProto, width: usize) -> Option<Range<usize>> {
        let of = |name: &str, input: usize| match attribute(node, name) {
            Some(values) => Some(values.ints.clone()),
            None => self.integers(node, input),
        };
        let (starts, ends) = (of("starts", 1)?, of("ends", 2)?);
        let has_axes = attribute(node, "axes").is_some() || node.input.len() > 3;
        let axes = if has_axes {
            of("axes", 3)?
        } else {
            (0..starts.len() as i64).collect()
        };
        let has_steps = node.input.get(4).is_some_and(|name| !name.is_empty());
        if has_steps && self.integers(node, 4)?.iter().any(|&step| step != 1) {
            return None;
        }
        if starts.len() != ends.len() || starts.len() != axes.len() {
            return None;
        }
        let mut range = 0..width;
        for ((start, end), axis) in starts.into_iter().zip(ends).zip(axes) {
            let place = |at: i64| {
                let at = if at < 0 {
                    at.saturating_add(width as i64)
                } else {
                    at
                };
                at.clamp(0, width as i64) as usize
            };
            match axis {
                1 | -1 => range = place(start)..place(end),
                // All rows.
                0 if start == 0 && end > i64::from(i32::MAX) - 1 => {}
                _ => return None,
            }
        }
        (range.start < range.end).then_some(range)
    }

    /// The number of features of a value, if the graph tells.
    pub fn width(&self, value: &Value) -> Option<usize> {
        match &value.columns {
            Some(columns) => Some(columns.len()),
            None => self.width_of(&value.name, 0),
        }
    }

    fn width_of(&self, name: &str, depth: usize) -> Option<usize> {
        if let Some(known) = self.widths.borrow().get(name) {
            return *known;
        }
        let width = (depth < MAX_DEPTH).then(|| self.find_width(name, depth))?;
        self.widths.borrow_mut().insert(name.to_owned(), width);
        width
    }

    fn find_width(&self, name: &str, depth: usize) -> Option<usize> {
        let Some((node, output)) = self.producers.get(name).copied() else {
            return self.row(name).map(|row| row.len());
        };
        let mut inputs = node.input.iter().map(String::as_str);
        let of = |name: &str| self.width_of(name, depth + 1);
        match node.op_type.as_str() {
            "MatMul" => self.matrix(node.input.get(1)?, false).map(|m| m.columns()),
            "Gemm" => {
                let is_transposed = integer(node, "transB", 0) != 0;
                let matrix = self.matrix(node.input.get(1)?, is_transposed)?;
                Some(matrix.columns())
            }
            "Split" => {
                let width = of(inputs.next()?)?;
                self.split(node, output, width).map(|range| range.len())
            }
            "Slice" => {
                let width = of(inputs.next()?)?;
                self.sliced(node, width).map(|range| range.len())
            }
            "Concat" => inputs.map(of).sum(),
            // One element is broadcast.
            "Add" | "Sub" | "Mul" => inputs.filter_map(of).max().filter(|&width| width > 1),
            "Identity" | "Clip" => of(inputs.next()?),
            _ => Activation::of(node).and_then(|_| of(inputs.next()?)),
        }
    }
}
