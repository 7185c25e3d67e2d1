//! One team shared by several sessions, which take turns.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{ProcessMark, Share, Team, TeamPanicked, Worker};

/// A handle on a team that several owners use in turn; cloning it is cheap.
///
/// Turns are in the order of requests, so a session that runs continuously does not starve others.
/// A thread that waits for its turn sleeps at once. Nothing is allocated.
#[derive(Clone)]
pub struct SharedTeam {
    queue: Arc<Queue>,
}

struct Queue {
    threads: usize,
    /// A child has copies of the locks, which may stay locked.
    made_in: ProcessMark,
    turns: Mutex<Turns>,
    next: Condvar,
    /// Locked only by the holder of the turn, so never contended.
    team: Mutex<Team>,
}

/// A ticket lock.
struct Turns {
    given: u64,
    served: u64,
}

/// A panic under one of these locks leaves consistent data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedTeam {
    /// Makes `team` shareable.
    #[must_use]
    pub fn new(team: Team) -> Self {
        Self {
            queue: Arc::new(Queue {
                threads: team.threads(),
                made_in: team.made_in,
                turns: Mutex::new(Turns {
                    given: 0,
                    served: 0,
                }),
                next: Condvar::new(),
                team: Mutex::new(team),
            }),
        }
    }

    /// How many workers a job is run on.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.queue.threads
    }

    /// The number of callers that hold a turn or wait for one; none in a child of the process that
    /// made the team.
    #[must_use]
    pub fn callers(&self) -> usize {
        if self.queue.made_in.is_forked() {
            return 0;
        }
        let turns = lock(&self.queue.turns);
        usize::try_from(turns.given - turns.served).unwrap_or(usize::MAX)
    }

    /// [`Team::run`], after all earlier requests. A call from a job of the same team deadlocks.
    ///
    /// # Errors
    /// As [`Team::run`].
    pub fn run<F: Fn(Worker<'_>) + Sync>(&self, job: F) -> Result<(), TeamPanicked> {
        self.run_on(self.threads(), job)
    }

    /// [`Team::run_on`], after all earlier requests; otherwise as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`Team::run_on`].
    pub fn run_on<F: Fn(Worker<'_>) + Sync>(
        &self,
        workers: usize,
        job: F,
    ) -> Result<(), TeamPanicked> {
        self.turn(|team| team.run_on(workers, job))?
    }

    /// [`Team::run_shares`], after all earlier requests; otherwise as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`Team::run_shares`].
    pub fn run_shares<F: Fn(&Share<'_>) + Sync>(
        &self,
        workers: usize,
        job: F,
    ) -> Result<(), TeamPanicked> {
        self.turn(|team| team.run_shares(workers, job))?
    }

    /// Calls `take` with the team, after all earlier requests: to pack weights, for example.
    /// Another request inside `take` deadlocks. If it panics, later requests still get their turns.
    ///
    /// # Errors
    /// [`TeamPanicked::Forked`].
    pub fn turn<R>(&self, take: impl FnOnce(&mut Team) -> R) -> Result<R, TeamPanicked> {
        let queue = &*self.queue;
        if queue.made_in.is_forked() {
            return Err(TeamPanicked::Forked);
        }
        {
            let mut turns = lock(&queue.turns);
            let mine = turns.given;
            turns.given += 1;
            while turns.served != mine {
                turns = queue
                    .next
                    .wait(turns)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        let _served = Served(queue);
        Ok(take(&mut lock(&queue.team)))
    }
}

/// Ends a turn when it is dropped.
struct Served<'a>(&'a Queue);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let mut turns = lock(&self.0.turns);
        turns.served += 1;
        // A wake-up without waiters is a system call, too.
        let has_waiters = turns.given != turns.served;
        drop(turns);
        if has_waiters {
            self.0.next.notify_all();
        }
    }
}
