//! What the threads of a team share, and the course of one parallel region.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use super::TeamPanicked;
use super::barrier::{Barrier, Broken};
use super::gate::{Epoch, Gate};
use super::patience::Awake;
use super::sync::{AtomicPtr, AtomicU32, Ordering};

/// A job as the workers see it.
type Job<'a> = &'a (dyn for<'w> Fn(Worker<'w>) + Sync + 'a);

/// One member of the team, inside a region: what a job is called with.
///
/// It can neither be kept, nor given to another thread: a worker counts once at each barrier.
pub struct Worker<'a> {
    /// Which one: 0 (the thread that called `run`) up to, not including, [`threads`](Self::threads).
    pub index: usize,
    region: &'a Region,
    /// Neither `Send` nor `Sync`.
    stays_here: PhantomData<*const ()>,
}

impl Worker<'_> {
    /// How many workers the region has.
    #[must_use]
    #[inline]
    pub fn threads(&self) -> usize {
        self.region.threads as usize
    }

    /// Waits until all workers of the region have called it equally often. What any of them has
    /// written before, all of them see after. With one worker it does nothing.
    ///
    /// # Panics
    /// Unwinds out of the job, silently, where it would wait in vain: another worker has panicked,
    /// or has ended its job and so will never come. `run` then reports which of the two.
    #[inline]
    pub fn barrier(&self) {
        if self.region.threads > 1
            && let Err(broken) = self.region.barrier.arrive(self.region.awake)
        {
            self.give_up(broken);
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

/// What `Region::failed` holds while nobody has failed; otherwise the index of who panicked, or this:
const NOBODY: u32 = u32::MAX;
const UNEQUAL: u32 = u32::MAX - 1;

pub(super) struct Region {
    threads: u32,
    awake: Awake,
    /// Points to the [`Job`] on the caller's stack; null: the team is being dismissed.
    job: AtomicPtr<()>,
    /// Who failed first in this region.
    failed: AtomicU32,
    /// Opened by the caller when there is a new job; the spawned workers wait here between runs.
    start: Gate,
    barrier: Barrier,
    /// Opened by the last to leave, if that is a spawned worker; only the caller waits here.
    done: Gate,
}

impl Region {
    pub(super) fn new(threads: u32, awake: Awake) -> Self {
        Self {
            threads,
            awake,
            job: AtomicPtr::new(ptr::null_mut()),
            failed: AtomicU32::new(NOBODY),
            start: Gate::new(),
            barrier: Barrier::new(threads),
            done: Gate::new(),
        }
    }

    /// Where a worker's wait for its first job starts; to be asked before it is spawned.
    pub(super) fn first(&self) -> Epoch {
        self.start.epoch().expect("nobody breaks this gate")
    }

    /// One region: `job` on every worker, index 0 here. Only one caller at a time, which the
    /// exclusive borrow of the team ensures.
    pub(super) fn run(&self, job: Job<'_>) -> Result<(), TeamPanicked> {
        // All workers are waiting at `start`, or on their way there from the end of the last region,
        // after which they touch nothing but `start`: what follows is ours alone.
        if self.threads > 1 {
            self.barrier.reset();
        }
        self.failed.store(NOBODY, Ordering::Relaxed);
        let (start, done) = (
            self.first(),
            self.done.epoch().expect("nobody breaks this gate"),
        );
        self.job
            .store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        if self.threads > 1 {
            // Publishes the four stores above.
            self.start.open(start);
        }
        let last = self.take_part(0, || job);
        if !last {
            let _open = self.done.wait(done, self.awake);
        }
        // From here on nobody holds `job` any more.
        match self.failed.load(Ordering::Relaxed) {
            NOBODY => Ok(()),
            UNEQUAL => Err(TeamPanicked::Barrier),
            worker => Err(TeamPanicked::Job {
                worker: worker as usize,
            }),
        }
    }

    /// The life of a spawned worker.
    pub(super) fn work(&self, index: usize, mut seen: Epoch) {
        loop {
            let _open = self.start.wait(seen, self.awake);
            // Only the caller opens `start`, and not again before this worker has left the region.
            seen = self.first();
            let job: *mut () = self.job.load(Ordering::Relaxed);
            if job.is_null() {
                return;
            }
            // SAFETY: `run` has stored a pointer to its own `job` of this type, published it by
            // opening `start`, and does not return before this worker has left the region; the
            // reference is not used after that (`take_part` drops it before).
            let fetch = || unsafe { *job.cast::<Job<'_>>().cast_const() };
            if self.take_part(index, fetch) {
                self.done
                    .open(self.done.epoch().expect("nobody breaks this gate"));
            }
        }
    }

    /// Does one worker's part of a region and leaves it; returns whether all others had left.
    ///
    /// Takes the job as a closure's result, because a reference passed as an argument would have to
    /// stay valid until the return, and the job is gone once the last worker has left.
    #[inline]
    fn take_part<'a>(&self, index: usize, job: impl FnOnce() -> Job<'a>) -> bool {
        let worker = Worker {
            index,
            region: self,
            stays_here: PhantomData,
        };
        // AssertUnwindSafe: what the job leaves half done belongs to the caller, who gets an error.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job()(worker))) {
            if !payload.is::<Abandoned>() {
                self.fail(index as u32);
            }
            // A payload may panic when dropped; that one's payload is left alone.
            if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(worse);
            }
        }
        if self.threads == 1 {
            return true;
        }
        self.barrier
            .leave()
            .or_else(|_awaited| {
                self.fail(UNEQUAL);
                self.barrier.leave()
            })
            .unwrap_or_else(|_| unreachable!("a broken barrier lets everybody leave"))
    }

    #[cold]
    fn fail(&self, failure: u32) {
        // Relaxed: the caller reads it after all have left. The first failure is the one to name.
        let _ = self
            .failed
            .compare_exchange(NOBODY, failure, Ordering::Relaxed, Ordering::Relaxed);
        self.barrier.break_down();
    }

    /// Sends the spawned workers home. Only after, not during, a region.
    pub(super) fn dismiss(&self) {
        self.job.store(ptr::null_mut(), Ordering::Relaxed);
        self.start.open(self.first());
    }
}
