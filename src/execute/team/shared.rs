//! One team for several sessions, which take turns.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Team, TeamPanicked, Worker};

/// A handle on a team that several owners use in turn; cloning it is cheap.
///
/// Turns are taken in the order in which they were asked for, so a session that runs without a break
/// does not starve the others. Waiting for a turn sleeps at once; it allocates nothing.
#[derive(Clone)]
pub struct SharedTeam {
    queue: Arc<Queue>,
}

struct Queue {
    threads: usize,
    turns: Mutex<Turns>,
    next: Condvar,
    /// Locked only by whose turn it is, so never contended.
    team: Mutex<Team>,
}

/// The numbered tickets of a shop counter.
struct Turns {
    given: u64,
    served: u64,
}

/// A panic under one of these locks leaves nothing half done.
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

    /// How many take a turn or wait for one now.
    #[must_use]
    pub fn callers(&self) -> usize {
        let turns = lock(&self.queue.turns);
        usize::try_from(turns.given - turns.served).unwrap_or(usize::MAX)
    }

    /// [`Team::run`], after all who asked earlier. Do not call it from a job of the same team: it
    /// would wait for itself.
    ///
    /// # Errors
    /// As [`Team::run`].
    pub fn run<F: Fn(Worker<'_>) + Sync>(&self, job: F) -> Result<(), TeamPanicked> {
        self.run_on(self.threads(), job)
    }

    /// [`Team::run_on`], after all who asked earlier; otherwise as [`run`](Self::run).
    ///
    /// # Errors
    /// As [`Team::run_on`].
    pub fn run_on<F: Fn(Worker<'_>) + Sync>(
        &self,
        workers: usize,
        job: F,
    ) -> Result<(), TeamPanicked> {
        self.turn(|team| team.run_on(workers, job))
    }

    /// Calls `take` with the team itself, after all who asked earlier: to pack weights, say. Do not ask
    /// for another turn in it: that would wait for itself. Should it panic, the others get their turns.
    pub fn turn<R>(&self, take: impl FnOnce(&mut Team) -> R) -> R {
        let queue = &*self.queue;
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
        take(&mut lock(&queue.team))
    }
}

/// Ends a turn when it is dropped.
struct Served<'a>(&'a Queue);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let mut turns = lock(&self.0.turns);
        turns.served += 1;
        // To wake nobody is a system call, too.
        let anybody_waits = turns.given != turns.served;
        drop(turns);
        if anybody_waits {
            self.0.next.notify_all();
        }
    }
}
