//! Requests that arrive.

use fastrand::Rng;

/// A sequence that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Nanoseconds since the start.
    pub time: u64,
    /// Steps.
    pub steps: usize,
}

/// A distribution of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All from the least to the most with the same probability: the paper tells no more of its
    /// data sets than these ends.
    Uniform {
        /// Fewest steps.
        least: usize,
        /// Most steps.
        most: usize,
    },
}

/// A Poisson process.
#[derive(Clone, Debug)]
pub struct Arrivals {
    rate: f64,
    lengths: Lengths,
    random: Rng,
    time: f64,
}

impl Arrivals {
    /// `rate` requests a second on average. The same seed gives the same requests.
    pub fn new(rate: f64, lengths: Lengths, seed: u64) -> Arrivals {
        Arrivals {
            rate,
            lengths,
            random: Rng::with_seed(seed),
            time: 0.0,
        }
    }

    /// Those of this many seconds.
    pub fn until_seconds(self, seconds: f64) -> impl Iterator<Item = Arrival> {
        let end = (seconds * 1e9) as u64;
        self.take_while(move |arrival| arrival.time < end)
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        // The gap to the next of a Poisson process is exponential.
        self.time -= (1.0 - self.random.f64()).ln() / self.rate * 1e9;
        let Lengths::Uniform { least, most } = self.lengths;
        Some(Arrival {
            time: self.time as u64,
            steps: self.random.usize(least..=most),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_lengths_have_the_right_means() {
        let lengths = Lengths::Uniform {
            least: 20,
            most: 100,
        };
        let all: Vec<Arrival> = Arrivals::new(500.0, lengths, 3).take(100_000).collect();
        let seconds = all.last().unwrap().time as f64 / 1e9;
        assert!((100_000.0 / seconds / 500.0 - 1.0).abs() < 0.02);
        let steps: usize = all.iter().map(|arrival| arrival.steps).sum();
        assert!((steps as f64 / 100_000.0 - 60.0).abs() < 0.5);
        // Of an exponential distribution the deviation is the mean.
        let gaps: Vec<f64> = all
            .windows(2)
            .map(|two| (two[1].time - two[0].time) as f64)
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02);
    }
}
