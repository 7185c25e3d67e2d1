//! The batching policies: which ready nodes form a batch.
//!
//! The module [`cellular`] has the policies `cellular` and `shortest`, [`ebatch`] the default. The
//! others are parts of them; [`shares`] is for policies of users, too.
//!
//! All policies implement [`Policy`](crate::scheduler::Policy) and run on the same scheduler,
//! workers and kernels, so a comparison of two policies compares their choices alone.

pub mod cellular;
pub mod ebatch;
mod kind;
mod moving_average;
mod ordered;
mod selector;
pub mod shares;
mod turns;

pub use cellular::{Cellular, Order};
pub use ebatch::{BatchSteps, BatchStepsError, EBatching};
pub use kind::{PolicyKind, PolicyKindError};
pub use shares::Shares;
