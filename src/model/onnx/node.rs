//! Inputs and nodes of the graph, with the names that messages use.

use super::extent::Extent;
use super::proto::NodeProto;
use crate::model::LoadError;

/// The supported operators, for messages.
pub(super) const SUPPORTED: &str = "LSTM, GRU and RNN, DynamicQuantizeLSTM of domain \
     com.microsoft, joined by Add (of two directions), Cast, \
     Concat, Constant, ConstantOfShape, Expand, Gather, Identity, Mul (of sizes), ReduceSum (of \
     two directions), Reshape, Shape, Slice, Split, Squeeze, Transpose, Unsqueeze";

/// A declared graph input.
pub(super) struct GraphInput {
    pub name: String,
    /// The size of each axis.
    pub shape: Vec<Extent>,
}

/// A borrowed node.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub proto: &'a NodeProto,
}

impl<'a> Node<'a> {
    /// Its name, or the name of its first output.
    pub(super) fn name(self) -> &'a str {
        if self.proto.name.is_empty() {
            self.proto.output.first().map_or("", String::as_str)
        } else {
            &self.proto.name
        }
    }

    /// An error about this node.
    pub(super) fn error(self, reason: impl Into<String>) -> LoadError {
        LoadError::Node {
            name: self.name().to_string(),
            // The message shows it without quotes, so it must not contain line breaks.
            operator: self.proto.op_type.escape_debug().to_string(),
            reason: reason.into(),
        }
    }
}
