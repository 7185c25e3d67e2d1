//! Ends streams that are idle for too long.
//!
//! ```text
//! opened                 watched: looked at after the time that a stream may be idle
//! its time has come      idle since then: it ends; else it is looked at again when it could be
//! closed or dropped      not watched any more
//! ```
//!
//! So a step costs no more than the clock. The reply thread sleeps until the next time. The
//! engine's lock protects the list; a stream is locked without it.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::super::RequestError;
use super::super::shared::Shared;
use super::segments::Inner;

/// The watched streams, by their position.
#[derive(Default)]
pub(in crate::engine) struct IdleStreams {
    streams: FxHashMap<u64, (Instant, Weak<Inner>)>,
    times: BTreeSet<(Instant, u64)>,
}

impl IdleStreams {
    fn watch(&mut self, position: u64, stream: Weak<Inner>, at: Instant) {
        self.streams.insert(position, (at, stream));
        self.times.insert((at, position));
    }

    /// The stream has ended.
    pub fn forget(&mut self, position: u64) {
        if let Some((at, _)) = self.streams.remove(&position) {
            self.times.remove(&(at, position));
        }
    }

    /// The next time to look at a stream.
    pub fn next(&self) -> Option<Instant> {
        self.times.first().map(|&(at, _)| at)
    }

    /// The streams to look at by `now`.
    fn take_due(&mut self, now: Instant) -> Vec<(u64, Weak<Inner>)> {
        let mut due = Vec::new();
        while let Some(&(at, position)) = self.times.first()
            && at <= now
        {
            self.times.pop_first();
            let stream = self.streams.get(&position);
            due.extend(stream.map(|(_, stream)| (position, Weak::clone(stream))));
        }
        due
    }

    /// Looks at a stream again, unless it has ended meanwhile.
    fn watch_again(&mut self, position: u64, next: Instant) {
        if let Some((at, _)) = self.streams.get_mut(&position) {
            *at = next;
            self.times.insert((next, position));
        }
    }
}

impl Shared {
    /// Watches an open stream.
    pub(super) fn watch_stream(&self, position: u64, stream: &Arc<Inner>) {
        let at = self
            .idle_streams
            .and_then(|idle| Instant::now().checked_add(idle));
        let Some(at) = at else {
            return;
        };
        let mut state = self.lock();
        // Streams that are watched later have later times.
        let wake = state.idle_streams.next().is_none();
        state
            .idle_streams
            .watch(position, Arc::downgrade(stream), at);
        drop(state);
        if wake {
            self.reply_work.notify_one();
        }
    }

    /// Ends the streams that are idle for too long.
    pub fn end_idle_streams(&self) {
        let now = Instant::now();
        let Some(idle) = self.idle_streams else {
            return;
        };
        let due = self.lock().idle_streams.take_due(now);
        for (position, stream) in due {
            let next = stream
                .upgrade()
                .and_then(|stream| stream.end_if_idle(now, idle));
            if let Some(next) = next {
                self.lock().idle_streams.watch_again(position, next);
            }
        }
    }
}

impl Inner {
    /// Ends the stream if it has been idle for so long; otherwise returns the time when it may have
    /// been.
    pub fn end_if_idle(&self, at: Instant, idle: Duration) -> Option<Instant> {
        let mut now = self.lock();
        if now.ended.is_some() || now.closing.is_some() {
            return None;
        }
        if now.running.is_some() {
            return at.checked_add(idle);
        }
        let next = now.idle_since.checked_add(idle)?;
        if next > at {
            return Some(next);
        }
        let ended = now.end(RequestError::Idle);
        drop(now);
        // No step is unanswered. The room is returned without the lock of the stream.
        drop(ended);
        None
    }
}
