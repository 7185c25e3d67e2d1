//! Detects that the process is a child made by `fork`: threads of the parent do not exist in it,
//! and locks that they held stay locked.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Remembers the process that it was made in. Checking it costs one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMark(u32);

impl ProcessMark {
    /// A mark of this process.
    #[must_use]
    pub fn new() -> Self {
        count_forks();
        // Relaxed: only a fork changes it, in the child, which has one thread then.
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this is another process than the one that made the mark: a child of it.
    #[must_use]
    #[inline]
    pub fn is_forked(self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.0
    }
}

impl Default for ProcessMark {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(unix)]
fn count_forks() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static COUNTED: std::sync::Once = std::sync::Once::new();
    COUNTED.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a child of `fork`. Where
        // the system has no memory for it, forks are not detected.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[cfg(not(unix))]
fn count_forks() {}
