//! The batching policies: which ready nodes form a batch. One file for each policy.
//!
//! All policies implement [`Policy`](crate::scheduler::Policy) and run on the same scheduler,
//! workers and kernels, so a comparison of two policies compares their choices alone.

pub mod bucketing;
pub mod cellular;
pub mod ebatch;
pub mod graph_batch;
pub mod ideal;
mod kind;
pub mod merge;
mod moving_average;
mod ordered;
pub mod padding;
mod selector;
mod shares;
mod turns;

pub use bucketing::Bucketing;
pub use cellular::{Cellular, Order};
pub use ebatch::{BatchSteps, BatchStepsError, EBatching};
pub use graph_batch::{GraphBatching, Rule, Step};
pub use ideal::Ideal;
pub use kind::{Groups, PolicyKind, PolicyKindError};
pub use merge::Merge;
pub use padding::Padding;
