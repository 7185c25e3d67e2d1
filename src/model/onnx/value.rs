//! The symbolic values that names in the graph have while the loader walks it.

use super::extent::Extent;
use super::tensor::{Data, Tensor};
use super::view::View;

/// The largest number of sizes in a list. Shapes that exporters compute have only a few axes.
pub(super) const MAX_SIZES: usize = 64;

/// A value of the graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A known tensor.
    Constant(Tensor),
    /// Integers computed from shapes; `None` if not tracked. A scalar has one.
    Sizes {
        /// Whether it has no axis instead of one.
        scalar: bool,
        /// The integers.
        items: Vec<Option<Extent>>,
    },
    /// Zeros of a shape, never allocated; `None` if a size is not tracked.
    Zeros(Vec<Option<Extent>>),
    /// Data that exists only during a run.
    View(View),
}

impl Value {
    /// The size of each axis.
    pub(super) fn shape(&self) -> Vec<Option<Extent>> {
        let known = |n: usize| i64::try_from(n).ok().map(Extent::known);
        match self {
            Value::Constant(t) => t.dims.iter().map(|d| known(*d)).collect(),
            Value::Sizes { scalar: true, .. } => Vec::new(),
            Value::Sizes { items, .. } => vec![known(items.len())],
            Value::Zeros(shape) => shape.clone(),
            Value::View(view) => (0..view.axes.len()).map(|a| view.extent(a)).collect(),
        }
    }

    /// Number of axes.
    pub(super) fn rank(&self) -> usize {
        match self {
            Value::Constant(t) => t.dims.len(),
            Value::Sizes { scalar, .. } => usize::from(!scalar),
            Value::Zeros(shape) => shape.len(),
            Value::View(view) => view.axes.len(),
        }
    }

    /// A list (or scalar) of integers as sizes, with whether it is a scalar.
    pub(super) fn as_sizes(&self) -> Option<(bool, Vec<Option<Extent>>)> {
        match self {
            Value::Sizes { scalar, items } => Some((*scalar, items.clone())),
            Value::Constant(t) if t.dims.len() <= 1 => match &*t.data {
                Data::Int(v) if v.len() <= MAX_SIZES => Some((
                    t.dims.is_empty(),
                    v.iter().map(|n| Some(Extent::known(*n))).collect(),
                )),
                _ => None,
            },
            _ => None,
        }
    }

    /// A list (or scalar) of integers that are all known.
    pub(super) fn as_known_ints(&self) -> Option<Vec<i64>> {
        match self {
            Value::Constant(t) if t.dims.len() <= 1 => t.as_ints().map(<[i64]>::to_vec),
            _ => {
                let (_, items) = self.as_sizes()?;
                items
                    .into_iter()
                    .map(|e| e.and_then(|e| e.as_known()))
                    .collect()
            }
        }
    }

    /// Its kind, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Constant(_) => "a constant",
            Value::Sizes { .. } => "a computed shape",
            Value::Zeros(_) => "zeros",
            Value::View(_) => "data",
        }
    }
}
