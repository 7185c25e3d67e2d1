//! Energy from counted accesses.

use crate::accelerator::{Accelerator, Units};
use crate::network::Network;

/// Joules of single events, and watts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// A multiply-add of 8 bits at 28 nm: 0.2 pJ, scaled from 0.23 pJ and an addition of 32 bits of
    /// 0.1 pJ at 45 nm (Horowitz, ISSCC 2014).
    pub multiply_add: f64,
    /// A read of 64 bytes of the weight buffer of 2 MiB: 226 pJ (CACTI 7, 28 nm, high performance).
    pub weight_read: f64,
    /// A read of 64 bytes of the input buffer of 128 KiB: 23 pJ (CACTI 7).
    pub input_read: f64,
    /// A byte of the main memory: 43.5 pJ (DDR4-3200 by DRAMsim3's parameters, without the pins).
    pub memory_byte: f64,
    /// Leakage and background, in watts: of each compute unit 421 mW of the weight buffer and 19 mW
    /// of the input buffer (CACTI 7), and 0.585 W of the memory (background and refresh).
    pub static_power: f64,
}

impl Energy {
    /// The constants for an accelerator: four compute units of E-PUR have 8 MiB, and the TPU-like
    /// array has 24 MiB.
    pub fn of(accelerator: &Accelerator) -> Energy {
        let buffers = match accelerator.units {
            Units::DotProducts { .. } => 4.0,
            Units::Systolic { .. } => 12.0,
        };
        Energy {
            multiply_add: 0.2e-12,
            weight_read: 226e-12,
            input_read: 23e-12,
            memory_byte: 43.5e-12,
            static_power: buffers * (0.421 + 0.019) + 0.585,
        }
    }
}

/// What a run has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of weights that were read from the main memory.
    pub weight_bytes: u64,
    /// Steps of layers, on all lanes together: each reads the weights of the layer once.
    pub steps: u64,
    /// Steps of layers that lanes evaluated.
    pub lane_steps: u64,
    /// Those of them that padding evaluated.
    pub padded_lane_steps: u64,
}

impl Counts {
    /// Joules that depend on the work.
    pub fn dynamic(&self, energy: &Energy, network: &Network) -> f64 {
        let lane_steps = (self.lane_steps + self.padded_lane_steps) as f64;
        let words = |bytes: usize| bytes.div_ceil(64) as f64;
        let products = lane_steps * network.multiply_adds() as f64 * energy.multiply_add;
        let reads = lane_steps * words(network.features()) * energy.input_read;
        let weights = words(network.weight_bytes() as usize) * energy.weight_read;
        // Inputs and hidden states, read from and written to the main memory.
        let values = lane_steps * network.features() as f64 * energy.memory_byte;
        let fetches = self.weight_bytes as f64 * energy.memory_byte;
        products + reads + self.steps as f64 * weights + values + fetches
    }
}
