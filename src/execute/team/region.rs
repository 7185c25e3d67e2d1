//! The state that the threads of a team share, and one parallel region on them.

use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::ptr;

use super::TeamPanicked;
use super::barrier::{Barrier, Broken};
use super::gate::{Epoch, Gate};
use super::panic::catch_panic;
use super::progress::{Progress, Track};
use super::spin::SpinPolicy;
use super::sync::{AtomicPtr, AtomicU32, Ordering};

/// The job of a region.
type Job<'a> = &'a (dyn for<'w> Fn(Worker<'w>) + Sync + 'a);

/// One member of the team, inside a region: what a job is called with.
///
/// It cannot outlive the job nor move to another thread: a worker counts once at each barrier.
pub struct Worker<'a> {
    /// From 0 (the thread that called `run`) to [`threads`](Self::threads) − 1.
    pub index: usize,
    workers: u32,
    region: &'a Region,
    /// Neither `Send` nor `Sync`.
    stays_here: PhantomData<*const ()>,
}

impl Worker<'_> {
    /// How many workers the region has.
    #[must_use]
    #[inline]
    pub fn threads(&self) -> usize {
        self.workers as usize
    }

    /// Waits until all workers of the region have called it equally often. Each then sees what all
    /// have written before. With one worker it does nothing.
    ///
    /// # Panics
    /// Unwinds out of the job, silently, if another worker has panicked or has ended its job, so
    /// that the wait would never end. `run` then reports which of the two.
    #[inline]
    pub fn barrier(&self) {
        if self.workers > 1
            && let Err(broken) = self.region.barrier.arrive(self.workers, self.region.spin)
        {
            self.give_up(broken);
        }
    }

    /// Adds one to this worker's own counter on `track`, which is 0 at the start of every region.
    /// A worker that waits for the count then sees all earlier writes of this worker.
    #[inline]
    pub fn advance(&self, track: Track) {
        self.region.slots[self.index].progress.on(track).advance();
    }

    /// Waits until worker `worker` has called [`advance`](Self::advance) on `track` at least `count`
    /// times in this region; returns at once if it has. Counts wrap with `u32`: right while the two
    /// are less than 2²⁹ apart.
    ///
    /// Workers that wait for each other in a circle deadlock.
    ///
    /// # Panics
    /// Unwinds out of the job, silently, if the wait would never end: the other worker has panicked
    /// or ended its job without reaching the count, or is this worker, or is not in the region.
    /// `run` then reports the panic, or [`TeamPanicked::Barrier`].
    #[inline]
    pub fn wait_for(&self, worker: usize, track: Track, count: u32) {
        let reached = if worker == self.index {
            self.region.slots[worker].progress.on(track).has(count)
        } else if worker < self.threads() {
            let counter = self.region.slots[worker].progress.on(track);
            counter.wait(count, self.region.spin).is_ok()
        } else {
            false
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
struct Abandoned;

/// `Region::failed` is the index of the worker that panicked first, or one of these.
const NONE: u32 = u32::MAX;
const UNEQUAL: u32 = u32::MAX - 1;

/// The part of one worker.
struct Slot {
    /// Opened by the caller when there is a job for this worker, which waits here between regions.
    /// One gate each, so that a region on part of the team does not wake the others.
    start: Gate,
    progress: Progress,
}

pub(super) struct Region {
    /// One per worker; worker 0's `start` is not used.
    slots: Box<[Slot]>,
    spin: SpinPolicy,
    /// The number of workers of the present region.
    workers: AtomicU32,
    /// Points to the [`Job`] on the caller's stack; null ends the threads.
    job: AtomicPtr<()>,
    /// The first failure in this region.
    failed: AtomicU32,
    barrier: Barrier,
    /// Opened by the last worker to leave, unless that is the caller, which waits here.
    done: Gate,
}

impl Region {
    pub(super) fn new(threads: u32, spin: SpinPolicy) -> Self {
        let slot = |_| Slot {
            start: Gate::new(),
            progress: Progress::new(),
        };
        Self {
            slots: (0..threads).map(slot).collect(),
            spin,
            workers: AtomicU32::new(0),
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

    /// One region: `job` on workers 0 to `workers` − 1, index 0 here; at least 1, at most the team's.
    /// Only one caller at a time, which the exclusive borrow of the team ensures.
    pub(super) fn run(&self, workers: u32, job: Job<'_>) -> Result<(), TeamPanicked> {
        // All workers wait at their `start`, or have left a region and use nothing but `start`: the
        // caller has exclusive access to the rest.
        self.failed.store(NONE, Ordering::Relaxed);
        let taking_part = &self.slots[..workers as usize];
        for slot in taking_part {
            slot.progress.reset();
        }
        if workers == 1 {
            self.take_part(0, workers, || job);
            return self.outcome();
        }
        self.barrier.reset();
        self.workers.store(workers, Ordering::Relaxed);
        self.job
            .store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let done = self.done.epoch().expect("this gate is never broken");
        for (index, slot) in taking_part.iter().enumerate().skip(1) {
            // Publishes the stores above.
            slot.start.open(self.first(index));
        }
        let last = self.take_part(0, workers, || job);
        if !last {
            let _open = self.done.wait(done, self.spin);
        }
        self.outcome()
    }

    /// The result of the region, after all workers have left it.
    fn outcome(&self) -> Result<(), TeamPanicked> {
        match self.failed.load(Ordering::Relaxed) {
            NONE => Ok(()),
            UNEQUAL => Err(TeamPanicked::Barrier),
            worker => Err(TeamPanicked::Job {
                worker: worker as usize,
            }),
        }
    }

    /// The loop of a spawned worker.
    pub(super) fn work(&self, index: usize, mut seen: Epoch) {
        loop {
            let _open = self.slots[index].start.wait(seen, self.spin);
            // Only the caller opens `start`, and not again before this worker has left the region.
            seen = self.first(index);
            let job: *mut () = self.job.load(Ordering::Relaxed);
            if job.is_null() {
                return;
            }
            let workers = self.workers.load(Ordering::Relaxed);
            // SAFETY: `run` has stored a pointer to its own `job` of this type, published it by
            // opening `start`, and does not return before this worker has left the region; the
            // reference is not used after that (`take_part` drops it before).
            let fetch = || unsafe { *job.cast::<Job<'_>>().cast_const() };
            if self.take_part(index, workers, fetch) {
                self.done
                    .open(self.done.epoch().expect("this gate is never broken"));
            }
        }
    }

    /// Runs one worker's part of a region and leaves it. Returns whether all others had left.
    ///
    /// Takes the job as a closure's result, because a reference passed as an argument would have to
    /// stay valid until the return, and the job is gone once the last worker has left.
    #[inline]
    fn take_part<'a>(&self, index: usize, workers: u32, job: impl FnOnce() -> Job<'a>) -> bool {
        let worker = Worker {
            index,
            workers,
            region: self,
            stays_here: PhantomData,
        };
        // The caller gets an error, and owns what the job may have left incomplete.
        if let Err(panicked) = catch_panic(|| job()(worker))
            && !panicked.is::<Abandoned>()
        {
            self.fail(index as u32);
        }
        if workers == 1 {
            return true;
        }
        // After `fail`, so that a waiter finds the failure recorded; before leaving, because the
        // counters may be those of the next region afterwards.
        self.slots[index].progress.close();
        self.barrier
            .leave(workers)
            .or_else(|_awaited| {
                self.fail(UNEQUAL);
                self.barrier.leave(workers)
            })
            .unwrap_or_else(|_| unreachable!("a worker can always leave a broken barrier"))
    }

    #[cold]
    fn fail(&self, failure: u32) {
        // Relaxed: the caller reads it after all have left. The first failure is reported.
        let _ = self
            .failed
            .compare_exchange(NONE, failure, Ordering::Relaxed, Ordering::Relaxed);
        self.barrier.break_down();
    }

    /// Ends the spawned workers. Not during a region.
    pub(super) fn dismiss(&self) {
        self.job.store(ptr::null_mut(), Ordering::Relaxed);
        for (index, slot) in self.slots.iter().enumerate().skip(1) {
            slot.start.open(self.first(index));
        }
    }
}
