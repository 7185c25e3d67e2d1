//! Whole ONNX graphs: recurrent layers on cellstream's sessions, everything else on
//! [tract](https://docs.rs/tract-onnx).
//!
//! ```text
//! source/      reads a file: external data, functions, branches that are decided before a run
//! recurrent/   LSTM, GRU, RNN and DynamicQuantizeLSTM as operators of tract, each on a session
//! operators/   operators that tract does not have
//! plan.rs      the graph for inputs of certain shapes, ready to run
//! network.rs   the interface: named inputs and outputs, plans by the shapes of inputs
//! tensor.rs    values of inputs and outputs
//! ```
//!
//! All recurrent nodes of a network share one team of threads. A node gives the bits of
//! [`Session::run`](cellstream::Session::run) on its weights.

mod error;
mod network;
mod operators;
mod plan;
mod recurrent;
mod source;
mod tensor;

pub use error::NetworkError;
pub use network::{NamedTensor, Network, NetworkOptions, NetworkPort};
pub use tensor::{Data, ElementType, Tensor};
