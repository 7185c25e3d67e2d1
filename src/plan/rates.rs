//! The machine, as an estimate assumes it.

use std::sync::OnceLock;

use crate::machine::Topology;
use crate::model::Precision;
use crate::partition::Cache;

/// Rates and sizes of one core. The sizes are this machine's. The rates are those of a typical
/// server core: only their proportions matter, since they select a plan and predict no time.
/// Barriers, regions and gates are timed by `cargo bench --bench barrier` and in
/// `tuning/README.md`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Multiply-add operations per second in f32, times two.
    pub flops: f64,
    /// Bytes per second from the first and second level, and from the shared cache.
    pub bandwidth: [f64; 3],
    /// Bytes of the first and the second level.
    pub private: [usize; 2],
    /// Seconds of a barrier.
    pub meeting: f64,
    /// Seconds to wake the other workers and to join them, once per run.
    pub region: f64,
    /// Seconds per gate and vector of units, for activations.
    pub gate: f64,
    /// Fixed seconds of a phase.
    pub phase: f64,
}

/// Speed of products in other precisions over that of f32, with all weights in caches. Widening
/// bf16 costs a tenth.
const INT8_SPEED: f64 = 1435.0 / 405.0;
const BF16_SPEED: f64 = 0.9;

/// Lines of a set of a second-level cache, which the system does not tell. The exact number hardly
/// matters.
pub(super) const WAYS: usize = 16;
/// Bytes of a page, and so of a way of most first-level caches.
pub(super) const PAGE: usize = 4096;

impl Rates {
    /// With the private caches of this machine's first core, read once.
    pub fn here() -> &'static Rates {
        static RATES: OnceLock<Rates> = OnceLock::new();
        RATES.get_or_init(|| {
            let topology = Topology::detect();
            let bytes = |level: u8| {
                let core = topology.cores.first()?;
                Some(topology.cache_at(core, level)?.bytes)
            };
            Rates::of([bytes(1).unwrap_or(32 << 10), bytes(2).unwrap_or(256 << 10)])
        })
    }

    /// With private caches of these sizes.
    pub fn of(private: [usize; 2]) -> Rates {
        Rates {
            flops: 220e9,
            bandwidth: [350e9, 200e9, 80e9],
            private,
            meeting: 0.21e-6,
            region: 1e-6,
            gate: 3.5e-9,
            phase: 0.08e-6,
        }
    }

    /// Multiply-add operations per second of products with weights of a precision, times two.
    pub fn operations(&self, precision: Precision) -> f64 {
        match precision {
            Precision::F32 => self.flops,
            Precision::Bf16 => BF16_SPEED * self.flops,
            Precision::Int8 => INT8_SPEED * self.flops,
        }
    }

    /// A private cache as the partition's model sees it.
    pub fn cache(&self, level: usize) -> Cache {
        Cache::new(self.private[level], WAYS, PAGE)
    }
}
