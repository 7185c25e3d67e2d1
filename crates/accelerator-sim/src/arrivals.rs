//! Requests that arrive.

use std::fmt;
use std::sync::Arc;

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
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// All from the least to the most with the same probability: the paper tells no more of its
    /// data sets than these ends.
    Uniform {
        /// Fewest steps.
        least: usize,
        /// Most steps.
        most: usize,
    },
    /// A normal distribution, without the values beyond the ends. The mean should be between them:
    /// values are drawn until one is.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        deviation: f64,
        /// Fewest steps.
        least: usize,
        /// Most steps.
        most: usize,
    },
    /// As the paper makes lengths like those of a data set: a bin of the set's histogram, by its
    /// count, and in it any length with the same probability.
    Histogram(Histogram),
}

/// The lengths of a data set, counted in bins of equal width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The least length of each bin.
    starts: Arc<[usize]>,
    /// For each bin, the number of lengths in it and in those before.
    until: Arc<[usize]>,
    width: usize,
    /// Of all given lengths.
    sum: usize,
}

impl Histogram {
    /// The histogram of these lengths, in bins of `width` lengths; `None` without lengths, with a
    /// length of 0, or for bins without width.
    pub fn new(lengths: &[usize], width: usize) -> Option<Histogram> {
        if lengths.is_empty() || lengths.contains(&0) || width == 0 {
            return None;
        }
        let mut counts = std::collections::BTreeMap::new();
        for length in lengths {
            // From 1 on, so that no bin has the length 0.
            *counts.entry((length - 1) / width).or_insert(0usize) += 1;
        }
        let mut until = 0;
        let sums = counts.values().map(|count| {
            until += count;
            until
        });
        Some(Histogram {
            until: sums.collect(),
            starts: counts.keys().map(|bin| bin * width + 1).collect(),
            width,
            sum: lengths.iter().sum(),
        })
    }

    fn count(&self) -> usize {
        self.until.last().copied().unwrap_or(0)
    }

    fn length(&self, random: &mut Rng) -> usize {
        let index = random.usize(..self.count());
        let bin = self.until.partition_point(|&until| until <= index);
        self.starts[bin] + random.usize(..self.width)
    }
}

/// As `--lengths` of `simulate` takes it; a histogram by the number of its lengths.
impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Uniform { least, most } => write!(f, "uniform:{least}..{most}"),
            Lengths::Normal {
                mean,
                deviation,
                least,
                most,
            } => write!(f, "normal:{mean},{deviation},{least}..{most}"),
            Lengths::Histogram(histogram) => write!(f, "{} lengths", histogram.count()),
        }
    }
}

impl Lengths {
    /// A length.
    pub fn draw(&self, random: &mut Rng) -> usize {
        match self {
            Lengths::Uniform { least, most } => random.usize(*least..=*most),
            Lengths::Normal {
                mean,
                deviation,
                least,
                most,
            } => loop {
                // Box and Muller.
                let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random.f64()).cos();
                let length = (mean + deviation * normal).round();
                if length >= *least as f64 && length <= *most as f64 {
                    return length as usize;
                }
            },
            Lengths::Histogram(histogram) => histogram.length(random),
        }
    }

    /// The mean, approximately: of a normal distribution without regard to its ends.
    pub fn mean(&self) -> f64 {
        match self {
            Lengths::Uniform { least, most } => (least + most) as f64 / 2.0,
            Lengths::Normal { mean, .. } => *mean,
            Lengths::Histogram(histogram) => histogram.sum as f64 / histogram.count() as f64,
        }
    }
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
        Some(Arrival {
            time: self.time as u64,
            steps: self.lengths.draw(&mut self.random),
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

    fn drawn(lengths: &Lengths) -> Vec<usize> {
        let mut random = Rng::with_seed(5);
        (0..100_000).map(|_| lengths.draw(&mut random)).collect()
    }

    #[test]
    fn normal_lengths_have_their_mean_and_deviation_and_keep_the_ends() {
        let normal = |deviation| Lengths::Normal {
            mean: 60.0,
            deviation,
            least: 20,
            most: 100,
        };
        let all = drawn(&normal(10.0));
        let mean = all.iter().sum::<usize>() as f64 / 1e5;
        let squares = all.iter().map(|&length| (length as f64 - mean).powi(2));
        let deviation = (squares.sum::<f64>() / 1e5).sqrt();
        assert!((mean - 60.0).abs() < 0.2 && (deviation - 10.0).abs() < 0.1);
        let wide = drawn(&normal(80.0));
        assert!(wide.iter().all(|length| (20..=100).contains(length)));
    }

    #[test]
    fn a_histogram_draws_bins_by_their_counts() {
        // Bins 1 to 5, 6 to 10 and 96 to 100.
        let given = [1, 3, 5, 6, 100, 98];
        let lengths = Lengths::Histogram(Histogram::new(&given, 5).unwrap());
        assert_eq!(lengths.mean(), 213.0 / 6.0);
        let all = drawn(&lengths);
        for (bin, expected) in [
            (1..=5, 3.0 / 6.0),
            (6..=10, 1.0 / 6.0),
            (96..=100, 2.0 / 6.0),
        ] {
            let inside = all.iter().filter(|&length| bin.contains(length)).count();
            assert!((inside as f64 / 1e5 - expected).abs() < 0.01, "{bin:?}");
            assert!(bin.into_iter().all(|length| all.contains(&length)));
        }
        assert!(
            all.iter()
                .all(|&length| length <= 10 || (96..=100).contains(&length))
        );
        assert_eq!(Histogram::new(&[], 5), None);
        assert_eq!(Histogram::new(&[3, 0], 5), None);
        assert_eq!(Histogram::new(&[3], 0), None);
    }
}
