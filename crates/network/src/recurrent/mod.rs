//! Recurrent nodes as operators of tract, each computed by a session.
//!
//! ```text
//! parse       a node of the file: which inputs and outputs it has
//! rules       the shapes and types of its outputs
//! wire        weights that are known by then become a region, kept for all plans of the network;
//!             others are inputs of the operator, which makes a region at run time
//! evaluate    the session of the region runs
//! ```
//!
//! The model of a region is read by the library's own loader of ONNX files, from a graph of this
//! node alone, so that no rule of the operators is written twice.

mod expansion;
mod node;
mod operator;
mod region;

use tract_onnx::pb::NodeProto;

use crate::source::attributes::is_standard;
pub(crate) use expansion::register;
pub(crate) use node::while_parsing;
pub(crate) use region::{RegionOptions, Regions};

const OPERATORS: [&str; 4] = ["LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"];

/// Whether a node is a recurrent layer.
pub(crate) fn is_recurrent(node: &NodeProto) -> bool {
    match node.domain.as_str() {
        "com.microsoft" => node.op_type == "DynamicQuantizeLSTM",
        domain => is_standard(domain) && matches!(&*node.op_type, "LSTM" | "GRU" | "RNN"),
    }
}
