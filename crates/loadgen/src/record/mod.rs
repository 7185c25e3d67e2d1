//! What is counted in a run.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::target::{CellRan, ErrorKind, Outcome, Ran};

/// Times in nanoseconds, to three digits (those of steps to two: the engine's).
#[derive(Clone, Debug, PartialEq)]
pub struct Times(Histogram<u64>);

impl From<Histogram<u64>> for Times {
    fn from(nanoseconds: Histogram<u64>) -> Times {
        Times(nanoseconds)
    }
}

impl Times {
    /// None yet.
    pub fn new() -> Times {
        // Three digits, which is in 0..=5, are what this refuses to be.
        match Histogram::new(3) {
            Ok(histogram) => Times(histogram),
            Err(_) => unreachable!("three digits are allowed"),
        }
    }

    /// Counts one.
    pub fn record(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // It grows as needed; centuries are beyond it, and are as long as it can tell.
        if self.0.record(nanoseconds).is_err() {
            self.0.saturating_record(nanoseconds);
        }
    }

    /// Takes in what another has counted.
    fn add(&mut self, other: &Times) {
        // It grows as needed, so that nothing is refused.
        let _ = self.0.add(&other.0);
    }

    /// Without those of an earlier look at the same.
    fn since(&self, earlier: &Times) -> Times {
        let mut left = self.clone();
        // What was counted then is counted still, so that nothing is refused.
        let _ = left.0.subtract(&earlier.0);
        left
    }

    /// How many.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// The time that this fraction of all does not exceed, in milliseconds; 0 of none.
    pub fn at(&self, fraction: f64) -> f64 {
        self.0.value_at_quantile(fraction) as f64 / 1e6
    }

    /// The longest, in milliseconds.
    pub fn max(&self) -> f64 {
        self.0.max() as f64 / 1e6
    }

    /// In milliseconds; 0 of none.
    pub fn mean(&self) -> f64 {
        self.0.mean() / 1e6
    }
}

/// How one request went; times are the clock's.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Which request.
    pub id: u64,
    /// When it was to be submitted.
    pub due: Duration,
    /// When it was.
    pub submitted: Duration,
    /// When it ended.
    pub ended: Duration,
    /// How.
    pub outcome: Outcome,
}

/// The requests of one run, or of several taken together.
///
/// Latencies count from when a request was *due*, not from when the generator got round to it. Otherwise a server that
/// stops for a second would delay the requests of that second and be charged for one of them (coordinated omission).
/// Requests that were due during the warm-up are not counted, all others are, however late they end.
#[derive(Clone, Debug)]
pub struct Recording {
    /// From due to ended. Of requests that were given up: as long as they were waited for, which is a lower bound.
    pub latency: Times,
    /// From due to the start of the first cell.
    pub queueing: Times,
    /// From submitted to the start of the first cell: the server's part of it.
    pub submitted_queueing: Times,
    /// From there to the end of the last cell.
    pub computing: Times,
    /// From due to submitted: the generator's own, and the server's where it takes long to accept.
    pub lateness: Times,
    /// Requests without an answer, as [`ErrorKind::ALL`].
    pub errors: [u64; ErrorKind::ALL.len()],
    /// Requests that were due in the window.
    pub due: u64,
    /// Requests answered in the window, whenever they were due.
    pub completed: u64,
    /// When they were, from the window's start on.
    answers: Vec<Duration>,
    /// Of runs that were merged, see [`Recording::paced`].
    pace: (u64, Duration),
    /// How many requests more were under way when the window ended than when it began.
    pub backlog: i64,
    /// How long the window was.
    pub window: Duration,
    /// What was run in the window.
    pub ran: Ran,
}

impl Recording {
    /// Nothing yet.
    pub fn new() -> Recording {
        Recording {
            latency: Times::new(),
            queueing: Times::new(),
            submitted_queueing: Times::new(),
            computing: Times::new(),
            lateness: Times::new(),
            errors: [0; _],
            due: 0,
            completed: 0,
            answers: Vec::new(),
            pace: (0, Duration::ZERO),
            backlog: 0,
            window: Duration::ZERO,
            ran: Ran::new(),
        }
    }

    /// Counts a request; the window is from `start` to `end`.
    pub fn count(&mut self, one: &Ended, start: Duration, end: Duration) {
        let answered = matches!(one.outcome, Outcome::Done { .. });
        if answered && (start..end).contains(&one.ended) {
            self.completed += 1;
            self.answers.push(one.ended - start);
        }
        let under_way = |at: Duration| one.due < at && one.ended >= at;
        self.backlog += i64::from(under_way(end)) - i64::from(under_way(start));
        if one.due < start {
            return;
        }
        self.due += 1;
        let lateness = one.submitted.saturating_sub(one.due);
        self.lateness.record(lateness);
        let latency = one.ended.saturating_sub(one.due);
        match one.outcome {
            Outcome::Done {
                queueing,
                computing,
            } => {
                self.latency.record(latency);
                self.queueing.record(lateness + queueing);
                self.submitted_queueing.record(queueing);
                self.computing.record(computing);
            }
            Outcome::Failed(kind) => {
                if kind == ErrorKind::Unfinished {
                    self.latency.record(latency);
                }
                self.errors[kind as usize] += 1;
            }
        }
    }

    /// Several runs as one.
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Recording>) -> Recording {
        let mut sum = Recording::new();
        for one in all {
            sum.latency.add(&one.latency);
            sum.queueing.add(&one.queueing);
            sum.submitted_queueing.add(&one.submitted_queueing);
            sum.computing.add(&one.computing);
            sum.lateness.add(&one.lateness);
            for (all, more) in sum.errors.iter_mut().zip(one.errors) {
                *all += more;
            }
            sum.due += one.due;
            sum.completed += one.completed;
            let (answers, time) = one.paced();
            sum.pace = (sum.pace.0 + answers, sum.pace.1 + time);
            sum.backlog += one.backlog;
            sum.window += one.window;
            for (cell, ran) in &one.ran {
                let all = sum.ran.entry(cell.clone()).or_insert_with(|| CellRan {
                    batches: BTreeMap::new(),
                    steps: Times::new(),
                });
                for (&size, &tasks) in &ran.batches {
                    *all.batches.entry(size).or_default() += tasks;
                }
                all.steps.add(&ran.steps);
            }
        }
        sum
    }

    /// Requests answered in the window, per second; 0 of no time.
    ///
    /// Counted from the first answers to the last, of which the first do not count: who answers in groups of 64, some
    /// times in a window, would else seem faster or slower by a group that falls just inside it, or outside.
    pub fn throughput(&self) -> f64 {
        let (answers, time) = self.paced();
        match time.as_secs_f64() {
            0.0 => 0.0,
            seconds => answers as f64 / seconds,
        }
    }

    /// Answers, and the time in which they were given.
    fn paced(&self) -> (u64, Duration) {
        /// What ends in less time than this belongs to one group.
        const AT_ONCE: Duration = Duration::from_millis(5);
        let (answers, time) = self.pace;
        if time > Duration::ZERO {
            return (answers, time);
        }
        let mut at = self.answers.clone();
        at.sort_unstable();
        let whole = (self.completed, self.window);
        let (Some(&first), Some(&last)) = (at.first(), at.last()) else {
            return whole;
        };
        // Who stood still for longer at an edge than between any two groups, or answered but one, has no pace.
        let gaps = at.windows(2).map(|pair| pair[1] - pair[0]);
        let longest = gaps.max().unwrap_or_default().max(AT_ONCE);
        let edge = first.max(self.window.saturating_sub(last));
        let later = at.iter().filter(|&&at| at > first + AT_ONCE).count();
        // Where a quarter of all came at once, as after a standstill, it is no pace either.
        match 4 * later >= 3 * at.len() && later > 0 && edge <= longest {
            true => (later as u64, last - first),
            false => whole,
        }
    }

    /// Requests that were due in the window and have no answer.
    pub fn unanswered(&self) -> u64 {
        self.errors.iter().sum()
    }
}

/// What has been run between two looks.
pub fn between(before: &Ran, after: &Ran) -> Ran {
    let of_cell = |(cell, after): (&String, &CellRan)| {
        let Some(before) = before.get(cell) else {
            return (cell.clone(), after.clone());
        };
        let new = |(&size, &tasks): (&usize, &u64)| {
            let earlier = before.batches.get(&size).copied().unwrap_or(0);
            (size, tasks.saturating_sub(earlier))
        };
        let new = after.batches.iter().map(new);
        let ran = CellRan {
            batches: new.filter(|(_, tasks)| *tasks > 0).collect(),
            steps: after.steps.since(&before.steps),
        };
        (cell.clone(), ran)
    };
    let all = after.iter().map(of_cell);
    all.filter(|(_, ran)| !ran.batches.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn done(due: u32, submitted: u32, ended: u32) -> Ended {
        Ended {
            id: 0,
            due: due * MS,
            submitted: submitted * MS,
            ended: ended * MS,
            outcome: Outcome::Done {
                queueing: MS,
                computing: (ended - submitted - 1) * MS,
            },
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut recording = Recording::new();
        // Over five orders of magnitude, in microseconds.
        let mut times: Vec<u64> = (0..9999)
            .map(|_| 10_f64.powf(1.0 + 5.0 * random.f64()) as u64)
            .collect();
        for (index, &time) in times.iter().enumerate() {
            let due = Duration::from_micros(index as u64);
            let ended = due + Duration::from_micros(time);
            let outcome = Outcome::Done {
                queueing: Duration::ZERO,
                computing: ended - due,
            };
            let one = Ended {
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
            let (expected, found) = (times[rank] as f64 / 1e3, recording.latency.at(fraction));
            assert!(
                (found / expected - 1.0).abs() < 1e-3,
                "{fraction}: {found} for {expected}"
            );
        }
        assert_eq!(recording.completed, 9999);
    }

    #[test]
    fn the_window_counts_what_is_due_in_it_and_what_ends_in_it() {
        let mut recording = Recording::new();
        let (start, end) = (100 * MS, 200 * MS);
        // Due in the warm-up: ending in it, and in the window. Due in the window: ending in it, and after it.
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
        near(recording.latency.at(0.5), 50.0);
        near(recording.latency.max(), 70.0);
        near(recording.lateness.max(), 3.0);
        // The generator's lateness is part of the time that the user waits.
        near(recording.queueing.max(), 4.0);
        near(recording.queueing.at(0.5), 2.0);
        near(recording.submitted_queueing.max(), 1.0);
    }

    #[test]
    fn groups_at_the_edges_of_a_window_change_no_throughput() {
        // Groups of 64 every 300 ms, whose answers take a millisecond: 213 a second, wherever the window begins.
        for first in (0..300).step_by(7) {
            let mut recording = Recording::new();
            recording.window = 2000 * MS;
            for group in 0..10 {
                for one in 0..64 {
                    let ended = MS * (first + 300 * group) + MS * one / 64;
                    let one = Ended {
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
        let mut recording = Recording::new();
        recording.window = 2000 * MS;
        for one in 0..1000 {
            let ended = 1500 * MS + MS * one / 2;
            let one = Ended {
                ended,
                ..done(0, 0, 2)
            };
            recording.count(&one, Duration::ZERO, 2000 * MS);
        }
        assert_eq!(recording.throughput(), 500.0);
        // One group only.
        let mut recording = Recording::new();
        recording.window = 2000 * MS;
        recording.count(&done(0, 0, 2), Duration::ZERO, 2000 * MS);
        assert_eq!(recording.throughput(), 0.5);
    }

    #[test]
    fn a_backlog_is_what_came_and_did_not_go() {
        let mut recording = Recording::new();
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
    fn failures_are_counted_by_their_kind() {
        let mut recording = Recording::new();
        let failed = |kind, ended: u32| Ended {
            outcome: Outcome::Failed(kind),
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
            (recording.latency.len(), recording.completed, recording.due),
            (0, 0, 3)
        );
        // What was given up took at least as long.
        recording.count(
            &failed(ErrorKind::Unfinished, 95),
            Duration::ZERO,
            Duration::MAX,
        );
        assert_eq!(
            (recording.errors, recording.latency.len()),
            ([2, 1, 0, 1], 1)
        );
        assert!((recording.latency.max() - 90.0).abs() < 0.1);
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn runs_add_up() {
        // A batch takes a millisecond a row.
        let sizes = |list: &[(usize, u64)]| {
            let mut steps = Times::new();
            for &(rows, tasks) in list {
                (0..tasks).for_each(|_| steps.record(MS * rows as u32));
            }
            let batches = list.iter().copied().collect();
            Ran::from([("cell".to_string(), CellRan { batches, steps })])
        };
        let run = |ended: u32, ran| {
            let mut run = Recording::new();
            run.count(&done(0, 0, ended), Duration::ZERO, Duration::MAX);
            run.window = 500 * MS;
            run.ran = ran;
            run
        };
        let runs = [run(10, sizes(&[(1, 2), (4, 1)])), run(30, sizes(&[(4, 5)]))];
        let sum = Recording::merged(&runs);
        assert_eq!((sum.due, sum.completed, sum.throughput()), (2, 2, 2.0));
        assert!((sum.latency.max() - 30.0).abs() < 0.1 && (sum.latency.at(0.5) - 10.0).abs() < 0.1);
        assert_eq!(sum.ran, sizes(&[(1, 2), (4, 6)]));
        let after = sizes(&[(1, 2), (4, 6), (8, 3)]);
        assert_eq!(
            between(&sizes(&[(1, 2), (4, 5)]), &after),
            sizes(&[(4, 1), (8, 3)])
        );
        assert_eq!(between(&Ran::new(), &after), after);
        assert_eq!(between(&after, &after), Ran::new());
    }
}
