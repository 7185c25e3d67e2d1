//! `cellstream load`: requests as users send them, to one policy after the other, and how long they wait.
//!
//! The server is behind two small traits ([`target::Launch`], [`target::Target`]); all else is here: what requests ask
//! for ([`arguments`], [`request`], [`lengths`], [`trees`]), when they are due ([`arrivals`]), the loop that submits them ([`drive`]),
//! what is counted ([`record`]), who runs when ([`mod@compare`]), each policy's settings ([`mod@sweep`]), and what is said and
//! drawn ([`report`], [`files`], [`chart`]).

mod arguments;
mod arrivals;
mod chart;
mod clock;
mod compare;
mod drive;
mod files;
mod launch;
mod lengths;
mod priority;
mod record;
mod report;
mod request;
mod served;
#[cfg(test)]
mod simulated;
mod sweep;
mod target;
mod trees;

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

pub use self::arguments::Arguments;
use self::arrivals::{Arrivals, read_trace};
use self::compare::{Contender, Measured, Next, compare, peak_of_baselines};
use self::launch::Engines;
use self::report::{Context, Row};
use self::sweep::sweep;
use self::target::Launch;
use super::Failure;
use crate::serve::engine::Calibration;
use crate::serve::policy::BatchSizes;

/// Serves and measures what `arguments` say.
///
/// # Errors
/// Arguments and files that make no sense, more than the machine has memory for.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Before weights are made for nothing.
    arguments.check_outputs()?;
    let workload = arguments.workload()?;
    arguments.policies(&workload)?;
    arguments.grid()?;
    let engines = Engines::new(arguments)?;
    let out = &mut std::io::stdout();
    match arguments.calibrate {
        true => calibrate(arguments, &engines, out),
        false => measure(arguments, &engines, out),
    }
}

/// Batches of each size, cell by cell.
fn calibrate(
    arguments: &Arguments,
    engines: &Engines,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let most = arguments.batch.iter().copied().max().unwrap_or(1) as usize;
    let mut rows: Vec<usize> = std::iter::successors(Some(1), |rows| Some(2 * rows))
        .take_while(|rows| *rows < most)
        .collect();
    rows.push(most);
    if !arguments.json {
        writeln!(
            out,
            "{:<12} {:>6} {:>12} {:>12}",
            "cell", "rows", "µs", "rows/s"
        )?;
    }
    for Calibration { cell, times } in engines.calibrate(&rows)? {
        let best = BatchSizes::measured(&times).map(|sizes| sizes.max);
        for (rows, time) in times {
            let (micros, rate) = (time.as_secs_f64() * 1e6, rows as f64 / time.as_secs_f64());
            let chosen = Some(rows) == best;
            match arguments.json {
                true => {
                    let row = serde_json::json!({
                        "kind": "calibration", "cell": cell, "rows": rows, "us": micros, "rows_per_s": rate,
                        "chosen": chosen,
                    });
                    writeln!(out, "{row}")?;
                }
                false => {
                    let mark = if chosen { " *" } else { "" };
                    writeln!(
                        out,
                        "{cell:<12} {rows:>6} {micros:>12.1} {rate:>12.0}{mark}"
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// Measures on servers that `launch` starts, prints to `out`, writes files.
fn measure<L: Launch>(
    arguments: &Arguments,
    launch: &L,
    out: &mut impl Write,
) -> Result<(), Failure> {
    arguments.check_outputs()?;
    let grid = arguments.grid()?;
    let trace = arguments.trace.as_deref().map(read_trace).transpose()?;
    let workload = arguments.workload()?;
    let policies = arguments.policies(&workload)?;
    let (conditions, context) = (arguments.conditions(workload), arguments.context());
    let candidates: Vec<Contender> = policies.iter().flat_map(|&p| grid.candidates(p)).collect();

    let by_load = trace.is_none() && arguments.rates.is_empty() && arguments.closed.is_none();
    let largest = grid.batches.last().copied().unwrap_or(1);
    let users = arguments
        .saturation
        .map_or(4 * largest, |users| users as usize);
    let points_to_come = match (by_load, arguments.load.len()) {
        (true, 0) => DEFAULT_LOAD.len(),
        (true, loads) => loads,
        (false, _) => arguments.rates.len().max(1),
    };
    let first = match (arguments.sweep, by_load) {
        // Twice, though some will drop out after the first time.
        (Some(_), _) => 2 * candidates.len(),
        (None, true) => candidates.len(),
        (None, false) => 0,
    };
    let runs = (first + points_to_come * policies.len()) * conditions.rounds;
    let bar = bar(runs as u64);
    let mut next = |next: Next<'_>| show(&bar, next);

    let (contenders, peak) = match arguments.sweep {
        Some(goal) => {
            let swept = sweep(launch, &candidates, goal, users, &conditions, &mut next)?;
            bar.suspend(|| match arguments.json {
                true => Ok(write!(out, "{}", report::sweep_json(&context, &swept)?)?),
                false => Ok::<_, Failure>(writeln!(out, "{}", report::sweep_table(&swept))?),
            })?;
            (swept.best(), swept.peak())
        }
        None if by_load => {
            let closed = [Arrivals::Closed { outstanding: users }];
            let peaks = compare(launch, &candidates, &closed, &conditions, &mut next)?;
            bar.suspend(|| print(arguments, &context, &peaks, out))?;
            let peaks = peaks.iter().map(|m| (m.contender, m.all().throughput()));
            let peak = peak_of_baselines(&peaks.collect::<Vec<_>>());
            (candidates, peak)
        }
        None => (candidates, 0.0),
    };
    let points: Vec<Arrivals> = match (trace, arguments.closed) {
        (Some(trace), _) => vec![trace],
        (None, Some(users)) => vec![Arrivals::Closed {
            outstanding: users as usize,
        }],
        (None, None) if by_load => {
            if peak <= 0.0 {
                return Err(Failure::new(
                    "nothing was answered where the peak was to be measured; give --rates, longer --seconds or a \
                     shorter --warm-up",
                ));
            }
            let load = match arguments.load.is_empty() {
                true => &DEFAULT_LOAD[..],
                false => &arguments.load,
            };
            let rates = load.iter().map(|load| load * peak);
            rates.map(|rate| Arrivals::Poisson { rate }).collect()
        }
        (None, None) => (arguments.rates.iter())
            .map(|&rate| Arrivals::Poisson { rate })
            .collect(),
    };
    let measured = compare(launch, &contenders, &points, &conditions, &mut next)?;
    bar.finish_and_clear();
    print(arguments, &context, &measured, out)?;

    let rows: Vec<_> = measured.iter().map(|m| Row::new(&context, m)).collect();
    let title = format!(
        "{} {}, {}, requests: {}, {} worker(s), {} core(s)",
        context.network,
        context.hidden,
        context.precision,
        context.requests,
        context.workers,
        context.threads
    );
    if let Some(path) = &arguments.csv {
        files::write_curves(path, &rows)?;
    }
    if let Some(path) = &arguments.cdf {
        files::write_distributions(path, &measured)?;
    }
    if let Some(path) = &arguments.chart {
        chart::write_curves(path, &title, &rows)?;
    }
    if let Some(path) = &arguments.cdf_chart {
        chart::write_distributions(path, &title, &measured[..contenders.len()])?;
    }
    Ok(())
}

/// Fractions of the peak where none is given.
const DEFAULT_LOAD: [f64; 3] = [0.2, 0.5, 0.8];

fn print(
    arguments: &Arguments,
    context: &Context,
    measured: &[Measured],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let rows: Vec<_> = measured.iter().map(|m| Row::new(context, m)).collect();
    if arguments.json {
        for row in &rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        return Ok(());
    }
    writeln!(out, "({})\n{}", report::COUNTED, report::heading())?;
    for (index, (row, measured_here)) in rows.iter().zip(measured).enumerate() {
        // Those of one point stand together.
        if index > 0 && measured_here.arrivals != measured[index - 1].arrivals {
            writeln!(out)?;
        }
        writeln!(out, "{}", report::line(row))?;
    }
    writeln!(out, "\n{}", report::notes(&rows))?;
    Ok(())
}

/// A bar on a terminal, nothing elsewhere. It moves between runs only: drawing takes time from what is measured.
fn bar(runs: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:24} run {pos} of {len}, {eta} left  {wide_msg}");
    let bar = ProgressBar::new(runs);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    // Counted as they begin.
    bar
}

fn show(bar: &ProgressBar, next: Next<'_>) {
    let Contender { policy, settings } = next.contender;
    let at = match next.arrivals {
        Arrivals::Poisson { rate } => format!("at {rate:.1}/s"),
        Arrivals::Trace(_) => "as traced".into(),
        Arrivals::Closed { outstanding } => format!("with {outstanding} users"),
    };
    bar.inc(1);
    bar.set_message(format!(
        "{policy}, {settings}, {at}, round {}",
        next.round + 1
    ));
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::compare::tests::Fleet;
    use super::target::{Policy, Settings};
    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn typed(line: &str) -> Arguments {
        let words = ["load"].into_iter().chain(line.split_whitespace());
        match Typed::try_parse_from(words) {
            Ok(typed) => typed.arguments,
            Err(error) => panic!("{line}: {error}"),
        }
    }

    /// On simulated servers, as many as rows of a batch; cellular takes 5 ms, others 20.
    fn measured(line: &str) -> Result<String, Failure> {
        let service = |policy, _: &Settings| if policy == Policy::Cellular { 5 } else { 20 };
        let mut out = Vec::new();
        measure(&typed(line), &Fleet::new(service), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn json(line: &str) -> Vec<Value> {
        let text = measured(&format!("{line} --json")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn near(found: &Value, expected: f64) {
        let found = found.as_f64().unwrap();
        assert!(
            (found / expected - 1.0).abs() < 0.02,
            "{found} for {expected}"
        );
    }

    #[test]
    fn arguments_are_well_formed() {
        use clap::CommandFactory;
        Typed::command().debug_assert();
        let typed = typed("lstm");
        assert_eq!(
            (
                typed.shape.hidden,
                typed.shape.input,
                typed.shape.vocabulary
            ),
            (1024, 1024, 30_000)
        );
        for bad in [
            "rnn",
            "lstm --load 0",
            "lstm --rates -1",
            "lstm --rates 5 --load 0.5",
            "lstm --warm-up x",
        ] {
            let words = ["load"].into_iter().chain(bad.split_whitespace());
            assert!(Typed::try_parse_from(words).is_err(), "{bad}");
        }
    }

    #[test]
    fn loads_are_fractions_of_the_peak_that_was_measured() {
        // Padding peaks at 4 rows / 20 ms = 200/s, cellular at 800/s.
        let rows = json("lstm --policies cellular,padding --batch 4 --load 0.25,0.5 --seconds 100");
        assert_eq!(rows.len(), 2 + 4);
        assert!(
            rows[..2]
                .iter()
                .all(|row| row["arrivals"] == "closed" && row["outstanding"] == 16)
        );
        near(&rows[0]["throughput"], 800.0);
        near(&rows[1]["throughput"], 200.0);
        for (row, (policy, rate)) in rows[2..].iter().zip([
            ("cellular", 50.0),
            ("padding", 50.0),
            ("cellular", 100.0),
            ("padding", 100.0),
        ]) {
            assert_eq!(
                (&row["policy"], &row["requests"]),
                (&policy.into(), &"paper".into())
            );
            near(&row["rate"], rate);
        }
        near(&rows[3]["computing_ms"]["p50"], 20.0);
    }

    #[test]
    fn a_sweep_is_shown_and_its_best_go_on() {
        let line = "gru --policies bucketing,cellular --batch 4,2 --bucket-width 5,10 --sweep peak --rates 10 --seconds 50";
        let rows = json(line);
        assert!(rows[..6].iter().all(|row| row["kind"] == "sweep"));
        let best: Vec<_> = rows[..6].iter().filter(|row| row["best"] == true).collect();
        assert_eq!(best.len(), 2);
        assert!(best.iter().all(|row| row["batch"] == 4));
        assert_eq!(rows.len(), 6 + 2);
        assert!(
            rows[6..]
                .iter()
                .all(|row| row["kind"] == "run" && row["batch"] == 4)
        );
        assert_eq!(
            (&rows[6]["bucket_width"], rows[7].get("bucket_width")),
            (&5.into(), None)
        );
        let text = measured(line).unwrap();
        assert!(
            text.contains("settings tried") && text.contains("batch 2, buckets of 10"),
            "{text}"
        );
        assert!(
            text.contains("latencies count from when a request was due"),
            "{text}"
        );
    }

    #[test]
    fn files_are_written_and_inputs_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let lengths = at("lengths.csv");
        std::fs::write(&lengths, "words\n3\n5\n").unwrap();
        let line = format!(
            "lstm --lengths {lengths}:words --rates 20,40 --seconds 20 --csv {} --cdf {} --chart {} --cdf-chart {}",
            at("a.csv"),
            at("b.csv"),
            at("c.svg"),
            at("d.svg")
        );
        measured(&line).unwrap();
        let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        // Four policies, two rates.
        assert_eq!(read("a.csv").lines().count(), 1 + 8);
        assert!(read("a.csv").contains("lengths.csv:words") && !read("a.csv").contains(&lengths));
        assert_eq!(
            read("b.csv").lines().count(),
            1 + 8 * 3 * report::fractions().len()
        );
        assert!(read("c.svg").starts_with("<svg") && read("d.svg").contains("queueing"));

        let refused = |line: &str, words: &str| {
            let failure = measured(line).unwrap_err().to_string();
            assert!(failure.contains(words), "{failure}");
        };
        refused(
            &format!("lstm --lengths {lengths} --rates 5 --csv {lengths}"),
            "is the file of --lengths itself",
        );
        let twice = format!("lstm --rates 5 --csv {0} --cdf {0}", at("new.csv"));
        refused(&twice, "is what --csv writes already");
        refused(
            "lstm --rates 5 --csv /nowhere/x.csv",
            "a folder that exists",
        );
        assert_eq!(std::fs::read_to_string(&lengths).unwrap(), "words\n3\n5\n");
    }

    #[test]
    fn what_does_not_go_together_is_usage() {
        for (line, words) in [
            ("treelstm --lengths 5", "takes --trees"),
            ("lstm --trees complete:4", "takes --lengths"),
            (
                "lstm --policies ideal",
                "cellular, padding, bucketing, merge do (ideal needs identical",
            ),
            ("treelstm --policies padding", "cellular, merge, ideal do"),
            ("lstm --batch 1,2", "need --sweep"),
        ] {
            let failure = measured(line).unwrap_err();
            assert_eq!(failure.kind, super::super::Kind::Usage, "{line}");
            assert!(failure.to_string().contains(words), "{failure}");
        }
    }

    #[test]
    fn users_and_traces_are_arrivals_too() {
        let rows = json("lstm --lengths 3 --policies ideal,ideal --closed 64 --seconds 5");
        assert_eq!(rows.len(), 1);
        near(&rows[0]["throughput"], 64.0 / 0.02);
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.csv");
        std::fs::write(&trace, "seconds\n0.5\n2.5\n3\n").unwrap();
        let line = format!("seq2seq --policies cellular --trace {}", trace.display());
        let rows = json(&line);
        assert_eq!(
            (&rows[0]["arrivals"], &rows[0]["due"]),
            (&"trace".into(), &2.into())
        );
        let users = measured("lstm --policies cellular --closed 2 --seconds 1").unwrap();
        assert!(users.contains("2 users"), "{users}");
    }

    #[test]
    fn nothing_answered_gives_no_peak() {
        let mut out = Vec::new();
        let slow = Fleet::new(|_, _: &Settings| 10_000_000);
        let failure = measure(
            &typed("lstm --policies merge --patience 1"),
            &slow,
            &mut out,
        );
        assert!(
            failure
                .unwrap_err()
                .to_string()
                .contains("nothing was answered")
        );
    }
}
