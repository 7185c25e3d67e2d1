//! The subcommand `simulate`.

mod arguments;
mod lengths;
mod row;

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;

use arguments::name;
pub use arguments::{AcceleratorKind, Arguments, NetworkKind};
use gatestream_command::{Failure, Printer, interrupt};
use indicatif::{ProgressBar, ProgressStyle};
pub use lengths::LengthsOption;
pub use row::Row;

use crate::arrivals::Arrival;
use crate::policy::Policy;
use crate::sustained::Setting;

/// Arrivals between two updates of the progress bar.
const BAR_EVERY: u64 = 1 << 14;

/// Simulates as `arguments` say.
///
/// # Errors
/// A file cannot be read or written.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    interrupt::catch()?;
    let out = &mut Printer::new(arguments.csv.is_some());
    simulate(arguments, interrupt::flow, out)
}

/// Runs all policies at all rates and prints to `out`; ends early if `flow` breaks off.
fn simulate(
    arguments: &Arguments,
    flow: impl Fn() -> ControlFlow<()>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let setting = arguments.setting()?;
    let rates = arguments.rates(&setting)?;
    if !arguments.json {
        writeln!(out, "{}\n", title(arguments, &setting))?;
        writeln!(out, "{}", Row::header(arguments.deadline.is_some()))?;
    }
    let bar = bar();
    let mut rows = Vec::new();
    let runs = rates.iter().flat_map(|rate| {
        let policies = arguments.policies.iter();
        policies.map(move |policy| (*policy, *rate))
    });
    for (policy, rate) in runs {
        if flow().is_break() {
            writeln!(
                std::io::stderr(),
                "interrupted: the runs above are complete"
            )?;
            break;
        }
        let row = run_one(arguments, &setting, policy, rate, &bar);
        bar.suspend(|| {
            if arguments.json {
                writeln!(out, "{}", serde_json::to_string(&row)?)?;
            } else {
                writeln!(out, "{}", row.line())?;
            }
            Ok::<(), Failure>(())
        })?;
        rows.push(row);
    }
    bar.finish_and_clear();
    match &arguments.csv {
        Some(path) => write(path, &rows).map_err(|failure| failure.of(path)),
        None => Ok(()),
    }
}

fn run_one(
    arguments: &Arguments,
    setting: &Setting,
    policy: Policy,
    rate: f64,
    bar: &ProgressBar,
) -> Row {
    bar.set_length((setting.seconds * 1e9) as u64);
    let mut count = 0;
    let mut watch = |arrival: &Arrival| {
        count += 1;
        if count % BAR_EVERY == 0 {
            bar.set_position(arrival.time);
        }
    };
    let rate = if arguments.sustained {
        bar.set_message(format!("{policy}: the highest rate"));
        setting.sustained_rate(policy, &mut watch)
    } else {
        rate
    };
    bar.set_message(format!("{policy} at {rate:.1}/s"));
    let outcome = setting.run(policy, rate, watch);
    Row::new(arguments, setting, policy, rate, &outcome)
}

/// A bar of the simulated time of a run, if stderr is a terminal.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3} %  {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

fn title(arguments: &Arguments, setting: &Setting) -> String {
    let (machine, ideal) = (&setting.machine, setting.ideal_rate());
    format!(
        "{} of {} layers of {} units on {}, {} lanes; {} steps; {} s, seed {}\n\
         a step of a layer {:.1} µs, reading its weights {:.1} µs; all lanes busy: {ideal:.1} \
         requests/s",
        name(arguments.network),
        machine.network.layers,
        machine.network.hidden_size,
        name(arguments.accelerator),
        machine.accelerator.lanes,
        arguments.lengths(),
        arguments.seconds,
        arguments.seed,
        machine.step_time() as f64 / 1e3,
        machine.fetch_time() as f64 / 1e3,
    )
}

fn write(path: &Path, rows: &[Row]) -> Result<(), Failure> {
    let mut writer = csv::Writer::from_path(path)?;
    for row in rows {
        writer.serialize(row)?;
    }
    Ok(writer.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::Value;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn typed(line: &str) -> Arguments {
        let words = ["simulate"].into_iter().chain(line.split_whitespace());
        match Typed::try_parse_from(words) {
            Ok(typed) => typed.arguments,
            Err(error) => panic!("{line}: {error}"),
        }
    }

    fn printed(line: &str) -> String {
        let mut out = Vec::new();
        simulate(&typed(line), || ControlFlow::Continue(()), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn json(line: &str) -> Vec<Value> {
        let text = printed(&format!("{line} --json"));
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn arguments_are_well_formed() {
        use clap::CommandFactory;
        Typed::command().debug_assert();
        for line in [
            "--rates 0",
            "--seconds 0",
            "--policies pad",
            "--lengths uniform:3",
        ] {
            let words = ["simulate"].into_iter().chain(line.split_whitespace());
            assert!(Typed::try_parse_from(words).is_err(), "{line}");
        }
    }

    #[test]
    fn a_lone_request_takes_its_layers() {
        // 100 steps of 131.072 µs/2 and the fetch, eight times; arrivals an hour apart.
        let rows =
            json("--rates 0.01 --seconds 1000 --lengths uniform:100..100 --policies padding");
        let expected = 8.0 * (0.32768 + 100.0 * 0.065536);
        assert_eq!(rows.len(), 1);
        let found = rows[0]["p50_ms"].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-4, "{found}");
        assert_eq!(rows[0]["policy"], "padding");
        assert_eq!(rows[0]["deadline_ms"], Value::Null);
    }

    #[test]
    fn each_policy_runs_at_each_rate_and_the_file_has_all_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let line = format!(
            "--rates 50,200 --seconds 2 --policies padding,ebatch --deadline 50 --csv {}",
            path.display()
        );
        let text = printed(&line);
        assert_eq!(text.lines().count(), 3 + 1 + 4, "{text}");
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let names = reader.headers().unwrap().clone();
        let records: Vec<_> = reader.records().map(Result::unwrap).collect();
        let of = |name: &str, row: usize| {
            let column = names.iter().position(|found| found == name).unwrap();
            records[row][column].to_string()
        };
        assert_eq!(records.len(), 4);
        assert_eq!(
            (of("policy", 1), of("rate", 1)),
            ("ebatch".into(), "50.0".into())
        );
        let late: f64 = of("late", 3).parse().unwrap();
        assert!((0.0..=1.0).contains(&late));
    }

    #[test]
    fn an_interrupted_command_keeps_the_runs_before() {
        let arguments = typed("--rates 10 --seconds 1 --json");
        let mut out = Vec::new();
        let calls = std::cell::Cell::new(0);
        let flow = || {
            calls.set(calls.get() + 1);
            if calls.get() > 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        simulate(&arguments, flow, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 2);
    }
}
