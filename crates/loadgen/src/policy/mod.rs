//! The policies that a comparison runs: those of the engine, and baselines of other systems.
//!
//! All implement [`Policy`](gatestream_serve::scheduler::Policy) and run on the same scheduler,
//! workers and kernels, so a comparison of two policies compares their choices alone. One file for
//! each baseline.

mod bucketing;
mod graph_batch;
mod ideal;
mod kind;
mod merge;
mod padding;
#[cfg(test)]
mod tests;

use bucketing::Bucketing;
use graph_batch::GraphBatching;
use ideal::Ideal;
pub use kind::{ComparedPolicy, Groups};
use merge::Merge;
use padding::Padding;
