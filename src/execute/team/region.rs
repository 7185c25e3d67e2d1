//! What the threads of a team share, and the course of one parallel region.

use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::ptr;

use super::TeamPanicked;
use super::barrier::{Barrier, Broken};
use super::gate::{Epoch, Gate};
use super::panic::catch_panic;
use super::patience::Awake;
use super::progress::{Progress, Track};
use super::sync::{AtomicPtr, AtomicU32, Ordering};

/// A job as the workers see it.
type Job<'a> = &'a (dyn for<'w> Fn(Worker<'w>) + Sync + 'a);

/// One member of the team, inside a region: what a job is called with.
///
/// It can neither be kept, nor given to another thread: a worker counts once at each barrier.
pub struct Worker<'a> {
    /// Which one: 0 (the thread that called `run`) up to, not including, [`threads`](Self::threads).
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

    /// Waits until all workers of the region have called it equally often. What any of them has
    /// written before, all of them see after. With one worker it does nothing.
    ///
    /// # Panics
    /// Unwinds out of the job, silently, where it would wait in vain: another worker has panicked,
    /// or has ended its job and so will never come. `run` then reports which of the two.
    #[inline]
    pub fn barrier(&self) {
        if self.workers > 1
            && let Err(broken) = self.region.barrier.arrive(self.workers, self.region.awake)
        {
            self.give_up(broken);
        }
    }

    /// Adds one to this worker's own counter on `track`, which is 0 at the start of every region.
    /// What this worker has written or seen before, whoever waits for the count sees after.
    #[inline]
    pub fn advance(&self, track: Track) {
        self.region.seats[self.index].progress.on(track).advance();
    }

    /// Waits until worker `worker` has called [`advance`](Self::advance) on `track` at least `count`
    /// times in this region; returns at once if it has. Counts wrap with `u32`: right while the two
    /// are less than 2²⁹ apart.
    ///
    /// Workers that wait for each other in a circle wait for ever.
    ///
    /// # Panics
    /// Unwinds out of the job, silently, where it would wait in vain: the other has panicked, or has
    /// ended its job, without reaching the count; or it is this worker itself, or one that is not
    /// part of the region. `run` then reports the panic, or [`TeamPanicked::Barrier`].
    #[inline]
    pub fn wait_for(&self, worker: usize, track: Track, count: u32) {
        let reached = if worker == self.index {
            self.region.seats[worker].progress.on(track).has(count)
        } else if worker < self.threads() {
            let counter = self.region.seats[worker].progress.on(track);
            counter.wait(count, self.region.awake).is_ok()
        } else {
            false
        };
        if !reached {
            // If that worker left because of a failure, this names it already.
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

/// What `Region::failed` holds while nobody has failed; otherwise the index of who panicked, or this:
const NOBODY: u32 = u32::MAX;
const UNEQUAL: u32 = u32::MAX - 1;

/// What belongs to one worker.
struct Seat {
    /// Opened by the caller when there is a job for this worker, which waits here between its
    /// regions. One gate each: a region on some of the team must not wake the others.
    start: Gate,
    progress: Progress,
}

pub(super) struct Region {
    /// One per worker; worker 0's `start` is not used.
    seats: Box<[Seat]>,
    awake: Awake,
    /// How many workers the present region has.
    workers: AtomicU32,
    /// Points to the [`Job`] on the caller's stack; null: the team is being dismissed.
    job: AtomicPtr<()>,
    /// Who failed first in this region.
    failed: AtomicU32,
    barrier: Barrier,
    /// Opened by the last to leave, if that is a spawned worker; only the caller waits here.
    done: Gate,
}

impl Region {
    pub(super) fn new(threads: u32, awake: Awake) -> Self {
        let seat = |_| Seat {
            start: Gate::new(),
            progress: Progress::new(),
        };
        Self {
            seats: (0..threads).map(seat).collect(),
            awake,
            workers: AtomicU32::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            failed: AtomicU32::new(NOBODY),
            barrier: Barrier::new(),
            done: Gate::new(),
        }
    }

    /// Where a worker's wait for its first job starts; to be asked before it is spawned.
    pub(super) fn first(&self, index: usize) -> Epoch {
        self.seats[index]
            .start
            .epoch()
            .expect("nobody breaks this gate")
    }

    /// One region: `job` on workers 0 to `workers` − 1, index 0 here; at least 1, at most the team's.
    /// Only one caller at a time, which the exclusive borrow of the team ensures.
    pub(super) fn run(&self, workers: u32, job: Job<'_>) -> Result<(), TeamPanicked> {
        // All workers are waiting at their `start`, or on their way there from the end of a region,
        // after which they touch nothing but that: what follows is ours alone.
        self.failed.store(NOBODY, Ordering::Relaxed);
        let taking_part = &self.seats[..workers as usize];
        for seat in taking_part {
            seat.progress.reset();
        }
        if workers == 1 {
            self.take_part(0, workers, || job);
            return self.outcome();
        }
        self.barrier.reset();
        self.workers.store(workers, Ordering::Relaxed);
        self.job
            .store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let done = self.done.epoch().expect("nobody breaks this gate");
        for (index, seat) in taking_part.iter().enumerate().skip(1) {
            // Publishes the stores above.
            seat.start.open(self.first(index));
        }
        let last = self.take_part(0, workers, || job);
        if !last {
            let _open = self.done.wait(done, self.awake);
        }
        self.outcome()
    }

    /// How the region ended; nobody holds its job any more.
    fn outcome(&self) -> Result<(), TeamPanicked> {
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
            let _open = self.seats[index].start.wait(seen, self.awake);
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
                    .open(self.done.epoch().expect("nobody breaks this gate"));
            }
        }
    }

    /// Does one worker's part of a region and leaves it; returns whether all others had left.
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
        // What the job leaves half done belongs to the caller, who gets an error.
        if let Err(panicked) = catch_panic(|| job()(worker))
            && !panicked.is::<Abandoned>()
        {
            self.fail(index as u32);
        }
        if workers == 1 {
            return true;
        }
        // After `fail`, so that who waited in vain finds the failure named; before leaving, since
        // then the counters may be the next region's.
        self.seats[index].progress.close();
        self.barrier
            .leave(workers)
            .or_else(|_awaited| {
                self.fail(UNEQUAL);
                self.barrier.leave(workers)
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
        for (index, seat) in self.seats.iter().enumerate().skip(1) {
            seat.start.open(self.first(index));
        }
    }
}
