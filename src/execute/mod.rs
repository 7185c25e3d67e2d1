//! Running a plan: what happens once per sequence, and never allocates. The only spinning code of the crate is below this
//! module, and the only atomics but for flags that nobody waits for.

mod active;
#[cfg(test)]
mod apart_tests;
mod buffers;
#[cfg(test)]
pub(crate) mod counting;
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
mod rows_apart;
mod sequence;
mod session;
mod states;
pub mod team;
mod trace;
mod tree;
#[cfg(test)]
mod work_tests;

pub use packed::{PackError, PackedModel};
#[doc(hidden)]
pub use rows_apart::{RowLists, StateRows, WrittenRows};
#[doc(hidden)]
pub use sequence::InputValues;
pub use session::{RunError, Session, SessionError, State};
#[doc(hidden)]
pub use tree::TreeStep;

pub use trace::{Activity, LayerTrace, Spent, Trace, WorkerTrace};
