//! Runs a plan, without allocation. All its spin-waits, and all atomics that synchronise, are in
//! this module; measurements (`machine::ceilings`) have their own.

mod active;
mod backend;
mod buffers;
#[cfg(test)]
pub(crate) mod counting;
#[cfg(test)]
mod gathered_tests;
#[cfg(test)]
mod late_tests;
mod meetings;
#[cfg(test)]
mod meetings_cases;
#[cfg(test)]
mod meetings_tests;
mod packed;
mod part;
mod phases;
mod products;
mod resident;
mod run;
mod session;
mod state;
mod steps;
pub mod team;
mod trace;
mod tree;
mod walk;
#[cfg(test)]
mod work_tests;

pub use backend::{Backend, Cpu, PreparedModel};
pub use packed::{PackError, PackedModel};
pub use resident::{
    EmbeddingTable, ResidentModel, ResidentNetwork, ResidentProjection, ResidentRoom, ResidentStep,
    ResultOf, ResultRow,
};
pub use session::{RunError, Session, SessionError};
pub use state::State;
pub use steps::Steps;
pub use tree::{TreeRows, TreeStep};

pub use trace::{Activity, LayerTrace, Spent, Trace, WorkerTrace};
