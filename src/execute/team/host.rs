//! Regions on the threads of a host: a program that has a pool of its own, whose spinning threads
//! another team would compete with.
//!
//! ```text
//! caller:  host.call(workers, task)                    the host calls task, on any of its threads
//! task:    join; the first one leads, others wait at the gate `go`; too late: return
//! leader:  wait until as many have joined as usual, not for long; close; deal the workers out to
//!          those that have joined; open `go`; take part
//! ```
//!
//! Nobody waits for a thread that has not joined. So it cannot deadlock: not where the host calls
//! all tasks on one thread, one after the other, and not where all its threads are in regions of
//! other sessions. A thread that joins has begun its task and does nothing else until the leader
//! opens the gate, which it does in bounded time.
//!
//! A task reads the epoch of `go` before it joins, and waits for the end of that epoch. The gate
//! cannot be opened in between: it is opened after the closing, and a task that joins has done so
//! before. Nor can the epoch be an older one: the gate was opened last in the region before, whose
//! end happened before the call of this one.

use std::time::{Duration, Instant};

use super::TeamPanicked;
use super::gate::Gate;
use super::region::{Mode, NONE, Region};
use super::share::Share;
use super::sync::{AtomicU32, Ordering};

/// The thread pool of a host.
///
/// ```
/// use cellstream::execute::team::HostThreads;
///
/// /// Starts threads for each call.
/// struct Scoped;
///
/// impl HostThreads for Scoped {
///     fn call(&self, count: usize, task: &(dyn Fn() + Sync)) {
///         std::thread::scope(|scope| {
///             for _ in 1..count {
///                 scope.spawn(task);
///             }
///             task();
///         });
///     }
/// }
/// ```
pub trait HostThreads: Sync {
    /// Calls `task` `count` times and returns when all calls have ended. They should be on
    /// different threads, the calling one among them, but may be on one, one after the other.
    fn call(&self, count: usize, task: &(dyn Fn() + Sync));
}

/// In [`Muster::joined`]: nobody joins any more.
const CLOSED: u32 = 1 << 31;

/// Bounds on the time for which the leader waits for others, which the host may have to wake. In
/// between it is the time of a region that all have joined: without them it takes longer by that
/// much, or more.
const WAIT: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));
/// Regions in a row that fewer threads than expected joined, until fewer are expected.
const MISSES: u32 = 4;
/// Regions after which all workers are expected again: at first, and at most, as it doubles each
/// time that they do not come.
const RETRY: (u32, u32) = (32, 4096);

/// The threads of a hosted region, as they come.
pub(super) struct Muster {
    /// Those that have joined, and [`CLOSED`].
    joined: AtomicU32,
    go: Gate,
    /// The threads that are expected. Only callers and leaders use this and what follows, one after
    /// the other.
    expected: AtomicU32,
    /// Regions in a row that fewer joined.
    misses: AtomicU32,
    /// Regions until all workers are expected again, and the number of the last time.
    until_retry: AtomicU32,
    retry: AtomicU32,
    /// Nanoseconds for which the leader waits.
    wait: AtomicU32,
}

impl Muster {
    pub(super) fn new(threads: u32) -> Muster {
        Muster {
            joined: AtomicU32::new(CLOSED),
            go: Gate::new(),
            expected: AtomicU32::new(threads),
            misses: AtomicU32::new(0),
            until_retry: AtomicU32::new(RETRY.0),
            retry: AtomicU32::new(RETRY.0),
            wait: AtomicU32::new(WAIT.1.as_nanos() as u32),
        }
    }

    /// The place of the calling thread, 0 for the leader; `None`: too late.
    fn join(&self) -> Option<u32> {
        let mut joined = self.joined.load(Ordering::Relaxed);
        loop {
            if joined & CLOSED != 0 {
                return None;
            }
            // AcqRel: Release keeps the reading of the epoch before it; Acquire is for the leader,
            // which reads what the caller wrote (and so do those after it, by the gate).
            match self.joined.compare_exchange_weak(
                joined,
                joined + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(place) => return Some(place),
                Err(now) => joined = now,
            }
        }
    }

    /// A region that all have joined takes so long.
    fn took(&self, time: Duration) {
        let wait = time.clamp(WAIT.0, WAIT.1);
        self.wait.store(wait.as_nanos() as u32, Ordering::Relaxed);
    }

    /// Waits for others, and closes; returns how many have joined.
    fn close(&self, workers: u32) -> u32 {
        let mut expected = self.expected.load(Ordering::Relaxed).min(workers);
        if expected < workers {
            let left = self.until_retry.load(Ordering::Relaxed) - 1;
            if left == 0 {
                let next = (2 * self.retry.load(Ordering::Relaxed)).min(RETRY.1);
                self.retry.store(next, Ordering::Relaxed);
                self.until_retry.store(next, Ordering::Relaxed);
                self.expected.store(workers, Ordering::Relaxed);
                expected = workers;
            } else {
                self.until_retry.store(left, Ordering::Relaxed);
            }
        }
        let wait = Duration::from_nanos(self.wait.load(Ordering::Relaxed).into());
        let begun = Instant::now();
        while self.joined.load(Ordering::Relaxed) < expected && !cfg!(loom) {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
            if begun.elapsed() > wait {
                break;
            }
        }
        let joined = self.joined.fetch_or(CLOSED, Ordering::AcqRel);
        if joined < expected {
            let misses = self.misses.load(Ordering::Relaxed) + 1;
            self.misses.store(misses % MISSES, Ordering::Relaxed);
            if misses == MISSES {
                self.expected.store(joined, Ordering::Relaxed);
            }
        } else {
            self.misses.store(0, Ordering::Relaxed);
            self.expected.store(joined, Ordering::Relaxed);
            if joined == workers {
                self.until_retry.store(RETRY.0, Ordering::Relaxed);
                self.retry.store(RETRY.0, Ordering::Relaxed);
            }
        }
        joined
    }
}

impl Region {
    /// A region of these workers on threads that `host` lends.
    pub(super) fn run_hosted(
        &self,
        host: &dyn HostThreads,
        muster: &Muster,
        workers: u32,
        job: &(dyn Fn(&Share<'_>) + Sync),
    ) -> Result<(), TeamPanicked> {
        self.failed.store(NONE, Ordering::Relaxed);
        for slot in &self.slots[..workers as usize] {
            slot.progress.reset();
        }
        self.barrier.reset();
        // Release: the first one to join reads what is written here.
        muster.joined.store(0, Ordering::Release);
        let task = || {
            let Some(seen) = muster.go.epoch() else {
                return;
            };
            match muster.join() {
                None => {}
                Some(0) => {
                    let threads = muster.close(workers);
                    let mode = match threads < workers {
                        true => Mode::NARROW,
                        false => Mode::APART,
                    };
                    if threads < workers {
                        let slots = &self.slots[..workers as usize];
                        self.share_out(slots, &|thread| thread >= threads as usize);
                    }
                    self.workers.store(workers, Ordering::Relaxed);
                    self.threads.store(threads, Ordering::Relaxed);
                    self.mode.store(mode.0, Ordering::Relaxed);
                    let begun = Instant::now();
                    muster.go.open(seen);
                    self.join_in(0, job);
                    // Alone, all would take about twice as long as two, and so on.
                    muster.took(begun.elapsed() * threads / workers);
                }
                Some(place) => {
                    let _open = muster.go.wait(seen, self.spin);
                    self.join_in(place as usize, job);
                }
            }
        };
        host.call(workers as usize, &task);
        if muster.joined.load(Ordering::Acquire) & CLOSED == 0 {
            // The host has called nothing, or on threads that do not count.
            task();
        }
        self.outcome()
    }

    /// Takes part in the region that has been published.
    fn join_in(&self, thread: usize, job: &(dyn Fn(&Share<'_>) + Sync)) {
        self.lateness.enter(thread);
        let workers = self.workers.load(Ordering::Relaxed);
        let threads = self.threads.load(Ordering::Relaxed);
        let mode = Mode(self.mode.load(Ordering::Relaxed));
        self.take_part(thread, (workers, threads, mode), || job);
    }
}
