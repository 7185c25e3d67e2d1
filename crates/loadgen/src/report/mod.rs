//! Results, for people and for programs.

pub mod calibration;
pub mod chart;
pub mod csv;
pub mod print;

use std::collections::BTreeMap;

use crate::record::{Recording, Times};
use crate::sweep::compare::{Contender, Measured};
use crate::sweep::{Skipped, Swept};
use crate::target::{ErrorKind, Settings, by_name};
use crate::workload::arrivals::Arrivals;
use cellstream_command::Failure;
use cellstream_serve::policy::PolicyKind;

/// What was run, for every line of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Context {
    /// Network's name.
    pub network: String,
    /// Input size.
    pub input: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Precision's name.
    pub precision: String,
    /// Lengths or trees, as they were asked for.
    pub requests: String,
    /// Workers.
    pub workers: usize,
    /// Cores of all workers.
    pub threads: usize,
    /// Tasks that a worker gets at once.
    pub tasks_at_once: usize,
    /// Steps that chains take in one batch.
    pub steps_at_once: usize,
    /// Of the first round.
    pub seed: u64,
}

impl Context {
    /// In a line that a chart has room for.
    pub fn title(&self) -> String {
        format!(
            "{} {}, {}, requests: {}, {} worker(s), {} core(s)",
            self.network, self.hidden, self.precision, self.requests, self.workers, self.threads
        )
    }

    /// What a worker gets at once.
    pub fn at_once(&self) -> String {
        let (tasks, steps) = (self.tasks_at_once, self.steps_at_once);
        format!("{tasks} task(s) and {steps} step(s) at once")
    }
}

/// Some percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90 % are not above.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// All.
    pub max: f64,
}

impl Percentiles {
    fn of(times: &Times) -> Percentiles {
        Percentiles {
            mean: times.mean(),
            p50: times.at(0.5),
            p90: times.at(0.9),
            p99: times.at(0.99),
            p999: times.at(0.999),
            max: times.max(),
        }
    }
}

/// One policy at one point: a line of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row<'a> {
    pub(super) kind: &'static str,
    /// Whether no other settings of its policy did better there.
    pub(super) best: bool,
    #[serde(flatten)]
    pub(super) context: &'a Context,
    /// Its name.
    #[serde(serialize_with = "by_name")]
    pub policy: PolicyKind,
    #[serde(flatten)]
    pub(super) settings: Settings,
    pub(super) arrivals: &'static str,
    /// Poisson arrivals: requests a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// A closed loop: users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outstanding: Option<usize>,
    pub(super) rounds: usize,
    pub(super) window_s: f64,
    pub(super) due: u64,
    pub(super) completed: u64,
    /// Requests whose latencies were counted.
    pub(super) counted: u64,
    /// Requests more that were under way when the window ended than when it began.
    pub(super) backlog: i64,
    /// Answers a second.
    pub throughput: f64,
    /// From when requests were due.
    pub latency_ms: Percentiles,
    /// The least and the greatest 90th percentile of a round.
    pub(super) p90_of_rounds_ms: [f64; 2],
    /// From when requests were due to their first cells.
    pub(super) queueing_ms: Percentiles,
    /// From when they were submitted: without the generator's lateness.
    pub(super) submitted_queueing_ms: Percentiles,
    pub(super) computing_ms: Percentiles,
    /// From due to submitted.
    pub(super) late_ms: Percentiles,
    pub(super) errors: BTreeMap<&'static str, u64>,
    pub(super) mean_batch: BTreeMap<String, f64>,
    /// One step of a batch of each cell.
    pub(super) step_ms: BTreeMap<String, Percentiles>,
    pub(super) batches: BTreeMap<String, BTreeMap<usize, u64>>,
}

impl<'a> Row<'a> {
    /// All rounds of one policy at one point.
    pub fn new(context: &'a Context, measured: &Measured) -> Row<'a> {
        let all = measured.all();
        let p90s = measured.rounds.iter().map(|round| round.latency.at(0.9));
        let p90_of_rounds_ms = [
            p90s.clone().fold(f64::INFINITY, f64::min),
            p90s.fold(0.0, f64::max),
        ];
        let (rate, outstanding, arrivals) = match measured.arrivals {
            Arrivals::Poisson { rate } => (Some(rate), None, "poisson"),
            Arrivals::Trace(_) => (None, None, "trace"),
            Arrivals::Closed { outstanding } => (None, Some(outstanding), "closed"),
        };
        let ran = || all.ran.iter().map(|(cell, ran)| (cell.clone(), ran));
        Row {
            kind: "run",
            best: false,
            context,
            policy: measured.contender.policy,
            settings: measured.contender.settings.clone(),
            arrivals,
            rate,
            outstanding,
            rounds: measured.rounds.len(),
            window_s: all.window.as_secs_f64(),
            due: all.due,
            completed: all.completed,
            counted: all.latency.len(),
            backlog: all.backlog,
            throughput: all.throughput(),
            latency_ms: Percentiles::of(&all.latency),
            p90_of_rounds_ms,
            queueing_ms: Percentiles::of(&all.queueing),
            submitted_queueing_ms: Percentiles::of(&all.submitted_queueing),
            computing_ms: Percentiles::of(&all.computing),
            late_ms: Percentiles::of(&all.lateness),
            errors: (ErrorKind::ALL.iter().zip(all.errors))
                .map(|(kind, count)| (kind.name(), count))
                .collect(),
            mean_batch: (ran().map(|(cell, ran)| (cell, mean_batch(&ran.batches)))).collect(),
            step_ms: (ran().map(|(cell, ran)| (cell, Percentiles::of(&ran.steps)))).collect(),
            batches: (ran().map(|(cell, ran)| (cell, ran.batches.clone()))).collect(),
        }
    }

    fn asked(&self) -> String {
        match (self.rate, self.outstanding) {
            (Some(rate), _) => short(rate),
            (_, Some(users)) => format!("{users} users"),
            _ => "trace".into(),
        }
    }
}

fn mean_batch(sizes: &BTreeMap<usize, u64>) -> f64 {
    let tasks: u64 = sizes.values().sum();
    let rows: f64 = sizes
        .iter()
        .map(|(&size, &tasks)| size as f64 * tasks as f64)
        .sum();
    rows / tasks.max(1) as f64
}

/// Four digits, or all before the point.
fn short(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// Said above every table: numbers mean little without it.
pub const COUNTED: &str = "latencies count from when a request was due, late or not: waiting that the generator or a \
    server that stands still causes is in them";

/// Lines below their heading, those of one point together; the best are marked where others are beside them.
pub fn table(rows: &[&Row<'_>], marked: bool) -> String {
    let margin = |mark| if marked { mark } else { "" };
    let mut text = format!("{}{}\n", margin("  "), heading());
    for (index, row) in rows.iter().enumerate() {
        if index > 0 && row.asked() != rows[index - 1].asked() {
            text.push('\n');
        }
        let mark = margin(if row.best { "* " } else { "  " });
        text += &format!("{mark}{}\n", line(row));
    }
    text
}

/// Above lines of results.
fn heading() -> String {
    format!(
        "{:<10} {:<22} {:>9} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10} {:>8} {:>10}  {}",
        "policy",
        "settings",
        "asked/s",
        "answered/s",
        "requests",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms",
        "queued p99",
        "subm. p99",
        "comp. p50",
        "late p99",
        "unanswered",
        "cells: mean batch in a step's p50/p99 ms"
    )
}

/// One line of the table.
fn line(row: &Row<'_>) -> String {
    let unanswered: u64 = row.errors.values().sum();
    let of_counted = |value: f64| match row.counted {
        0 => "-".into(),
        _ => short(value),
    };
    let cells = row.mean_batch.iter().zip(row.step_ms.values());
    let cells: Vec<_> = cells
        .map(|((cell, mean), step)| {
            let (p50, p99) = (short(step.p50), short(step.p99));
            format!("{cell} {mean:.1} in {p50}/{p99}")
        })
        .collect();
    format!(
        "{:<10} {:<22} {:>9} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10} {:>8} {:>10}  {}",
        row.policy,
        row.settings.to_string(),
        row.asked(),
        short(row.throughput),
        row.counted,
        of_counted(row.latency_ms.p50),
        of_counted(row.latency_ms.p90),
        of_counted(row.latency_ms.p99),
        of_counted(row.latency_ms.p999),
        of_counted(row.queueing_ms.p99),
        of_counted(row.submitted_queueing_ms.p99),
        of_counted(row.computing_ms.p50),
        short(row.late_ms.p99),
        unanswered,
        cells.join(", ")
    )
}

/// What a table's figures cannot be read without: how late the generator was at most, which requests were left without an
/// answer and why, how large the batches were.
pub fn notes(rows: &[&Row<'_>]) -> String {
    let mut text = String::new();
    for row in rows {
        let who = format!("{} at {}", row.policy, row.asked());
        let errors = row.errors.iter().filter(|(_, count)| **count > 0);
        let errors: Vec<_> = errors
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        if !errors.is_empty() {
            text += &format!("{who}: of {} requests {}\n", row.due, errors.join(", "));
        }
        if row.due == 0 {
            text += &format!(
                "{who}: no request was due in the window, so there are no latencies; lengthen --seconds, or raise --requests\n"
            );
        }
        // Below that, nobody can tell.
        if row.late_ms.p99 > 0.05 * row.latency_ms.p50 && row.late_ms.p99 > 0.2 {
            text += &format!(
                "{who}: the generator was late, by {} ms (p99), {} ms at most: it, too, is what was measured\n",
                short(row.late_ms.p99),
                short(row.late_ms.max)
            );
        }
        for (cell, sizes) in &row.batches {
            text += &format!("{who}: {cell} in batches {}\n", histogram(sizes));
        }
    }
    text
}

/// Shares of tasks by powers of two: "1: 10 %, 2: 5 %, 3-4: 85 %".
fn histogram(sizes: &BTreeMap<usize, u64>) -> String {
    let tasks: u64 = sizes.values().sum();
    let mut classes: BTreeMap<usize, u64> = BTreeMap::new();
    for (&size, &tasks) in sizes {
        *classes.entry(size.next_power_of_two()).or_default() += tasks;
    }
    let share = |(&to, &count): (&usize, &u64)| {
        let from = to / 2 + 1;
        let range = if from >= to {
            to.to_string()
        } else {
            format!("{from}-{to}")
        };
        format!("{range}: {:.0} %", 100.0 * count as f64 / tasks as f64)
    };
    classes.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// What was left out of a sweep, and why.
pub fn skipped(swept: &Swept) -> String {
    let mut text = String::new();
    for Skipped {
        contender: Contender { policy, settings },
        asked,
        answered,
    } in &swept.skipped
    {
        text += &format!(
            "not run at higher rates: {policy}, {settings}: of {} a second {} were answered\n",
            short(*asked),
            short(*answered)
        );
    }
    text
}

/// What was left out, one JSON object a line.
///
/// # Errors
/// None that can be made to happen.
pub fn skipped_json(context: &Context, swept: &Swept) -> Result<String, Failure> {
    #[derive(serde::Serialize)]
    struct Line<'a> {
        kind: &'static str,
        #[serde(flatten)]
        context: &'a Context,
        #[serde(serialize_with = "by_name")]
        policy: PolicyKind,
        #[serde(flatten)]
        settings: &'a Settings,
        asked: f64,
        answered: f64,
    }
    let mut text = String::new();
    for skipped in &swept.skipped {
        text += &serde_json::to_string(&Line {
            kind: "skipped",
            context,
            policy: skipped.contender.policy,
            settings: &skipped.contender.settings,
            asked: skipped.asked,
            answered: skipped.answered,
        })?;
        text.push('\n');
    }
    Ok(text)
}

/// Where distributions are read: every half per cent, and finer towards the end.
pub fn fractions() -> Vec<f64> {
    let coarse = (0..200).map(|n| f64::from(n) / 200.0);
    coarse.chain([0.9975, 0.999, 0.9995, 0.9999, 1.0]).collect()
}

/// The times of a recording that have a distribution, with their names.
pub fn distributions(recording: &Recording) -> [(&'static str, &Times); 3] {
    [
        ("latency", &recording.latency),
        ("queueing", &recording.queueing),
        ("computing", &recording.computing),
    ]
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::Ended;
    use crate::sweep::compare::tests::contender;
    use crate::target::{CellRan, Outcome, Ran};

    pub fn context() -> Context {
        Context {
            network: "lstm".into(),
            input: 3,
            hidden: 4,
            precision: "f32".into(),
            requests: "paper, \"330\"".into(),
            workers: 1,
            threads: 2,
            tasks_at_once: 1,
            steps_at_once: 4,
            seed: 9,
        }
    }

    /// Two rounds: latencies of 1..=100 ms, and of 2, 4, … 200 ms; a quarter of each is queueing. One is refused.
    pub fn measured(policy: PolicyKind, rate: f64) -> Measured {
        let round = |factor: u32| {
            let mut recording = Recording::new();
            let outcomes = (1..=100u32).map(|n| {
                let time = Duration::from_millis(4) * factor * n / 4;
                let (queueing, computing) = (time / 4, time * 3 / 4);
                (
                    time,
                    Outcome::Done {
                        queueing,
                        computing,
                    },
                )
            });
            let refused = (Duration::ZERO, Outcome::Failed(ErrorKind::Overloaded));
            for (ended, outcome) in outcomes.chain((factor == 2).then_some(refused)) {
                let (due, submitted) = (Duration::ZERO, Duration::ZERO);
                let one = Ended {
                    id: 0,
                    due,
                    submitted,
                    ended,
                    outcome,
                };
                recording.count(&one, Duration::ZERO, Duration::from_secs(10));
            }
            recording.window = Duration::from_secs(10);
            let batches = BTreeMap::from([(1, 10), (4, 30)]);
            let mut steps = Times::new();
            (0..10).for_each(|_| steps.record(Duration::from_millis(3)));
            (0..30).for_each(|_| steps.record(Duration::from_millis(5)));
            recording.ran = Ran::from([("cell".into(), CellRan { batches, steps })]);
            recording
        };
        Measured {
            contender: contender(policy, 8),
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
    fn json_has_what_was_measured() {
        let (context, measured) = (context(), measured(PolicyKind::Padding, 12.5));
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
        // Of 1..=100 and 2, 4, …, 200 together: 180 are at most 160 (100 and 80), 160 at most 120 (100 and 60).
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
        assert_eq!((number("/due"), number("/completed")), (201.0, 200.0));
        near(number("/mean_batch/cell"), 130.0 / 40.0);
        assert_eq!(number("/batches/cell/4"), 60.0);
        assert!(row.get("outstanding").is_none() && row.get("bucket_width").is_none());
    }

    #[test]
    fn tables_name_what_they_show() {
        let (context, measured) = (context(), measured(PolicyKind::Padding, 12.5));
        let row = Row::new(&context, &measured);
        let (heading, line) = (heading(), line(&row));
        // A number stands below the end of its name.
        for (name, value) in [
            ("asked/s", "12.50"),
            ("answered/s", "10.00"),
            ("requests", "200"),
            ("subm. p99", "49.02"),
            ("unanswered", "1"),
        ] {
            let end = heading.find(name).unwrap() + name.len();
            assert!(
                line[..end].ends_with(&format!(" {value}")),
                "{heading}\n{line}"
            );
        }
        assert!(
            line.starts_with("padding    batch 8  ") && line.ends_with("  cell 3.2 in 5.001/5.001")
        );
        let notes = notes(&[&row]);
        assert!(
            notes.contains("padding at 12.50: of 201 requests 1 overloaded\n"),
            "{notes}"
        );
        assert!(
            notes.contains("cell in batches 1: 25 %, 3-4: 75 %\n"),
            "{notes}"
        );
        assert!(!notes.contains("late"), "{notes}");
    }

    #[test]
    fn a_late_generator_is_told() {
        let (context, mut measured) = (context(), measured(PolicyKind::Padding, 12.5));
        for index in 0..10 {
            let due = Duration::from_millis(index);
            let one = Ended {
                id: 0,
                due,
                submitted: due + Duration::from_millis(30),
                ended: due + Duration::from_millis(40),
                outcome: Outcome::Done {
                    queueing: Duration::ZERO,
                    computing: Duration::from_millis(10),
                },
            };
            measured.rounds[0].count(&one, Duration::ZERO, Duration::MAX);
        }
        let notes = notes(&[&Row::new(&context, &measured)]);
        assert!(
            notes.contains("the generator was late, by 30.") && notes.contains("ms at most"),
            "{notes}"
        );
    }

    #[test]
    fn the_sweep_is_shown_whole() {
        let context = context();
        let measured = [8, 2].map(|batch| Measured {
            contender: contender(PolicyKind::Padding, batch),
            ..measured(PolicyKind::Padding, 12.5)
        });
        let [first, second] = [0, 1].map(|index| Row::new(&context, &measured[index]));
        let best = true;
        let rows = [Row { best, ..first }, second];
        let skipped = vec![Skipped {
            contender: contender(PolicyKind::Padding, 2),
            asked: 12.5,
            answered: 4.0,
        }];
        let tried = Vec::new();
        let swept = Swept { tried, skipped };
        let table = table(&[&rows[0], &rows[1]], true);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("  policy "), "{table}");
        assert!(lines[1].starts_with("* padding    batch 8 "), "{table}");
        assert!(lines[2].starts_with("  padding    batch 2 "), "{table}");
        assert_eq!(
            super::skipped(&swept),
            "not run at higher rates: padding, batch 2: of 12.50 a second 4.000 were answered\n"
        );
        let json = skipped_json(&context, &swept).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&json["kind"], &json["batch"], &json["answered"]),
            (&"skipped".into(), &2.into(), &4.0.into())
        );
    }
}
