//! ONNX files whose graph is one chain of LSTM, GRU, RNN or DynamicQuantizeLSTM nodes.
//!
//! ```text
//! admit the bytes (bounded growth), decode the protobuf messages
//! for each node, in the file's order:
//!     glue       rearrange its inputs' values symbolically: constants, sizes, zeros, or views of
//!                what flows between recurrent nodes, with the meaning of each axis
//!     recurrent  check that X is the graph's input or the layer below in [time, batch, feature];
//!                make a layer of the weights; give views of Y, Y_h, Y_c
//! for each graph output: it must be a view; its axes become the port's
//! ```
//!
//! No glue is run later: whatever it does to axes is kept in the model's ports.

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
mod shape_ops;
mod tensor;
mod value;
mod view;

#[cfg(test)]
mod tests;

use prost::Message;

use self::budget::{Budget, malformed};
use super::{LoadError, Model};

/// Opsets whose definitions of the supported operators were read.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=22;

impl Model {
    /// The model in the bytes of an ONNX file: a chain of LSTM, GRU and RNN nodes (opset 7 to 22)
    /// and the nodes that exporters put around them. The graph's inputs and outputs become the
    /// model's ports, under their own names and with their own axes; time and batch may be given
    /// at any size, even where the file declares one. Weights may be float, float16 or bfloat16;
    /// all arithmetic is in `f32`.
    ///
    /// `DynamicQuantizeLSTM` nodes of domain `com.microsoft` (what ONNX Runtime's `quantize_dynamic`
    /// makes of LSTM) give layers of [`Precision::Int8`](super::Precision::Int8). Weights with zero
    /// points in the middle (int8: 0, uint8: 128) keep their whole numbers and scales; others, and those
    /// that hold -128, are quantised anew, by rows. [`Model::quantised`] says which. What the weights are
    /// multiplied with is quantised in both, but not alike: the operator takes one scale and zero point
    /// for the whole input sequence of a batch, and for all states of a step, while here each sequence
    /// and step has a scale, symmetric around 0, so that no batch-mate changes an answer. Answers
    /// therefore agree within the error of such rounding, not to the last bits.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] for bytes that are no ONNX file, [`LoadError::Node`] and
    /// [`LoadError::Tensor`] for what is not supported, with what is.
    pub fn from_onnx(bytes: &[u8]) -> Result<Model, LoadError> {
        budget::admit(bytes)?;
        let file = proto::ModelProto::decode(bytes).map_err(|e| malformed(e.to_string()))?;
        let supported = format!("supported: {} to {}", OPSETS.start(), OPSETS.end());
        match version(&file, "the ONNX operator set", &["", "ai.onnx"])? {
            None => {
                return Err(malformed(format!(
                    "it names no version of the ONNX operator set; {supported}"
                )));
            }
            Some(opset) if OPSETS.contains(&opset) => {}
            Some(opset) => return Err(malformed(format!("opset {opset}; {supported}"))),
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

/// The one version of an operator set that a file imports, if it does.
fn version(
    file: &proto::ModelProto,
    set: &str,
    domains: &[&str],
) -> Result<Option<i64>, LoadError> {
    let imports = file.opset_import.iter();
    let mut versions = imports.filter(|o| domains.contains(&o.domain.as_str()));
    match (versions.next(), versions.next()) {
        (Some(_), Some(_)) => Err(malformed(format!("it names two versions of {set}"))),
        (found, _) => Ok(found.map(|o| o.version)),
    }
}
