//! Latencies and failures of the last minute.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::ErrorKind;

/// The window is a minute: six whole parts and the one that has begun.
const PARTS: u64 = 6;
const PART: Duration = Duration::from_secs(10);

/// Significant digits of a latency.
const DIGITS: u8 = 2;

/// See the [module](self).
#[derive(Debug)]
pub struct Recent {
    begun: Instant,
    parts: Mutex<[Part; PARTS as usize + 1]>,
}

/// Ten seconds.
#[derive(Debug, Default)]
struct Part {
    /// Since [`Recent::begun`].
    number: u64,
    /// Microseconds; `None`: there is no answer.
    latencies: Option<Histogram<u32>>,
    failures: BTreeMap<&'static str, u64>,
}

/// What the window has.
#[derive(Debug, Default, PartialEq)]
pub struct Minute {
    pub answered: u64,
    /// The 50th, 90th and 99th percentile of the latency; `None`: there is no answer.
    pub percentiles: Option<[Duration; 3]>,
    /// Failed requests by the name of their kind.
    pub failures: BTreeMap<&'static str, u64>,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent {
            begun: Instant::now(),
            parts: Mutex::default(),
        }
    }
}

impl Recent {
    /// A request was answered after this time.
    pub fn answered(&self, now: Instant, latency: Duration) {
        let mut parts = self.parts();
        let part = self.part(&mut parts, now);
        if part.latencies.is_none() {
            part.latencies = Histogram::new(DIGITS).ok();
        }
        if let Some(latencies) = &mut part.latencies {
            let microseconds = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
            // The histogram grows; a latency that it cannot hold took ages.
            let _ = latencies.record(microseconds);
        }
    }

    /// A request has failed.
    pub fn failed(&self, now: Instant, kind: ErrorKind) {
        let mut parts = self.parts();
        let failures = &mut self.part(&mut parts, now).failures;
        *failures.entry(kind.answer().name).or_default() += 1;
    }

    /// The last minute.
    pub fn minute(&self, now: Instant) -> Minute {
        let number = self.number(now);
        let mut minute = Minute::default();
        let mut latencies: Option<Histogram<u32>> = None;
        for part in self.parts().iter() {
            if part.number + PARTS < number {
                continue;
            }
            for (&kind, count) in &part.failures {
                *minute.failures.entry(kind).or_default() += count;
            }
            latencies = match (latencies, &part.latencies) {
                (None, of_part) => of_part.clone(),
                (all, None) => all,
                (Some(mut all), Some(of_part)) => {
                    // Both grow.
                    let _ = all.add(of_part);
                    Some(all)
                }
            };
        }
        if let Some(latencies) = latencies {
            let at = |quantile| Duration::from_micros(latencies.value_at_quantile(quantile));
            minute.answered = latencies.len();
            minute.percentiles = Some([0.5, 0.9, 0.99].map(at));
        }
        minute
    }

    fn part<'a>(&self, parts: &'a mut [Part; PARTS as usize + 1], now: Instant) -> &'a mut Part {
        let number = self.number(now);
        let part = &mut parts[(number % (PARTS + 1)) as usize];
        if part.number != number {
            *part = Part {
                number,
                ..Part::default()
            };
        }
        part
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begun).as_secs() / PART.as_secs()
    }

    fn parts(&self) -> MutexGuard<'_, [Part; PARTS as usize + 1]> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_forgets() {
        let recent = Recent::default();
        let at = |seconds| recent.begun + Duration::from_secs(seconds);
        assert_eq!(recent.minute(at(0)), Minute::default());
        recent.answered(at(1), Duration::from_secs(9));
        recent.failed(at(2), ErrorKind::Late);
        for _ in 0..99 {
            recent.answered(at(65), Duration::from_millis(1));
            recent.failed(at(65), ErrorKind::Invalid);
        }
        let both = recent.minute(at(66));
        assert_eq!(both.answered, 100);
        assert_eq!(
            both.failures,
            BTreeMap::from([("invalid", 99), ("late", 1)])
        );
        let [median, _, high] = both.percentiles.expect("answers");
        assert!((900..1100).contains(&median.as_micros()), "{median:?}");
        assert!(high < Duration::from_secs(1), "the 99th of 100: {high:?}");
        let later = recent.minute(at(80));
        assert_eq!((later.answered, later.failures.len()), (99, 1));
        assert_eq!(recent.minute(at(200)), Minute::default());
        // A part is used again.
        recent.answered(at(71), Duration::from_millis(1));
        assert_eq!(recent.minute(at(75)).answered, 100);
    }
}
