//! `cellstream load`: requests as users send them, to one policy after the other, and how long they wait.
//!
//! The server is behind two small traits (`target::Launch`, `target::Target`); all else is here:
//! what requests ask for (`arguments`, `request`, `lengths`, `trees`), when they are due
//! (`arrivals`), the loop that submits them (`drive`), what is counted (`record`), who runs when
//! (`compare`), each policy's settings (`grid`, `sweep`), and what is said and drawn (`report`,
//! `print`, `calibration`, `files`, `chart`).

mod arguments;
mod progress;

use std::io::Write;
use std::ops::ControlFlow;

pub use crate::command::arguments::Arguments;
use crate::command::progress::{bar, show};
use crate::in_process::Engines;
use crate::report::print::Report;
use crate::report::{Context, Row};
use crate::sweep::compare::{Contender, Measured, Next, compare, peak_of_baselines};
use crate::sweep::{strongest, sweep};
use crate::target::Launch;
use crate::workload::arrivals::{Arrivals, read_trace};
use cellstream_command::Printer;
use cellstream_command::{Failure, interrupt};
use cellstream_serve::policy::PolicyKind;

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
    arguments.measures_peaks()?;
    let engines = Engines::new(arguments, &workload)?;
    let out = &mut Printer::new(arguments.writes_files());
    match arguments.calibrate {
        true => {
            let found = engines.calibrate(&arguments.grid()?.to_calibrate())?;
            crate::report::calibration::print(&found, arguments.json, out)
        }
        false => {
            interrupt::catch()?;
            if !crate::drive::priority::is_allowed() {
                writeln!(
                    std::io::stderr(),
                    "cellstream: {}",
                    crate::drive::priority::REFUSED
                )?;
            }
            measure(arguments, &engines, interrupt::flow, out)
        }
    }
}

/// Measures on servers that `launch` starts, prints to `out`, writes files. When `flow` breaks off, no further
/// run is begun, and what has been measured is what there is.
fn measure<L: Launch>(
    arguments: &Arguments,
    launch: &L,
    flow: impl Fn() -> ControlFlow<()>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    arguments.check_outputs()?;
    let mut grid = arguments.grid()?;
    let trace = arguments.trace.as_deref().map(read_trace).transpose()?;
    let workload = arguments.workload()?;
    let policies = arguments.policies(&workload)?;
    let (conditions, context) = (arguments.conditions(workload), arguments.context());
    let report = Report {
        json: arguments.json,
        context: &context,
    };
    report.title(out)?;
    if grid.wants_calibration() {
        let found = launch.calibrate(&grid.to_calibrate())?;
        crate::report::calibration::print(&found, arguments.json, out)?;
        let rows = grid.add_calibrated(&found);
        if !arguments.json {
            writeln!(out, "calibrated: batch {rows}\n")?;
        }
    }
    let contenders = grid.contenders(&policies);

    let (by_load, with_peaks) = (arguments.is_by_load(), arguments.measures_peaks()?);
    let users = arguments
        .saturation
        .map_or(4 * grid.most(), |users| users as usize);
    let points_to_come = match (by_load, arguments.load.len()) {
        (true, 0) => DEFAULT_LOAD.len(),
        (true, loads) => loads,
        (false, _) => arguments.rates.len().max(1),
    };
    // Some will be left out; the best are measured again.
    let again = match contenders.len() > policies.len() {
        true => points_to_come * policies.len(),
        false => 0,
    };
    let runs = (usize::from(with_peaks) + points_to_come) * contenders.len() + again;
    let runs = runs * conditions.rounds;
    let bar = bar(runs as u64);
    let mut next = |next: Next<'_>| {
        flow()?;
        show(&bar, next);
        ControlFlow::Continue(())
    };

    let closed = [Arrivals::Closed { outstanding: users }];
    let saturated = if with_peaks { &closed[..] } else { &[] };
    let peaks = compare(launch, &contenders, saturated, &conditions, &mut next)?;
    if peaks.is_empty() && with_peaks {
        return Err(Failure::new("interrupted before all peaks were measured"));
    }
    let peak_rows = peak_rows(&context, &policies, &contenders, &peaks);
    bar.suspend(|| report.peaks(&peak_rows, out))?;
    let points: Vec<Arrivals> = match (trace, arguments.closed) {
        (Some(trace), _) => vec![trace],
        (None, Some(users)) => vec![Arrivals::Closed {
            outstanding: users as usize,
        }],
        (None, None) if by_load => {
            let peaks = peaks.iter();
            let peaks = peaks.map(|m| (m.contender.policy, m.all().throughput()));
            let Some((policy, peak)) = peak_of_baselines(&peaks.collect::<Vec<_>>()) else {
                return Err(Failure::new(
                    "nothing was answered where the peak was to be measured; give --rates, longer --seconds or a \
                     shorter --warm-up",
                ));
            };
            if !arguments.json {
                bar.suspend(|| {
                    writeln!(
                        out,
                        "loads are fractions of what {policy} bears: {peak:.0} a second\n"
                    )
                })?;
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
    let swept = sweep(launch, &contenders, &peaks, points, &conditions, &mut next)?;
    bar.finish_and_clear();
    if swept.tried.is_empty() {
        return Err(Failure::new("interrupted before a load was measured"));
    }
    let rows: Vec<_> = swept
        .tried
        .iter()
        .map(|tried| Row {
            best: tried.best,
            ..Row::new(&context, &tried.measured)
        })
        .collect();
    let best = swept.best();
    // Before anything is printed: who reads it may be gone, interrupted with this. A file that cannot be written costs no table.
    let all: Vec<_> = peak_rows.iter().chain(&rows).collect();
    let written = write_files(arguments, &context.title(), &all, &best, policies.len());
    report.measured(&rows, arguments.sweep.then_some(&swept), out)?;
    let loads = best.len() / policies.len();
    let rounds = best[best.len() - 1].rounds.len();
    if loads < points_to_come || rounds < conditions.rounds {
        writeln!(
            std::io::stderr(),
            "interrupted: {loads} of {points_to_come} loads, the last in {rounds} of {} rounds",
            conditions.rounds
        )?;
    }
    written
}

/// Writes the files that were asked for: of `all` rows, and of the `best`, which has one for each of the `policies` at each
/// load, the lowest load first.
fn write_files(
    arguments: &Arguments,
    title: &str,
    all: &[&Row<'_>],
    best: &[&Measured],
    policies: usize,
) -> Result<(), Failure> {
    let Arguments {
        csv,
        cdf,
        chart,
        cdf_chart,
        ..
    } = arguments;
    let curves = all.iter().copied();
    let curves: Vec<_> = curves.filter(|row| row.best && row.kind == "run").collect();
    let written = [
        csv.as_ref()
            .map(|path| crate::report::csv::write_curves(path, all)),
        cdf.as_ref()
            .map(|path| crate::report::csv::write_distributions(path, best)),
        (chart.as_ref()).map(|path| crate::report::chart::write_curves(path, title, &curves)),
        (cdf_chart.as_ref())
            .map(|path| crate::report::chart::write_distributions(path, title, &best[..policies])),
    ];
    // One that cannot be written costs no other.
    written.into_iter().flatten().collect()
}

/// Fractions of the peak where none is given.
const DEFAULT_LOAD: [f64; 3] = [0.2, 0.5, 0.8];

/// The peaks by policy, each policy's greatest marked.
fn peak_rows<'a>(
    context: &'a Context,
    policies: &[PolicyKind],
    contenders: &[Contender],
    peaks: &[Measured],
) -> Vec<Row<'a>> {
    let greatest = strongest(contenders, peaks);
    let row = |measured: &Measured| Row {
        kind: "peak",
        best: greatest.contains(&measured.contender),
        ..Row::new(context, measured)
    };
    let of_policy = |&policy: &PolicyKind| {
        let peaks = peaks.iter();
        peaks.filter(move |measured| measured.contender.policy == policy)
    };
    policies.iter().flat_map(of_policy).map(row).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::*;
    use crate::sweep::compare::tests::Fleet;
    use crate::target::Settings;
    use cellstream_serve::policy::PolicyKind;

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
        interrupted(line, usize::MAX)
    }

    /// Broken off after so many runs.
    fn interrupted(line: &str, runs: usize) -> Result<String, Failure> {
        let service = |policy, _: &Settings| {
            if policy == PolicyKind::Cellular {
                5
            } else {
                20
            }
        };
        let (fleet, mut out) = (Fleet::new(service), Vec::new());
        let flow = || match fleet.launched.borrow().len() < runs {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        measure(&typed(line), &fleet, flow, &mut out)?;
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
                typed.shape.vocabulary()
            ),
            (1024, 1024, 30_000)
        );
        for bad in [
            "rnn",
            "lstm --load 0",
            "lstm --rates -1",
            "lstm --rates 5 --load 0.5",
            "lstm --warm-up x",
            "lstm --batch 64;32",
            "lstm --tasks-at-once 0",
            "lstm --sweep=peak",
            "lstm --saturation 9 --calibrate",
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
    fn a_sweep_is_shown_and_each_load_has_its_best() {
        // Padding bears 100 a second with two rows, 200 with four; cellular 400 and 800. Where hardly anybody waits,
        // two rows are as good as four, and the first of equals is taken.
        let line = "lstm --policies padding,cellular --batch 4,2,calibrated --sweep --load 0.25,0.75,1.5 --seconds 50";
        let rows = json(line);
        let kind = |kind: &str| {
            let rows = rows.iter().filter(|row| row["kind"] == kind);
            rows.collect::<Vec<_>>()
        };
        // Calibration finds four rows, which are listed already.
        assert_eq!((kind("calibration").len(), kind("peak").len()), (3, 4));
        let best: Vec<_> = kind("peak")
            .into_iter()
            .filter(|r| r["best"] == true)
            .collect();
        assert!(best.len() == 2 && best.iter().all(|row| row["batch"] == 4));
        near(&best[0]["throughput"], 200.0);
        let chosen = kind("run").into_iter().filter(|row| row["best"] == true);
        let chosen: Vec<_> = chosen
            .map(|row| {
                (
                    row["policy"].as_str().unwrap(),
                    row["batch"].as_u64().unwrap(),
                )
            })
            .collect();
        let expected = [
            ("padding", 4),
            ("cellular", 2),
            ("padding", 4),
            ("cellular", 4),
            ("padding", 4),
            ("cellular", 4),
        ];
        assert_eq!(chosen, expected);
        let skipped = kind("skipped");
        assert_eq!((skipped.len(), &skipped[0]["batch"]), (1, &2.into()));
        near(&skipped[0]["answered"], 100.0);
        assert_eq!(kind("run").len(), 4 + 4 + 3);
        let text = measured(line).unwrap();
        for words in [
            "latencies count from when a request was due",
            "1 task(s) and 4 step(s) at once",
            "calibrated: batch 4\n",
            "peaks (*: the greatest of each policy)",
            "loads are fractions of what padding bears: 200 a second",
            "all that was tried",
            "not run at higher rates: padding, batch 2",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_sweep_has_no_other_settings_at_users_and_traces() {
        let line = "gru --policies bucketing,cellular --batch 4,2 --bucket-width 5,10 --sweep --closed 64 --seconds 5";
        let rows = json(line);
        assert_eq!(rows.len(), 4 + 2);
        let best: Vec<_> = rows.iter().filter(|row| row["best"] == true).collect();
        assert!(best.len() == 2 && best.iter().all(|row| row["batch"] == 4));
        assert_eq!(
            (&best[0]["bucket_width"], best[1].get("bucket_width")),
            (&5.into(), None)
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
        // Five policies, two rates.
        assert_eq!(read("a.csv").lines().count(), 1 + 10);
        assert!(read("a.csv").contains("lengths.csv:words") && !read("a.csv").contains(&lengths));
        assert_eq!(
            read("b.csv").lines().count(),
            1 + 10 * 3 * crate::report::fractions().len()
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
                "cellular, shortest, padding, bucketing, merge do (ideal needs identical",
            ),
            (
                "treelstm --policies padding",
                "cellular, shortest, merge, ideal do",
            ),
            ("lstm --batch 1,2", "need --sweep"),
            ("lstm --batch 1,calibrated", "need --sweep"),
            ("lstm --batch 1:2", "lstm has 1: chain"),
            ("seq2seq --batch 1:2:3", "seq2seq has 2: encoder:decoder"),
            ("lstm --vocabulary 9 --rates 5", "is for seq2seq"),
            ("lstm --saturation 9 --rates 5", "is of peaks"),
            ("lstm --saturation 9 --rates 5,6", "is of peaks"),
            ("lstm --saturation 9 --closed 5", "is of peaks"),
            ("lstm --saturation 9 --sweep --rates 5", "is of peaks"),
            ("lstm --rates 5 --chart chart.png", "ends in .svg"),
            ("lstm --rates 5 --cdf-chart chart.csv", "ends in .svg"),
        ] {
            let failure = measured(line).unwrap_err();
            assert_eq!(
                failure.kind(),
                cellstream_command::FailureKind::Usage,
                "{line}"
            );
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
    fn what_was_measured_before_an_interrupt_is_reported_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("curves.csv");
        let line = format!(
            "lstm --policies cellular,merge --batch 4 --load 0.2,0.4 --rounds 2 --seconds 20 --json --csv {}",
            csv.display()
        );
        // Two policies: four runs of peaks, then four at each load.
        for (runs, said) in [(1, "all peaks"), (3, "a load"), (5, "a load")] {
            let failure = interrupted(&line, runs).unwrap_err().to_string();
            assert!(failure.contains(said), "{runs} runs: {failure}");
            assert!(!csv.exists());
        }
        for (runs, rounds) in [(6, [1].as_slice()), (9, &[2]), (11, &[2, 1]), (12, &[2, 2])] {
            let text = interrupted(&line, runs).unwrap();
            let rows = text
                .lines()
                .map(|row| serde_json::from_str::<Value>(row).unwrap());
            let found: Vec<_> = (rows.filter(|row| row["kind"] == "run"))
                .map(|row| row["rounds"].as_u64().unwrap())
                .collect();
            let expected: Vec<u64> = rounds.iter().flat_map(|&rounds| [rounds; 2]).collect();
            assert_eq!(found, expected, "{runs} runs");
            // A heading, and two peaks.
            let written = std::fs::read_to_string(&csv).unwrap();
            assert_eq!(written.lines().count(), 1 + 2 + found.len());
            std::fs::remove_file(&csv).unwrap();
        }
    }

    #[test]
    fn nothing_answered_gives_no_peak() {
        let mut out = Vec::new();
        let slow = Fleet::new(|_, _: &Settings| 10_000_000);
        let failure = measure(
            &typed("lstm --policies merge --patience 1"),
            &slow,
            || ControlFlow::Continue(()),
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
