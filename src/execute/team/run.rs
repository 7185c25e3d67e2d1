//! One parallel region: the job is handed out, each thread takes part, the caller collects.

use std::marker::PhantomData;
use std::ptr;

use super::TeamPanicked;
use super::gate::Epoch;
use super::panic::catch_panic;
use super::region::{Mode, NONE, Region, Slot, UNEQUAL};
use super::share::{Abandoned, Share};
use super::sync::Ordering;

/// The job of a region.
type Job<'a> = &'a (dyn for<'s> Fn(&'s Share<'s>) + Sync + 'a);

impl Region {
    /// One region: `job` for workers 0 to `workers` − 1; at least 1, at most the team's. Each runs
    /// on its thread, index 0 here; in a narrow region, the threads that are not `out` run all
    /// workers. The caller's thread is never out. The exclusive borrow of the team ensures that
    /// there is one caller at a time.
    pub(super) fn run(
        &self,
        workers: u32,
        mode: Mode,
        out: impl Fn(usize) -> bool,
        job: Job<'_>,
    ) -> Result<(), TeamPanicked> {
        // All workers wait at their `start`, or have left a region and use nothing but `start`: the
        // caller has exclusive access to the rest.
        self.failed.store(NONE, Ordering::Relaxed);
        let slots = &self.slots[..workers as usize];
        for slot in slots {
            slot.progress.reset();
        }
        let out = |thread| mode.is(Mode::NARROW) && out(thread);
        let threads = if mode.is(Mode::NARROW) {
            self.share_out(slots, &out)
        } else {
            workers
        };
        if threads == 1 {
            self.take_part(0, (workers, threads, mode), || job);
            return self.outcome();
        }
        self.lateness.enter(0);
        self.barrier.reset();
        self.workers.store(workers, Ordering::Relaxed);
        self.threads.store(threads, Ordering::Relaxed);
        self.mode.store(mode.0, Ordering::Relaxed);
        self.job
            .store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let done = self.done.epoch().expect("this gate is never broken");
        for (index, slot) in slots.iter().enumerate().skip(1) {
            if !out(index) {
                // Publishes the stores above.
                slot.start.open(self.first(index));
            }
        }
        let last = self.take_part(0, (workers, threads, mode), || job);
        if !last {
            let all = self.watch(0, workers);
            let _open = self.done.wait(done, self.spin_in(mode).watching(all));
        }
        self.outcome()
    }

    /// Deals the workers of the threads that are out to those that are not; returns the number of
    /// the latter.
    #[cold]
    pub(super) fn share_out(&self, slots: &[Slot], out: &impl Fn(usize) -> bool) -> u32 {
        let count = (0..slots.len()).filter(|&thread| !out(thread)).count();
        let mut next = (0..slots.len()).filter(|&thread| !out(thread)).cycle();
        for (index, slot) in slots.iter().enumerate() {
            let thread = if out(index) {
                next.next().unwrap_or(0)
            } else {
                index
            };
            // Relaxed: published with the region.
            slot.stands_in.store(thread as u32, Ordering::Relaxed);
        }
        count as u32
    }

    /// The loop of a spawned worker.
    pub(super) fn work(&self, index: usize, mut seen: Epoch) {
        self.lateness.enter(index);
        loop {
            let _open = self.slots[index].start.wait(seen, self.spin);
            // Only the caller opens `start`, and not again before this worker has left the region.
            seen = self.first(index);
            let job: *mut () = self.job.load(Ordering::Relaxed);
            if job.is_null() {
                return;
            }
            let workers = self.workers.load(Ordering::Relaxed);
            let threads = self.threads.load(Ordering::Relaxed);
            let mode = Mode(self.mode.load(Ordering::Relaxed));
            if mode.is(Mode::TRIAL) {
                self.slots[index].home.look();
            }
            // SAFETY: `run` has stored a pointer to its own `job` of this type, published it by
            // opening `start`, and does not return before this worker has left the region; the
            // reference is not used after that (`take_part` drops it before).
            let fetch = || unsafe { *job.cast::<Job<'_>>().cast_const() };
            if self.take_part(index, (workers, threads, mode), fetch) {
                self.done
                    .open(self.done.epoch().expect("this gate is never broken"));
            }
        }
    }

    /// Runs one thread's part of a region and leaves it. Returns whether all others had left.
    ///
    /// Takes the job as a closure's result, because a reference passed as an argument would have to
    /// stay valid until the return, and the job is gone once the last worker has left.
    #[inline]
    pub(super) fn take_part<'a>(
        &self,
        thread: usize,
        (workers, threads, mode): (u32, u32, Mode),
        job: impl FnOnce() -> Job<'a>,
    ) -> bool {
        let share = Share {
            thread,
            threads,
            workers,
            alone: !mode.is(Mode::NARROW),
            region: self,
            spin: self.spin_in(mode),
            stays_here: PhantomData,
        };
        // The caller gets an error, and owns what the job may have left incomplete.
        if let Err(panicked) = catch_panic(|| job()(&share))
            && !panicked.is::<Abandoned>()
        {
            self.fail(thread as u32);
        }
        if threads == 1 {
            return true;
        }
        // After `fail`, so that a waiter finds the failure recorded; before leaving, because the
        // counters may be those of the next region afterwards.
        for worker in share.iter() {
            self.slots[worker].progress.close();
        }
        self.barrier
            .leave(threads)
            .or_else(|_awaited| {
                self.fail(UNEQUAL);
                self.barrier.leave(threads)
            })
            .unwrap_or_else(|_| unreachable!("a worker can always leave a broken barrier"))
    }

    /// Ends the spawned workers. Not during a region.
    pub(super) fn dismiss(&self) {
        self.job.store(ptr::null_mut(), Ordering::Relaxed);
        for (index, slot) in self.slots.iter().enumerate().skip(1) {
            slot.start.open(self.first(index));
        }
    }
}
