//! Serving: requests of many users, batched cell by cell.
//!
//! A request is a graph of cells ([`cell_graph`]); those of the usual networks are ready-made
//! ([`networks`]). The [`scheduler`] keeps what each waits for, and a [`policy`] chooses which ready cells,
//! of whichever requests, form the next batch; workers run it. The [`engine`] is what users call.
pub mod cell_graph;
pub mod engine;
pub mod networks;
pub mod policy;
pub mod scheduler;
mod sync;
mod worker;

pub use engine::Engine;
