//! The barrier within one region, which also counts who has left the region.
//!
//! ```text
//! arrive():  arrived += 1;  last: arrived = 0, open the gate;  else: wait at the gate
//! leave():   left += 1;     last: the region is over
//! ```
//!
//! The real one keeps both counts in one word, so that a thread that arrives after another has left
//! for good (or leaves while another waits) notices it at no extra cost. Without that, jobs that
//! call the barrier unequally often would wait for each other for ever.

use super::gate::{Gate, Passed};
use super::patience::Awake;
use super::sync::{AtomicU32, Ordering, OwnLine};

/// One worker that has left the region; the bits below count arrivals at the present barrier.
const LEFT: u32 = 1 << 16;
const ARRIVED: u32 = LEFT - 1;

/// The most workers the counts have room for.
pub(super) const MOST: usize = (ARRIVED >> 1) as usize;

/// Why a worker must not go on with its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Another worker failed.
    Elsewhere,
    /// Another worker has left the region, and so will never come to this barrier.
    Unequal,
}

/// A worker wants to leave while another waits at a barrier to which the first never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited;

/// How many workers a region has, each `arrive` and `leave` is told: it differs between regions.
pub(super) struct Barrier {
    /// Written by every arrival, read by no waiter.
    counts: OwnLine<AtomicU32>,
    /// Read by the waiters, written by the last arrival (and by who is about to sleep).
    gate: Gate,
}

impl Barrier {
    pub(super) fn new() -> Self {
        Self {
            counts: OwnLine(AtomicU32::new(0)),
            gate: Gate::new(),
        }
    }

    /// Makes it as new, for the next region. Nobody else may be using it.
    pub(super) fn reset(&self) {
        // Relaxed: published with the next region.
        self.counts.0.store(0, Ordering::Relaxed);
        self.gate.mend();
    }

    /// Waits until all `workers` have arrived: what each has written before, all see after.
    #[inline]
    pub(super) fn arrive(&self, workers: u32, awake: Awake) -> Result<(), Broken> {
        // A worker that was told of a break and still comes back is not counted again: at most one
        // arrival each, and none of the worker that failed, can never open the gate by mistake.
        let seen = self.gate.epoch().ok_or(Broken::Elsewhere)?;
        // AcqRel: Release hands this worker's writes on with the count; Acquire collects those of
        // the ones before (the additions form one release sequence), for the last to pass on.
        let before = self.counts.0.fetch_add(1, Ordering::AcqRel);
        if before >= LEFT {
            let broken = self.gate.epoch().is_none();
            return Err(if broken {
                Broken::Elsewhere
            } else {
                Broken::Unequal
            });
        }
        if before + 1 == workers {
            // Relaxed: nobody arrives again before passing the gate, which publishes it.
            self.counts.0.store(0, Ordering::Relaxed);
            self.gate.open(seen);
            return Ok(());
        }
        match self.gate.wait(seen, awake) {
            Passed::Open => Ok(()),
            Passed::Broken => Err(Broken::Elsewhere),
        }
    }

    /// Lets the workers that wait here, or will, go with an error until the region ends.
    #[cold]
    pub(super) fn break_down(&self) {
        self.gate.break_down();
    }

    /// Says that this worker touches nothing of the region's job from now on. Returns whether all
    /// others of the `workers` had left before. An error means: not left; break down, then leave again.
    #[inline]
    pub(super) fn leave(&self, workers: u32) -> Result<bool, Awaited> {
        let mut counts = self.counts.0.load(Ordering::Relaxed);
        loop {
            // Before, not after leaving: once left, the region may be over, and what is broken
            // then is the next one's barrier.
            if counts & ARRIVED != 0 && self.gate.epoch().is_some() {
                return Err(Awaited);
            }
            // AcqRel: as in `arrive`; the last one has seen all that was written in the region.
            match self.counts.0.compare_exchange_weak(
                counts,
                counts + LEFT,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(counts / LEFT + 1 == workers),
                Err(now) => counts = now,
            }
        }
    }
}
