//! The progress of each worker: counters that it alone advances and that others wait for.
//!
//! ```text
//! advance():    count += 1; wake the sleepers
//! wait(count):  until own count >= count or closed: spin a while, then sleep
//! close():      nothing will be added any more; wake the sleepers
//! ```
//!
//! The implementation is one word, `count · closed · asleep`, on a cache line that only its worker
//! and a waiter about to sleep write. Sleepers may wait for different counts: a wake-up wakes all,
//! and those whose count is not reached set the bit `asleep` again. `advance` therefore clears the
//! bit; otherwise each later advance would be a system call.

use super::spin::SpinPolicy;
use super::sync::{Ordering, OwnLine, Word};
use super::wait::{self, ASLEEP, BROKEN, ONE};

/// Which of a worker's two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Track {
    /// Phases or steps that the worker has finished.
    Steps,
    /// Events that others wait for less often: the end of a chunk, a layer, a direction.
    Marks,
}

/// The count was not reached when the counter's worker left the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// One worker's counter: the number of calls of [`advance`](Self::advance) in this region, modulo
/// 2³⁰.
pub(super) struct Counter {
    word: OwnLine<Word>,
}

/// Whether `word` counts at least `count`. They may be up to 2²⁹ − 1 apart, in either direction.
#[inline]
fn reached(word: u32, count: u32) -> bool {
    // Both in the number's bits, so that they wrap together; the sign is that of the distance.
    wait::number(word).wrapping_sub(count.wrapping_mul(ONE)) as i32 >= 0
}

impl Counter {
    pub(super) fn new() -> Self {
        Self::at(0)
    }

    /// A counter that stands at `count`, as after a long run.
    pub(super) fn at(count: u32) -> Self {
        Self {
            word: OwnLine(Word::new(count.wrapping_mul(ONE))),
        }
    }

    /// Resets the counter for the next region. No other thread may be using it.
    #[inline]
    pub(super) fn reset(&self) {
        // Relaxed: published with the next region.
        self.word.0.store(0, Ordering::Relaxed);
    }

    /// Adds one. A waiter for this count sees all earlier writes of this thread. For its worker
    /// only.
    #[inline]
    pub(super) fn advance(&self) {
        // Release: pairs with the Acquire loads of `wait`. An addition, because a store would erase
        // an `asleep` bit that was set since the load.
        if self.word.0.fetch_add(ONE, Ordering::Release) & ASLEEP != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Relaxed: part of the release sequence of the addition. A thread that relied on the bit
        // since the addition is not asleep yet and sees the word change, or is woken (README).
        self.word.0.fetch_and(!ASLEEP, Ordering::Relaxed);
        self.word.0.wake_all();
    }

    /// Ends the count for this region.
    #[inline]
    pub(super) fn close(&self) {
        wait::break_down(&self.word.0);
    }

    /// Waits until it has counted to `count`.
    #[inline]
    pub(super) fn wait(&self, count: u32, spin: SpinPolicy<'_>) -> Result<(), Closed> {
        wait::until(&self.word.0, spin, |word| {
            // In this order: a count that was reached before the close is valid.
            if reached(word, count) {
                Some(Ok(()))
            } else if word & BROKEN != 0 {
                Some(Err(Closed))
            } else {
                None
            }
        })
    }

    /// Whether the count is reached. For its own worker, which never waits for itself.
    #[inline]
    pub(super) fn has(&self, count: u32) -> bool {
        // Relaxed: this thread wrote it.
        reached(self.word.0.load(Ordering::Relaxed), count)
    }
}

/// One worker's counters, each on a line of its own.
pub(super) struct Progress {
    steps: Counter,
    marks: Counter,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            steps: Counter::new(),
            marks: Counter::new(),
        }
    }

    #[inline]
    pub(super) fn on(&self, track: Track) -> &Counter {
        match track {
            Track::Steps => &self.steps,
            Track::Marks => &self.marks,
        }
    }

    /// [`Counter::reset`] of both.
    #[inline]
    pub(super) fn reset(&self) {
        self.steps.reset();
        self.marks.reset();
    }

    /// [`Counter::close`] of both.
    #[inline]
    pub(super) fn close(&self) {
        self.steps.close();
        self.marks.close();
    }
}
