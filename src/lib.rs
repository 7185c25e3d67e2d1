//! Recurrent networks (LSTM, GRU, RNN) on CPUs at the lowest latency, with the same bits for every
//! schedule, thread count, batch and instruction set.
//!
//! A run passes these modules: a [`model`] is loaded or built; a [`plan`] for it is estimated, or
//! found by [`mod@tune`] and kept in a file; [`execute`] packs the weights for the plan and runs
//! sequences on pinned threads, with the arithmetic of [`kernels`]. A plan is made from the matrix
//! products of a step ([`graph`]), the order in which they may run ([`schedule`]), the cost of
//! splitting them over cores ([`partition`]) and the caches of the [`machine`]; these modules are
//! public for those who read or draw a plan. [`layers`] surround the recurrent core in
//! a whole model. [`mod@reference`] specifies every bit. The crate `gatestream-serve` batches the
//! requests of many users.
//!
//! ```no_run
//! # let (batch, steps) = (1, 100);
//! # let (input, mut output) = (vec![0.0; 6400], vec![0.0; 25600]);
//! use gatestream::{Input, Model, Output, Plan, Session};
//!
//! let model = Model::open("speech.safetensors")?; // or .onnx
//! let plan = Plan::load_or_estimate("speech.plan", &model)?; // tuned here, or estimated
//! let mut session = Session::new(&model, &plan)?; // packs the weights, starts the pinned threads
//! session.run(&Input::new(&input, steps, batch), &mut Output::new(&mut output))?; // no allocation
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]

pub mod atomic_file;
pub mod execute;
pub mod graph;
pub mod layers;
pub mod machine;
pub mod model;
pub mod partition;
pub mod plan;
pub mod reference;
pub mod schedule;
pub mod tune;

/// Views of rows, operations on rows, instruction sets, and the types of numbers, activations and
/// blockings, from `gatestream-kernels`.
pub mod kernels {
    #[doc(inline)]
    pub use gatestream_kernels::{
        Activation, Blocking, Combine, ExpSum, ISA_VARIABLE, Isa, IsaError, Numbers, PARTIAL_SUMS,
        Prefetch, RowKernels, RowsMut, RowsRef, Stripes, TALL_TILE_ROWS, activate_all, recycle_vec,
        row_kernels,
    };
}

pub use execute::Session;
pub use model::{Input, Model, Output};
pub use plan::Plan;
