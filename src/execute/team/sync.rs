//! The atomics, threads and futex the team stands on: the real ones, or loom's when its model
//! checker runs the protocol (`--cfg loom`).

#[cfg(not(loom))]
pub(super) use real::*;

#[cfg(loom)]
pub(super) use model::*;

#[cfg(not(loom))]
mod real {
    pub(in super::super) use std::sync::Arc;
    pub(in super::super) use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
    pub(in super::super) use std::thread::{Builder, JoinHandle};

    /// A 32-bit word that threads can sleep on: a futex.
    pub(in super::super) struct Word(AtomicU32);

    impl Word {
        pub(in super::super) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps while the word equals `expected`; may also return for no reason. Comparing and
        /// falling asleep are one step to [`wake_all`](Self::wake_all).
        pub(in super::super) fn sleep_while(&self, expected: u32) {
            atomic_wait::wait(&self.0, expected);
        }

        pub(in super::super) fn wake_all(&self) {
            atomic_wait::wake_all(&self.0);
        }
    }

    impl std::ops::Deref for Word {
        type Target = AtomicU32;

        #[inline]
        fn deref(&self) -> &AtomicU32 {
            &self.0
        }
    }
}

#[cfg(loom)]
mod model {
    pub(in super::super) use loom::sync::Arc;
    pub(in super::super) use loom::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
    pub(in super::super) use loom::thread::{Builder, JoinHandle};

    /// A futex as the kernel's manual describes it: the lock is the kernel's lock on the word's
    /// queue of sleepers, under which it compares, and under which it wakes.
    pub(in super::super) struct Word {
        value: AtomicU32,
        queue: loom::sync::Mutex<()>,
        woken: loom::sync::Condvar,
    }

    impl Word {
        pub(in super::super) fn new(value: u32) -> Self {
            Self {
                value: AtomicU32::new(value),
                queue: loom::sync::Mutex::new(()),
                woken: loom::sync::Condvar::new(),
            }
        }

        pub(in super::super) fn sleep_while(&self, expected: u32) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::Relaxed) == expected {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        pub(in super::super) fn wake_all(&self) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_all();
        }
    }

    impl std::ops::Deref for Word {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.value
        }
    }
}

/// Keeps what one thread writes off the cache lines that others read. 128 bytes, because x86
/// fetches lines in pairs and some aarch64 lines are that long.
#[repr(align(128))]
pub(super) struct OwnLine<T>(pub(super) T);
