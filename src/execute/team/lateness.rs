//! How long the threads of a team wait for a processor that somebody else uses.
//!
//! A thread that waits for another and spends its spin budget sleeps. Meanwhile the system counts
//! how long the other one is ready to run but does not (`run_delay` in Linux's
//! `/proc/…/schedstat`): the thread that slept reads it before and after. So a machine that the
//! team has to itself pays nothing for it. Elsewhere than on Linux nothing is noticed.
//!
//! Nobody waits for these numbers; the end of a region orders them for the caller. So they are
//! plain atomics under the model checker, too.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most threads that a wait for all of them looks at.
const MOST_WATCHED: usize = 16;

/// One thread of a team.
#[derive(Default)]
struct Thread {
    /// The system's number of it; 0: not known.
    id: AtomicU32,
    /// Nanoseconds in this region for which others slept while it waited for a processor.
    late: AtomicU64,
}

/// The threads of a team.
pub(super) struct Lateness {
    threads: Box<[Thread]>,
    /// Some of them was late.
    noticed: AtomicBool,
}

impl Lateness {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            threads: (0..threads).map(|_| Thread::default()).collect(),
            noticed: AtomicBool::new(false),
        }
    }

    /// The calling thread is this one of the team from now on.
    pub(super) fn enter(&self, thread: usize) {
        self.threads[thread].id.store(system::thread_id(), Relaxed);
    }

    /// Whether a thread was late since the last [`take`](Self::take).
    #[inline]
    pub(super) fn is_noticed(&self) -> bool {
        self.noticed.load(Relaxed)
    }

    /// For each thread, nanoseconds since the last call that it was late and others slept.
    pub(super) fn take(&self) -> impl Iterator<Item = u64> {
        self.noticed.store(false, Relaxed);
        let threads = self.threads.iter();
        threads.map(|thread| thread.late.swap(0, Relaxed))
    }

    fn watched(&self, watch: Watch<'_>) -> impl Iterator<Item = &Thread> {
        let (me, peer) = (watch.me, watch.peer);
        let threads = self.threads.iter().zip(0..watch.threads);
        let is_watched = move |t| t != me && peer.is_none_or(|peer| peer == t);
        { threads }
            .filter_map(move |(thread, t)| is_watched(t).then_some(thread))
            .take(MOST_WATCHED)
    }

    fn note(&self, thread: &Thread, late: u64) {
        if late > 0 {
            thread.late.fetch_add(late, Relaxed);
            self.noticed.store(true, Relaxed);
        }
    }
}

/// Whom a thread waits for.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub lateness: &'a Lateness,
    pub me: u32,
    /// One, or any of `threads`.
    pub peer: Option<u32>,
    pub threads: u32,
}

impl Watch<'_> {
    /// Sleeps, and notes how late those are that it waits for.
    #[cold]
    pub(super) fn over<T>(self, sleep: impl FnOnce() -> T) -> T {
        if cfg!(loom) {
            return sleep();
        }
        let mut before = [0; MOST_WATCHED];
        let watched = || self.lateness.watched(self);
        let delay = |thread: &Thread| system::run_delay(thread.id.load(Relaxed)).unwrap_or(0);
        for (delayed, thread) in before.iter_mut().zip(watched()) {
            *delayed = delay(thread);
        }
        let value = sleep();
        for (&delayed, thread) in before.iter().zip(watched()) {
            self.lateness
                .note(thread, delay(thread).saturating_sub(delayed));
        }
        value
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::cell::Cell;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::ffi::OsStrExt;

    use super::super::fork::ProcessMark;

    pub(super) fn thread_id() -> u32 {
        thread_local!(static ID: Cell<Option<(ProcessMark, u32)>> = const { Cell::new(None) });
        if let Some((made_in, id)) = ID.get()
            && !made_in.is_forked()
        {
            return id;
        }
        // SAFETY: it has no arguments and cannot fail.
        let id = unsafe { libc::gettid() } as u32;
        ID.set(Some((ProcessMark::new(), id)));
        id
    }

    /// Nanoseconds for which a thread has waited for a processor since its start. Allocates
    /// nothing.
    pub(super) fn run_delay(thread: u32) -> Option<u64> {
        let mut path = [0; 64];
        let mut rest = &mut path[..];
        write!(rest, "/proc/self/task/{thread}/schedstat").ok()?;
        let written = 64 - rest.len();
        let mut text = [0; 96];
        let mut file = File::open(OsStr::from_bytes(&path[..written])).ok()?;
        let read = file.read(&mut text).ok()?;
        let text = std::str::from_utf8(&text[..read]).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn this_thread_is_found_and_others_are_not() {
            let id = thread_id();
            let before = run_delay(id).expect("Linux counts it");
            assert!(run_delay(id).unwrap() >= before);
            assert_ne!(std::thread::spawn(thread_id).join().unwrap(), id);
            assert_eq!(run_delay(0), None);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn thread_id() -> u32 {
        0
    }

    pub(super) fn run_delay(_: u32) -> Option<u64> {
        None
    }
}
