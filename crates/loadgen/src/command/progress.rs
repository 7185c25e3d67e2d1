//! Progress on stderr: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressFinish, ProgressStyle};

use crate::sweep::NextRun;
use crate::workload::Arrivals;

/// Least time between two lines.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Shows which run is under way. It writes between runs only, because writing slows down the
/// targets.
pub struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    /// When the last line was written.
    last: Option<Instant>,
    begun: Instant,
    runs: u64,
    /// Runs that have begun.
    shown: u64,
}

impl Progress {
    /// Of this number of runs.
    pub fn new(runs: usize) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = if is_terminal {
            ProgressBar::new(runs as u64)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {wide_msg}") {
            bar.set_style(style);
        }
        Progress {
            // An error drops the bar and is printed in its place.
            bar: bar.with_finish(ProgressFinish::AndClear),
            is_terminal,
            last: None,
            begun: Instant::now(),
            runs: runs as u64,
            shown: 0,
        }
    }

    /// Shows the next run.
    pub fn show(&mut self, next: NextRun<'_>) {
        let message = self.next(next, self.begun.elapsed());
        self.say(&message);
    }

    /// Clears the bar while `write` writes to the terminal.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// The next run in words, `elapsed` after the first one began.
    fn next(&mut self, next: NextRun<'_>, elapsed: Duration) -> String {
        let at = match next.arrivals {
            Arrivals::Poisson { rate } => format!("at {rate:.1}/s"),
            Arrivals::Trace(_) => "as traced".into(),
            Arrivals::Closed { outstanding } => format!("with {outstanding} users"),
        };
        // The time of a run is unknown before the first ends.
        let left = match self.shown {
            0 => String::new(),
            ended => {
                let each = elapsed.div_f64(ended as f64);
                let left = each.mul_f64(self.runs.saturating_sub(ended) as f64);
                format!(", {} left", HumanDuration(left))
            }
        };
        self.bar.set_position(self.shown);
        self.shown += 1;
        format!(
            "run {} of {}{left}  {}, {at}, round {}",
            self.shown,
            self.runs,
            next.candidate,
            next.round + 1
        )
    }

    /// Shows a stage that comes before the runs, or a run.
    pub fn say(&mut self, words: &str) {
        if self.is_terminal {
            self.bar.set_message(words.to_owned());
            return;
        }
        let now = Instant::now();
        if self.last.is_none_or(|last| now - last >= BETWEEN_LINES) {
            self.last = Some(now);
            // Nobody may read it.
            let _ = writeln!(std::io::stderr(), "gatestream: {words}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ComparedPolicy;
    use crate::sweep::compare::tests::candidate;

    #[test]
    fn runs_are_counted_and_named() {
        let mut progress = Progress::new(3);
        let candidate = &candidate(ComparedPolicy::Merge, 4);
        let arrivals = &Arrivals::Poisson { rate: 2.5 };
        let expected = [
            "run 1 of 3  merge, batch 4, at 2.5/s, round 1",
            "run 2 of 3, 40 seconds left  merge, batch 4, at 2.5/s, round 2",
            "run 3 of 3, 20 seconds left  merge, batch 4, at 2.5/s, round 3",
        ];
        for (round, expected) in expected.into_iter().enumerate() {
            let next = NextRun {
                candidate,
                arrivals,
                round,
            };
            let elapsed = Duration::from_secs(20 * round as u64);
            assert_eq!(progress.next(next, elapsed), expected);
        }
    }
}
