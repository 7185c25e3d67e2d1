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
//! The library makes the model of a region (`Model::from_recurrent`), so that no rule of the
//! operators is written twice.

mod expansion;
mod node;
mod operator;
mod region;

use gatestream::model::RecurrentOp;
use tract_onnx::pb::NodeProto;

pub(crate) use expansion::register;
pub(crate) use node::{KEEPS_STATES, while_parsing};
pub(crate) use region::{RegionOptions, Regions};

const OPERATORS: [&str; 4] = ["LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"];

/// Whether a node is a recurrent layer.
pub(crate) fn is_recurrent(node: &NodeProto) -> bool {
    RecurrentOp::is_recurrent(&node.op_type, &node.domain)
}
