//! Load generator: sends requests to a target at the times when they are due and reports latency
//! and throughput. The program `gatestream` runs it as its subcommand `load`.
//!
//! The modules are in the order of a request's path: `workload` draws it, a [`target`] serves
//! it, `drive` submits it when it is due, [`record`] counts it. `sweep` compares targets and
//! settings, `report` writes tables, CSV files and charts, `command` is the command line.
//! `policy` has the policies that are compared, baselines of other systems among them.
//! `in_process` is the target that runs the engine of `gatestream-serve` in this process, `wire`
//! one that is a server of another, `machines` one of several simulated machines.

mod candidate;
mod command;
pub mod drive;
mod in_process;
mod machines;
mod policy;
pub mod record;
mod report;
#[cfg(test)]
mod simulated;
mod sweep;
pub mod target;
#[cfg(feature = "wire")]
mod wire;
pub mod workload;

pub use command::{Arguments, run};
