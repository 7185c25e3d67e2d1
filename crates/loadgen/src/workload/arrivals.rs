//! When requests are due.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

/// When requests are due, counted from the start of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Open loop: independent users, so many a second on average, whatever becomes of earlier requests.
    Poisson {
        /// Requests a second, above 0.
        rate: f64,
    },
    /// Open loop: at these times, in order.
    Trace(Arc<[Duration]>),
    /// Closed loop: so many users, each of whom asks again as soon as he is answered.
    Closed {
        /// Users, at least 1.
        outstanding: usize,
    },
}

impl Arrivals {
    /// The times of an open loop, the same for the same seed; none of a closed one, which are not known beforehand.
    pub fn times(&self, seed: u64) -> Times {
        match self {
            Arrivals::Poisson { rate } => Times::Poisson {
                rate: *rate,
                seconds: 0.0,
                random: Rng::with_seed(seed),
            },
            Arrivals::Trace(times) => Times::Trace(times.clone(), 0),
            Arrivals::Closed { .. } => Times::Trace([].into(), 0),
        }
    }
}

/// When the requests of one run are due.
#[derive(Clone, Debug)]
pub enum Times {
    /// Exponential times between them.
    Poisson {
        /// Requests a second.
        rate: f64,
        /// The last one.
        seconds: f64,
        /// What comes.
        random: Rng,
    },
    /// As listed; how many have been.
    Trace(Arc<[Duration]>, usize),
}

impl Iterator for Times {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        match self {
            Times::Poisson {
                rate,
                seconds,
                random,
            } => {
                // 1 - [0, 1) is above 0, for the logarithm.
                *seconds -= (1.0 - random.f64()).ln() / *rate;
                Duration::try_from_secs_f64(*seconds).ok()
            }
            Times::Trace(times, next) => {
                *next += 1;
                times.get(*next - 1).copied()
            }
        }
    }
}

/// Why a trace is refused.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is no time.
    #[error("{}: line {line}: is {found:?}; expected seconds since the start, as in 0.25", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What stands there.
        found: String,
    },
    /// A time before the one before.
    #[error("{}: line {line}: {found} comes after {before}; expected times of arrival in order", path.display())]
    Order {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What stands there.
        found: String,
        /// The time before, in seconds.
        before: f64,
    },
    /// No time at all.
    #[error("{}: has no times; expected seconds since the start, one a line", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

/// Reads a file of times of arrival in seconds, one a line, in order; its first line may be a name.
///
/// # Errors
/// See [`TraceError`].
pub fn read_trace(path: &Path) -> Result<Arrivals, TraceError> {
    match std::fs::File::open(path) {
        Ok(file) => trace(std::io::BufReader::new(file), path),
        Err(source) => Err(TraceError::Read {
            path: path.into(),
            source,
        }),
    }
}

fn trace(file: impl BufRead, path: &Path) -> Result<Arrivals, TraceError> {
    let mut times: Vec<Duration> = Vec::new();
    for (index, text) in file.lines().enumerate() {
        let (path, line) = (path.to_path_buf(), index + 1);
        let text = match text {
            Ok(text) => text,
            Err(source) => return Err(TraceError::Read { path, source }),
        };
        let found = text.trim().to_string();
        let number = found.parse::<f64>();
        // A year is beyond any trace, and far below what a Duration holds.
        let seconds = number.clone().ok().filter(|s| (0.0..3.2e7).contains(s));
        let Some(seconds) = seconds else {
            if index == 0 && number.is_err() && !found.is_empty() {
                continue;
            }
            return Err(TraceError::Line { path, line, found });
        };
        let time = Duration::from_secs_f64(seconds);
        if let Some(before) = times.last().filter(|before| **before > time) {
            let before = before.as_secs_f64();
            return Err(TraceError::Order {
                path,
                line,
                found,
                before,
            });
        }
        times.push(time);
    }
    match times.is_empty() {
        true => Err(TraceError::Empty { path: path.into() }),
        false => Ok(Arrivals::Trace(times.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_poisson_arrivals_have_their_mean_and_variance() {
        let (rate, seconds) = (50.0, 4000);
        let mut counts = vec![0.0; seconds];
        for time in (Arrivals::Poisson { rate }).times(7) {
            match counts.get_mut(time.as_secs() as usize) {
                Some(count) => *count += 1.0,
                None => break,
            }
        }
        let mean = counts.iter().sum::<f64>() / seconds as f64;
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / seconds as f64;
        // Of a Poisson count both are the rate. Five standard errors: 5 * sqrt(50 / 4000), and for the variance
        // 5 * 50 * sqrt(2 / 4000).
        assert!((mean - rate).abs() < 0.56, "{mean}");
        assert!((variance - rate).abs() < 5.6, "{variance}");
        // Neighbouring seconds know nothing of each other: 5 / sqrt(4000).
        let together = counts.windows(2).map(|w| (w[0] - mean) * (w[1] - mean));
        let correlation = together.sum::<f64>() / seconds as f64 / variance;
        assert!(correlation.abs() < 0.08, "{correlation}");
    }

    #[test]
    fn times_between_are_exponential() {
        let times: Vec<f64> = (Arrivals::Poisson { rate: 10.0 })
            .times(3)
            .take(100_001)
            .map(|t| t.as_secs_f64())
            .collect();
        let gaps: Vec<f64> = times.windows(2).map(|w| w[1] - w[0]).collect();
        for at in [0.01, 0.05, 0.1, 0.2, 0.4] {
            let share = gaps.iter().filter(|&&gap| gap > at).count() as f64 / gaps.len() as f64;
            let expected = f64::exp(-10.0 * at);
            assert!(
                (share - expected).abs() < 0.008,
                "{at}: {share} for {expected}"
            );
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_times() {
        let times = |seed| {
            (Arrivals::Poisson { rate: 3.0 })
                .times(seed)
                .take(20)
                .collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
        assert_eq!((Arrivals::Closed { outstanding: 3 }).times(1).next(), None);
    }

    fn read(text: &str) -> Result<Vec<Duration>, String> {
        let trace = trace(text.as_bytes(), Path::new("t.csv"));
        let trace = trace.map_err(|error| error.to_string())?;
        Ok(trace.times(0).collect())
    }

    #[test]
    fn a_trace_is_read_with_or_without_a_name() {
        let expected = [0, 250, 250, 1500].map(Duration::from_millis).to_vec();
        assert_eq!(read("0\n0.25\n 0.250\n1.5\n"), Ok(expected.clone()));
        assert_eq!(read("seconds\n0\n0.25\n0.25\n1.5"), Ok(expected));
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        for (text, words) in [
            ("0\nx\n", "line 2: is \"x\"; expected seconds"),
            ("-1\n", "line 1: is \"-1\""),
            ("0\ninf\n", "line 2: is \"inf\""),
            ("NaN\n", "line 1: is \"NaN\""),
            ("0\n\n1\n", "line 2: is \"\""),
            (
                "2\n1\n",
                "line 2: 1 comes after 2; expected times of arrival in order",
            ),
            ("seconds\n", "has no times"),
            ("", "has no times"),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.starts_with("t.csv: ") && error.contains(words),
                "{error}"
            );
        }
    }
}
