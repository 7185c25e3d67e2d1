//! Recurrent networks on NVIDIA GPUs: a backend of gatestream whose weights stay on the chip for a
//! whole sequence.
//!
//! A [`LaunchPlan`] lays the recurrence of a layer out on a [`Device`]; a [`Kernel`] is the text in
//! CUDA C++ for a cell and a plan. Both are plain data, made and tested without a GPU. With the
//! feature `cuda`, `Cuda` compiles kernels by NVRTC at first use and runs models through
//! [`gatestream::execute::Backend`].
//!
//! All plans, batches and batch-mates give the same bits: those of
//! [`reference::run_in`](gatestream::reference::run_in) with
//! [`SumOrder::Lanes`](gatestream::reference::SumOrder::Lanes).
#![deny(missing_docs)]

#[cfg(feature = "cuda")]
mod arguments;
mod device;
#[cfg(feature = "cuda")]
mod driver;
mod error;
#[cfg(feature = "cuda")]
mod gpu;
mod kernel;
#[cfg(feature = "cuda")]
mod layer;
#[cfg(feature = "cuda")]
mod model;
#[cfg(all(test, feature = "cuda"))]
mod on_host;
mod plan;
#[cfg(feature = "cuda")]
mod resident;
#[cfg(feature = "cuda")]
mod stamps;
#[cfg(feature = "cuda")]
mod symbols;
#[cfg(feature = "cuda")]
mod tune;
mod tuned;
#[cfg(feature = "cuda")]
mod wavefront;
mod weights;

pub use device::Device;
#[cfg(feature = "cuda")]
pub use driver::DriverError;
pub use error::PlanError;
#[cfg(feature = "cuda")]
pub use gpu::{Compiled, Cuda, compile};
pub use kernel::Kernel;
pub use plan::{Exchange, LaunchPlan, RecurrenceSize};
pub use tuned::{TunedPlans, TunedPlansError};
pub use weights::{WeightType, pack_recurrent};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
