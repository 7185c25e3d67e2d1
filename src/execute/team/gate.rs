//! A gate: threads wait until it is opened.
//!
//! ```text
//! wait(seen):  until epoch != seen or broken: spin a while, then sleep
//! open():      epoch += 1; wake the sleepers
//! ```
//!
//! The epoch and the bits `broken` and `asleep` are in one word; [`wait`](super::wait) explains how
//! threads wait for it and why no wake-up is lost.

use super::spin::SpinPolicy;
use super::sync::{Ordering, OwnLine, Word};
use super::wait::{self, ASLEEP, BROKEN, ONE};

/// The number of times a gate has been opened, modulo 2³⁰.
///
/// It may wrap: every waiter has passed the gate before it is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch(u32);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// The gate was opened.
    Open,
    /// The gate is broken, and was not opened.
    Broken,
}

pub(super) struct Gate {
    word: OwnLine<Word>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            word: OwnLine(Word::new(0)),
        }
    }

    /// The present epoch, or `None` if the gate is broken. Only for a thread without which the gate
    /// cannot be opened: for others the epoch may change at any time.
    #[inline]
    pub(super) fn epoch(&self) -> Option<Epoch> {
        // Relaxed: such a thread has passed or caused all openings so far, and a thread never reads
        // an older value of an atomic than it has read before. The same holds for a break that it
        // has seen; `wait` detects another one.
        let word = self.word.0.load(Ordering::Relaxed);
        (word & BROKEN == 0).then_some(Epoch(wait::number(word)))
    }

    /// Ends the epoch `seen`. Threads that pass see all earlier writes of this thread.
    ///
    /// One thread only, and no [`break_down`](Self::break_down) at the same time (see README).
    #[inline]
    pub(super) fn open(&self, seen: Epoch) {
        // Release: pairs with the Acquire loads of `wait`.
        let old = self
            .word
            .0
            .swap(seen.0.wrapping_add(ONE), Ordering::Release);
        if old & ASLEEP != 0 {
            self.word.0.wake_all();
        }
    }

    /// Releases all waiters with [`Passed::Broken`], now and until [`mend`](Self::mend).
    #[cold]
    pub(super) fn break_down(&self) {
        wait::break_down(&self.word.0);
    }

    /// Makes a broken gate usable again. No other thread may be using it.
    pub(super) fn mend(&self) {
        // Relaxed: published to the others with the next region (`Region::run`).
        let word = self.word.0.load(Ordering::Relaxed);
        if word & (BROKEN | ASLEEP) != 0 {
            self.word
                .0
                .store(word & !(BROKEN | ASLEEP), Ordering::Relaxed);
        }
    }

    /// Waits for the end of the epoch `seen`.
    #[inline]
    pub(super) fn wait(&self, seen: Epoch, spin: SpinPolicy<'_>) -> Passed {
        wait::until(&self.word.0, spin, |word| {
            if wait::number(word) != seen.0 {
                Some(Passed::Open)
            } else if word & BROKEN != 0 {
                Some(Passed::Broken)
            } else {
                None
            }
        })
    }
}
