//! Policies on a simulated accelerator.
//!
//! A pass of a layer reads its weights from the main memory, unless they are in the buffer, and
//! evaluates some steps of all lanes. E-PUR's buffer holds one layer, so reading does not overlap
//! with steps.

mod cellular;
mod ebatch;
mod whole;

use crate::accelerator::Accelerator;
use crate::energy::Counts;
use crate::network::Network;
pub use cellular::cellular;
pub use ebatch::{EBatchPolicy, ebatch};
pub use whole::{bucketing, padding};

/// An accelerator with a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The accelerator.
    pub accelerator: Accelerator,
    /// The network.
    pub network: Network,
    step: u64,
    fetch: u64,
}

impl Machine {
    /// Computes the times.
    pub fn new(accelerator: Accelerator, network: Network) -> Machine {
        Machine {
            step: accelerator.step_time(&network),
            fetch: accelerator.fetch_time(&network),
            accelerator,
            network,
        }
    }

    /// Nanoseconds of a step of a layer.
    pub fn step_time(&self) -> u64 {
        self.step
    }

    fn lanes(&self) -> usize {
        self.accelerator.lanes
    }

    /// The time of some steps in this many layers, whose weights are read once each. A network of
    /// one layer keeps them.
    fn pass(&self, layers: usize, steps: usize, counts: &mut Counts) -> u64 {
        let is_resident = self.network.layers == 1 && counts.weight_bytes > 0;
        let fetches = if is_resident { 0 } else { layers as u64 };
        counts.weight_bytes += fetches * self.network.weight_bytes();
        counts.steps += (layers * steps) as u64;
        fetches * self.fetch + layers as u64 * steps as u64 * self.step
    }
}
