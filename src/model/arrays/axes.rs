//! Sizes and strides of an array along each meaning of its axes.

use super::ArrayError;
use crate::model::{Axis, Port, Role};

/// Distance between neighbours along each meaning, in elements; 0 if the array lacks the meaning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strides {
    pub time: usize,
    pub batch: usize,
    pub direction: usize,
    pub layer_direction: usize,
    pub feature: usize,
}

/// Sizes along each meaning; `None` if the array's shape decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub time: Option<usize>,
    pub batch: Option<usize>,
    pub direction: usize,
    pub layer_direction: usize,
    pub feature: usize,
}

impl Sizes {
    pub fn of(&self, axis: Axis) -> Option<usize> {
        match axis {
            Axis::Time => self.time,
            Axis::Batch => self.batch,
            Axis::Direction => Some(self.direction),
            Axis::LayerDirection => Some(self.layer_direction),
            Axis::Feature => Some(self.feature),
            Axis::One => Some(1),
        }
    }

    /// The axes of `port` in words, with the sizes that are known.
    pub fn describe(&self, port: &Port) -> String {
        let name = |axis: &Axis| {
            let name = match axis {
                Axis::Time => "steps",
                Axis::Batch => "batch",
                Axis::Direction => "directions",
                Axis::LayerDirection => "layers*directions",
                Axis::Feature => "features",
                Axis::One => return "1".to_string(),
            };
            match self.of(*axis) {
                Some(size) => format!("{name}={size}"),
                None => name.to_string(),
            }
        };
        let folded = |axes: &Vec<Axis>| axes.iter().map(name).collect::<Vec<_>>().join("*");
        let all: Vec<_> = port.axes.iter().map(folded).collect();
        format!("[{}]", all.join(", "))
    }
}

/// The missing sizes, solved from a shape, and the stride of each meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved {
    pub sizes: Sizes,
    pub strides: Strides,
}

/// Solves the unknown sizes from `shape` and computes the strides.
pub(super) fn resolve(
    port: &Port,
    shape: &[usize],
    known_sizes: Sizes,
) -> Result<Resolved, ArrayError> {
    let mismatch = || ArrayError::Shape {
        name: port.name.clone(),
        found: shape.to_vec(),
        axes: known_sizes.describe(port),
    };
    if shape.len() != port.axes.len() {
        return Err(mismatch());
    }
    let mut sizes = known_sizes;
    let mut strides = Strides::default();
    let mut inner = 1;
    for (&length, axes) in shape.iter().zip(&port.axes).rev() {
        let known_factors = axes.iter().filter_map(|&a| sizes.of(a));
        let known = known_factors.fold(1, usize::saturating_mul);
        let mut unknown = axes.iter().filter(|&&a| sizes.of(a).is_none());
        if let Some(axis) = unknown.next() {
            if unknown.next().is_some() || known == 0 || !length.is_multiple_of(known) {
                return Err(mismatch());
            }
            let size = Some(length / known);
            match axis {
                Axis::Time => sizes.time = size,
                _ => sizes.batch = size,
            }
        } else if known != length {
            return Err(mismatch());
        }
        for &axis in axes.iter().rev() {
            let stride = match axis {
                Axis::Time => &mut strides.time,
                Axis::Batch => &mut strides.batch,
                Axis::Direction => &mut strides.direction,
                Axis::LayerDirection => &mut strides.layer_direction,
                Axis::Feature => &mut strides.feature,
                Axis::One => continue,
            };
            *stride = inner;
            // Saturates only for an array without elements, whose strides are not used.
            inner = inner.saturating_mul(sizes.of(axis).unwrap_or(1));
        }
    }
    let mut repeated = vec![(Axis::Batch, "sequences")];
    if matches!(port.role, Role::Input | Role::Output) {
        repeated.push((Axis::Time, "steps"));
    }
    for (axis, what) in repeated {
        let has_axis = port.axes.iter().flatten().any(|&a| a == axis);
        if let Some(size) = sizes.of(axis)
            && size != 1
            && !has_axis
        {
            let name = port.name.clone();
            return Err(ArrayError::NoAxis { name, what, size });
        }
    }
    Ok(Resolved { sizes, strides })
}
