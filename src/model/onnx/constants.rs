//! The constant inputs of a recurrent node: their names, types and shapes.

use super::node::Node;
use super::tensor::{Data, Tensor};
use super::value::Value;
use crate::model::LoadError;

/// The inputs of LSTM, of which GRU and RNN have the first six, and those that
/// `DynamicQuantizeLSTM` adds.
pub(super) const INPUTS: [&str; 12] = [
    "X",
    "W",
    "R",
    "B",
    "sequence_lens",
    "initial_h",
    "initial_c",
    "P",
    "W_scale",
    "W_zero_point",
    "R_scale",
    "R_zero_point",
];

/// The inputs of a node.
#[derive(Clone, Copy)]
pub(super) struct Constants<'a> {
    node: Node<'a>,
    inputs: &'a [Option<Value>],
}

impl<'a> Constants<'a> {
    pub(super) fn new(node: Node<'a>, inputs: &'a [Option<Value>]) -> Constants<'a> {
        Constants { node, inputs }
    }

    /// The operator's name of an input with the file's name: `W ("weight")`.
    pub(super) fn label(self, index: usize) -> String {
        format!("{} ({:?})", INPUTS[index], self.name(index))
    }

    /// The file's name of an input.
    pub(super) fn name(self, index: usize) -> &'a str {
        self.node.proto.input.get(index).map_or("", String::as_str)
    }

    /// Optional floats.
    pub(super) fn floats(self, index: usize) -> Result<Option<&'a Tensor>, LoadError> {
        self.of(index, "floats", |data| matches!(data, Data::Float(_)))
    }

    /// Required floats.
    pub(super) fn required_floats(self, index: usize) -> Result<&'a Tensor, LoadError> {
        self.required(index, self.floats(index)?)
    }

    /// Required 8-bit integers.
    pub(super) fn required_bytes(self, index: usize) -> Result<&'a Tensor, LoadError> {
        let found = self.of(index, "int8 or uint8", |data| {
            matches!(data, Data::Int8(_) | Data::Uint8(_))
        })?;
        self.required(index, found)
    }

    fn of(
        self,
        index: usize,
        wanted: &str,
        fits: fn(&Data) -> bool,
    ) -> Result<Option<&'a Tensor>, LoadError> {
        let found = match self.inputs.get(index).and_then(Option::as_ref) {
            None => return Ok(None),
            Some(Value::Constant(tensor)) if fits(&tensor.data) => return Ok(Some(tensor)),
            Some(Value::Constant(tensor)) => format!("a constant of {}", tensor.data.kind()),
            Some(other) => other.kind().to_string(),
        };
        Err(self.node.error(format!(
            "input {index} ({}), {:?}, is {found}; supported: a constant of {wanted} (an \
             initializer)",
            INPUTS[index],
            self.name(index)
        )))
    }

    fn required(self, index: usize, found: Option<&'a Tensor>) -> Result<&'a Tensor, LoadError> {
        let missing = || format!("input {index} ({}) is missing", INPUTS[index]);
        found.ok_or_else(|| self.node.error(missing()))
    }

    /// Requires that the shape of a constant is one of `shapes`, where `None` allows any size.
    pub(super) fn expect(
        self,
        index: usize,
        tensor: &Tensor,
        shapes: &[&[Option<usize>]],
    ) -> Result<(), LoadError> {
        let fits = |shape: &&[Option<usize>]| {
            tensor.dims.len() == shape.len()
                && std::iter::zip(&tensor.dims, *shape)
                    .all(|(d, s)| *d > 0 && s.is_none_or(|s| s == *d))
        };
        if shapes.iter().any(fits) {
            return Ok(());
        }
        let size = |s: &Option<usize>| s.map_or("any".into(), |s: usize| s.to_string());
        let wanted: Vec<String> = shapes
            .iter()
            .map(|shape| {
                let sizes: Vec<String> = shape.iter().map(size).collect();
                format!("[{}]", sizes.join(", "))
            })
            .collect();
        Err(self.node.error(format!(
            "{} has shape {:?}; it must be {}",
            self.label(index),
            tensor.dims,
            wanted.join(" or ")
        )))
    }
}
