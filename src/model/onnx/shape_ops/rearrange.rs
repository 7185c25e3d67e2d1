//! Operators that reorder or reshape data, or add the two directions of an output.

use super::super::extent::Extent;
use super::super::tensor::Tensor;
use super::super::value::{MAX_SIZES, Value};
use super::super::view::{ReshapeSize, View, check_rank};
use super::{ShapeOp, ValueResult};
use crate::model::LoadError;

impl ShapeOp<'_> {
    pub(super) fn transpose(&mut self) -> ValueResult {
        let attributes = self.attributes(&["perm"])?;
        let value = self.first(1, 1)?;
        let rank = value.rank();
        let order = match attributes.ints("perm")? {
            None => (0..rank).rev().collect(),
            Some(perm) => {
                let order: Vec<usize> = perm
                    .iter()
                    .filter_map(|p| usize::try_from(*p).ok())
                    .collect();
                if perm.len() != rank || (0..rank).any(|a| !order.contains(&a)) {
                    return Err(self.error(format!(
                        "perm {perm:?} is not a permutation of its input's {rank} axes"
                    )));
                }
                order
            }
        };
        Ok(match value {
            Value::Constant(t) => {
                let moved = t.transpose(&order, self.budget);
                Value::Constant(moved.map_err(|e| self.error(e))?)
            }
            Value::Sizes { .. } => value.clone(),
            Value::Zeros(shape) => Value::Zeros(order.iter().map(|a| shape[*a].clone()).collect()),
            Value::View(view) => Value::View(view.transpose(&order)),
        })
    }

    pub(super) fn squeeze(&mut self) -> ValueResult {
        let attributes = self.attributes(&["axes"])?;
        let value = self.first(1, 2)?;
        let Some(axes) = self.attribute_or_input(&attributes, "axes", 1)? else {
            return Err(self.error("axes is missing; give a list of axes"));
        };
        let axes = self.axes(&axes, value.rank())?;
        let mut value = value.clone();
        for &axis in axes.iter().rev() {
            value = self.squeeze_one(value, axis)?;
        }
        Ok(value)
    }

    fn squeeze_one(&self, value: Value, axis: usize) -> ValueResult {
        if let Some(Some(size)) = value.shape().get(axis)
            && size.contradicts(1)
        {
            return Err(self.error(format!("removes axis {axis}, whose length is not 1")));
        }
        Ok(match value {
            Value::Constant(t) => {
                let mut dims = t.dims.clone();
                dims.remove(axis);
                Value::Constant(t.with_dims(dims))
            }
            Value::Sizes { items, .. } => Value::Sizes {
                scalar: true,
                items,
            },
            Value::Zeros(mut shape) => {
                shape.remove(axis);
                Value::Zeros(shape)
            }
            Value::View(view) => Value::View(view.squeeze(axis).map_err(|e| self.error(e))?),
        })
    }

    pub(super) fn unsqueeze(&mut self) -> ValueResult {
        let attributes = self.attributes(&["axes"])?;
        let value = self.first(1, 2)?;
        let Some(axes) = self.attribute_or_input(&attributes, "axes", 1)? else {
            return Err(self.error("axes is missing; give a list of axes"));
        };
        let rank = value.rank() + axes.len();
        check_rank(rank).map_err(|e| self.error(e))?;
        let axes = self.axes(&axes, rank)?;
        let mut value = value.clone();
        for &axis in &axes {
            value = match value {
                Value::Constant(t) => {
                    let mut dims = t.dims.clone();
                    dims.insert(axis, 1);
                    Value::Constant(t.with_dims(dims))
                }
                Value::Sizes {
                    scalar: true,
                    items,
                } => Value::Sizes {
                    scalar: false,
                    items,
                },
                Value::Sizes { .. } => return Err(self.refuse(&value)),
                Value::Zeros(mut shape) => {
                    shape.insert(axis, Some(Extent::known(1)));
                    Value::Zeros(shape)
                }
                Value::View(view) => Value::View(view.unsqueeze(axis)),
            };
        }
        Ok(value)
    }

    pub(super) fn reshape(&mut self) -> ValueResult {
        let attributes = self.attributes(&["allowzero"])?;
        let allow_zero = attributes.flag("allowzero")?;
        let value = self.first(2, 2)?;
        let mut targets = Vec::new();
        for size in self.shape_input(1)? {
            let Some(size) = size else {
                return Err(self.error(
                    "the computation of its target shape is not supported; supported: constants, \
                     Shape, and Gather, Slice, Concat, Mul of those",
                ));
            };
            targets.push(match size.as_known() {
                Some(0) if !allow_zero => ReshapeSize::Copy,
                Some(-1) => ReshapeSize::Infer,
                Some(n) if n < 1 => {
                    return Err(self.error(format!("target size {n}; use a positive size")));
                }
                _ => ReshapeSize::Exact(size),
            });
        }
        if targets
            .iter()
            .filter(|t| matches!(t, ReshapeSize::Infer))
            .count()
            > 1
        {
            return Err(self.error("more than one target size is -1"));
        }
        if let Value::View(view) = value {
            let reshaped = view.reshape(&targets).map_err(|e| self.error(e))?;
            return Ok(Value::View(reshaped));
        }
        let shape = self.target_shape(&value.shape(), &targets)?;
        match value {
            Value::Zeros(_) => Ok(Value::Zeros(shape)),
            Value::Sizes { items, .. } => {
                let keeps = match shape.as_slice() {
                    [] => items.len() == 1,
                    [Some(n)] => n.is(items.len()),
                    _ => false,
                };
                if !keeps {
                    return Err(self.refuse(value));
                }
                Ok(Value::Sizes {
                    scalar: shape.is_empty(),
                    items: items.clone(),
                })
            }
            Value::Constant(t) => {
                let dims: Option<Vec<usize>> = shape
                    .iter()
                    .map(|e| usize::try_from(e.as_ref()?.as_known()?).ok())
                    .collect();
                let count: usize = t.dims.iter().product();
                match dims {
                    Some(dims)
                        if dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
                            == Some(count)
                            && (count > 0 || dims.len() == 1) =>
                    {
                        Ok(Value::Constant(t.with_dims(dims)))
                    }
                    _ => Err(self.error(format!(
                        "its target shape does not hold the {count} values of its input"
                    ))),
                }
            }
            Value::View(_) => Err(self.refuse(value)),
        }
    }

    pub(super) fn concat(&mut self) -> ValueResult {
        let attributes = self.attributes(&["axis"])?;
        let axis = attributes.required_int("axis")?;
        self.first(1, usize::MAX)?;
        let mut parts = Vec::with_capacity(self.inputs.len());
        for index in 0..self.inputs.len() {
            parts.push(self.input(index)?);
        }
        let rank = parts[0].rank();
        let axis = self.axis(axis, rank)?;
        if parts.iter().any(|p| p.rank() != rank) {
            return Err(self.error("its inputs differ in their number of axes"));
        }
        let constants: Option<Vec<Tensor>> = parts
            .iter()
            .map(|p| match p {
                Value::Constant(t) => Some(t.clone()),
                _ => None,
            })
            .collect();
        if let Some(constants) = constants {
            let joined = Tensor::concat(&constants, axis, self.budget);
            return Ok(Value::Constant(joined.map_err(|e| self.error(e))?));
        }
        let sizes: Option<Vec<_>> = parts.iter().map(|p| p.as_sizes()).collect();
        if let Some(sizes) = sizes {
            let items: Vec<_> = sizes.into_iter().flat_map(|(_, items)| items).collect();
            if items.len() > MAX_SIZES {
                return Err(self.error(format!("concatenates more than {MAX_SIZES} sizes")));
            }
            return Ok(Value::Sizes {
                scalar: false,
                items,
            });
        }
        let views: Option<Vec<&View>> = parts
            .iter()
            .map(|p| match p {
                Value::View(v) => Some(v),
                _ => None,
            })
            .collect();
        if let Some(views) = views {
            let joined = View::concat(&views, axis).map_err(|e| self.error(e))?;
            return Ok(Value::View(joined));
        }
        let zero = |p: &&Value| match p {
            Value::Zeros(_) => true,
            Value::Constant(t) => t.is_zero(),
            _ => false,
        };
        if parts.iter().all(zero) {
            let mut shape = parts[0].shape();
            shape[axis] = parts.iter().try_fold(Extent::known(0), |sum, p| {
                let size = p.shape()[axis].as_ref()?.as_known()?;
                Some(Extent::known(sum.as_known()?.checked_add(size)?))
            });
            return Ok(Value::Zeros(shape));
        }
        Err(self.error(
            "concatenates values of different kinds; supported: constants, sizes, zeros, or final \
             states of layers",
        ))
    }

    /// Entries `start .. start + length` of one axis.
    fn part(&mut self, value: &Value, axis: usize, start: usize, length: usize) -> ValueResult {
        Ok(match value {
            Value::Constant(t) => {
                // Callers clamp the slice to the axis, so this list is not longer than the data.
                let indices: Vec<usize> = (start..start + length).collect();
                let part = t.take(axis, &indices, self.budget);
                Value::Constant(part.map_err(|e| self.error(e))?)
            }
            Value::Sizes { items, .. } => Value::Sizes {
                scalar: false,
                items: items[start..start + length].to_vec(),
            },
            Value::Zeros(shape) => {
                let mut shape = shape.clone();
                shape[axis] = i64::try_from(length).ok().map(Extent::known);
                Value::Zeros(shape)
            }
            Value::View(view) => {
                let part = view.select(axis, start, length);
                Value::View(part.map_err(|e| self.error(e))?)
            }
        })
    }

    pub(super) fn gather(&mut self) -> ValueResult {
        let attributes = self.attributes(&["axis"])?;
        let value = self.first(2, 2)?;
        let axis = self.axis(attributes.int("axis")?.unwrap_or(0), value.rank())?;
        let Some(indices) = self.list(1, "indices")? else {
            return Err(self.error("input 1 (indices) is missing"));
        };
        let scalar = self.input(1)?.rank() == 0;
        let length = Self::length(value, axis);
        let mut places = Vec::with_capacity(indices.len());
        for &index in &indices {
            let place = match length {
                Some(n) if index < 0 => index.checked_add(n as i64),
                _ => Some(index),
            };
            let place = place.and_then(|p| usize::try_from(p).ok());
            match place.filter(|p| length.is_none_or(|n| *p < n)) {
                Some(place) => places.push(place),
                None if index < 0 && length.is_none() => {
                    return Err(self.error(format!(
                        "index {index} counts from the end of axis {axis}, whose length is not \
                         known; `gatestream run` takes whole graphs"
                    )));
                }
                None => {
                    return Err(
                        self.error(format!("index {index} is out of range for axis {axis}"))
                    );
                }
            }
        }
        let Some(&start) = places.first() else {
            return Err(self.error("has no indices; give at least one"));
        };
        let run = places
            .iter()
            .enumerate()
            .all(|(i, p)| start.checked_add(i) == Some(*p));
        let taken = match value {
            Value::Constant(t) => {
                let taken = t.take(axis, &places, self.budget);
                Value::Constant(taken.map_err(|e| self.error(e))?)
            }
            Value::Sizes { items, .. } => Value::Sizes {
                scalar: false,
                items: places.iter().map(|p| items[*p].clone()).collect(),
            },
            _ if run => self.part(value, axis, start, places.len())?,
            _ => {
                return Err(
                    self.error("its indices are not consecutive; supported: consecutive indices")
                );
            }
        };
        if scalar {
            self.squeeze_one(taken, axis)
        } else {
            Ok(taken)
        }
    }

    pub(super) fn slice(&mut self) -> ValueResult {
        let attributes = self.attributes(&["starts", "ends", "axes"])?;
        let mut value = self.first(1, 5)?.clone();
        let rank = value.rank();
        let starts = self.attribute_or_input(&attributes, "starts", 1)?;
        let ends = self.attribute_or_input(&attributes, "ends", 2)?;
        let (Some(starts), Some(ends)) = (starts, ends) else {
            return Err(self.error("starts and ends are required"));
        };
        let axes = match self.attribute_or_input(&attributes, "axes", 3)? {
            Some(axes) => axes,
            None => (0..starts.len() as i64).collect(),
        };
        let steps = self.list(4, "steps")?;
        if starts.len() != ends.len()
            || starts.len() != axes.len()
            || steps.as_ref().is_some_and(|s| s.len() != starts.len())
        {
            return Err(self.error("starts, ends, axes and steps differ in length"));
        }
        if steps.iter().flatten().any(|step| *step != 1) {
            let steps = steps.unwrap_or_default();
            return Err(self.error(format!("has the steps {steps:?}; supported: 1")));
        }
        // Checks that no axis is named twice.
        self.axes(&axes, rank)?;
        for ((&start, &end), &axis) in starts.iter().zip(&ends).zip(&axes) {
            let axis = self.axis(axis, rank)?;
            let open_end = end >= i64::from(i32::MAX);
            let (start, end) = match Self::length(&value, axis) {
                Some(length) => {
                    let length = length as i64;
                    let place = |at: i64| {
                        let at = if at < 0 {
                            at.saturating_add(length)
                        } else {
                            at
                        };
                        at.clamp(0, length) as usize
                    };
                    (place(start), place(end))
                }
                None if start == 0 && open_end => continue,
                // The length is unknown, but a slice from and to fixed indices does not need it.
                None if start >= 0 && end >= 0 && !open_end => (start as usize, end as usize),
                None => {
                    return Err(self.error(format!(
                        "slices axis {axis}, whose length is unknown, from or to its end"
                    )));
                }
            };
            if end <= start {
                return Err(self.error(format!("takes an empty slice of axis {axis}")));
            }
            value = self.part(&value, axis, start, end - start)?;
        }
        Ok(value)
    }

    pub(super) fn split(&mut self) -> Result<Vec<Value>, LoadError> {
        let attributes = self.attributes(&["axis", "split", "num_outputs"])?;
        let value = self.first(1, 2)?;
        let axis = self.axis(attributes.int("axis")?.unwrap_or(0), value.rank())?;
        let Some(length) = Self::length(value, axis) else {
            return Err(self.error(format!("splits axis {axis}, whose length is unknown")));
        };
        let outputs = self.node.proto.output.len();
        let sizes: Vec<usize> = match self.attribute_or_input(&attributes, "split", 1)? {
            Some(sizes) => sizes
                .iter()
                .filter_map(|s| usize::try_from(*s).ok())
                .collect(),
            None => {
                let each = length.div_ceil(outputs.max(1));
                (0..outputs)
                    .map(|i| each.min(length.saturating_sub(i.saturating_mul(each))))
                    .collect()
            }
        };
        let total = sizes.iter().try_fold(0usize, |sum, s| sum.checked_add(*s));
        let asked = attributes.int("num_outputs")?;
        if sizes.len() != outputs
            || total != Some(length)
            || sizes.contains(&0)
            || asked.is_some_and(|n| usize::try_from(n) != Ok(outputs))
        {
            return Err(self.error(format!(
                "cannot split {length} entries of axis {axis} into its {outputs} outputs"
            )));
        }
        let mut start = 0;
        let mut parts = Vec::with_capacity(outputs);
        for size in sizes {
            parts.push(self.part(value, axis, start, size)?);
            start += size;
        }
        Ok(parts)
    }

    pub(super) fn add(&mut self) -> ValueResult {
        self.attributes(&[])?;
        match (self.first(2, 2)?, self.input(1)?) {
            (Value::View(a), Value::View(b)) => {
                Ok(Value::View(a.add(b).map_err(|e| self.error(e))?))
            }
            (a, b) => Err(self.error(format!(
                "adds {} to {}; supported: the two directions of one bidirectional node's output Y",
                b.kind(),
                a.kind()
            ))),
        }
    }

    pub(super) fn reduce_sum(&mut self) -> ValueResult {
        let attributes = self.attributes(&["axes", "keepdims", "noop_with_empty_axes"])?;
        let keep = attributes.flag_or("keepdims", true)?;
        attributes.flag("noop_with_empty_axes")?;
        let value = self.first(1, 2)?;
        let axes = self.attribute_or_input(&attributes, "axes", 1)?;
        match (value, axes.as_deref()) {
            (Value::View(view), Some(&[axis])) => {
                let axis = self.axis(axis, view.axes.len())?;
                let sum = view.sum_over(axis, keep);
                Ok(Value::View(sum.map_err(|e| self.error(e))?))
            }
            _ => Err(self.error(format!(
                "sums {} over axes {axes:?}; supported: the direction axis of a bidirectional \
                 node's output Y",
                value.kind()
            ))),
        }
    }
}
