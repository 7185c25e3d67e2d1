//! When a connection whose client sends nothing, or reads nothing, ends.
//!
//! ```text
//! accepted ──bytes, head time──► request ──answered──► idle ──bytes──► head of the next request
//! ```
//!
//! A head that has begun must be complete after the head time. An idle connection of HTTP/1 ends
//! after the idle time; HTTP/2 tests idle connections itself, once it has had a request. A
//! connection of either ends when its socket has taken no byte of an answer for the idle time.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Times of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimes {
    /// For the head of a request, once it has begun, and for the first one.
    pub head: Duration,
    /// Between an answer and the next request.
    pub idle: Duration,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The rest of a head, since.
    Head(Instant),
    /// An answer of the server.
    Answer,
    /// The next request, since.
    Idle(Instant),
    /// Any of many requests.
    Many,
}

/// See the [module](self). Clones are of the same connection.
#[derive(Clone, Debug)]
pub struct Clock {
    state: Arc<Mutex<State>>,
    times: ConnectionTimes,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Since when the client reads nothing.
    blocked: Option<Instant>,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub at: Instant,
    /// Whether nothing of a request has come.
    pub is_idle: bool,
}

impl Clock {
    /// Of a connection that has just been accepted.
    pub fn new(times: ConnectionTimes) -> Clock {
        Clock {
            state: Arc::new(Mutex::new(State {
                phase: Phase::Head(Instant::now()),
                blocked: None,
            })),
            times,
        }
    }

    /// When the connection ends if nothing happens; `None`: never.
    pub fn deadline(&self) -> Option<Deadline> {
        let state = self.state();
        let (since, time, is_idle) = match state.phase {
            Phase::Head(since) => (since, self.times.head, false),
            Phase::Idle(since) => (since, self.times.idle, true),
            Phase::Answer | Phase::Many => (state.blocked?, self.times.idle, false),
        };
        let at = since.checked_add(time)?;
        Some(Deadline { at, is_idle })
    }

    /// A request has come. Dropping the result tells that it is answered.
    pub fn request(&self, is_one_of_many: bool) -> Answering {
        self.state().phase = if is_one_of_many {
            Phase::Many
        } else {
            Phase::Answer
        };
        Answering(self.clone())
    }

    fn read(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Idle(_)) {
            state.phase = Phase::Head(Instant::now());
        }
    }

    fn wrote<T>(&self, wrote: &Poll<T>) {
        let mut state = self.state();
        if wrote.is_pending() {
            state.blocked.get_or_insert_with(Instant::now);
            return;
        }
        state.blocked = None;
        // The end of an answer may be on its way for long.
        if let Phase::Idle(since) = &mut state.phase {
            *since = Instant::now();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that has no whole answer yet.
pub struct Answering(Clock);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.phase == Phase::Answer {
            state.phase = Phase::Idle(Instant::now());
        }
    }
}

/// A stream whose clock sees the bytes that come and go.
pub struct Clocked<S> {
    pub stream: S,
    pub clock: Clock,
}

impl<S: AsyncRead + Unpin> AsyncRead for Clocked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.clock.read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Clocked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.clock.wrote(&wrote);
        wrote
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.clock.wrote(&wrote);
        wrote
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ConnectionTimes = ConnectionTimes {
        head: Duration::from_secs(1),
        idle: Duration::from_secs(9),
    };

    /// Whether a wait is idle, and its time, which has just begun.
    fn ends(clock: &Clock) -> Option<(bool, Duration)> {
        let Deadline { at, is_idle } = clock.deadline()?;
        let left = at.saturating_duration_since(Instant::now());
        let mut times = [TIMES.head, TIMES.idle].into_iter();
        let time = times.find(|time| *time >= left).expect("one of the times");
        Some((is_idle, time))
    }

    #[test]
    fn a_head_has_less_time_than_an_idle_connection() {
        let clock = Clock::new(TIMES);
        assert_eq!(ends(&clock), Some((false, TIMES.head)), "the first request");
        let answering = clock.request(false);
        clock.read();
        assert_eq!(ends(&clock), None, "its body, and its answer");
        drop(answering);
        assert_eq!(ends(&clock), Some((true, TIMES.idle)));
        clock.read();
        let begun = clock.deadline();
        assert_eq!(ends(&clock), Some((false, TIMES.head)));
        clock.read();
        assert_eq!(clock.deadline(), begun, "further bytes give no more time");
    }

    #[test]
    fn a_connection_of_many_requests_has_no_end_of_its_own() {
        let clock = Clock::new(TIMES);
        drop(clock.request(true));
        clock.read();
        assert_eq!(ends(&clock), None);
    }

    #[test]
    fn a_client_that_takes_nothing_has_the_time_of_an_idle_one() {
        for is_one_of_many in [false, true] {
            let clock = Clock::new(TIMES);
            let _answering = clock.request(is_one_of_many);
            clock.wrote::<()>(&Poll::Pending);
            let first = clock.deadline();
            assert_eq!(ends(&clock), Some((false, TIMES.idle)));
            clock.wrote::<()>(&Poll::Pending);
            assert_eq!(clock.deadline(), first, "a further try gives no more time");
            clock.wrote(&Poll::Ready(()));
            assert_eq!(ends(&clock), None);
        }
    }
}
