//! The operators between recurrent nodes, evaluated on [`Value`]s: constants are computed, shapes
//! tracked, and data only rearranged (see `view.rs`).

use super::attributes::Attributes;
use super::budget::Budget;
use super::extent::Extent;
use super::node::{Node, SUPPORTED};
use super::proto::data_type;
use super::tensor::{self, Data, Tensor};
use super::value::{MOST_SIZES, Value};
use super::view::{Target, View, check_rank};
use crate::model::LoadError;

/// The outputs of a glue node, given its inputs (`None` where left out).
pub(super) fn evaluate(
    node: Node,
    inputs: &[Option<Value>],
    budget: &mut Budget,
) -> Result<Vec<Value>, LoadError> {
    let mut glue = Glue {
        node,
        inputs,
        budget,
    };
    let one = |value| Ok(vec![value]);
    match node.proto.op_type.as_str() {
        "Identity" => one(glue.identity()?),
        "Constant" => one(glue.constant()?),
        "Cast" => one(glue.cast()?),
        "Shape" => one(glue.shape()?),
        "ConstantOfShape" => one(glue.constant_of_shape()?),
        "Expand" => one(glue.expand()?),
        "Transpose" => one(glue.transpose()?),
        "Squeeze" => one(glue.squeeze()?),
        "Unsqueeze" => one(glue.unsqueeze()?),
        "Reshape" => one(glue.reshape()?),
        "Concat" => one(glue.concat()?),
        "Gather" => one(glue.gather()?),
        "Slice" => one(glue.slice()?),
        "Split" => glue.split(),
        "Mul" => one(glue.mul()?),
        "Add" => one(glue.add()?),
        "ReduceSum" => one(glue.reduce_sum()?),
        _ => Err(node.error(format!("operator not supported; supported: {SUPPORTED}"))),
    }
}

struct Glue<'a> {
    node: Node<'a>,
    inputs: &'a [Option<Value>],
    budget: &'a mut Budget,
}

type Result1 = Result<Value, LoadError>;

impl<'a> Glue<'a> {
    fn attributes(&self, known: &[&str]) -> Result<Attributes<'a>, LoadError> {
        Attributes::new(self.node, known)
    }

    fn error(&self, reason: impl Into<String>) -> LoadError {
        self.node.error(reason)
    }

    /// Checks the number of inputs, and gives the first.
    fn first(&self, least: usize, most: usize) -> Result<&'a Value, LoadError> {
        if self.inputs.len() < least || self.inputs.len() > most {
            return Err(self.error(format!(
                "{} inputs; it takes {least} to {most}",
                self.inputs.len()
            )));
        }
        self.input(0)
    }

    fn optional(&self, index: usize) -> Option<&'a Value> {
        self.inputs.get(index).and_then(Option::as_ref)
    }

    fn input(&self, index: usize) -> Result<&'a Value, LoadError> {
        self.optional(index)
            .ok_or_else(|| self.error(format!("input {index} is missing")))
    }

    /// An input list of integers that must be known.
    fn list(&self, index: usize, what: &str) -> Result<Option<Vec<i64>>, LoadError> {
        let Some(value) = self.optional(index) else {
            return Ok(None);
        };
        match value.as_known_ints() {
            Some(list) if list.len() <= MOST_SIZES => Ok(Some(list)),
            _ => Err(self.error(format!(
                "{what} (input {index}) must be a constant list of at most {MOST_SIZES} integers"
            ))),
        }
    }

    /// Integers given as an attribute (older opsets) or as an input (newer ones).
    fn attribute_or_input(
        &self,
        attributes: &Attributes,
        name: &str,
        index: usize,
    ) -> Result<Option<Vec<i64>>, LoadError> {
        let given = attributes.ints(name)?.map(<[i64]>::to_vec);
        match (given, self.list(index, name)?) {
            (Some(_), Some(_)) => Err(self.error(format!(
                "{name} is given both as an attribute and as an input"
            ))),
            (Some(list), None) | (None, Some(list)) => Ok(Some(list)),
            (None, None) => Ok(None),
        }
    }

    /// An axis counted from the end where negative.
    fn axis(&self, axis: i64, rank: usize) -> Result<usize, LoadError> {
        let signed = rank as i64;
        if axis < -signed || axis >= signed {
            return Err(self.error(format!("axis {axis} of a value with {rank} axes")));
        }
        Ok(axis.rem_euclid(signed) as usize)
    }

    /// Distinct axes, in increasing order.
    fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, LoadError> {
        let mut list = Vec::with_capacity(axes.len().min(rank));
        for &axis in axes {
            let axis = self.axis(axis, rank)?;
            if list.contains(&axis) {
                return Err(self.error(format!("axis {axis} is named twice")));
            }
            list.push(axis);
        }
        list.sort_unstable();
        Ok(list)
    }

    fn refuse(&self, value: &Value) -> LoadError {
        self.error(format!(
            "not supported on {} with {} axes",
            value.kind(),
            value.rank()
        ))
    }

    fn identity(&mut self) -> Result1 {
        self.attributes(&[])?;
        Ok(self.first(1, 1)?.clone())
    }

    fn constant(&mut self) -> Result1 {
        const NAMES: [&str; 5] = [
            "value",
            "value_float",
            "value_floats",
            "value_int",
            "value_ints",
        ];
        let attributes = self.attributes(&NAMES)?;
        if self.node.proto.attribute.len() != 1 || !self.inputs.is_empty() {
            return Err(self.error(format!(
                "needs exactly one of the attributes {}, and no input",
                NAMES.join(", ")
            )));
        }
        let tensor = if let Some(tensor) = attributes.tensor("value")? {
            tensor::decode(self.node.name(), tensor)?
        } else if let Some(value) = attributes.float("value_float")? {
            Tensor::floats(vec![], vec![value])
        } else if let Some(values) = attributes.floats("value_floats")? {
            Tensor::floats(vec![values.len()], values.to_vec())
        } else if let Some(value) = attributes.int("value_int")? {
            Tensor::ints(vec![], vec![value])
        } else {
            let values = attributes.ints("value_ints")?.unwrap_or_default();
            Tensor::ints(vec![values.len()], values.to_vec())
        };
        Ok(Value::Constant(tensor))
    }

    fn cast(&mut self) -> Result1 {
        const INTS: [i32; 2] = [data_type::INT32, data_type::INT64];
        let attributes = self.attributes(&["to", "saturate"])?;
        let to = attributes.required_int("to")?;
        let to = i32::try_from(to).unwrap_or(0);
        let value = self.first(1, 1)?;
        let same = match value {
            Value::Sizes { .. } => INTS.contains(&to),
            Value::Zeros(_) => true,
            Value::Constant(t) => match &*t.data {
                Data::Int(v) => {
                    to == data_type::INT64
                        || to == data_type::INT32 && v.iter().all(|n| i32::try_from(*n).is_ok())
                }
                Data::Float(_) => to == data_type::FLOAT,
            },
            Value::View(v) => {
                v.element == to
                    || (INTS.contains(&v.element) && INTS.contains(&to))
                    || (is_float(v.element) && to == data_type::FLOAT)
            }
        };
        if !same {
            return Err(self.error(format!(
                "casts {} to {}; supported: between int32 and int64, and from float16 or bfloat16 \
                 to float",
                value.kind(),
                data_type::name(to)
            )));
        }
        let mut value = value.clone();
        if let Value::View(view) = &mut value {
            view.element = to;
        }
        Ok(value)
    }

    fn shape(&mut self) -> Result1 {
        let attributes = self.attributes(&["start", "end"])?;
        let shape = self.first(1, 1)?.shape();
        let rank = shape.len() as i64;
        let place = |at: i64| {
            let at = if at < 0 { at.saturating_add(rank) } else { at };
            at.clamp(0, rank) as usize
        };
        let start = place(attributes.int("start")?.unwrap_or(0));
        let end = place(attributes.int("end")?.unwrap_or(rank));
        Ok(Value::Sizes {
            scalar: false,
            items: shape[start..end.max(start)].to_vec(),
        })
    }

    /// The sizes that an input gives as a shape.
    fn shape_input(&self, index: usize) -> Result<Vec<Option<Extent>>, LoadError> {
        match self.input(index)?.as_sizes() {
            Some((false, sizes)) => {
                check_rank(sizes.len()).map_err(|e| self.error(e))?;
                Ok(sizes)
            }
            _ => Err(self.error(format!(
                "input {index} must be a list of sizes, constant or computed from Shape"
            ))),
        }
    }

    fn constant_of_shape(&mut self) -> Result1 {
        let attributes = self.attributes(&["value"])?;
        self.first(1, 1)?;
        if let Some(tensor) = attributes.tensor("value")? {
            let tensor = tensor::decode(self.node.name(), tensor)?;
            if !tensor.is_zero() {
                return Err(self.error("fills with a value other than 0; supported: 0"));
            }
        }
        Ok(Value::Zeros(self.shape_input(0)?))
    }

    fn expand(&mut self) -> Result1 {
        self.attributes(&[])?;
        let value = self.first(2, 2)?;
        let target = self.shape_input(1)?;
        let from = value.shape();
        let zero = match value {
            Value::Zeros(_) => true,
            Value::Constant(t) => t.is_zero(),
            _ => false,
        };
        // Broadcasting aligns the last axes; a size of 1 gives way to the other.
        let rank = from.len().max(target.len());
        let at = |list: &[Option<Extent>], axis: usize| {
            let missing = rank - list.len();
            match axis.checked_sub(missing) {
                Some(axis) => list[axis].clone(),
                None => Some(Extent::known(1)),
            }
        };
        let shape: Vec<Option<Extent>> = (0..rank)
            .map(|axis| match (at(&from, axis), at(&target, axis)) {
                (Some(a), b) if a.is(1) => b,
                (a, Some(b)) if b.is(1) => a,
                (Some(a), Some(b)) if a == b => Some(a),
                _ => None,
            })
            .collect();
        if zero {
            return Ok(Value::Zeros(shape));
        }
        if shape == from && shape.iter().all(Option::is_some) {
            return Ok(value.clone());
        }
        Err(self.error(format!(
            "repeats {} along an axis; supported: zeros",
            value.kind()
        )))
    }

    fn transpose(&mut self) -> Result1 {
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
                        "perm {perm:?} is no permutation of its input's {rank} axes"
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

    fn squeeze(&mut self) -> Result1 {
        let attributes = self.attributes(&["axes"])?;
        let value = self.first(1, 2)?;
        let Some(axes) = self.attribute_or_input(&attributes, "axes", 1)? else {
            return Err(self.error("no axes given; supported: an explicit list of axes"));
        };
        let axes = self.axes(&axes, value.rank())?;
        let mut value = value.clone();
        for &axis in axes.iter().rev() {
            value = self.squeeze_one(value, axis)?;
        }
        Ok(value)
    }

    fn squeeze_one(&self, value: Value, axis: usize) -> Result1 {
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

    fn unsqueeze(&mut self) -> Result1 {
        let attributes = self.attributes(&["axes"])?;
        let value = self.first(1, 2)?;
        let Some(axes) = self.attribute_or_input(&attributes, "axes", 1)? else {
            return Err(self.error("no axes given; they are required"));
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

    fn reshape(&mut self) -> Result1 {
        let attributes = self.attributes(&["allowzero"])?;
        let allow_zero = attributes.flag("allowzero")?;
        let value = self.first(2, 2)?;
        let mut targets = Vec::new();
        for size in self.shape_input(1)? {
            let Some(size) = size else {
                return Err(self.error(
                    "its target shape is computed in a way that is not tracked; supported: \
                     constants, Shape, and Gather, Slice, Concat, Mul of those",
                ));
            };
            targets.push(match size.as_known() {
                Some(0) if !allow_zero => Target::Copy,
                Some(-1) => Target::Infer,
                Some(n) if n < 1 => {
                    return Err(self.error(format!("target size {n}; sizes must be positive")));
                }
                _ => Target::Exact(size),
            });
        }
        if targets
            .iter()
            .filter(|t| matches!(t, Target::Infer))
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

    /// The shape that `targets` asks for, with the inferred size where it can be known.
    fn target_shape(
        &self,
        from: &[Option<Extent>],
        targets: &[Target],
    ) -> Result<Vec<Option<Extent>>, LoadError> {
        let mut shape = Vec::with_capacity(targets.len());
        for (place, target) in targets.iter().enumerate() {
            shape.push(match target {
                Target::Exact(size) => Some(size.clone()),
                Target::Infer => None,
                Target::Copy => match from.get(place) {
                    Some(size) => size.clone(),
                    None => return Err(self.error("copies an axis that its input lacks")),
                },
            });
        }
        if let Some(at) = targets.iter().position(|t| matches!(t, Target::Infer)) {
            let known = |list: &mut dyn Iterator<Item = &Option<Extent>>| {
                let sizes: Option<Vec<&Extent>> = list.map(Option::as_ref).collect();
                Extent::product(sizes?)?.as_known()
            };
            let total = known(&mut from.iter());
            let others = shape.iter().enumerate().filter(|(i, _)| *i != at);
            let rest = known(&mut others.map(|(_, e)| e));
            if let (Some(total), Some(rest)) = (total, rest)
                && rest > 0
                && total % rest == 0
            {
                shape[at] = Some(Extent::known(total / rest));
            }
        }
        Ok(shape)
    }

    fn concat(&mut self) -> Result1 {
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
            if items.len() > MOST_SIZES {
                return Err(self.error(format!("joins more than {MOST_SIZES} sizes")));
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
            "joins values of different kinds; supported: constants, sizes, zeros, or final states \
             of the layers",
        ))
    }

    /// Entries `start .. start + length` of one axis.
    fn part(&mut self, value: &Value, axis: usize, start: usize, length: usize) -> Result1 {
        Ok(match value {
            Value::Constant(t) => {
                // Slices arrive clamped to the axis, so this list is no longer than its data.
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

    /// The length of an axis, where it is known now.
    fn length(value: &Value, axis: usize) -> Option<usize> {
        let size = value.shape().get(axis)?.as_ref()?.as_known()?;
        usize::try_from(size).ok()
    }

    fn gather(&mut self) -> Result1 {
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
                None => {
                    return Err(self.error(format!("index {index} lies outside axis {axis}")));
                }
            }
        }
        let Some(&start) = places.first() else {
            return Err(self.error("takes nothing; at least one index is needed"));
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
            _ => return Err(self.error("its indices are not consecutive; supported: one run")),
        };
        if scalar {
            self.squeeze_one(taken, axis)
        } else {
            Ok(taken)
        }
    }

    fn slice(&mut self) -> Result1 {
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
            return Err(self.error(format!("steps {:?}; supported: 1", steps.as_deref())));
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
                // The end of an open axis is unknown; within it, the part is as written.
                None if start >= 0 && end >= 0 && !open_end => (start as usize, end as usize),
                None => {
                    return Err(self.error(format!(
                        "slices axis {axis}, whose length is open, from or to its end"
                    )));
                }
            };
            if end <= start {
                return Err(self.error(format!("takes nothing of axis {axis}")));
            }
            value = self.part(&value, axis, start, end - start)?;
        }
        Ok(value)
    }

    fn split(&mut self) -> Result<Vec<Value>, LoadError> {
        let attributes = self.attributes(&["axis", "split", "num_outputs"])?;
        let value = self.first(1, 2)?;
        let axis = self.axis(attributes.int("axis")?.unwrap_or(0), value.rank())?;
        let Some(length) = Self::length(value, axis) else {
            return Err(self.error(format!("splits axis {axis}, whose length is open")));
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

    fn mul(&mut self) -> Result1 {
        self.attributes(&[])?;
        let (a, b) = (self.first(2, 2)?, self.input(1)?);
        let (Some((a_scalar, a)), Some((b_scalar, b))) = (a.as_sizes(), b.as_sizes()) else {
            return Err(self.error(format!(
                "multiplies {} by {}; supported: products of sizes",
                a.kind(),
                b.kind()
            )));
        };
        let length = match (a.len(), b.len()) {
            (n, m) if n == m => n,
            (1, n) | (n, 1) => n,
            (n, m) => return Err(self.error(format!("multiplies {n} sizes by {m}"))),
        };
        let items = (0..length)
            .map(|i| {
                let pick = |list: &[Option<Extent>]| list[i.min(list.len() - 1)].clone();
                pick(&a)?.times(&pick(&b)?)
            })
            .collect();
        Ok(Value::Sizes {
            scalar: a_scalar && b_scalar,
            items,
        })
    }

    fn add(&mut self) -> Result1 {
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

    fn reduce_sum(&mut self) -> Result1 {
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

/// Whether this element type is one that weights and data may have.
pub(super) fn is_float(element: i32) -> bool {
    matches!(
        element,
        data_type::FLOAT | data_type::FLOAT16 | data_type::BFLOAT16
    )
}
