//! A team of pinned threads that outlives its runs.
//!
//! A step of a recurrent network takes microseconds, so its threads can neither be started for it
//! nor be handed tasks through a queue. A [`Team`] keeps one thread per core; [`Team::run`] opens
//! one parallel region on them, in which a whole sequence is computed. [`Worker::barrier`]
//! separates the steps for all; with [`Worker::advance`] and [`Worker::wait_for`] a worker waits
//! only for those whose results it needs. [`Team::run_on`] leaves the rest of the team asleep.
//! Between regions the threads spin for a moment and then sleep. The protocol, and why it cannot
//! lose a wake-up, is in the README beside the code.
//!
//! ```
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use gatestream::execute::team::Team;
//!
//! let mut team = Team::with_threads(2)?;
//! let sum = AtomicUsize::new(0);
//! team.run(|worker| {
//!     sum.fetch_add(worker.index + 1, Ordering::Relaxed);
//!     worker.barrier();
//!     assert_eq!(sum.load(Ordering::Relaxed), 3); // both have added
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barrier;
mod caller;
#[cfg(all(test, not(loom)))]
mod core_tests;
mod cores;
mod crowd;
mod fork;
mod gate;
mod host;
#[cfg(all(test, not(loom)))]
mod host_tests;
mod lateness;
#[cfg(all(test, loom))]
mod loom_tests;
mod panic;
mod pin;
mod progress;
mod region;
mod run;
#[cfg(all(test, not(loom)))]
mod schedule_tests;
mod share;
mod shared;
#[cfg(all(test, not(loom)))]
mod shared_tests;
mod spin;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
mod wait;

pub use cores::Cores;
pub use fork::ProcessMark;
pub use host::HostThreads;
pub use panic::{PanicPayload, catch_panic, catch_panic_silently, silence_panics_of_this_thread};
pub use pin::without_pin;
pub use progress::Track;
pub use share::{Share, Worker};
pub use shared::SharedTeam;
pub use spin::SpinBudget;

use crate::machine::current_cpu;
use caller::CallerPlace;
use crowd::{Crowd, Next};
use host::Rendezvous;
use region::{Mode, Region};
use spin::SpinPolicy;
use std::time::{Duration, Instant};
use sync::{Arc, Builder, JoinHandle};

/// Why a team could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// No thread was asked for.
    #[error("a team of 0 threads cannot run anything; ask for at least 1")]
    Empty,
    /// More threads than a team can count.
    #[error("a team of {asked} threads is too large; at most {max} are supported")]
    TooLarge {
        /// The number asked for.
        asked: usize,
        /// The largest number accepted.
        max: usize,
    },
    /// The system refused to start a thread.
    #[error(
        "thread {worker} of a team of {threads} could not be started ({source}); ask for fewer \
         threads"
    )]
    Spawn {
        /// Which one.
        worker: usize,
        /// How many the team was to have, the caller's included.
        threads: usize,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Why a team may be slower than its threads let one expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TeamWarning {
    /// Another team of this process has the core, too.
    #[error("core {core} is another team's, too; make teams of fewer threads, or share one team")]
    SharedCore {
        /// The operating system's number.
        core: usize,
    },
    /// The thread runs wherever the system puts it.
    #[error("thread {worker} of the team could not be pinned to core {core}")]
    NotPinned {
        /// Which one.
        worker: usize,
        /// The operating system's number.
        core: usize,
    },
}

/// A job did not end on all workers of its region, or could not start. The team can be used again;
/// what the job has written is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TeamPanicked {
    /// The job panicked on this worker first; the panic hook has reported the message.
    #[error("the job panicked on worker {worker} of the team; its output is incomplete")]
    Job {
        /// The worker's index.
        worker: usize,
    },
    /// The job ended on a worker while another waited for it: at a barrier, or for a count that it
    /// never reached ([`Worker::wait_for`]).
    #[error(
        "the job ended on one worker while another waited for it; every worker must call barrier \
         equally often and advance as often as others wait for"
    )]
    Barrier,
    /// A region of no worker, or of more than the team has; the job has not been called.
    #[error("a region of {asked} workers on a team of {threads}; ask for 1 to {threads}")]
    Workers {
        /// The number asked for.
        asked: usize,
        /// How many the team has.
        threads: usize,
    },
    /// The process is a child of the one that made the team; the job has not been called.
    #[error(
        "the team was made before this process was forked, and its threads are in the parent; \
         make a new team, session or engine in the child"
    )]
    Forked,
}

/// N threads that run jobs together: worker 0 is whoever calls [`run`](Self::run), the other N − 1
/// are threads of the team, each pinned to one core.
///
/// Dropping the team ends its threads.
pub struct Team {
    region: Arc<Region>,
    spawned: Vec<JoinHandle<()>>,
    /// Worker w's core; `None`: nobody is pinned.
    cores: Option<Cores>,
    made_in: ProcessMark,
    crowd: Crowd,
    caller: CallerPlace,
    /// Of a team on a host's threads.
    rendezvous: Option<Rendezvous>,
    /// Times of the crowd and the caller count from here.
    origin: Instant,
}

impl Team {
    /// A team of `cores.len()` threads, worker w on core `cores[w]` (the operating system's
    /// number).
    ///
    /// Worker 0 runs on the caller's thread. It is not pinned ([`pin_caller`](Self::pin_caller)),
    /// but moved to `cores[0]` when a region finds it on another worker's core. A core may be named
    /// more than once. A core that cannot be had is no error: its worker then runs where the system
    /// likes, and [`pinned`](Self::pinned) says so.
    ///
    /// # Errors
    /// No core, too many, or a thread that the system refuses to start.
    pub fn new(cores: &[usize]) -> Result<Self, TeamError> {
        Self::with_patience(cores, SpinBudget::default())
    }

    /// [`new`](Self::new) with another bound on spinning than the default.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_patience(cores: &[usize], budget: SpinBudget) -> Result<Self, TeamError> {
        Self::pinned_to(Cores::named(cores), budget)
    }

    /// A team of a thread on each of these cores, which it gives back when it is dropped.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn on(cores: Cores) -> Result<Self, TeamError> {
        Self::pinned_to(cores, SpinBudget::default())
    }

    fn pinned_to(cores: Cores, budget: SpinBudget) -> Result<Self, TeamError> {
        let list = cores.list();
        let mut team = Self::start(list.len(), budget, pin::oversubscribed(list))?;
        // The first job: everyone pins itself. A panic is impossible here, and would leave threads
        // that are not pinned.
        let _ = team.run(|worker| {
            let (index, region) = (worker.index, worker.share().region);
            if index > 0 {
                region.home(index).settle(list[index]);
            }
        });
        team.cores = Some(cores);
        Ok(team)
    }

    /// A team of `threads` threads on the cores that the process may use: physical cores first,
    /// those that share a cache together ([`cpus_for_team`]); with more threads than cores
    /// it starts again at the first.
    ///
    /// Cores that no other team of the process has come first ([`Cores::free`]). Teams that need
    /// more than are left share some, and get [warnings](Self::warnings).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// [`cpus_for_team`]: crate::machine::Topology::cpus_for_team
    pub fn with_threads(threads: usize) -> Result<Self, TeamError> {
        Self::on(Cores::free(threads)?)
    }

    /// A team of `threads` workers without threads of its own. Its regions run on those that a host
    /// lends ([`run_on_host`](Self::run_on_host)), without one on the calling thread alone. It pins
    /// nobody. Jobs for a [`Worker`] each are refused: fewer threads than workers may come. It goes
    /// on in a child made by `fork`, whose host may lack its threads: without a host it needs none.
    ///
    /// # Errors
    /// No worker, or too many.
    pub fn for_host(threads: usize) -> Result<Self, TeamError> {
        let count = check_threads(threads)?;
        let policy = SpinPolicy::new(SpinBudget::default(), false);
        let mut team = Self::without_threads(Arc::new(Region::new(count, policy)));
        team.rendezvous = Some(Rendezvous::new());
        Ok(team)
    }

    /// Whether it was made by [`for_host`](Self::for_host).
    #[must_use]
    pub fn is_hosted(&self) -> bool {
        self.rendezvous.is_some()
    }

    fn without_threads(region: Arc<Region>) -> Self {
        Self {
            crowd: Crowd::new(region.slots.len()),
            region,
            spawned: Vec::new(),
            cores: None,
            made_in: ProcessMark::new(),
            caller: CallerPlace::default(),
            rendezvous: None,
            origin: Instant::now(),
        }
    }

    fn start(threads: usize, budget: SpinBudget, oversubscribed: bool) -> Result<Self, TeamError> {
        let count = check_threads(threads)?;
        let region = Arc::new(Region::new(count, SpinPolicy::new(budget, oversubscribed)));
        let mut team = Self::without_threads(region);
        for index in 1..threads {
            let first = team.region.first(index);
            let region = Arc::clone(&team.region);
            let thread = Builder::new()
                .name(format!("gatestream-{index}"))
                .spawn(move || region.work(index, first))
                // On error, dropping `team` ends the threads that were started.
                .map_err(|source| TeamError::Spawn {
                    worker: index,
                    threads,
                    source,
                })?;
            team.spawned.push(thread);
        }
        Ok(team)
    }

    /// How many workers a job is run on, the caller's thread included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.region.slots.len()
    }

    /// Whether every thread of the team (the caller's, worker 0, is none of them) is pinned to its
    /// core.
    #[must_use]
    pub fn pinned(&self) -> bool {
        self.cores.is_some() && (1..self.threads()).all(|w| self.region.home(w).is_pinned())
    }

    /// What makes the team slower than it could be, as things are now. Other processes are not
    /// seen.
    #[must_use]
    pub fn warnings(&self) -> Vec<TeamWarning> {
        let Some(cores) = &self.cores else {
            return Vec::new();
        };
        let shared = cores.shared();
        let threads = cores.list().iter().copied().enumerate().skip(1);
        let unpinned = threads.filter(|&(worker, _)| !self.region.home(worker).is_pinned());
        { shared.map(|core| TeamWarning::SharedCore { core }) }
            .chain(unpinned.map(|(worker, core)| TeamWarning::NotPinned { worker, core }))
            .collect()
    }

    fn core_list(&self) -> &[usize] {
        self.cores.as_ref().map_or(&[], Cores::list)
    }

    /// Pins the calling thread to worker 0's core; `false` if the system refuses.
    ///
    /// Explicit, because the thread belongs to the caller, and stays pinned: threads that it starts
    /// later inherit that, except [`without_pin`].
    pub fn pin_caller(&self) -> bool {
        self.core_list()
            .first()
            .is_some_and(|&core| pin::pin_to(core))
    }

    /// Runs `job` once on each worker, worker 0 on the calling thread, and returns when all are
    /// done. The caller then sees what the job has written. Allocates nothing, takes no lock.
    ///
    /// # Errors
    /// If the job panics on a worker, the others leave it at their next barrier, and this returns
    /// which one it was, once none of them uses the job any more. The team can then be used again.
    pub fn run<F: Fn(Worker<'_>) + Sync>(&mut self, job: F) -> Result<(), TeamPanicked> {
        self.run_on(self.threads(), job)
    }

    /// [`run`](Self::run) on workers 0 to `workers` − 1 only; the other threads are left as they
    /// are, asleep if they sleep. On one worker it is a call of the job on the calling thread.
    ///
    /// # Errors
    /// As [`run`](Self::run); or `workers` is 0, or more than [`threads`](Self::threads); or this
    /// is a child of the process that made the team.
    pub fn run_on<F: Fn(Worker<'_>) + Sync>(
        &mut self,
        workers: usize,
        job: F,
    ) -> Result<(), TeamPanicked> {
        let worker = |share: &Share<'_>| {
            job(Worker {
                index: share.thread,
                share,
            });
        };
        self.region(workers, false, &worker)
    }

    /// Runs `job` for workers 0 to `workers` − 1, on threads that have a processor.
    ///
    /// Each thread stands for one worker, as in [`run_on`](Self::run_on), while the machine lets
    /// all of them run. Beside threads of others on the same cores, on fewer cores than the team
    /// was made for, or when a quota stops it, a thread waits for a processor, and all others for
    /// it. Then the team leaves it out, and another does its part too, until a trial shows that it
    /// is on time again. The calling thread always takes part.
    ///
    /// ```
    /// use gatestream::execute::team::{Team, Track};
    ///
    /// let mut team = Team::with_threads(2)?;
    /// team.run_shares(2, |share| {
    ///     for worker in share.iter() {
    ///         share.advance(worker, Track::Steps); // its part of the first step
    ///     }
    ///     for other in 0..2 {
    ///         share.wait_for(other, Track::Steps, 1);
    ///     }
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`run_on`](Self::run_on).
    pub fn run_shares<F: Fn(&Share<'_>) + Sync>(
        &mut self,
        workers: usize,
        job: F,
    ) -> Result<(), TeamPanicked> {
        self.region(workers, true, &job)
    }

    /// Runs `job` for workers 0 to `workers` − 1 on threads that `host` lends for this region:
    /// one for each, as far as they come at once. Those that come do the parts of the others.
    ///
    /// On a team with threads of its own it is [`run_shares`](Self::run_shares).
    ///
    /// # Errors
    /// As [`run_on`](Self::run_on).
    pub fn run_on_host<F: Fn(&Share<'_>) + Sync>(
        &mut self,
        host: &dyn HostThreads,
        workers: usize,
        job: F,
    ) -> Result<(), TeamPanicked> {
        match &self.rendezvous {
            Some(rendezvous) if workers > 1 => {
                let count = self.count(workers)?;
                self.region.run_hosted(host, rendezvous, count, &job)
            }
            _ => self.region(workers, true, &job),
        }
    }

    /// Checks the number of workers of a region.
    fn count(&self, workers: usize) -> Result<u32, TeamPanicked> {
        // A hosted team has no threads that could be missing.
        if self.made_in.is_forked() && !self.is_hosted() {
            return Err(TeamPanicked::Forked);
        }
        let threads = self.threads();
        match u32::try_from(workers) {
            Ok(count) if (1..=threads).contains(&workers) => Ok(count),
            _ => Err(TeamPanicked::Workers {
                asked: workers,
                threads,
            }),
        }
    }

    fn region(
        &mut self,
        workers: usize,
        may_narrow: bool,
        job: &(dyn Fn(&Share<'_>) + Sync),
    ) -> Result<(), TeamPanicked> {
        let count = self.count(workers)?;
        if count == 1 {
            return self.region.run(1, Mode::APART, |_| false, job);
        }
        if self.is_hosted() {
            return if may_narrow {
                self.region
                    .run(count, Mode::NARROW, |thread| thread > 0, job)
            } else {
                Err(TeamPanicked::Workers {
                    asked: workers,
                    threads: 1,
                })
            };
        }
        let begun = self.origin.elapsed();
        let next = self.crowd.begin(begun);
        let mode = match next {
            Next::Apart => {
                self.move_caller(begun);
                Mode::APART
            }
            Next::Trial => {
                if let Some(&core) = self.core_list().first() {
                    pin::settle(core);
                }
                Mode::TRIAL
            }
            Next::Narrow if may_narrow => Mode::NARROW,
            Next::Narrow => Mode::CROWDED,
        };
        let is_out = |thread| self.crowd.is_out(thread);
        let outcome = self.region.run(count, mode, is_out, job);
        let ended = self.origin.elapsed();
        self.crowd.ran(ended.saturating_sub(begun));
        if next == Next::Trial || self.region.lateness.is_noticed() {
            self.crowd_changed(ended);
        }
        outcome
    }

    /// Leaves these threads out of narrow regions for ever; none: all take part until one is late.
    #[cfg(test)]
    pub(crate) fn leave_out(&mut self, threads: impl IntoIterator<Item = usize>) {
        self.crowd.leave_out(threads);
    }

    /// Moves the calling thread off the cores of the workers.
    #[inline]
    fn move_caller(&mut self, now: Duration) {
        let cores = self.cores.as_ref().map_or(&[][..], Cores::list);
        if cores.len() > 1
            && let Some(core) = current_cpu()
            && self.caller.must_move(core, cores, now)
        {
            pin::move_to(cores[0]);
        }
    }

    #[cold]
    fn crowd_changed(&mut self, now: Duration) {
        let region = &self.region;
        let late = region.lateness.take().map(Duration::from_nanos);
        let is_lost = |thread: usize| region.home(thread).is_lost();
        self.crowd.end(now, late, is_lost);
        if self.crowd.is_narrow() {
            // Its core may be the busy one.
            pin::roam(self.core_list());
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if self.made_in.is_forked() {
            // There is nobody to wait for; even detaching such a thread is undefined.
            self.spawned.drain(..).for_each(std::mem::forget);
            return;
        }
        self.region.dismiss();
        for thread in self.spawned.drain(..) {
            // A worker catches all panics of its jobs.
            let _ = thread.join();
        }
    }
}

/// Checks the size of a team and returns it.
///
/// # Errors
/// 0 threads, or more than a team can count.
pub fn check_threads(threads: usize) -> Result<u32, TeamError> {
    match u32::try_from(threads) {
        Ok(0) => Err(TeamError::Empty),
        Ok(count) if threads <= barrier::MAX_WORKERS => Ok(count),
        _ => Err(TeamError::TooLarge {
            asked: threads,
            max: barrier::MAX_WORKERS,
        }),
    }
}
