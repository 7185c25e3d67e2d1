//! ONNX files whose graph is one chain of LSTM, GRU or RNN nodes.
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
mod extent;
mod glue;
mod graph;
mod node;
mod proto;
mod recurrent;
mod tensor;
mod value;
mod view;
mod wiring;

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
    /// # Errors
    /// [`LoadError::Malformed`] for bytes that are no ONNX file, [`LoadError::Node`] and
    /// [`LoadError::Tensor`] for what is not supported, with what is.
    pub fn from_onnx(bytes: &[u8]) -> Result<Model, LoadError> {
        budget::admit(bytes)?;
        let file = proto::ModelProto::decode(bytes).map_err(|e| malformed(e.to_string()))?;
        let mut versions = file
            .opset_import
            .iter()
            .filter(|o| matches!(o.domain.as_str(), "" | "ai.onnx"));
        let supported = format!("supported: {} to {}", OPSETS.start(), OPSETS.end());
        match (versions.next(), versions.next()) {
            (None, _) => {
                return Err(malformed(format!(
                    "it names no version of the ONNX operator set; {supported}"
                )));
            }
            (Some(o), None) if OPSETS.contains(&o.version) => {}
            (Some(o), None) => {
                return Err(malformed(format!("opset {}; {supported}", o.version)));
            }
            (Some(_), Some(_)) => {
                return Err(malformed("it names two versions of the ONNX operator set"));
            }
        }
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
        graph::load(graph, &mut Budget::of_file(bytes.len()))
    }
}
