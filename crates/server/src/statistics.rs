//! Counts and times of a version of a model, as the protocol's statistics have them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::ErrorKind;
use crate::recent::Recent;

/// Requests and their times.
#[derive(Debug, Default)]
pub struct Statistics {
    pub success: Total,
    pub fail: Total,
    pub queue: Total,
    pub compute_input: Total,
    pub compute_infer: Total,
    pub compute_output: Total,
    /// Sequences that were computed.
    rows: AtomicU64,
    /// Milliseconds since 1970.
    last: AtomicU64,
    /// Nanoseconds of a usual request, moving.
    usual: AtomicU64,
    unanswered: AtomicU64,
    pub recent: Recent,
}

/// A request without an answer; dropped when it has one.
pub struct Unanswered<'a>(&'a AtomicU64);

impl<'a> Unanswered<'a> {
    /// One more of this number.
    pub fn of(count: &'a AtomicU64) -> Unanswered<'a> {
        count.fetch_add(1, Ordering::AcqRel);
        Unanswered(count)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A number of events and their time together.
#[derive(Debug, Default)]
pub struct Total {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Total {
    pub fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed)
    }
}

/// The times of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTimes {
    pub queue: Duration,
    pub input: Duration,
    pub infer: Duration,
}

impl Statistics {
    /// A request has come.
    pub fn begun(&self) -> Unanswered<'_> {
        Unanswered::of(&self.unanswered)
    }

    /// Requests without an answer.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Counts a request that has failed.
    pub fn failed(&self, kind: ErrorKind, whole: Duration) {
        self.fail.add(whole);
        self.recent.failed(Instant::now(), kind);
    }

    /// Counts a request that was answered.
    pub fn answered(&self, rows: usize, whole: Duration, times: RequestTimes) {
        self.success.add(whole);
        self.recent.answered(Instant::now(), whole);
        self.queue.add(times.queue);
        self.compute_input.add(times.input);
        self.compute_infer.add(times.infer);
        // Answers are written after they are counted.
        self.compute_output.add(Duration::ZERO);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let milliseconds = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.last.store(milliseconds, Ordering::Relaxed);
        // An eighth of the new one. A lost update changes nothing that matters.
        let before = self.usual.load(Ordering::Relaxed);
        let now = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
        let usual = if before == 0 {
            now
        } else {
            before - before / 8 + now / 8
        };
        self.usual.store(usual, Ordering::Relaxed);
    }

    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub fn last_milliseconds(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// When an overloaded client should try again: after the time of a usual request, in which as
    /// many requests end as are accepted.
    pub fn retry_after(&self) -> Duration {
        let usual = Duration::from_nanos(self.usual.load(Ordering::Relaxed));
        usual.clamp(Duration::from_millis(10), Duration::from_secs(30))
    }
}
