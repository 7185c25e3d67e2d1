//! Tables of results, and the notes below them.

use std::collections::BTreeMap;

use super::Context;
use super::row::{Row, ServerPercentiles, short};
use crate::candidate::Candidate;
use crate::sweep::SweepResult;
use gatestream_command::Failure;

/// How latencies are counted, shown above every table.
pub const COUNTED: &str = "latencies count from when a request was due, late or not: \
    waiting that the generator or a server that stands still causes is in them";

/// Lines below a heading; a blank line separates points. `marked`: whether the best are marked.
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

fn heading() -> String {
    format!(
        "{:<10} {:<22} {:>9} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10} {:>8} \
         {:>10}  {}",
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

fn line(row: &Row<'_>) -> String {
    let unanswered: u64 = row.errors.values().sum();
    let of_counted = |value: f64| match row.counted {
        0 => "-".into(),
        _ => short(value),
    };
    let of_server = |value: fn(&ServerPercentiles) -> f64| match &row.server {
        Some(server) => of_counted(value(server)),
        None => "-".into(),
    };
    let cells = row.mean_batch.iter().zip(row.step_ms.values());
    let cells: Vec<_> = cells
        .map(|((cell, mean), step)| {
            let (p50, p99) = (short(step.p50), short(step.p99));
            format!("{cell} {mean:.1} in {p50}/{p99}")
        })
        .collect();
    format!(
        "{:<10} {:<22} {:>9} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10} {:>8} \
         {:>10}  {}",
        row.target,
        row.candidate.settings(),
        row.asked(),
        short(row.throughput),
        row.counted,
        of_counted(row.latency_ms.p50),
        of_counted(row.latency_ms.p90),
        of_counted(row.latency_ms.p99),
        of_counted(row.latency_ms.p999),
        of_server(|server| server.queueing_ms.p99),
        of_server(|server| server.submitted_queueing_ms.p99),
        of_server(|server| server.computing_ms.p50),
        short(row.late_ms.p99),
        unanswered,
        cells.join(", ")
    )
}

/// Notes to a table: a doubtful simulation, delays of the generator, requests without a response
/// and their errors, sizes of batches.
pub fn notes(rows: &[&Row<'_>]) -> String {
    let mut text = String::new();
    if let Some(context) = rows.first().map(|row| row.context)
        && context.is_doubtful()
    {
        text += "these results are doubtful: the times of batches measured alone do not describe \
            this machine under load\n";
    }
    for row in rows {
        let who = format!("{} at {}", row.target, row.asked());
        let errors = row.errors.iter().filter(|(_, count)| **count > 0);
        let errors: Vec<_> = errors
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        if !errors.is_empty() {
            text += &format!("{who}: of {} requests {}\n", row.due, errors.join(", "));
        }
        for (reason, count) in row.reasons.most_frequent() {
            text += &format!("  {count}: {reason}\n");
        }
        if row.reasons.others() > 0 {
            text += &format!("  {}: with other messages\n", row.reasons.others());
        }
        if row.due == 0 {
            text += &format!(
                "{who}: no request was due in the window, so there are no latencies; \
                 lengthen --seconds, or raise --requests\n"
            );
        }
        // Smaller delays do not matter.
        if row.late_ms.p99 > 0.05 * row.latency_ms.p50 && row.late_ms.p99 > 0.2 {
            text += &format!(
                "{who}: the load generator submitted requests late, by {} ms (p99), {} ms at most; \
                 the latencies include this delay\n",
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

/// Shares of batches by powers of two: "1: 10 %, 2: 5 %, 3-4: 85 %".
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

/// The skipped candidates of a sweep, and why.
pub fn skipped(result: &SweepResult) -> String {
    let mut text = String::new();
    for one in &result.skipped {
        text += &format!(
            "skipped at higher rates: {}, {}: {} requests/s offered, {} answered\n",
            one.name,
            one.candidate.settings(),
            short(one.asked),
            short(one.answered)
        );
    }
    text
}

/// The skipped candidates, one JSON object a line.
///
/// # Errors
/// Those of the serialiser.
pub fn skipped_json(context: &Context, result: &SweepResult) -> Result<String, Failure> {
    #[derive(serde::Serialize)]
    struct Line<'a> {
        kind: &'static str,
        #[serde(flatten)]
        context: &'a Context,
        policy: &'a str,
        #[serde(flatten)]
        candidate: &'a Candidate,
        asked: f64,
        answered: f64,
    }
    let mut text = String::new();
    for skipped in &result.skipped {
        text += &serde_json::to_string(&Line {
            kind: "skipped",
            context,
            policy: &skipped.name,
            candidate: &skipped.candidate,
            asked: skipped.asked,
            answered: skipped.answered,
        })?;
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::ComparedPolicy;
    use crate::record::{Outcome, RequestRecord};
    use crate::report::row::tests::{context, measured};
    use crate::sweep::compare::tests::candidate;
    use crate::sweep::{Measurement, Skipped};

    #[test]
    fn tables_name_what_they_show() {
        let (context, measured) = (context(), measured(ComparedPolicy::Padding, 12.5));
        let row = Row::new(&context, &measured);
        let (heading, line) = (heading(), line(&row));
        // Numbers are aligned with the end of their headings.
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
            notes.contains("padding at 12.50: of 201 requests 1 overloaded\n  1: full\n"),
            "{notes}"
        );
        assert!(
            notes.contains("cell in batches 1: 25 %, 3-4: 75 %\n"),
            "{notes}"
        );
        assert!(!notes.contains("late"), "{notes}");
    }

    #[test]
    fn a_late_generator_is_reported() {
        let (context, mut measured) = (context(), measured(ComparedPolicy::Padding, 12.5));
        for index in 0..10 {
            let due = Duration::from_millis(index);
            let one = RequestRecord {
                id: 0,
                due,
                submitted: due + Duration::from_millis(30),
                ended: due + Duration::from_millis(40),
                outcome: Outcome::Answered(None),
            };
            measured.rounds[0].count(&one, Duration::ZERO, Duration::MAX);
        }
        let notes = notes(&[&Row::new(&context, &measured)]);
        assert!(
            notes.contains("submitted requests late, by 30.") && notes.contains("ms at most"),
            "{notes}"
        );
    }

    #[test]
    fn a_sweep_shows_all_candidates() {
        let context = context();
        let measured = [8, 2].map(|batch| Measurement {
            candidate: candidate(ComparedPolicy::Padding, batch),
            ..measured(ComparedPolicy::Padding, 12.5)
        });
        let [first, second] = [0, 1].map(|index| Row::new(&context, &measured[index]));
        let best = true;
        let rows = [Row { best, ..first }, second];
        let skipped = vec![Skipped {
            candidate: candidate(ComparedPolicy::Padding, 2),
            name: "padding".into(),
            asked: 12.5,
            answered: 4.0,
        }];
        let result = SweepResult {
            skipped,
            ..SweepResult::default()
        };
        let table = table(&[&rows[0], &rows[1]], true);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("  policy "), "{table}");
        assert!(lines[1].starts_with("* padding    batch 8 "), "{table}");
        assert!(lines[2].starts_with("  padding    batch 2 "), "{table}");
        assert_eq!(
            super::skipped(&result),
            "skipped at higher rates: padding, batch 2: 12.50 requests/s offered, 4.000 answered\n"
        );
        let json = skipped_json(&context, &result).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&json["kind"], &json["batch"], &json["answered"]),
            (&"skipped".into(), &2.into(), &4.0.into())
        );
    }
}
