//! How long a thread waits awake before it goes to sleep.

use std::time::Duration;

/// How long a waiting thread of a team spins before it parks.
///
/// Waking a parked thread costs the waker a system call and the sleeper some 5–50 µs; a thread that
/// spins answers in about 0.1 µs but keeps its core busy. So each wait (at a barrier, for the next
/// run, for the end of a run) spins for [`spin`](Self::spin) first and then parks: an idle team uses
/// no processor time once that is over.
///
/// On a team with more threads than cores a spinning thread would only keep the one it waits for
/// from running; such a team spins a few dozen rounds, whatever this says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The longest that one wait spins. Zero: a few dozen rounds (below 1 µs).
    pub spin: Duration,
}

impl Default for Patience {
    /// 80 µs: longer than a step of a small model lasts and than a caller takes to come back with
    /// the next sequence, shorter than anybody would notice on an idle machine.
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(80),
        }
    }
}

/// Rounds that are spun before the clock is read at all, and between two readings.
const ROUNDS: u32 = 64;

/// [`Patience`] as the waits use it: bound to what is known of the team.
#[derive(Clone, Copy)]
pub(super) struct Awake {
    /// Zero where spinning would starve the thread that is waited for.
    spin: Duration,
}

impl Awake {
    pub(super) fn new(patience: Patience, oversubscribed: bool) -> Self {
        Self {
            spin: if oversubscribed {
                Duration::ZERO
            } else {
                patience.spin
            },
        }
    }

    /// Polls until there is a value or patience ends.
    ///
    /// It never yields: beside a foreign busy thread that gives time away, while a parked thread is
    /// woken when there is something to do (figures in the README beside this file).
    #[inline]
    pub(super) fn poll<T>(self, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        if cfg!(loom) {
            // The checker explores every moment of arrival; more polls would only be more of it.
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
