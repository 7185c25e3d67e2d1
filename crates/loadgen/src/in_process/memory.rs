//! Memory for weights and requests, estimated before any of it is allocated.

use super::EngineSpec;
use crate::workload::{Network, Workload};
use gatestream_serve::scheduler::Limits;

/// Offsets in the pool at which the values of the largest request may begin; smaller requests have
/// more.
const POOL_OFFSETS: u64 = 1 << 22;

/// Numbers of values, all counted as f32.
pub struct Memory {
    /// Weights and embeddings.
    pub weights: u64,
    /// Packed weights of all workers, at most.
    pub packed: u64,
    /// Temporary copies while weights are made and packed.
    pub temporary: u64,
    /// Pool of which the values of requests are slices.
    pub pool: u64,
    /// The largest request while it is served.
    pub request: u64,
}

impl Memory {
    /// The memory for engines of `spec` under `workload`.
    pub fn of(spec: &EngineSpec, workload: &Workload) -> Memory {
        let shape = &spec.shape;
        let [input, hidden, vocabulary] =
            [shape.input, shape.hidden, shape.vocabulary()].map(u64::from);
        // Values of a gate's weights in the layers above the first, divided by the hidden size.
        let upper = u64::from(shape.layers - 1) * 2 * hidden;
        let cells = match spec.network {
            Network::Lstm | Network::Gru => 4 * hidden * (input + hidden + upper),
            Network::TreeChildSum => 4 * hidden * (input + hidden),
            Network::Seq2seq => 8 * hidden * (input + hidden + upper),
            Network::Treelstm => 3 * hidden * input + 10 * hidden * hidden,
        };
        let (projection, embedded) = match spec.network {
            Network::Seq2seq => (vocabulary * hidden, 2 * vocabulary * input),
            _ => (0, 0),
        };
        // Nodes of a tree keep their states for the nodes above; steps of a chain replace them.
        // Cells that run several steps at once may be packed a second time for single steps.
        let (kept, copies) = if spec.network.is_tree() {
            (4 * hidden, 1)
        } else {
            (0, 2)
        };
        let rows = workload.max_rows() as u64;
        Memory {
            weights: cells + projection + embedded,
            // A projection in f32 may be packed in int8 as well.
            packed: (copies * cells + projection * 5 / 4) * spec.workers as u64,
            temporary: cells,
            // Requests of words have no values.
            pool: match spec.network {
                Network::Seq2seq => 0,
                _ => POOL_OFFSETS + rows * input,
            },
            // The list of inputs may have twice the capacity that it needs.
            request: rows * (2 * input + kept),
        }
    }

    /// The required memory; [`limits`] restricts requests to half of the rest.
    pub fn total(&self) -> u64 {
        self.weights + self.packed + self.temporary + self.pool + 2 * self.request
    }
}

/// Limits of the engine's queue: a million requests, as far as memory permits, so that overload
/// shows as waiting, not as rejections. Packed weights reduce the `available` bytes;
/// half of the rest is left for the next request, the scheduler's tables and buffers.
pub fn limits(available: u64, packed: u64) -> Limits {
    let packed = packed * size_of::<f32>() as u64;
    Limits {
        requests: 1 << 20,
        nodes: usize::MAX,
        request_nodes: usize::MAX,
        bytes: (available.saturating_sub(packed) / 2) as usize,
        streams: 0,
        client_requests: usize::MAX,
    }
}
