//! Reads ONNX files whose graph is one chain of LSTM, GRU, RNN or DynamicQuantizeLSTM nodes.
//!
//! ```text
//! check that decoding cannot grow far beyond the file, decode the protobuf messages
//! for each node, in the file's order:
//!     recurrent  check that X is a graph input or the output of the layer below, with the axes
//!                [time, batch, feature]; make a layer of the weights; return views of Y, Y_h, Y_c
//!     other      evaluate it on symbolic values: constants, sizes, zeros, and views of the data
//!                between recurrent nodes, which record the meaning of each axis
//! for each graph output: it must be a view; its axes become the axes of a port
//! ```
//!
//! A run does not execute the other nodes: their effect on axes is part of the model's ports.

mod activations;
mod attributes;
mod budget;
mod chain;
mod constants;
mod extent;
mod gate_order;
mod graph;
mod node;
mod proto;
mod quantised;
mod recurrent;
mod recurrent_axes;
mod recurrent_op;
mod shape_ops;
mod tensor;
mod value;
mod view;

#[cfg(test)]
mod tests;

use prost::Message;

pub use self::recurrent_axes::RecurrentAxes;
pub use self::recurrent_op::{AttributeValue, OpAttribute, OpWeights, RecurrentOp};

use self::budget::{Budget, malformed};
use super::{LoadError, Model};

/// The supported opsets: those whose operator definitions were checked.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=26;

impl Model {
    /// Reads the model in the bytes of an ONNX file: a chain of LSTM, GRU and RNN nodes (opset 7 to
    /// 26) and the nodes that exporters put around them. The graph's inputs and outputs become the
    /// model's ports, with their names and axes. A run may use any number of steps and sequences,
    /// even if the file declares fixed sizes. Weights may be float, float16 or bfloat16 and are
    /// read as `f32`.
    ///
    /// `DynamicQuantizeLSTM` nodes of the domain `com.microsoft`, which ONNX Runtime's
    /// `quantize_dynamic` makes of LSTM, become layers of
    /// [`Precision::Int8`](super::Precision::Int8). Weights with zero points in the middle of the
    /// range (int8: 0, uint8: 128) keep their integers and scales. Other weights, and those with
    /// -128, are quantised again by rows. [`Model::quantised`] reports which. Inputs and states are
    /// quantised at run time here as in ONNX Runtime, but differently: the operator uses one scale
    /// and zero point for the input sequences of a whole batch, and for all states of a step. Here
    /// each sequence and step has its own symmetric scale, so that other sequences of a batch
    /// change no output. Outputs therefore agree within the rounding error of int8, not bit for
    /// bit.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] for bytes that are not an ONNX file. [`LoadError::Node`] and
    /// [`LoadError::Tensor`] for nodes and tensors that are not supported, with what is supported.
    pub fn from_onnx(bytes: &[u8]) -> Result<Model, LoadError> {
        budget::check_size(bytes)?;
        if bytes.is_empty() {
            return Err(malformed("the file is empty"));
        }
        let file = proto::ModelProto::decode(bytes).map_err(|e| malformed(e.to_string()))?;
        let supported = format!("supported: {} to {}", OPSETS.start(), OPSETS.end());
        match version(&file, "the ONNX operator set", &["", "ai.onnx"])? {
            None => {
                return Err(malformed(format!(
                    "it imports no version of the ONNX operator set; {supported}"
                )));
            }
            Some(opset) if OPSETS.contains(&opset) => {}
            Some(found) => {
                return Err(LoadError::Opset {
                    found,
                    oldest: *OPSETS.start(),
                    newest: *OPSETS.end(),
                });
            }
        }
        let microsoft = version(&file, "the operator set com.microsoft", &[graph::MICROSOFT])?;
        if let Some(function) = file.functions.first() {
            return Err(malformed(format!(
                "function {:?} of domain {:?}: functions are not supported; inline them before \
                 saving; supported operators: {}",
                function.name,
                function.domain,
                node::SUPPORTED
            )));
        }
        let graph = file.graph.ok_or_else(|| malformed("it has no graph"))?;
        graph::load(graph, microsoft, &mut Budget::of_file(bytes.len()))
    }
}

/// The version of an operator set that a file imports, if any.
fn version(
    file: &proto::ModelProto,
    set: &str,
    domains: &[&str],
) -> Result<Option<i64>, LoadError> {
    let imports = file.opset_import.iter();
    let mut versions = imports.filter(|o| domains.contains(&o.domain.as_str()));
    let Some(first) = versions.next() else {
        return Ok(None);
    };
    // Some tools write one version twice.
    match versions.find(|other| other.version != first.version) {
        Some(other) => Err(malformed(format!(
            "it imports the versions {} and {} of {set}; keep one",
            first.version, other.version
        ))),
        None => Ok(Some(first.version)),
    }
}
