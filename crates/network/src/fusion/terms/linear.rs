//! Sums of products with constant matrices.

use super::{Matrix, Term, Terms, Value};
use crate::source::attributes::integer;

/// Most terms of a sum.
const MAX_TERMS: usize = 64;

/// A sum of products and constants.
#[derive(Clone, Debug, Default)]
pub(in crate::fusion) struct Linear {
    pub products: Vec<(Value, Matrix)>,
    pub bias: Vec<f32>,
}

impl Terms<'_> {
    /// A value as a sum of products and constants of `width` features.
    pub fn linear(&self, value: &Value, width: usize) -> Option<Linear> {
        let mut linear = Linear {
            products: Vec::new(),
            bias: vec![0.0; width],
        };
        let mut open = vec![value.clone()];
        for _ in 0..MAX_TERMS {
            let Some(value) = open.pop() else {
                return Some(linear);
            };
            match self.term(&value) {
                Term::Sum(a, b) => open.extend([b, a]),
                Term::Constant(row) => linear.add_row(&row)?,
                Term::Product { of, matrix, bias } => {
                    if matrix.columns() != width {
                        return None;
                    }
                    bias.map_or(Some(()), |row| linear.add_row(&row))?;
                    self.add_product(&self.resolve(&of), matrix, &mut linear)?;
                }
                _ => return None,
            }
        }
        None
    }

    /// A product with features side by side is a sum of products.
    fn add_product(&self, of: &Value, matrix: Matrix, linear: &mut Linear) -> Option<()> {
        let node = self.producers.get(of.name.as_str()).map(|(node, _)| *node);
        let concat = node.filter(|node| {
            node.op_type == "Concat"
                && of.columns.is_none()
                && matches!(integer(node, "axis", 0), 1 | -1)
        });
        let Some(node) = concat else {
            linear.products.push((of.clone(), matrix));
            return Some(());
        };
        let parts: Vec<Value> = node
            .input
            .iter()
            .map(|name| self.resolve(&Value::all(name)))
            .collect();
        let widths: Vec<Option<usize>> = parts.iter().map(|part| self.width(part)).collect();
        let known: usize = widths.iter().flatten().sum();
        // One width may follow from the others.
        let unknown = widths.iter().filter(|width| width.is_none()).count();
        let rest = matrix.rows().checked_sub(known)?;
        if unknown > 1 || (unknown == 0 && rest > 0) {
            return None;
        }
        let mut start = 0;
        for (part, width) in parts.into_iter().zip(widths) {
            let end = start + width.unwrap_or(rest);
            linear.products.push((part, matrix.rows_of(start..end)));
            start = end;
        }
        Some(())
    }
}

impl Linear {
    fn add_row(&mut self, row: &[f32]) -> Option<()> {
        let width = self.bias.len();
        if row.len() != 1 && row.len() != width {
            return None;
        }
        let values = row.iter().cycle().take(width);
        for (sum, value) in self.bias.iter_mut().zip(values) {
            *sum += value;
        }
        Some(())
    }
}
