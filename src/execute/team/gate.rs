//! A gate: threads wait until it is opened the next time. All waiting of the team is done here.
//!
//! ```text
//! wait(seen):  until epoch != seen or broken: spin a while, then sleep
//! open():      epoch += 1; wake the sleepers
//! ```
//!
//! The real one keeps epoch, "broken" and "somebody sleeps" in one word. A thread that wants to
//! sleep says so *in the word whose change it waits for*, so that whoever changes the word learns of
//! it in the same step: no wake-up is lost, no fence is needed, and opening a gate before which
//! nobody sleeps costs no system call.

use super::patience::Awake;
use super::sync::{Ordering, OwnLine, Word};

/// Somebody sleeps, or is about to: who changes the word must wake all.
const ASLEEP: u32 = 1;
/// Nobody will open the gate any more: a thread that should have come has failed.
const BROKEN: u32 = 2;
/// One epoch; the bits above it count epochs, and may wrap.
const EPOCH: u32 = 4;

/// The number of times a gate has been opened, modulo 2³⁰.
///
/// That it wraps is harmless: every waiter is past the gate before it is opened again.
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

    /// The present epoch, or nothing if the gate is broken. Only for a thread without which the
    /// gate cannot be opened: to others it may be gone as soon as it is read.
    #[inline]
    pub(super) fn epoch(&self) -> Option<Epoch> {
        // Relaxed: such a thread has already seen all openings so far (by passing them, or by being
        // the one who opened), and an atomic never goes back for a thread that has seen it. The
        // same holds for a break it was told of; who must not miss another meets it in `wait`.
        let word = self.word.0.load(Ordering::Relaxed);
        (word & BROKEN == 0).then_some(Epoch(word & !(EPOCH - 1)))
    }

    /// Ends the epoch `seen`: what this thread has written or seen, the passers see.
    ///
    /// One thread only, and no [`break_down`](Self::break_down) at the same time (see README).
    #[inline]
    pub(super) fn open(&self, seen: Epoch) {
        // Release: pairs with the Acquire loads of `wait`.
        let old = self
            .word
            .0
            .swap(seen.0.wrapping_add(EPOCH), Ordering::Release);
        if old & ASLEEP != 0 {
            self.word.0.wake_all();
        }
    }

    /// Lets all waiters go with [`Passed::Broken`], now and until [`mend`](Self::mend).
    #[cold]
    pub(super) fn break_down(&self) {
        let old = self.word.0.fetch_or(BROKEN, Ordering::Release);
        if old & ASLEEP != 0 {
            self.word.0.wake_all();
        }
    }

    /// Makes a broken gate usable again. Nobody else may be using it.
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
    pub(super) fn wait(&self, seen: Epoch, awake: Awake) -> Passed {
        let passed = |word: u32| {
            if word & !(EPOCH - 1) != seen.0 {
                Some(Passed::Open)
            } else if word & BROKEN != 0 {
                Some(Passed::Broken)
            } else {
                None
            }
        };
        // Acquire: pairs with the Release of `open` and `break_down`.
        match awake.poll(|| passed(self.word.0.load(Ordering::Acquire))) {
            Some(outcome) => outcome,
            None => self.sleep(passed),
        }
    }

    #[cold]
    fn sleep(&self, passed: impl Fn(u32) -> Option<Passed>) -> Passed {
        loop {
            let word = self.word.0.load(Ordering::Acquire);
            if let Some(outcome) = passed(word) {
                return outcome;
            }
            // Relaxed: setting the bit publishes nothing; that it is set in the very word that
            // `open` swaps is what matters.
            let sleeping = word | ASLEEP;
            if word == sleeping
                || self
                    .word
                    .0
                    .compare_exchange(word, sleeping, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                self.word.0.sleep_while(sleeping);
            }
        }
    }
}
