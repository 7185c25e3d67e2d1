//! The time of a run: real or simulated.

use std::time::{Duration, Instant};

use super::inbox::Inbox;

/// A clock that starts at any time, and waits.
///
/// Waits sleep and never spin: the workers of a target in this process use all cores. A sleep ends
/// late; latencies include the delay, because they count from the time when a request was due.
pub trait Clock: Clone + Send + 'static {
    /// The time since the start.
    fn now(&self) -> Duration;

    /// Waits until `time`; returns at once if it is past.
    fn sleep_until(&self, time: Duration);

    /// Returns the next message, after waiting for it until `until` at most.
    fn receive<M>(&self, from: &Inbox<M>, until: Duration) -> Option<M>;
}

/// A clock of simulated time, which advances from event to event.
pub trait EventClock: Clone + Send + 'static {
    /// The time of the last event.
    fn time(&self) -> Duration;

    /// Advances to the next event, at most to `until`. Whether there was one.
    fn step(&self, until: Duration) -> bool;
}

impl<C: EventClock> Clock for C {
    fn now(&self) -> Duration {
        self.time()
    }

    fn sleep_until(&self, time: Duration) {
        while self.step(time) {}
    }

    fn receive<M>(&self, from: &Inbox<M>, until: Duration) -> Option<M> {
        loop {
            if let Some(message) = from.take() {
                return Some(message);
            }
            if !self.step(until) {
                return from.take();
            }
        }
    }
}

/// Real time.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: Instant,
}

impl Default for WallClock {
    fn default() -> WallClock {
        WallClock::new()
    }
}

impl WallClock {
    /// A clock that starts now.
    pub fn new() -> WallClock {
        let start = Instant::now();
        WallClock { start }
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_until(&self, time: Duration) {
        let left = time.saturating_sub(self.now());
        if left > Duration::ZERO {
            std::thread::sleep(left);
        }
    }

    fn receive<M>(&self, from: &Inbox<M>, until: Duration) -> Option<M> {
        from.take_within(until.saturating_sub(self.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_do_not_end_early() {
        let clock = WallClock::new();
        let until = clock.now() + Duration::from_millis(3);
        clock.sleep_until(until);
        assert!(clock.now() >= until);
        let (send, receive) = super::super::inbox::inbox::<u32>();
        let until = clock.now() + Duration::from_millis(3);
        assert_eq!(clock.receive(&receive, until), None);
        assert!(clock.now() >= until);
        send.send(5);
        assert_eq!(clock.receive(&receive, Duration::ZERO), Some(5));
    }
}
