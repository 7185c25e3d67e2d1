//! Waiting for a word to change: the only place where a thread of the team waits.
//!
//! ```text
//! until(word, passed):  until passed(word): spin a while, then sleep
//! change(word):         change it; wake the sleepers
//! ```
//!
//! The bit `asleep` is part of the word. A thread that is about to sleep sets it *in the word whose
//! change it waits for*, so the thread that changes the word reads the bit in the same operation:
//! no wake-up is lost, no fence is needed, and a change without sleepers costs no system call.
//!
//! A word is `number · broken · asleep`. [`Gate`](super::gate::Gate) and
//! [`Counter`](super::progress::Counter) define what the number counts and how it changes.

use super::spin::SpinPolicy;
use super::sync::{Ordering, Word};

/// A thread sleeps or is about to: a change of the word must wake all.
pub(super) const ASLEEP: u32 = 1;
/// The number will not change any more: the thread that changes it has failed or ended.
pub(super) const BROKEN: u32 = 2;
/// The lowest bit of the number, which may wrap.
pub(super) const ONE: u32 = 4;

/// The number's bits.
#[inline]
pub(super) fn number(word: u32) -> u32 {
    word & !(ONE - 1)
}

/// Waits until `passed` returns a value for the word, and returns that value.
#[inline]
pub(super) fn until<T>(word: &Word, spin: SpinPolicy<'_>, passed: impl Fn(u32) -> Option<T>) -> T {
    // Acquire: pairs with the Release of the change.
    match spin.poll(|| passed(word.load(Ordering::Acquire))) {
        Some(value) => value,
        None => spin.over(|| sleep(word, passed)),
    }
}

#[cold]
fn sleep<T>(word: &Word, passed: impl Fn(u32) -> Option<T>) -> T {
    loop {
        let seen = word.load(Ordering::Acquire);
        if let Some(value) = passed(seen) {
            return value;
        }
        // Relaxed: setting the bit publishes nothing. It is in the word that the waker changes, and
        // that is sufficient.
        let sleeping = seen | ASLEEP;
        if seen == sleeping
            || word
                .compare_exchange(seen, sleeping, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            word.sleep_while(sleeping);
        }
    }
}

/// Marks the word as broken, for all present and later waiters.
pub(super) fn break_down(word: &Word) {
    // Release: pairs with the Acquire loads of `until`.
    if word.fetch_or(BROKEN, Ordering::Release) & ASLEEP != 0 {
        word.wake_all();
    }
}
