//! When requests are due.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

/// When requests are due, counted from the start of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Open loop: independent users. Arrivals do not wait for answers.
    Poisson {
        /// Requests per second, above 0.
        rate: f64,
    },
    /// Open loop: at these times, ascending.
    Trace(Arc<[Duration]>),
    /// Closed loop: each user sends a request when the previous one is answered.
    Closed {
        /// Number of users, at least 1.
        outstanding: usize,
    },
}

impl Arrivals {
    /// Reads a file of times of arrival in seconds, one a line, ascending. The first line may be
    /// a name.
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

    /// The times of an open loop, determined by `seed`. Empty for a closed loop, whose times
    /// depend on the answers.
    pub fn times(&self, seed: u64) -> DueTimes {
        match self {
            Arrivals::Poisson { rate } => DueTimes::Poisson {
                rate: *rate,
                seconds: 0.0,
                random: Rng::with_seed(seed),
            },
            Arrivals::Trace(times) => DueTimes::Trace(times.clone(), 0),
            Arrivals::Closed { .. } => DueTimes::Trace([].into(), 0),
        }
    }
}

/// When the requests of one run are due.
#[derive(Clone, Debug)]
pub enum DueTimes {
    /// With exponential gaps.
    Poisson {
        /// Requests per second.
        rate: f64,
        /// The latest.
        seconds: f64,
        /// Source of the gaps.
        random: Rng,
    },
    /// As listed; the number of times taken.
    Trace(Arc<[Duration]>, usize),
}

impl Iterator for DueTimes {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        match self {
            DueTimes::Poisson {
                rate,
                seconds,
                random,
            } => {
                // The argument of the logarithm is above 0.
                *seconds -= (1.0 - random.f64()).ln() / *rate;
                Duration::try_from_secs_f64(*seconds).ok()
            }
            DueTimes::Trace(times, next) => {
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
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A line is no time.
    #[error(
        "{}: line {line}: is {found:?}; expected seconds since the start, as in \
         0.25",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The line.
        found: String,
    },
    /// A time is before the previous one.
    #[error(
        "{}: line {line}: {found} comes after {before}; expected times of arrival in \
         order",
        path.display()
    )]
    Order {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The line.
        found: String,
        /// The previous time, in seconds.
        before: f64,
    },
    /// It has no times.
    #[error("{}: has no times; expected seconds since the start, one a line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
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
        // The limit of a year is far below that of a Duration.
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
    if times.is_empty() {
        return Err(TraceError::Empty { path: path.into() });
    }
    Ok(Arrivals::Trace(times.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_counts_have_mean_and_variance() {
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
        // Both equal the rate. Five standard errors: 5 * sqrt(50 / 4000), and for the variance
        // 5 * 50 * sqrt(2 / 4000).
        assert!((mean - rate).abs() < 0.56, "{mean}");
        assert!((variance - rate).abs() < 5.6, "{variance}");
        // Neighbouring seconds are independent: 5 / sqrt(4000).
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
    fn errors_name_the_line() {
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
