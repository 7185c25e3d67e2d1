//! The barrier within one region, which also counts the workers that have left the region.
//!
//! ```text
//! arrive():  arrived += 1;  last: arrived = 0, open the gate;  else: wait at the gate
//! leave():   left += 1;     last: the region is over
//! ```
//!
//! Both counts are in one word, so a thread that arrives after another has left (or leaves while
//! another waits) detects it at no extra cost. Without that, jobs that call the barrier unequally
//! often would deadlock.

use super::gate::{Gate, Passed};
use super::spin::SpinPolicy;
use super::sync::{AtomicU32, Ordering, OwnLine};

/// One worker that has left the region; the bits below count arrivals at the present barrier.
const LEFT: u32 = 1 << 16;
const ARRIVED: u32 = LEFT - 1;

/// The largest number of workers that the counts hold.
pub(super) const MAX_WORKERS: usize = (ARRIVED >> 1) as usize;

/// Why a worker has to end its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Another worker failed.
    Elsewhere,
    /// Another worker has left the region and cannot arrive at this barrier.
    Unequal,
}

/// A worker is about to leave while another waits for it at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited;

/// The number of workers differs between regions, so `arrive` and `leave` take it as an argument.
pub(super) struct Barrier {
    /// Written by every arrival, read by no waiter.
    counts: OwnLine<AtomicU32>,
    /// Read by the waiters, written by the last arrival and by a thread about to sleep.
    gate: Gate,
}

impl Barrier {
    pub(super) fn new() -> Self {
        Self {
            counts: OwnLine(AtomicU32::new(0)),
            gate: Gate::new(),
        }
    }

    /// Resets the barrier for the next region. No other thread may be using it.
    pub(super) fn reset(&self) {
        // Relaxed: published with the next region.
        self.counts.0.store(0, Ordering::Relaxed);
        self.gate.mend();
    }

    /// Waits until all `workers` have arrived. Afterwards each sees what all wrote before.
    #[inline]
    pub(super) fn arrive(&self, workers: u32, spin: SpinPolicy<'_>) -> Result<(), Broken> {
        // A worker that arrives again after a break is not counted: with at most one arrival each,
        // and none of the worker that failed, the gate cannot open by mistake.
        let seen = self.gate.epoch().ok_or(Broken::Elsewhere)?;
        // AcqRel: Release publishes this worker's writes with the count; Acquire collects those of
        // earlier arrivals (the additions form one release sequence), which the last one publishes.
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
            // Relaxed: no worker arrives again before it passes the gate, which publishes this.
            self.counts.0.store(0, Ordering::Relaxed);
            self.gate.open(seen);
            return Ok(());
        }
        match self.gate.wait(seen, spin) {
            Passed::Open => Ok(()),
            Passed::Broken => Err(Broken::Elsewhere),
        }
    }

    /// Releases present and later waiters with an error until the region ends.
    #[cold]
    pub(super) fn break_down(&self) {
        self.gate.break_down();
    }

    /// Leaves the region: this worker uses nothing of the job from now on. Returns whether all
    /// other `workers` had left before. After an error: break the barrier down, then leave again.
    #[inline]
    pub(super) fn leave(&self, workers: u32) -> Result<bool, Awaited> {
        let mut counts = self.counts.0.load(Ordering::Relaxed);
        loop {
            // Checked before leaving: afterwards the region may be over, and the barrier may be
            // that of the next region.
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
