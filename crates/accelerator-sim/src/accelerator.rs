//! Accelerators as cycles.

use crate::network::Network;

/// An accelerator of Table 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accelerator {
    /// Its units of computation.
    pub units: Units,
    /// Lanes: sequences that are evaluated side by side.
    pub lanes: usize,
    /// Clock, in Hz.
    pub clock: f64,
    /// Bandwidth of the main memory, in bytes a second.
    pub memory_bandwidth: f64,
}

/// Units of computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// A dot product of this width in each lane, for each gate in parallel (E-PUR).
    DotProducts {
        /// Products in a cycle.
        width: usize,
    },
    /// A systolic array whose outputs stay where they are computed: a row for each sequence, a
    /// column for each unit.
    Systolic {
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    },
}

/// A product of matrices: `[rows, depth] · [depth, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of the left matrix (M).
    pub rows: usize,
    /// Columns of the right matrix (N).
    pub columns: usize,
    /// Columns of the left matrix and rows of the right one (K).
    pub depth: usize,
}

/// Cycles of a product on an output-stationary array, as SCALE-Sim 2.0.2 and 3.0.0 report them.
///
/// Each fold of the outputs onto the array takes `depth + rows + columns - 2` cycles of the array;
/// the report counts from 0.
pub fn systolic_cycles(rows: usize, columns: usize, product: Product) -> u64 {
    let folds = product.rows.div_ceil(rows) * product.columns.div_ceil(columns);
    (folds * (product.depth + rows + columns - 2)) as u64 - 1
}

impl Accelerator {
    /// E-PUR: 500 MHz, dot products of 64, weights of a layer in 4 buffers of 2 MiB, DDR4 with
    /// 25.6 GB/s.
    pub const fn e_pur(lanes: usize) -> Accelerator {
        Accelerator {
            units: Units::DotProducts { width: 64 },
            lanes,
            clock: 500e6,
            memory_bandwidth: 25.6e9,
        }
    }

    /// The TPU-like array: 700 MHz, 128 × 128, the same memory.
    pub const fn systolic(lanes: usize) -> Accelerator {
        Accelerator {
            units: Units::Systolic {
                rows: 128,
                columns: 128,
            },
            lanes,
            clock: 700e6,
            memory_bandwidth: 25.6e9,
        }
    }

    /// Cycles of one step of a layer, on all lanes.
    pub fn step_cycles(&self, network: &Network) -> u64 {
        match self.units {
            Units::DotProducts { width } => {
                let of_unit = network.features().div_ceil(width);
                (network.hidden_size * of_unit) as u64
            }
            Units::Systolic { rows, columns } => {
                let product = Product {
                    rows: self.lanes,
                    columns: network.gates * network.hidden_size,
                    depth: network.features(),
                };
                // The last cycle has the number that the report gives.
                systolic_cycles(rows, columns, product) + 1
            }
        }
    }

    /// Nanoseconds of one step of a layer.
    pub fn step_time(&self, network: &Network) -> u64 {
        (self.step_cycles(network) as f64 * 1e9 / self.clock).round() as u64
    }

    /// Nanoseconds of reading the weights of a layer from the main memory.
    pub fn fetch_time(&self, network: &Network) -> u64 {
        (network.weight_bytes() as f64 * 1e9 / self.memory_bandwidth).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SCALE-Sim 3.0.0: rows and columns of the array, M, N, K, cycles.
    #[test]
    fn cycles_are_those_of_scale_sim() {
        for (rows, columns, m, n, k, cycles) in [
            (8, 8, 8, 32, 16, 119),
            (4, 8, 10, 33, 16, 389),
            (8, 8, 3, 32, 16, 119),
            (8, 4, 8, 32, 16, 207),
            (16, 16, 16, 128, 64, 751),
        ] {
            let product = Product {
                rows: m,
                columns: n,
                depth: k,
            };
            assert_eq!(systolic_cycles(rows, columns, product), cycles);
        }
    }

    /// An LSTM gate of 1024 units has 1024 · 2048 products, 64 in a cycle of 2 ns.
    #[test]
    fn times_of_table_1_on_table_2() {
        let (e_pur, tpu) = (Accelerator::e_pur(64), Accelerator::systolic(128));
        let (mnmt, speech) = (Network::mnmt(), Network::deep_speech_2());
        assert_eq!(e_pur.step_time(&mnmt), 1024 * 2048 / 64 * 2);
        assert_eq!(e_pur.step_time(&speech), 800 * 1600 / 64 * 2);
        assert_eq!(tpu.step_cycles(&mnmt), 73_664);
        // 8 MiB and 3.84 MB at 25.6 GB/s.
        assert_eq!(e_pur.fetch_time(&mnmt), 327_680);
        assert_eq!(e_pur.fetch_time(&speech), 150_000);
    }
}
