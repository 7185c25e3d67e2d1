//! Fair timing: contenders are timed in turn, round after round, so that a slow minute hits all.
//!
//! ```text
//! for round in rounds
//!   for contender, starting with another one each round
//!     run once                              then caches and sleeping threads are as it leaves them
//!     sample <- median of as many runs as a lap has time for; of one so long that what was
//!               before does not matter, the first run itself
//! ```
//!
//! Ratios are taken within a round and then summed up, so that what drifts cancels out.

use std::time::{Duration, Instant};

/// One that is timed; `run` runs it once and says how long it took.
pub struct Contender<'a> {
    name: String,
    run: Box<dyn FnMut() -> Duration + 'a>,
}

impl<'a> Contender<'a> {
    /// Times the whole of `run`.
    pub fn new(name: impl Into<String>, mut run: impl FnMut() + 'a) -> Contender<'a> {
        let timed = move || {
            let start = Instant::now();
            run();
            start.elapsed()
        };
        Contender::timing_itself(name, timed)
    }

    /// One that says itself how long it took, where getting there is no part of the question.
    pub fn timing_itself(
        name: impl Into<String>,
        run: impl FnMut() -> Duration + 'a,
    ) -> Contender<'a> {
        Contender {
            name: name.into(),
            run: Box::new(run),
        }
    }

    fn lap(&mut self, lap: Duration) -> f64 {
        let first = (self.run)().as_secs_f64().max(1e-9);
        if first > LONG * lap.as_secs_f64() {
            return first;
        }
        let runs = (lap.as_secs_f64() / first).clamp(1.0, 101.0) as usize;
        let samples = (0..runs).map(|_| (self.run)().as_secs_f64());
        Quartiles::of(samples.collect()).median
    }
}

/// Laps after which a run needs no other before it.
const LONG: f64 = 4.0;
/// Rounds that are run whatever the time.
const LEAST: usize = 7;

/// How a race is run.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Samples of each contender.
    pub count: usize,
    /// How long the runs of one sample last together, where one run does not last longer.
    pub lap: Duration,
    /// No more rounds than a few after so long.
    pub limit: Duration,
}

impl Rounds {
    /// A part of the rounds, for each packing of the weights; two at least.
    pub fn shared_out(self, packings: usize) -> Rounds {
        Rounds {
            count: self.count.div_ceil(packings).max(2),
            limit: self.limit / packings as u32,
            ..self
        }
    }

    /// Races all contenders. Times are in the contenders' order.
    pub fn race(&self, contenders: &mut [Contender<'_>]) -> Vec<Times> {
        let mut samples = vec![Vec::with_capacity(self.count); contenders.len()];
        let start = Instant::now();
        for round in 0..self.count {
            if round >= LEAST && start.elapsed() > self.limit {
                break;
            }
            for turn in 0..contenders.len() {
                let index = (turn + round) % contenders.len();
                samples[index].push(contenders[index].lap(self.lap));
            }
        }
        let names = contenders.iter().map(|c| c.name.clone());
        let times = names.zip(samples);
        times
            .map(|(name, samples)| Times { name, samples })
            .collect()
    }
}

/// The samples of one contender, in seconds, in the order of the rounds.
#[derive(Clone, Debug)]
pub struct Times {
    /// The contender.
    pub name: String,
    /// Seconds, one per round.
    pub samples: Vec<f64>,
}

impl Times {
    /// Median and quartiles, in seconds.
    pub fn quartiles(&self) -> Quartiles {
        Quartiles::of(self.samples.clone())
    }

    /// Median, in seconds.
    pub fn median(&self) -> f64 {
        self.quartiles().median
    }

    /// How many times as long as `other` this takes, round by round.
    pub fn over(&self, other: &Times) -> Quartiles {
        let pairs = self.samples.iter().zip(&other.samples);
        Quartiles::of(pairs.map(|(a, b)| a / b).collect())
    }

    /// The samples of both, for the same contender made anew.
    #[must_use]
    pub fn and(mut self, other: Times) -> Times {
        self.samples.extend(other.samples);
        self
    }
}

/// Median and quartiles of some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// A quarter of the samples is below.
    pub low: f64,
    /// Half of them.
    pub median: f64,
    /// A quarter is above.
    pub high: f64,
}

impl Quartiles {
    /// Of at least one sample; NaN of none.
    pub fn of(mut samples: Vec<f64>) -> Quartiles {
        samples.sort_unstable_by(f64::total_cmp);
        let last = samples.len().saturating_sub(1);
        let at = |quarter: usize| {
            let index = (last * quarter + 2) / 4;
            samples.get(index).copied().unwrap_or(f64::NAN)
        };
        Quartiles {
            low: at(1),
            median: at(2),
            high: at(3),
        }
    }

    /// `2.13 (2.05–2.20)`.
    pub fn text(&self) -> String {
        format!("{:.2} ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}

/// What a few samples of something that is not raced are summed up to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The least of them.
    pub least: f64,
    /// Half of them are below.
    pub median: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of at least one sample; NaN of none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Spread {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_unstable_by(f64::total_cmp);
        let at = |sample: Option<&f64>| sample.copied().unwrap_or(f64::NAN);
        Spread {
            least: at(samples.first()),
            median: at(samples.get(samples.len() / 2)),
            greatest: at(samples.last()),
        }
    }
}

/// The geometric mean; NaN of none.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let logs: f64 = values.iter().map(|v| v.ln()).sum();
    (logs / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let times = |samples: [f64; 5]| Times {
            name: String::new(),
            samples: samples.to_vec(),
        };
        // The machine slows down fourfold half-way; the ratio is the same in all rounds.
        let (slow, fast) = (times([2., 2., 8., 8., 8.]), times([1., 1., 4., 4., 4.]));
        let ratio = slow.over(&fast);
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.0, 2.0));
        assert_eq!(slow.quartiles().low, 2.0);
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn every_contender_has_a_sample_of_each_round() {
        let mut runs = [0, 0];
        let [a, b] = &mut runs;
        let mut contenders = [
            Contender::timing_itself("a", || {
                *a += 1;
                Duration::from_secs(1)
            }),
            Contender::timing_itself("b", || {
                *b += 1;
                Duration::from_secs(3)
            }),
        ];
        let rounds = Rounds {
            count: 4,
            lap: Duration::from_secs(2),
            limit: Duration::from_secs(60),
        };
        let times = rounds.race(&mut contenders);
        assert_eq!(
            (times[0].samples.len(), times[1].over(&times[0]).median),
            (4, 3.0)
        );
        drop(contenders);
        // One run to warm up, and as many as fit into a lap, but at least one.
        assert_eq!(runs, [4 * 3, 4 * 2]);
    }
}
