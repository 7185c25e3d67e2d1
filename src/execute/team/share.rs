//! What a job is called with: the workers that the calling thread stands for.

use std::marker::PhantomData;
use std::panic::resume_unwind;

use super::barrier::Broken;
use super::lateness::Watch;
use super::progress::Track;
use super::region::{Region, UNEQUAL};
use super::spin::SpinPolicy;

/// The workers of a region that one thread stands for: a job does the part of each of them.
///
/// Usually that is one. Where a core of the team is busy with something else, or gone, threads with
/// a core of their own do the part of those without
/// ([`Team::run_shares`](super::Team::run_shares)). A job takes its workers through the same events
/// in turns: it does a step for each of them before it [waits](Share::wait_for) for anybody else's,
/// so that no wait is for a worker of its own.
///
/// It cannot outlive the job nor move to another thread.
pub struct Share<'a> {
    pub(super) thread: usize,
    pub(super) threads: u32,
    pub(super) workers: u32,
    /// The thread stands for itself alone.
    pub(super) alone: bool,
    pub(super) region: &'a Region,
    pub(super) spin: SpinPolicy<'a>,
    /// Neither `Send` nor `Sync`.
    pub(super) stays_here: PhantomData<*const ()>,
}

impl Share<'_> {
    /// How many workers the region has.
    #[must_use]
    #[inline]
    pub fn workers(&self) -> usize {
        self.workers as usize
    }

    /// How many threads these are shared among.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads as usize
    }

    /// Whether this thread stands for `worker`.
    #[must_use]
    #[inline]
    pub fn has(&self, worker: usize) -> bool {
        if self.alone {
            worker == self.thread
        } else {
            // Relaxed: published with the region.
            self.region.stands_in(worker) == self.thread
        }
    }

    /// The indices of its workers, ascending: of all of the region, from 0.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let range = if self.alone {
            self.thread..self.thread + 1
        } else {
            0..self.workers()
        };
        range.filter(|&worker| self.alone || self.has(worker))
    }

    fn watching(&self, peer: Option<u32>) -> SpinPolicy<'_> {
        self.spin.watching(Watch {
            lateness: &self.region.lateness,
            me: self.thread as u32,
            peer,
            threads: self.workers,
        })
    }

    /// Waits until all threads of the region have called it equally often. Each then sees what all
    /// have written before. With one thread it does nothing.
    ///
    /// # Panics
    /// As [`Worker::barrier`].
    #[inline]
    pub fn barrier(&self) {
        if self.threads > 1 {
            let spin = self.watching(None);
            if let Err(broken) = self.region.barrier.arrive(self.threads, spin) {
                self.give_up(broken);
            }
        }
    }

    /// [`Worker::advance`] of one of its workers.
    #[inline]
    pub fn advance(&self, worker: usize, track: Track) {
        debug_assert!(self.has(worker));
        self.region.counter(worker, track).advance();
    }

    /// [`Worker::wait_for`]. One of its own workers must have got so far.
    ///
    /// # Panics
    /// As [`Worker::wait_for`].
    #[inline]
    pub fn wait_for(&self, worker: usize, track: Track, count: u32) {
        let reached = if worker >= self.workers() {
            false
        } else if self.has(worker) {
            self.region.counter(worker, track).has(count)
        } else {
            let thread = if self.threads == self.workers {
                worker
            } else {
                self.region.stands_in(worker)
            };
            let counter = self.region.counter(worker, track);
            counter
                .wait(count, self.watching(Some(thread as u32)))
                .is_ok()
        };
        if !reached {
            // If that worker failed, its failure is recorded already.
            self.give_up(Broken::Unequal);
        }
    }

    #[cold]
    fn give_up(&self, broken: Broken) {
        if broken == Broken::Unequal {
            self.region.fail(UNEQUAL);
        }
        // A barrier in a destructor that runs because this worker panics: to unwind again would
        // abort the process.
        if !std::thread::panicking() {
            resume_unwind(Box::new(Abandoned));
        }
    }
}

/// The payload of an unwinding that another worker's failure has caused.
pub(super) struct Abandoned;

/// One member of the team, on a thread of its own, inside a region: what a job is called with.
///
/// It cannot outlive the job nor move to another thread: a worker counts once at each barrier.
pub struct Worker<'a> {
    /// From 0 (the thread that called `run`) to [`threads`](Self::threads) − 1.
    pub index: usize,
    pub(super) share: &'a Share<'a>,
}

impl Worker<'_> {
    /// How many workers the region has.
    #[must_use]
    #[inline]
    pub fn threads(&self) -> usize {
        self.share.workers()
    }

    /// The same, as the share of a thread that stands for this worker alone.
    #[must_use]
    pub fn share(&self) -> &Share<'_> {
        self.share
    }

    /// Waits until all workers of the region have called it equally often. Each then sees what all
    /// have written before. With one worker it does nothing.
    ///
    /// # Panics
    /// Unwinds out of the job, silently, if another worker has panicked or has ended its job, so
    /// that the wait would never end. `run` then reports which of the two.
    #[inline]
    pub fn barrier(&self) {
        self.share.barrier();
    }

    /// Adds one to this worker's own counter on `track`, which is 0 at the start of every region.
    /// A worker that waits for the count then sees all earlier writes of this worker.
    #[inline]
    pub fn advance(&self, track: Track) {
        self.share.advance(self.index, track);
    }

    /// Waits until worker `worker` has called [`advance`](Self::advance) on `track` at least
    /// `count` times in this region; returns at once if it has. Counts wrap with `u32`: right while
    /// the two are less than 2²⁹ apart.
    ///
    /// Workers that wait for each other in a circle deadlock.
    ///
    /// # Panics
    /// Unwinds out of the job, silently, if the wait would never end: the other worker has panicked
    /// or ended its job without reaching the count, or is this worker, or is not in the region.
    /// `run` then reports the panic, or [`TeamPanicked::Barrier`](super::TeamPanicked::Barrier).
    #[inline]
    pub fn wait_for(&self, worker: usize, track: Track, count: u32) {
        self.share.wait_for(worker, track, count);
    }
}
