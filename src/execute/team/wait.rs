//! Waiting for a word to change: the only place where a thread of the team waits.
//!
//! ```text
//! until(word, passed):  until passed(word): spin a while, then sleep
//! change(word):         change it; wake the sleepers
//! ```
//!
//! The real one keeps "somebody sleeps" in the word itself. A thread that wants to sleep says so
//! *in the word whose change it waits for*, so that whoever changes the word learns of it in the
//! same step: no wake-up is lost, no fence is needed, and changing a word on which nobody sleeps
//! costs no system call.
//!
//! A word is `number · broken · asleep`; what the number counts, and how it is changed, is for the
//! [`Gate`](super::gate::Gate) and the [`Counter`](super::progress::Counter) to say.

use super::patience::Awake;
use super::sync::{Ordering, Word};

/// Somebody sleeps, or is about to: who changes the word must wake all.
pub(super) const ASLEEP: u32 = 1;
/// Nobody will change the number any more: a thread that should have has failed, or has ended.
pub(super) const BROKEN: u32 = 2;
/// One of what is counted; the number is the bits from here on, and may wrap.
pub(super) const ONE: u32 = 4;

/// The number's bits.
#[inline]
pub(super) fn number(word: u32) -> u32 {
    word & !(ONE - 1)
}

/// Waits until `passed` has an answer to the word, and returns it.
#[inline]
pub(super) fn until<T>(word: &Word, awake: Awake, passed: impl Fn(u32) -> Option<T>) -> T {
    // Acquire: pairs with the Release of whoever changed the word.
    match awake.poll(|| passed(word.load(Ordering::Acquire))) {
        Some(answer) => answer,
        None => sleep(word, passed),
    }
}

#[cold]
fn sleep<T>(word: &Word, passed: impl Fn(u32) -> Option<T>) -> T {
    loop {
        let seen = word.load(Ordering::Acquire);
        if let Some(answer) = passed(seen) {
            return answer;
        }
        // Relaxed: setting the bit publishes nothing; that it is set in the very word that the
        // waker changes is what matters.
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

/// Marks the word as broken, for all who wait or will.
pub(super) fn break_down(word: &Word) {
    // Release: pairs with the Acquire loads of `until`.
    if word.fetch_or(BROKEN, Ordering::Release) & ASLEEP != 0 {
        word.wake_all();
    }
}
