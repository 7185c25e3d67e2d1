//! The state that the threads of a team share.

use std::ptr;

use super::TeamPanicked;
use super::barrier::Barrier;
use super::gate::{Epoch, Gate};
use super::lateness::{Lateness, Watch};
use super::pin::Home;
use super::progress::{Counter, Progress, Track};
use super::spin::SpinPolicy;
use super::sync::{AtomicPtr, AtomicU32, Ordering};

/// `Region::failed` is the index of the thread that panicked first, or one of these.
pub(super) const NONE: u32 = u32::MAX;
pub(super) const UNEQUAL: u32 = u32::MAX - 1;

/// The part of one thread, and of the worker of that index.
pub(super) struct Slot {
    /// Opened by the caller when there is a job for this thread, which waits here between regions.
    /// One gate each, so that a region on part of the team does not wake the others.
    pub(super) start: Gate,
    pub(super) progress: Progress,
    /// The thread that stands for the worker, in a narrow region.
    pub(super) stands_in: AtomicU32,
    pub(super) home: Home,
}

/// How a region is run; a set of these.
#[derive(Clone, Copy, Default)]
pub(super) struct Mode(pub(super) u32);

impl Mode {
    /// Each thread for itself.
    pub(super) const APART: Mode = Mode(0);
    /// Some threads stand for workers whose threads are left out.
    pub(super) const NARROW: Mode = Mode(1);
    /// Some threads may be without a processor: waits do not spin.
    pub(super) const CROWDED: Mode = Mode(2);
    /// Threads look first whether they are still where they were pinned.
    pub(super) const TRIAL: Mode = Mode(4);

    pub(super) fn is(self, other: Mode) -> bool {
        self.0 & other.0 != 0
    }
}

pub(super) struct Region {
    /// One per worker; worker 0's `start` is not used.
    pub(super) slots: Box<[Slot]>,
    pub(super) spin: SpinPolicy<'static>,
    pub(super) lateness: Lateness,
    /// The number of workers of the present region.
    pub(super) workers: AtomicU32,
    /// The number of threads that run it.
    pub(super) threads: AtomicU32,
    /// Its [`Mode`].
    pub(super) mode: AtomicU32,
    /// Points to the job on the caller's stack; null ends the threads.
    pub(super) job: AtomicPtr<()>,
    /// The first failure in this region.
    pub(super) failed: AtomicU32,
    pub(super) barrier: Barrier,
    /// Opened by the last worker to leave, unless that is the caller, which waits here.
    pub(super) done: Gate,
}

impl Region {
    pub(super) fn new(threads: u32, spin: SpinPolicy<'static>) -> Self {
        let slot = |index| Slot {
            start: Gate::new(),
            progress: Progress::new(),
            stands_in: AtomicU32::new(index),
            home: Home::default(),
        };
        Self {
            slots: (0..threads).map(slot).collect(),
            spin,
            lateness: Lateness::new(threads as usize),
            workers: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            mode: AtomicU32::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            failed: AtomicU32::new(NONE),
            barrier: Barrier::new(),
            done: Gate::new(),
        }
    }

    /// The epoch from which a worker waits for its first job. Called before it is spawned.
    pub(super) fn first(&self, index: usize) -> Epoch {
        self.slots[index]
            .start
            .epoch()
            .expect("this gate is never broken")
    }

    /// The thread that stands for a worker in a narrow region.
    #[inline]
    pub(super) fn stands_in(&self, worker: usize) -> usize {
        // Relaxed: published with the region.
        self.slots[worker].stands_in.load(Ordering::Relaxed) as usize
    }

    #[inline]
    pub(super) fn counter(&self, worker: usize, track: Track) -> &Counter {
        self.slots[worker].progress.on(track)
    }

    /// Where a thread is pinned.
    pub(super) fn home(&self, thread: usize) -> &Home {
        &self.slots[thread].home
    }

    pub(super) fn watch(&self, me: usize, workers: u32) -> Watch<'_> {
        Watch {
            lateness: &self.lateness,
            me: me as u32,
            peer: None,
            threads: workers,
        }
    }

    #[inline]
    pub(super) fn spin_in(&self, mode: Mode) -> SpinPolicy<'_> {
        if mode.is(Mode::CROWDED) {
            SpinPolicy::NONE
        } else {
            self.spin
        }
    }

    /// The result of the region, after all workers have left it.
    pub(super) fn outcome(&self) -> Result<(), TeamPanicked> {
        match self.failed.load(Ordering::Relaxed) {
            NONE => Ok(()),
            UNEQUAL => Err(TeamPanicked::Barrier),
            worker => Err(TeamPanicked::Job {
                worker: worker as usize,
            }),
        }
    }

    #[cold]
    pub(super) fn fail(&self, failure: u32) {
        // Relaxed: the caller reads it after all have left. The first failure is reported.
        let _ = self
            .failed
            .compare_exchange(NONE, failure, Ordering::Relaxed, Ordering::Relaxed);
        self.barrier.break_down();
    }
}
