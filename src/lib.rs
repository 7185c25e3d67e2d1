//! Recurrent networks (LSTM, GRU, vanilla RNN) on CPUs: lowest latency, and the same bits whatever
//! the schedule, thread count, batch-mate or instruction set.
//!
//! The data's path is the order of the modules: a [`model`] is loaded or built; [`graph`] is its matrix
//! products, [`schedule`] what is computed when, [`partition`] who computes it; a [`plan`] holds both
//! for each size of request, estimated or found by [`mod@tune`]; [`execute`] packs the weights for it and
//! runs sequences on a pinned team, with the arithmetic of [`kernels`]; [`layers`] surround it in a
//! whole model. [`mod@reference`] is the specification of every bit.
//!
//! ```no_run
//! # let (batch, steps) = (1, 100);
//! # let (input, mut output) = (vec![0.0; 6400], vec![0.0; 25600]);
//! use cellstream::{Input, Model, Output, Plan, Session};
//!
//! let model = Model::open("speech.safetensors")?; // or .onnx
//! let plan = Plan::load_or_estimate("speech.plan", &model)?; // tuned here, or estimated
//! let mut session = Session::new(&model, &plan)?; // packs the weights, wakes the pinned team
//! session.run(&Input::new(&input, steps, batch), &mut Output::new(&mut output))?; // no allocation
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]

pub mod execute;
pub mod graph;
pub mod layers;
pub mod machine;
pub mod model;
pub mod partition;
pub mod plan;
pub mod reference;
#[doc(hidden)]
pub mod reused;
pub mod schedule;
pub mod tune;
#[doc(hidden)]
pub mod whole_file;

#[doc(inline)]
pub use cellstream_kernels as kernels;

pub use execute::Session;
pub use model::{Input, Model, Output};
pub use plan::Plan;
