//! Policies on a simulated accelerator.
//!
//! A pass of a layer reads its weights from the main memory, unless they are in the buffer, and
//! evaluates some steps of all lanes. E-PUR's buffer holds one layer, so reading does not overlap
//! with steps unless [`Machine::overlap_fetches`] says so.

mod cellular;
mod ebatch;
mod kind;
mod whole;

use crate::accelerator::Accelerator;
use crate::energy::Counts;
use crate::network::Network;
pub use cellular::cellular;
pub use ebatch::{Waits, ebatch};
pub use kind::{Policy, PolicyError};
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
    overlaps: bool,
}

impl Machine {
    /// Computes the times.
    pub fn new(accelerator: Accelerator, network: Network) -> Machine {
        Machine {
            step: accelerator.step_time(&network),
            fetch: accelerator.fetch_time(&network),
            overlaps: false,
            accelerator,
            network,
        }
    }

    /// The weights of a layer are read while the layer before is evaluated: a second buffer holds
    /// them.
    #[must_use]
    pub fn overlap_fetches(mut self) -> Machine {
        self.overlaps = true;
        self
    }

    /// Nanoseconds of a step of a layer.
    pub fn step_time(&self) -> u64 {
        self.step
    }

    /// Nanoseconds of reading the weights of a layer.
    pub fn fetch_time(&self) -> u64 {
        self.fetch
    }

    /// The highest rate, in requests a second, if all lanes were busy and no time were spent on
    /// reading weights.
    pub fn ideal_rate(&self, mean_steps: f64) -> f64 {
        let seconds = mean_steps * self.network.layers as f64 * self.step as f64 / 1e9;
        self.lanes() as f64 / seconds
    }

    fn lanes(&self) -> usize {
        self.accelerator.lanes
    }

    /// The time of some steps in this many layers, whose weights are read once each. A network of
    /// one layer keeps them.
    fn pass(&self, layers: usize, steps: usize, counts: &mut Counts) -> u64 {
        let is_resident = self.network.layers == 1 && counts.weight_bytes > 0;
        let fetch = if is_resident { 0 } else { self.fetch };
        let fetched = if is_resident { 0 } else { layers as u64 };
        counts.weight_bytes += fetched * self.network.weight_bytes();
        counts.steps += (layers * steps) as u64;
        let evaluated = steps as u64 * self.step;
        layers as u64
            * if self.overlaps {
                fetch.max(evaluated)
            } else {
                fetch + evaluated
            }
    }
}
