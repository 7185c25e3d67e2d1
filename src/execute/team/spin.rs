//! How long a waiting thread spins before it sleeps.

use std::time::Duration;

use super::lateness::Watch;

/// How long a waiting thread of a team spins before it parks.
///
/// To wake a parked thread costs a system call and a scheduling delay; a spinning thread continues
/// at once but keeps its core busy. Each wait (at a barrier, for the next run, for the end of a
/// run) spins for [`spin`](Self::spin) and then parks, so an idle team uses no processor time.
///
/// On a team with more threads than cores a spinning thread delays the thread it waits for. Such a
/// team spins a few dozen rounds only, whatever the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinBudget {
    /// The longest time that one wait spins. Zero: a few dozen rounds.
    pub spin: Duration,
}

impl Default for SpinBudget {
    /// 80 µs: longer than a step of a small model and than the pause of a caller between two
    /// sequences, and short enough to cost an idle machine nothing noticeable.
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(80),
        }
    }
}

/// Rounds before the first reading of the clock, and between two readings.
const ROUNDS: u32 = 64;

/// How one wait goes: the [`SpinBudget`] of its team (none if the team has more threads than
/// cores), and whose lateness is looked at if that is not enough.
#[derive(Clone, Copy)]
pub(super) struct SpinPolicy<'a> {
    /// Zero if spinning would delay the thread that is waited for.
    spin: Duration,
    watch: Option<Watch<'a>>,
}

impl<'a> SpinPolicy<'a> {
    /// A few dozen rounds, and nothing is looked at.
    pub(super) const NONE: SpinPolicy<'static> = SpinPolicy {
        spin: Duration::ZERO,
        watch: None,
    };

    pub(super) fn new(budget: SpinBudget, oversubscribed: bool) -> Self {
        if oversubscribed {
            Self::NONE
        } else {
            Self {
                spin: budget.spin,
                watch: None,
            }
        }
    }

    /// The same, for a wait for these threads. Where there is no budget, that it is spent says
    /// nothing of them.
    #[inline]
    pub(super) fn watching(self, watch: Watch<'a>) -> Self {
        Self {
            watch: (!self.spin.is_zero()).then_some(watch),
            ..self
        }
    }

    /// Sleeps when the budget is spent.
    #[cold]
    pub(super) fn over<T>(self, sleep: impl FnOnce() -> T) -> T {
        match self.watch {
            Some(watch) => watch.over(sleep),
            None => sleep(),
        }
    }

    /// Polls until there is a value or the budget is spent.
    ///
    /// It never yields: beside a busy thread of another process a yield gives up the time slice,
    /// whereas a parked thread is woken when there is work.
    #[inline]
    pub(super) fn poll<T>(self, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        if cfg!(loom) {
            // The model checker explores every order of events; more polls would repeat them.
            return poll();
        }
        let mut rounds = || {
            for _ in 0..ROUNDS {
                let polled = poll();
                if polled.is_some() {
                    return polled;
                }
                std::hint::spin_loop();
            }
            None
        };
        if let Some(value) = rounds() {
            return Some(value);
        }
        if !self.spin.is_zero() {
            let start = std::time::Instant::now();
            while start.elapsed() < self.spin {
                if let Some(value) = rounds() {
                    return Some(value);
                }
            }
        }
        None
    }
}
