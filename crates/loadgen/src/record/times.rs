//! Histogram of times.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Times in nanoseconds, to three significant digits. A histogram of the engine has two.
#[derive(Clone, Debug, PartialEq)]
pub struct Times(Histogram<u64>);

impl From<Histogram<u64>> for Times {
    fn from(nanoseconds: Histogram<u64>) -> Times {
        Times(nanoseconds)
    }
}

impl Default for Times {
    fn default() -> Times {
        // Digits in 0..=5 are accepted.
        match Histogram::new(3) {
            Ok(histogram) => Times(histogram),
            Err(_) => unreachable!("three digits are allowed"),
        }
    }
}

impl Times {
    /// Adds one time.
    pub fn record(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // The histogram grows as needed, up to its largest value.
        if self.0.record(nanoseconds).is_err() {
            self.0.saturating_record(nanoseconds);
        }
    }

    /// Adds all times of `other`.
    pub(crate) fn add(&mut self, other: &Times) {
        // The histogram grows as needed, so this cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// The times that were recorded after `earlier`, an older state of this histogram.
    pub(crate) fn since(&self, earlier: &Times) -> Times {
        let mut difference = self.clone();
        // Counts never decrease, so this cannot fail.
        let _ = difference.0.subtract(&earlier.0);
        difference
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that this fraction of all times does not exceed, in milliseconds; 0 if empty.
    pub fn quantile(&self, fraction: f64) -> f64 {
        self.0.value_at_quantile(fraction) as f64 / 1e6
    }

    /// The longest, in milliseconds; 0 if empty.
    pub fn max(&self) -> f64 {
        self.0.max() as f64 / 1e6
    }

    /// In milliseconds; 0 if empty.
    pub fn mean(&self) -> f64 {
        self.0.mean() / 1e6
    }
}
