//! The time that a run goes by: that of the wall, or of a simulation.

use std::time::{Duration, Instant};

use crate::drive::inbox::Inbox;

/// Tells the time, counted from any start, and waits.
///
/// Waiting sleeps and never spins: the server's workers have all the cores, and a generator that spun would take from
/// them what it measures. It wakes up to about 0.1 ms late instead, which latencies include, as they count from when
/// requests were due.
pub trait Clock: Clone + Send + 'static {
    /// The time.
    fn now(&self) -> Duration;

    /// Waits until then, not at all if that has been.
    fn sleep_until(&self, time: Duration);

    /// The next message, waited for until then.
    fn receive<M>(&self, from: &Inbox<M>, until: Duration) -> Option<M>;
}

/// The wall's.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: Instant,
}

impl WallClock {
    /// Starts now.
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
    fn the_wall_clock_does_not_come_back_early() {
        let clock = WallClock::new();
        let until = clock.now() + Duration::from_millis(3);
        clock.sleep_until(until);
        assert!(clock.now() >= until);
        let (send, receive) = crate::drive::inbox::inbox::<u32>();
        let until = clock.now() + Duration::from_millis(3);
        assert_eq!(clock.receive(&receive, until), None);
        assert!(clock.now() >= until);
        send.send(5);
        assert_eq!(clock.receive(&receive, Duration::ZERO), Some(5));
    }
}
