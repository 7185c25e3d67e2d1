//! The counts and latencies of a run.

mod cells;
mod outcome;
mod reasons;
mod times;

use std::time::Duration;

pub use cells::{CellRun, CellRuns};
pub(crate) use cells::{add, between};
pub use outcome::{ErrorKind, Outcome, ServerTimes};
pub use reasons::Reasons;
pub use times::Times;

/// One request that has ended. Times are those of the clock of the run.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// Number of the request in its run.
    pub id: u64,
    /// When it was to be submitted.
    pub due: Duration,
    /// When it was submitted.
    pub submitted: Duration,
    /// When it ended.
    pub ended: Duration,
    /// How it ended.
    pub outcome: Outcome,
}

/// The requests of one run, or of several taken together.
///
/// Latencies count from the time when a request was *due*, not from its submission. Otherwise a
/// target that stops for a second would delay all requests of that second and be charged for one
/// of them (coordinated omission). Requests that were due during the warm-up are not counted; all
/// others are, however late they end.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// From due to ended. A request that did not end counts with the time that it was waited for,
    /// which is a lower bound.
    pub latency: Times,
    /// From due to the start of the first cell; empty if the target does not report it.
    pub queueing: Times,
    /// From submission to the start of the first cell: the target's part of queueing.
    pub submitted_queueing: Times,
    /// From the start of the first cell to the end of the last.
    pub computing: Times,
    /// From due to submitted: delay of the generator, and of the target while it accepts.
    pub lateness: Times,
    /// Number of requests without an answer, in the order of [`ErrorKind::ALL`].
    pub errors: [u64; ErrorKind::ALL.len()],
    /// Their messages.
    pub reasons: Reasons,
    /// Number of requests that were due in the window.
    pub due: u64,
    /// Number of requests answered in the window, whenever they were due.
    pub completed: u64,
    /// Times of these answers, counted from the start of the window.
    answers: Vec<Duration>,
    /// Sum of [`Recording::paced`] over merged runs.
    pace: Pace,
    /// Requests in flight at the end of the window less those at its start.
    pub backlog: i64,
    /// Length of the window.
    pub window: Duration,
    /// Batches that the target executed in the window; empty if it does not report them.
    pub cells: CellRuns,
}

/// A number of responses and the time from the first to the last.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    answers: u64,
    time: Duration,
}

impl Recording {
    /// Counts a request; the window is from `start` to `end`.
    pub(crate) fn count(&mut self, one: &RequestRecord, start: Duration, end: Duration) {
        let is_answered = matches!(one.outcome, Outcome::Answered(_));
        if is_answered && (start..end).contains(&one.ended) {
            self.completed += 1;
            self.answers.push(one.ended - start);
        }
        let in_flight = |at: Duration| one.due < at && one.ended >= at;
        self.backlog += i64::from(in_flight(end)) - i64::from(in_flight(start));
        if one.due < start {
            return;
        }
        self.due += 1;
        let lateness = one.submitted.saturating_sub(one.due);
        self.lateness.record(lateness);
        let latency = one.ended.saturating_sub(one.due);
        match &one.outcome {
            Outcome::Answered(times) => {
                self.latency.record(latency);
                if let Some(times) = times {
                    self.queueing.record(lateness + times.queueing);
                    self.submitted_queueing.record(times.queueing);
                    self.computing.record(times.computing);
                }
            }
            Outcome::Failed(kind, message) => {
                if *kind == ErrorKind::Unfinished {
                    self.latency.record(latency);
                }
                self.errors[*kind as usize] += 1;
                self.reasons.add(message);
            }
        }
    }

    /// Several runs as one.
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Recording>) -> Recording {
        let mut sum = Recording::default();
        for one in all {
            sum.latency.add(&one.latency);
            sum.queueing.add(&one.queueing);
            sum.submitted_queueing.add(&one.submitted_queueing);
            sum.computing.add(&one.computing);
            sum.lateness.add(&one.lateness);
            for (all, more) in sum.errors.iter_mut().zip(one.errors) {
                *all += more;
            }
            sum.reasons.merge(&one.reasons);
            sum.due += one.due;
            sum.completed += one.completed;
            let pace = one.paced();
            sum.pace.answers += pace.answers;
            sum.pace.time += pace.time;
            sum.backlog += one.backlog;
            sum.window += one.window;
            cells::add(&mut sum.cells, &one.cells);
        }
        sum
    }

    /// Answers per second in the window; 0 if the window is empty.
    ///
    /// Counted from the first group of answers to the last, without the first group. Otherwise a
    /// target that answers in large groups would seem faster or slower by a group that falls just
    /// inside or outside the window.
    pub fn throughput(&self) -> f64 {
        let Pace { answers, time } = self.paced();
        match time.as_secs_f64() {
            0.0 => 0.0,
            seconds => answers as f64 / seconds,
        }
    }

    fn paced(&self) -> Pace {
        /// Answers within this time belong to one group.
        const GROUP: Duration = Duration::from_millis(5);
        if self.pace.time > Duration::ZERO {
            return self.pace;
        }
        let mut at = self.answers.clone();
        at.sort_unstable();
        let whole = Pace {
            answers: self.completed,
            time: self.window,
        };
        let (Some(&first), Some(&last)) = (at.first(), at.last()) else {
            return whole;
        };
        // The pace is unknown if a pause at an edge is longer than any between two groups, if
        // there is one group, or if a quarter of all answers came at once, as after a standstill.
        let gaps = at.windows(2).map(|pair| pair[1] - pair[0]);
        let longest = gaps.max().unwrap_or_default().max(GROUP);
        let edge = first.max(self.window.saturating_sub(last));
        let later = at.iter().filter(|&&at| at > first + GROUP).count();
        if 4 * later >= 3 * at.len() && later > 0 && edge <= longest {
            let answers = later as u64;
            let time = last - first;
            return Pace { answers, time };
        }
        whole
    }

    /// Number of requests that were due in the window and have no answer.
    pub fn unanswered(&self) -> u64 {
        self.errors.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn done(due: u32, submitted: u32, ended: u32) -> RequestRecord {
        RequestRecord {
            id: 0,
            due: due * MS,
            submitted: submitted * MS,
            ended: ended * MS,
            outcome: Outcome::Answered(Some(ServerTimes {
                queueing: MS,
                computing: (ended - submitted - 1) * MS,
            })),
        }
    }

    #[test]
    fn percentiles_match_sorted_times() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut recording = Recording::default();
        // Over five orders of magnitude, in microseconds.
        let mut times: Vec<u64> = (0..9999)
            .map(|_| 10_f64.powf(1.0 + 5.0 * random.f64()) as u64)
            .collect();
        for (index, &time) in times.iter().enumerate() {
            let due = Duration::from_micros(index as u64);
            let ended = due + Duration::from_micros(time);
            let outcome = Outcome::Answered(None);
            let one = RequestRecord {
                id: 0,
                due,
                submitted: due,
                ended,
                outcome,
            };
            recording.count(&one, Duration::ZERO, Duration::MAX);
        }
        times.sort_unstable();
        for fraction in [0.001, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let rank = (fraction * times.len() as f64).ceil() as usize - 1;
            let (expected, found) = (
                times[rank] as f64 / 1e3,
                recording.latency.quantile(fraction),
            );
            assert!(
                (found / expected - 1.0).abs() < 1e-3,
                "{fraction}: {found} for {expected}"
            );
        }
        assert_eq!(recording.completed, 9999);
    }

    #[test]
    fn only_requests_of_the_window_are_counted() {
        let mut recording = Recording::default();
        let (start, end) = (100 * MS, 200 * MS);
        // Two are due in the warm-up; of each pair the second ends after its part of the run.
        for one in [
            done(10, 10, 20),
            done(90, 90, 110),
            done(100, 103, 150),
            done(190, 191, 260),
        ] {
            recording.count(&one, start, end);
        }
        assert_eq!((recording.due, recording.completed), (2, 2));
        let near = |found: f64, ms: f64| assert!((found / ms - 1.0).abs() < 1e-3, "{found} {ms}");
        near(recording.latency.quantile(0.5), 50.0);
        near(recording.latency.max(), 70.0);
        near(recording.lateness.max(), 3.0);
        // The generator's lateness is part of the time that the user waits.
        near(recording.queueing.max(), 4.0);
        near(recording.queueing.quantile(0.5), 2.0);
        near(recording.submitted_queueing.max(), 1.0);
    }

    /// An empty recording with a window of two seconds.
    fn window() -> Recording {
        Recording {
            window: 2000 * MS,
            ..Recording::default()
        }
    }

    #[test]
    fn groups_at_window_edges_keep_throughput() {
        // Groups of 64 every 300 ms, each within a millisecond: 213/s, wherever the window begins.
        for first in (0..300).step_by(7) {
            let mut recording = window();
            for group in 0..10 {
                for one in 0..64 {
                    let ended = MS * (first + 300 * group) + MS * one / 64;
                    let one = RequestRecord {
                        ended,
                        ..done(0, 0, 2)
                    };
                    recording.count(&one, Duration::ZERO, 2000 * MS);
                }
            }
            let rate = recording.throughput();
            assert!((rate / (64.0 / 0.3) - 1.0).abs() < 0.01, "{first}: {rate}");
            let twice = Recording::merged([&recording, &recording]);
            assert!((twice.throughput() / rate - 1.0).abs() < 1e-9);
        }
        // Nothing for most of the window, then all at once: that is no pace.
        let mut recording = window();
        for one in 0..1000 {
            let ended = 1500 * MS + MS * one / 2;
            let one = RequestRecord {
                ended,
                ..done(0, 0, 2)
            };
            recording.count(&one, Duration::ZERO, 2000 * MS);
        }
        assert_eq!(recording.throughput(), 500.0);
        // One group only.
        let mut recording = window();
        recording.count(&done(0, 0, 2), Duration::ZERO, 2000 * MS);
        assert_eq!(recording.throughput(), 0.5);
    }

    #[test]
    fn backlog_is_arrivals_less_departures() {
        let mut recording = Recording::default();
        let window = (100 * MS, 200 * MS);
        let backlog = |recording: &mut Recording, due, ended| {
            recording.count(&done(due, due, ended), window.0, window.1);
            recording.backlog
        };
        // Over before it; under way as it begins; all of it; within it; as it ends.
        assert_eq!(backlog(&mut recording, 10, 20), 0);
        assert_eq!(backlog(&mut recording, 90, 150), -1);
        assert_eq!(backlog(&mut recording, 95, 250), -1);
        assert_eq!(backlog(&mut recording, 120, 130), -1);
        assert_eq!(backlog(&mut recording, 150, 201), 0);
        assert_eq!(backlog(&mut recording, 199, 300), 1);
    }

    #[test]
    fn failures_are_counted_by_kind() {
        let mut recording = Recording::default();
        let failed = |kind, ended: u32| RequestRecord {
            outcome: Outcome::Failed(kind, "the queue".into()),
            ..done(5, 5, ended)
        };
        for kind in [
            ErrorKind::Overloaded,
            ErrorKind::Deadline,
            ErrorKind::Overloaded,
        ] {
            recording.count(&failed(kind, 9), Duration::ZERO, Duration::MAX);
        }
        assert_eq!(recording.errors, [2, 1, 0, 0]);
        assert_eq!(
            (
                recording.latency.count(),
                recording.completed,
                recording.due
            ),
            (0, 0, 3)
        );
        // Unfinished requests lasted at least this long.
        recording.count(
            &failed(ErrorKind::Unfinished, 95),
            Duration::ZERO,
            Duration::MAX,
        );
        assert_eq!(
            (recording.errors, recording.latency.count()),
            ([2, 1, 0, 1], 1)
        );
        assert!((recording.latency.max() - 90.0).abs() < 0.1);
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn runs_add_up() {
        let run = |ended: u32| {
            let mut run = Recording::default();
            run.count(&done(0, 0, ended), Duration::ZERO, Duration::MAX);
            run.window = 500 * MS;
            run
        };
        let sum = Recording::merged(&[run(10), run(30)]);
        assert_eq!((sum.due, sum.completed, sum.throughput()), (2, 2, 2.0));
        assert!((sum.latency.max() - 30.0).abs() < 0.1);
        assert!((sum.latency.quantile(0.5) - 10.0).abs() < 0.1);
    }
}
