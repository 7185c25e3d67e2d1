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

/// Time for which the leader waits for the first region's threads: the host may have to wake them.
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// The same for others.
const WAIT: Duration = Duration::from_micros(100);
/// Regions after which the leader waits for all workers again.
const RETRY: u32 = 64;

/// The threads of a hosted region, as they come.
pub(super) struct Muster {
    /// Those that have joined, and [`CLOSED`].
    joined: AtomicU32,
    go: Gate,
    /// The threads of the last region, and the number of regions. Only leaders use them, one after
    /// the other.
    usual: AtomicU32,
    regions: AtomicU32,
}

impl Muster {
    pub(super) fn new(threads: u32) -> Muster {
        Muster {
            joined: AtomicU32::new(CLOSED),
            go: Gate::new(),
            usual: AtomicU32::new(threads),
            regions: AtomicU32::new(0),
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

    /// Waits for others, and closes; returns how many have joined.
    fn close(&self, workers: u32) -> u32 {
        let regions = self.regions.fetch_add(1, Ordering::Relaxed);
        let (expected, wait) = match regions {
            0 => (workers, FIRST_WAIT),
            _ if regions.is_multiple_of(RETRY) => (workers, WAIT),
            _ => (self.usual.load(Ordering::Relaxed).min(workers), WAIT),
        };
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
        self.usual.store(joined, Ordering::Relaxed);
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
                    muster.go.open(seen);
                    self.join_in(0, job);
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
