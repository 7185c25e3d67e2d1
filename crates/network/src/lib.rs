//! Whole ONNX graphs: recurrent and dense layers on gatestream, everything else on
//! [tract](https://docs.rs/tract-onnx).
//!
//! ```text
//! source/         reads a file: external data, large constants, functions
//! recurrent/      LSTM, GRU, RNN and DynamicQuantizeLSTM as operators of tract, each on a session
//! dense/          products with constant matrices as operators of tract, on the same team
//! operators/      operators that tract does not have, has slowly or computes in another way;
//!                 the list of those that are checked
//! scoped.rs       the way of a network's parts to tract's parser
//! executors.rs    the parts that all plans of a network share
//! evaluation.rs   values that are known before a run
//! control_flow/   branches and loops that are decided before a run
//! fusion/         layers that a file has as loops or single operators, as recurrent nodes
//! plan.rs         the graph for inputs of certain shapes, ready to run
//! plans.rs        the plans that are kept, by the shapes of inputs
//! derived.rs      constants that several plans derive from the file, one of each
//! network.rs      the interface: named inputs and outputs
//! profile.rs      the time of each recurrent region
//! tuning.rs       the fastest plan of each recurrent region
//! network_plan.rs these plans, and their file
//! inspect.rs      the contents of a file
//! attempt.rs      a run on made-up inputs
//! cut.rs          the recurrent core of a file as a file of its own
//! quantize.rs     a file with recurrent weights in 8 bits
//! threads.rs      one team for all recurrent nodes, and a pool for tract
//! tensor.rs       values of inputs and outputs
//! ```
//!
//! All recurrent nodes of a network share one team of threads. A node gives the bits of
//! [`Session::run`](gatestream::Session::run) on its weights.

mod attempt;
mod control_flow;
mod cut;
mod dense;
mod derived;
mod error;
mod evaluation;
mod executors;
mod fusion;
mod inspect;
mod network;
mod network_plan;
mod operators;
mod plan;
mod plans;
mod profile;
mod quantize;
mod recurrent;
mod scoped;
mod source;
mod tensor;
mod threads;
mod tuning;

pub use attempt::Attempt;
pub use cut::Core;
pub use error::NetworkError;
pub use inspect::{InspectedNode, Inspection, NodeName, Origin};
pub use network::{
    NamedTensor, Network, NetworkOptions, NetworkPort, NetworkThreads, PreparedPlan, RunOptions,
};
pub use network_plan::NetworkPlan;
pub use plans::{Caller, PlanStats};
pub use profile::{NetworkProfile, ProfiledRun, RegionRun};
pub use quantize::QuantizedGraph;
pub use tensor::{Data, ElementType, Tensor};
pub use tuning::{NetworkTuning, TunedNetwork, TunedRegion, TuningProgress};
