//! Locks of engine and workers: those of std, or of loom with `--cfg loom`.

#[cfg(not(loom))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicBool};

#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(loom)]
pub(super) use std::sync::PoisonError;
