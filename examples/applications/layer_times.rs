use std::time::{Duration, Instant};

/// The time of each part of a run.
pub struct LayerTimes {
    parts: Vec<(&'static str, Duration)>,
    last: Instant,
}

impl LayerTimes {
    pub fn new() -> LayerTimes {
        LayerTimes {
            parts: Vec::new(),
            last: Instant::now(),
        }
    }

    /// Forgets the last run: a part begins.
    pub fn start(&mut self) {
        self.parts.clear();
        self.last = Instant::now();
    }

    /// Ends a part; the next one begins.
    pub fn end(&mut self, part: &'static str) {
        let now = Instant::now();
        self.parts.push((part, now - self.last));
        self.last = now;
    }

    /// The parts of the last run, in their order.
    pub fn parts(&self) -> &[(&'static str, Duration)] {
        &self.parts
    }
}
