//! The properties of caches that decide how a core reads its weights.

use std::sync::{LazyLock, OnceLock};
use std::time::Instant;

use super::ceilings::l3_buffer_bytes;
use super::types::Topology;
use gatestream_kernels::probe::read_sum;
use gatestream_kernels::{Blocking, Isa, Prefetch, Stripes, TALL_TILE_ROWS};

/// How long a core waits for the third level of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum L3Latency {
    /// A few cores have a third level of their own, or there is none.
    Low,
    /// Slices of it are spread over the chip.
    High,
}

/// The caches as kernels need to know them.
#[derive(Clone, Debug)]
pub struct CacheModel {
    private_bytes: usize,
    l3: OnceLock<L3Latency>,
}

/// Weights up to this size gain nothing by other blocking, whatever the size of the private caches.
const MIN_BYTES: usize = 2 << 20;

/// Gigabytes per second that one core reads from a third level of low latency, at least. The number
/// of lines that a core can wait for at a time is much the same everywhere, so that its bandwidth
/// measures the latency.
const MIN_LOW_LATENCY_GBPS: f64 = 45.0;

impl CacheModel {
    /// A model with given numbers.
    pub fn new(private_bytes: usize, l3: L3Latency) -> CacheModel {
        CacheModel {
            private_bytes: private_bytes.max(MIN_BYTES),
            l3: OnceLock::from(l3),
        }
    }

    /// This machine: sizes as [`Topology::detect`] reads them, the latency measured when it is
    /// first asked for, in a few milliseconds. Kept for the life of the process.
    pub fn here() -> &'static CacheModel {
        static HERE: LazyLock<CacheModel> = LazyLock::new(|| {
            let topology = Topology::detect();
            let core = topology.cores.first();
            let private = core.map_or(0, |core| topology.private_cache_bytes(core));
            CacheModel {
                private_bytes: private.max(MIN_BYTES),
                l3: OnceLock::new(),
            }
        });
        &HERE
    }

    /// Bytes of weights that a core's private caches hold from step to step; 2 MiB at least.
    pub fn private_bytes(&self) -> usize {
        self.private_bytes
    }

    /// Whether `bytes` of weights exceed the private caches.
    pub fn exceeds_private(&self, bytes: usize) -> bool {
        bytes > self.private_bytes
    }

    /// How long a core waits for the third level.
    pub fn l3(&self) -> L3Latency {
        *self.l3.get_or_init(|| match l3_gbps(&Topology::detect()) {
            Some(gbps) if gbps < MIN_LOW_LATENCY_GBPS => L3Latency::High,
            _ => L3Latency::Low,
        })
    }

    /// The blocking for a core that reads `step_bytes` of weights at each step, with panels in one
    /// stripe.
    pub fn blocking(&self, step_bytes: usize) -> Blocking {
        if !self.exceeds_private(step_bytes) {
            return Blocking::default();
        }
        match self.l3() {
            L3Latency::Low => Blocking {
                prefetch: Prefetch::ManyPasses,
                ..Blocking::default()
            },
            L3Latency::High => Blocking {
                tile_rows: *TALL_TILE_ROWS.end(),
                prefetch: Prefetch::AllPasses,
                ..Blocking::default()
            },
        }
    }

    /// The stripes for a core's matrix of `matrix_bytes`: two where two such matrices, as a layer
    /// has, exceed the private caches.
    pub fn stripes(&self, matrix_bytes: usize) -> Stripes {
        if self.exceeds_private(2 * matrix_bytes) {
            Stripes::Two
        } else {
            Stripes::One
        }
    }
}

/// Gigabytes per second that the calling thread reads from the third level: the best of some
/// passes. `None` where the machine describes no third level.
fn l3_gbps(topology: &Topology) -> Option<f64> {
    const PASSES: usize = 10;
    let values = vec![1.0; l3_buffer_bytes(topology)? / size_of::<f32>()];
    let best = Isa::available().into_iter().next()?;
    let seconds = (0..PASSES).filter_map(|_| {
        let start = Instant::now();
        read_sum(best, &values, 1).ok()?;
        Some(start.elapsed().as_secs_f64())
    });
    let shortest = seconds.min_by(f64::total_cmp)?;
    Some(size_of_val(&values[..]) as f64 / shortest * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_in_private_caches_need_no_blocking() {
        for l3 in [L3Latency::Low, L3Latency::High] {
            for private in [0, 1 << 20, 2 << 20, 3 << 20] {
                let caches = CacheModel::new(private, l3);
                let limit = private.max(2 << 20);
                assert_eq!(caches.private_bytes(), limit);
                assert_eq!(caches.blocking(limit), Blocking::default());
                assert_eq!(caches.stripes(limit / 2), Stripes::One);
                assert_ne!(caches.blocking(limit + 1), Blocking::default());
                assert_eq!(caches.stripes(limit / 2 + 1), Stripes::Two);
            }
        }
    }

    #[test]
    fn the_third_level_is_measured_where_there_is_one() {
        let topology = Topology::count_only(&[0], "a test".into());
        assert_eq!(l3_gbps(&topology), None);
        assert!(l3_gbps(&Topology::detect()).is_none_or(|gbps| gbps > 0.0));
        assert_eq!(CacheModel::here().l3(), CacheModel::here().l3());
    }
}
