//! One row of results.

use std::collections::BTreeMap;

use super::Context;
use crate::candidate::Candidate;
use crate::record::{CellRun, ErrorKind, Reasons, Times};
use crate::sweep::Measurement;
use crate::workload::Arrivals;

/// Mean and percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Percentiles {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Percentiles {
    fn of(times: &Times) -> Percentiles {
        Percentiles {
            mean: times.mean(),
            p50: times.quantile(0.5),
            p90: times.quantile(0.9),
            p99: times.quantile(0.99),
            p999: times.quantile(0.999),
            max: times.max(),
        }
    }
}

/// One candidate at one point.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row<'a> {
    pub kind: &'static str,
    /// Whether it is the best of its policy at this point.
    pub best: bool,
    #[serde(flatten)]
    pub context: &'a Context,
    /// Whether the simulation does not describe this machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub doubtful: bool,
    /// Name of the target; in this process, of its policy.
    #[serde(rename = "policy")]
    pub target: String,
    #[serde(flatten)]
    pub candidate: Candidate,
    pub arrivals: &'static str,
    /// Requests per second, for Poisson arrivals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Users of a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding: Option<usize>,
    pub rounds: usize,
    pub window_s: f64,
    pub due: u64,
    pub completed: u64,
    /// Number of latencies.
    pub counted: u64,
    /// Requests in flight at the end of the window less those at its start.
    pub backlog: i64,
    /// Answers per second.
    pub throughput: f64,
    /// From due to ended.
    pub latency_ms: Percentiles,
    /// The lowest and the highest 90th percentile of a round.
    pub p90_of_rounds_ms: [f64; 2],
    #[serde(flatten)]
    pub server: Option<ServerPercentiles>,
    /// From due to submitted.
    pub late_ms: Percentiles,
    pub errors: BTreeMap<&'static str, u64>,
    /// The messages of these requests.
    #[serde(flatten)]
    pub reasons: Reasons,
    /// By cell, like the following two; empty if the target does not report its cells.
    pub mean_batch: BTreeMap<String, f64>,
    /// Time of a step of a batch.
    pub step_ms: BTreeMap<String, Percentiles>,
    /// Number of batches by their rows.
    pub batches: BTreeMap<String, BTreeMap<usize, u64>>,
}

/// Parts of the latency, if the target reports them.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct ServerPercentiles {
    /// From due to the start of the first cell.
    pub queueing_ms: Percentiles,
    /// From submission to the start of the first cell.
    pub submitted_queueing_ms: Percentiles,
    /// From there to the end of the last cell.
    pub computing_ms: Percentiles,
}

impl<'a> Row<'a> {
    /// All rounds of one candidate at one point.
    pub fn new(context: &'a Context, measured: &Measurement) -> Row<'a> {
        let all = measured.all();
        let p90s = measured.rounds.iter();
        let p90s = p90s.map(|round| round.latency.quantile(0.9));
        let p90_of_rounds_ms = [
            p90s.clone().fold(f64::INFINITY, f64::min),
            p90s.fold(0.0, f64::max),
        ];
        let (rate, outstanding, arrivals) = match measured.arrivals {
            Arrivals::Poisson { rate } => (Some(rate), None, "poisson"),
            Arrivals::Trace(_) => (None, None, "trace"),
            Arrivals::Closed { outstanding } => (None, Some(outstanding), "closed"),
        };
        // Answers without times mean that the target does not report them.
        let is_reported = all.computing.count() > 0 || all.due == all.unanswered();
        let errors = ErrorKind::ALL.iter().zip(all.errors);
        Row {
            kind: "run",
            best: false,
            context,
            doubtful: context.is_doubtful(),
            target: measured.about.name.clone(),
            candidate: measured.candidate.clone(),
            arrivals,
            rate,
            outstanding,
            rounds: measured.rounds.len(),
            window_s: all.window.as_secs_f64(),
            due: all.due,
            completed: all.completed,
            counted: all.latency.count(),
            backlog: all.backlog,
            throughput: all.throughput(),
            latency_ms: Percentiles::of(&all.latency),
            p90_of_rounds_ms,
            server: is_reported.then(|| ServerPercentiles {
                queueing_ms: Percentiles::of(&all.queueing),
                submitted_queueing_ms: Percentiles::of(&all.submitted_queueing),
                computing_ms: Percentiles::of(&all.computing),
            }),
            late_ms: Percentiles::of(&all.lateness),
            errors: errors.map(|(kind, count)| (kind.name(), count)).collect(),
            reasons: all.reasons,
            mean_batch: by_cell(&all.cells, CellRun::mean_batch),
            step_ms: by_cell(&all.cells, |run| Percentiles::of(&run.steps)),
            batches: by_cell(&all.cells, |run| run.batches.clone()),
        }
    }

    /// The load, as tables show it.
    pub fn asked(&self) -> String {
        match (self.rate, self.outstanding) {
            (Some(rate), _) => short(rate),
            (_, Some(users)) => format!("{users} users"),
            _ => "trace".into(),
        }
    }
}

fn by_cell<T>(
    cells: &BTreeMap<String, CellRun>,
    value: impl Fn(&CellRun) -> T,
) -> BTreeMap<String, T> {
    let values = cells.iter();
    values
        .map(|(cell, run)| (cell.clone(), value(run)))
        .collect()
}

/// Four significant digits, or all before the point.
pub fn short(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::ComparedPolicy;
    use crate::record::{Outcome, Recording, RequestRecord, ServerTimes};
    use crate::report::EngineContext;
    use crate::sweep::compare::tests::candidate;
    use crate::target::About;

    pub fn context() -> Context {
        Context {
            network: "lstm".into(),
            engines: Some(EngineContext {
                input: 3,
                hidden: 4,
                layers: 1,
                precision: "f32".into(),
                workers: 1,
                threads: 2,
                tasks_at_once: 1,
                steps_at_once: 4,
                batch_steps: "by-load:16".into(),
                cuda: vec![0, 1],
            }),
            machines: None,
            stretch: None,
            requests: "paper, \"330\"".into(),
            seed: 9,
        }
    }

    /// Two rounds: latencies of 1..=100 ms, and of 2, 4, … 200 ms; a quarter of each is queueing.
    /// One request is refused.
    pub fn measured(policy: ComparedPolicy, rate: f64) -> Measurement {
        let round = |factor: u32| {
            let mut recording = Recording::default();
            let answered = (1..=100u32).map(|n| {
                let time = Duration::from_millis(4) * factor * n / 4;
                let times = ServerTimes {
                    queueing: time / 4,
                    computing: time * 3 / 4,
                };
                (time, Outcome::Answered(Some(times)))
            });
            let refused = (
                Duration::ZERO,
                Outcome::Failed(ErrorKind::Overloaded, "full".into()),
            );
            for (ended, outcome) in answered.chain((factor == 2).then_some(refused)) {
                let one = RequestRecord {
                    id: 0,
                    due: Duration::ZERO,
                    submitted: Duration::ZERO,
                    ended,
                    outcome,
                };
                recording.count(&one, Duration::ZERO, Duration::from_secs(10));
            }
            recording.window = Duration::from_secs(10);
            let mut run = CellRun {
                batches: BTreeMap::from([(1, 10), (4, 30)]),
                ..CellRun::default()
            };
            (0..10).for_each(|_| run.steps.record(Duration::from_millis(3)));
            (0..30).for_each(|_| run.steps.record(Duration::from_millis(5)));
            recording.cells.insert("cell".into(), run);
            recording
        };
        Measurement {
            candidate: candidate(policy, 8),
            about: About::new(policy.name()),
            arrivals: Arrivals::Poisson { rate },
            rounds: vec![round(1), round(2)],
        }
    }

    pub fn near(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 1e-3,
            "{found} for {expected}"
        );
    }

    #[test]
    fn json_has_all_results() {
        let (context, measured) = (context(), measured(ComparedPolicy::Padding, 12.5));
        let row = serde_json::to_value(Row::new(&context, &measured)).unwrap();
        assert_eq!(
            (&row["kind"], &row["policy"]),
            (&"run".into(), &"padding".into())
        );
        assert_eq!(
            (&row["network"], &row["batch"]),
            (&"lstm".into(), &8.into())
        );
        let number = |name: &str| row.pointer(name).unwrap().as_f64().unwrap();
        near(number("/rate"), 12.5);
        near(number("/throughput"), 10.0);
        // Of 1..=100 and 2, 4, …, 200 together: 180 are at most 160 (100 and 80), 160 at most 120
        // (100 and 60).
        near(number("/latency_ms/p90"), 160.0);
        near(number("/latency_ms/p50"), 67.0);
        near(number("/queueing_ms/p90"), 40.0);
        near(number("/submitted_queueing_ms/p90"), 40.0);
        near(number("/step_ms/cell/mean"), 4.5);
        near(number("/step_ms/cell/p50"), 5.0);
        near(number("/computing_ms/p90"), 120.0);
        near(number("/p90_of_rounds_ms/0"), 90.0);
        near(number("/p90_of_rounds_ms/1"), 180.0);
        near(number("/latency_ms/max"), 200.0);
        near(number("/latency_ms/mean"), 75.75);
        assert_eq!(
            (number("/errors/overloaded"), number("/errors/deadline")),
            (1.0, 0.0)
        );
        assert_eq!(row["reasons"], serde_json::json!({ "full": 1 }));
        assert_eq!((number("/due"), number("/completed")), (201.0, 200.0));
        near(number("/mean_batch/cell"), 130.0 / 40.0);
        assert_eq!(number("/batches/cell/4"), 60.0);
        assert!(row.get("outstanding").is_none() && row.get("bucket_width").is_none());
    }

    #[test]
    fn fields_of_targets_elsewhere_are_optional() {
        let mut recording = Recording::default();
        let one = RequestRecord {
            id: 0,
            due: Duration::ZERO,
            submitted: Duration::ZERO,
            ended: Duration::from_millis(1),
            outcome: Outcome::Answered(None),
        };
        recording.count(&one, Duration::ZERO, Duration::from_secs(1));
        let measured = Measurement {
            candidate: Candidate::default(),
            about: About::new("remote"),
            arrivals: Arrivals::Closed { outstanding: 1 },
            rounds: vec![recording],
        };
        let context = context();
        let row = serde_json::to_value(Row::new(&context, &measured)).unwrap();
        assert_eq!(
            (&row["policy"], &row["counted"]),
            (&"remote".into(), &1.into())
        );
        for name in ["batch", "bucket_width", "queueing_ms", "computing_ms"] {
            assert!(row.get(name).is_none(), "{name}");
        }
        assert_eq!(row["batches"], serde_json::json!({}));
    }
}
