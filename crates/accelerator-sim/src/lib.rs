//! Accelerators of recurrent networks, simulated: the time, the traffic of weights and the energy
//! of batches of sequences by policy (E-BATCH, Silfa, Arnau and González, ACM TACO 2022).
//!
//! ```text
//! network       the networks of Table 1
//! accelerator   E-PUR and an output-stationary systolic array (Table 2): cycles of a step
//! energy        constants with their sources, and counted accesses in joules
//! arrivals      Poisson arrivals of sequences with random lengths
//! ebatch        E-BATCH as a state machine: lanes, their queue and its partition
//! policy        padding, bucketing, cellular batching and E-BATCH
//! outcome       latencies, throughput, bytes, energy and wasted steps of a run
//! sustained     the highest rate that a policy sustains
//! command       the subcommand `simulate` of the program `gatestream`
//! ```
//!
//! Times are nanoseconds.
//!
//! ```
//! use gatestream_accelerator_sim::accelerator::Accelerator;
//! use gatestream_accelerator_sim::arrivals::{Arrivals, Lengths};
//! use gatestream_accelerator_sim::network::Network;
//! use gatestream_accelerator_sim::policy::{self, Machine};
//!
//! let machine = Machine::new(Accelerator::e_pur(64), Network::mnmt());
//! let arrivals = Arrivals::new(200.0, Lengths::Uniform { least: 20, most: 100 }, 1);
//! let outcome = policy::padding(&machine, arrivals.until_seconds(5.0));
//! println!("{:.0} requests/s, {:.1} ms", outcome.throughput(), outcome.mean_latency() * 1e3);
//! ```

pub mod accelerator;
pub mod arrivals;
pub mod command;
pub mod ebatch;
pub mod energy;
pub mod network;
pub mod outcome;
pub mod policy;
pub mod sustained;
