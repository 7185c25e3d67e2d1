//! Evaluates the operators between recurrent nodes on [`Value`]s: computes constants, tracks shapes
//! and rearranges views (see `view.rs`).

mod rearrange;
mod sizes;

use super::attributes::Attributes;
use super::budget::Budget;
use super::node::{Node, SUPPORTED};
use super::proto::data_type;
use super::tensor::{self, Data, Tensor};
use super::value::{MAX_SIZES, Value};
use crate::model::LoadError;

/// The outputs of a node. Omitted inputs are `None`.
pub(super) fn evaluate(
    node: Node,
    inputs: &[Option<Value>],
    budget: &mut Budget,
) -> Result<Vec<Value>, LoadError> {
    let mut op = ShapeOp {
        node,
        inputs,
        budget,
    };
    let one = |value| Ok(vec![value]);
    match node.proto.op_type.as_str() {
        "Identity" => one(op.identity()?),
        "Constant" => one(op.constant()?),
        "Cast" => one(op.cast()?),
        "Shape" => one(op.shape()?),
        "ConstantOfShape" => one(op.constant_of_shape()?),
        "Expand" => one(op.expand()?),
        "Transpose" => one(op.transpose()?),
        "Squeeze" => one(op.squeeze()?),
        "Unsqueeze" => one(op.unsqueeze()?),
        "Reshape" => one(op.reshape()?),
        "Concat" => one(op.concat()?),
        "Gather" => one(op.gather()?),
        "Slice" => one(op.slice()?),
        "Split" => op.split(),
        "Mul" => one(op.mul()?),
        "Add" => one(op.add()?),
        "ReduceSum" => one(op.reduce_sum()?),
        _ => Err(node.error(format!(
            "operator not supported; supported: {SUPPORTED}; `gatestream run` takes whole graphs"
        ))),
    }
}

struct ShapeOp<'a> {
    node: Node<'a>,
    inputs: &'a [Option<Value>],
    budget: &'a mut Budget,
}

type ValueResult = Result<Value, LoadError>;

impl<'a> ShapeOp<'a> {
    fn attributes(&self, known: &[&str]) -> Result<Attributes<'a>, LoadError> {
        Attributes::new(self.node, known)
    }

    fn error(&self, reason: impl Into<String>) -> LoadError {
        self.node.error(reason)
    }

    /// Checks the number of inputs and returns the first.
    fn first(&self, min: usize, max: usize) -> Result<&'a Value, LoadError> {
        let count = self.inputs.len();
        if count < min || count > max {
            return Err(self.error(format!("{count} inputs; it takes {min} to {max}")));
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

    /// An input that must be a known list of integers.
    fn list(&self, index: usize, what: &str) -> Result<Option<Vec<i64>>, LoadError> {
        let Some(value) = self.optional(index) else {
            return Ok(None);
        };
        match value.as_known_ints() {
            Some(list) if list.len() <= MAX_SIZES => Ok(Some(list)),
            _ => Err(self.error(format!(
                "{what} (input {index}) must be a constant list of at most {MAX_SIZES} integers"
            ))),
        }
    }

    /// Integers from an attribute (older opsets) or an input (newer opsets).
    fn attribute_or_input(
        &self,
        attributes: &Attributes,
        name: &str,
        index: usize,
    ) -> Result<Option<Vec<i64>>, LoadError> {
        let given = attributes.ints(name)?.map(<[i64]>::to_vec);
        match (given, self.list(index, name)?) {
            (Some(_), Some(_)) => Err(self.error(format!(
                "{name} is given as an attribute and as an input; give one of them"
            ))),
            (Some(list), None) | (None, Some(list)) => Ok(Some(list)),
            (None, None) => Ok(None),
        }
    }

    /// Converts an axis, which counts from the end if negative.
    fn axis(&self, axis: i64, rank: usize) -> Result<usize, LoadError> {
        let signed = rank as i64;
        if axis < -signed || axis >= signed {
            return Err(self.error(format!(
                "axis {axis} is out of range for a value with {rank} axes"
            )));
        }
        Ok(axis.rem_euclid(signed) as usize)
    }

    /// Converts distinct axes to increasing order.
    fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, LoadError> {
        let mut list = Vec::with_capacity(axes.len().min(rank));
        for &axis in axes {
            let axis = self.axis(axis, rank)?;
            if list.contains(&axis) {
                return Err(self.error(format!("axis {axis} is given twice")));
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

    fn identity(&mut self) -> ValueResult {
        self.attributes(&[])?;
        Ok(self.first(1, 1)?.clone())
    }

    fn constant(&mut self) -> ValueResult {
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

    fn cast(&mut self) -> ValueResult {
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
                Data::Int8(_) => to == data_type::INT8,
                Data::Uint8(_) => to == data_type::UINT8,
            },
            Value::View(v) => {
                v.element == to
                    || (INTS.contains(&v.element) && INTS.contains(&to))
                    || (data_type::is_float(v.element) && to == data_type::FLOAT)
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
}
