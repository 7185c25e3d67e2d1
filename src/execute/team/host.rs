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

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::TeamPanicked;
use super::gate::Gate;
use super::region::{Mode, NONE, Region};
use super::share::Share;
use super::sync::{AtomicU32, Ordering};

/// The thread pool of a host.
///
/// ```
/// use gatestream::execute::team::HostThreads;
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
    /// different threads, the calling one among them, but may be on one, one after the other. More
    /// calls do nothing; fewer of them take longer.
    fn call(&self, count: usize, task: &(dyn Fn() + Sync));
}

/// In [`Rendezvous::joined`]: nobody joins any more.
const CLOSED: u32 = 1 << 31;

/// The threads of a hosted region, as they come.
pub(super) struct Rendezvous {
    /// Those that have joined, and [`CLOSED`].
    joined: AtomicU32,
    go: Gate,
    /// Locked by the leader only.
    expectation: std::sync::Mutex<Expectation>,
}

impl Rendezvous {
    pub(super) fn new() -> Rendezvous {
        Rendezvous {
            joined: AtomicU32::new(CLOSED),
            go: Gate::new(),
            expectation: std::sync::Mutex::default(),
        }
    }

    fn expectation(&self) -> std::sync::MutexGuard<'_, Expectation> {
        self.expectation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of the calling thread, 0 for the leader; `None`: too late, or there are as many as
    /// workers.
    fn join(&self, workers: u32) -> Option<u32> {
        let mut joined = self.joined.load(Ordering::Relaxed);
        loop {
            if joined >= workers {
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
        let (threads, wait) = {
            let mut expectation = self.expectation();
            (expectation.threads(workers), expectation.wait)
        };
        let begun = Instant::now();
        while self.joined.load(Ordering::Relaxed) < threads && !cfg!(loom) {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
            if begun.elapsed() > wait {
                break;
            }
        }
        let joined = self.joined.fetch_or(CLOSED, Ordering::AcqRel);
        self.expectation().joined(joined, workers);
        joined
    }
}

/// How many threads a leader waits for, and for how long. It learns from the regions before: a host
/// may have fewer threads than the team has workers, or use them otherwise.
#[derive(Debug)]
struct Expectation {
    /// The threads that joined the last region; 0: none has run.
    usual: u32,
    /// Regions in a row that fewer joined than expected.
    misses: u32,
    /// Regions until all workers are expected again.
    until_retry: u32,
    /// The number of these regions at the last time.
    retry: u32,
    /// Time for which the leader waits.
    wait: Duration,
}

impl Expectation {
    /// Bounds on the time for which the leader waits: the host may have to wake its threads. In
    /// between it is the time of a region that all have joined: without them it takes longer by
    /// that much, or more.
    const MIN_WAIT: Duration = Duration::from_micros(50);
    const MAX_WAIT: Duration = Duration::from_millis(1);
    /// Regions in a row that fewer threads than expected joined, until fewer are expected.
    const MISSES: u32 = 4;
    /// Regions after which all workers are expected again. Doubles each time that they do not come.
    const MIN_RETRY: u32 = 32;
    const MAX_RETRY: u32 = 4096;

    /// The threads that a leader waits for.
    fn threads(&mut self, workers: u32) -> u32 {
        if self.usual == 0 || self.usual >= workers {
            return workers;
        }
        self.until_retry = self.until_retry.saturating_sub(1);
        if self.until_retry > 0 {
            return self.usual;
        }
        self.retry = (2 * self.retry).min(Self::MAX_RETRY);
        self.until_retry = self.retry;
        self.usual = workers;
        workers
    }

    /// So many threads have joined a region of these workers.
    fn joined(&mut self, joined: u32, workers: u32) {
        let expected = if self.usual == 0 {
            workers
        } else {
            self.usual.min(workers)
        };
        if joined >= workers {
            (self.until_retry, self.retry) = (Self::MIN_RETRY, Self::MIN_RETRY);
        }
        self.misses = if joined < expected {
            self.misses + 1
        } else {
            0
        };
        if joined >= expected || self.misses >= Self::MISSES {
            (self.usual, self.misses) = (joined, 0);
        }
    }

    /// So long a region takes that all have joined.
    fn took(&mut self, time: Duration) {
        self.wait = time.clamp(Self::MIN_WAIT, Self::MAX_WAIT);
    }
}

impl Default for Expectation {
    fn default() -> Expectation {
        Expectation {
            usual: 0,
            misses: 0,
            until_retry: Self::MIN_RETRY,
            retry: Self::MIN_RETRY,
            wait: Self::MAX_WAIT,
        }
    }
}

impl Region {
    /// A region of these workers on threads that `host` lends.
    pub(super) fn run_hosted(
        &self,
        host: &dyn HostThreads,
        rendezvous: &Rendezvous,
        workers: u32,
        job: &(dyn Fn(&Share<'_>) + Sync),
    ) -> Result<(), TeamPanicked> {
        self.failed.store(NONE, Ordering::Relaxed);
        for slot in &self.slots[..workers as usize] {
            slot.progress.reset();
        }
        self.barrier.reset();
        // Release: the first one to join reads what is written here.
        rendezvous.joined.store(0, Ordering::Release);
        let task = || {
            let Some(seen) = rendezvous.go.epoch() else {
                return;
            };
            match rendezvous.join(workers) {
                None => {}
                Some(0) => {
                    let threads = rendezvous.close(workers);
                    let mode = if threads < workers {
                        Mode::NARROW
                    } else {
                        Mode::APART
                    };
                    if threads < workers {
                        let slots = &self.slots[..workers as usize];
                        self.share_out(slots, &|thread| thread >= threads as usize);
                    }
                    self.workers.store(workers, Ordering::Relaxed);
                    self.threads.store(threads, Ordering::Relaxed);
                    self.mode.store(mode.0, Ordering::Relaxed);
                    let begun = Instant::now();
                    rendezvous.go.open(seen);
                    self.join_in(0, job);
                    // Alone, all would take about twice as long as two, and so on.
                    let time = begun.elapsed() * threads / workers;
                    rendezvous.expectation().took(time);
                }
                Some(place) => {
                    let _open = rendezvous.go.wait(seen, self.spin);
                    self.join_in(place as usize, job);
                }
            }
        };
        host.call(workers as usize, &task);
        if rendezvous.joined.load(Ordering::Acquire) & CLOSED == 0 {
            // The host has called nothing.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Regions of four workers, on as many threads as the host lends at each; the threads that were
    /// expected.
    fn expected(lent: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut expectation = Expectation::default();
        let regions = lent.into_iter().map(|joined| {
            let threads = expectation.threads(4);
            expectation.joined(joined, 4);
            threads
        });
        regions.collect()
    }

    #[test]
    fn all_are_expected_while_they_come_and_after_single_misses() {
        let lent = (0..1000).map(|region| if region % 10 == 7 { 1 } else { 4 });
        assert!(expected(lent).iter().all(|&threads| threads == 4));
    }

    #[test]
    fn a_host_with_fewer_threads_is_seldom_waited_for() {
        let found = expected(std::iter::repeat_n(2, 10_000));
        let waits = found.iter().filter(|&&threads| threads > 2).count();
        // The first regions, and less and less often after.
        assert!((4..80).contains(&waits), "{waits}");
        assert_eq!(found[9_000..9_100], [2; 100]);
    }

    #[test]
    fn a_host_that_has_its_threads_again_gets_all_of_them() {
        let busy = std::iter::repeat_n(1, 200);
        let found = expected(busy.chain(std::iter::repeat_n(4, 500)));
        assert_eq!(found[699], 4);
        // A thread that comes without being expected is expected from then on.
        let found = expected([1, 1, 1, 1, 3, 3]);
        assert_eq!(found, [4, 4, 4, 4, 1, 3]);
    }

    #[test]
    fn the_wait_follows_the_time_of_a_region_within_bounds() {
        let mut expectation = Expectation::default();
        for (time, wait) in [(1, 50), (200, 200), (9_000, 1_000)] {
            expectation.took(Duration::from_micros(time));
            assert_eq!(expectation.wait, Duration::from_micros(wait));
        }
    }
}
