//! Measurements of simulated targets, by their arguments.

use clap::Parser;
use serde_json::Value;

use super::*;
use crate::report::fractions;
use crate::sweep::compare::tests::Fleet;

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

/// On simulated targets with one server per row of a batch: 5 ms for cellular, 20 for others.
fn measured(line: &str) -> Result<String, Failure> {
    interrupted(line, usize::MAX)
}

/// Interrupted after `runs` runs.
fn interrupted(line: &str, runs: usize) -> Result<String, Failure> {
    let service = |candidate: &Candidate| match candidate.policy {
        Some(ComparedPolicy::CELLULAR) => 5,
        _ => 20,
    };
    let (fleet, mut out) = (Fleet::new(service), Vec::new());
    let flow = || {
        if fleet.launched.borrow().len() < runs {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let typed = typed(line);
    measure(&typed, &typed.context(), &fleet, flow, &mut out)?;
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
fn loads_are_fractions_of_the_measured_peak() {
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
    // Peaks: padding 100/s with two rows, 200/s with four; cellular 400/s and 800/s. At low
    // loads two rows are as good as four, and the first of equals is taken.
    let line = "lstm --policies padding,cellular --batch 4,2,calibrated --sweep \
        --load 0.25,0.75,1.5 --seconds 50";
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
        "loads are fractions of the peak of padding: 200 a second",
        "all settings measured",
        "skipped at higher rates: padding, batch 2",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_sweep_works_with_a_closed_loop() {
    let line = "gru --policies bucketing,cellular --batch 4,2 --bucket-width 5,10 --sweep \
        --closed 64 --seconds 5";
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
        "lstm --lengths {lengths}:words --rates 20,40 --seconds 20 --csv {} --cdf {} --chart {} \
         --cdf-chart {}",
        at("a.csv"),
        at("b.csv"),
        at("c.svg"),
        at("d.svg")
    );
    measured(&line).unwrap();
    let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    // Six policies, two rates.
    assert_eq!(read("a.csv").lines().count(), 1 + 12);
    assert!(read("a.csv").contains("lengths.csv:words") && !read("a.csv").contains(&lengths));
    assert_eq!(
        read("b.csv").lines().count(),
        1 + 12 * 3 * fractions().len()
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
        "an existing directory",
    );
    assert_eq!(std::fs::read_to_string(&lengths).unwrap(), "words\n3\n5\n");
}

#[test]
fn conflicting_arguments_are_refused() {
    for (line, words) in [
        ("treelstm --lengths 5", "takes --trees"),
        ("treelstm --layers 2", "has one cell"),
        ("lstm --trees complete:4", "takes --lengths"),
        (
            "lstm --policies ideal",
            "cellular, shortest, ebatch, padding, bucketing, merge do (ideal needs identical",
        ),
        (
            "treelstm --policies padding",
            "cellular, shortest, merge, ideal do",
        ),
        (
            "lstm --machines 2 --policies cellular,ebatch",
            "cellular, shortest, padding, bucketing, merge do (--machines simulates batches of one",
        ),
        ("lstm --batch 1,2", "need --sweep"),
        ("lstm --batch 1,calibrated", "need --sweep"),
        ("lstm --batch 1:2", "lstm has 1: chain"),
        ("seq2seq --batch 1:2:3", "seq2seq has 2: encoder:decoder"),
        ("lstm --vocabulary 9 --rates 5", "is for seq2seq"),
        ("lstm --saturation 9 --rates 5", "measure peaks"),
        ("lstm --saturation 9 --rates 5,6", "measure peaks"),
        ("lstm --saturation 9 --closed 5", "measure peaks"),
        ("lstm --saturation 9 --sweep --rates 5", "measure peaks"),
        ("lstm --rates 5 --chart chart.png", "ends in .svg"),
        ("lstm --rates 5 --cdf-chart chart.csv", "ends in .svg"),
    ] {
        let failure = measured(line).unwrap_err();
        assert_eq!(
            failure.kind(),
            gatestream_command::FailureKind::Usage,
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
fn results_before_an_interrupt_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("curves.csv");
    let line = format!(
        "lstm --policies cellular,merge --batch 4 --load 0.2,0.4 --rounds 2 --seconds 20 --json \
         --csv {}",
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
fn all_policies_are_those_of_the_requests() {
    for (line, count) in [
        ("lstm --policies all --lengths 3 --rates 5", 7),
        ("lstm --policies all --rates 5", 6),
        ("lstm --policies all --rates 5 --machines 2", 5),
        (
            "treelstm --policies merge,all --trees complete:4 --rates 5",
            4,
        ),
    ] {
        assert_eq!(json(&format!("{line} --seconds 5")).len(), count, "{line}");
    }
}

#[test]
fn no_answer_at_all_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("curves.csv");
    let line = format!(
        "lstm --policies merge --rates 9 --drain-timeout 1 --csv {}",
        csv.display()
    );
    let (typed, slow) = (typed(&line), Fleet::new(|_| 10_000_000));
    let flow = || ControlFlow::Continue(());
    let mut out = Vec::new();
    let failure = measure(&typed, &typed.context(), &slow, flow, &mut out);
    let failure = failure.unwrap_err().to_string();
    assert!(failure.starts_with("none of "), "{failure}");
    assert!(
        failure.ends_with("requests was answered: unfinished"),
        "{failure}"
    );
    // The results are there nevertheless.
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 2);
    assert!(String::from_utf8(out).unwrap().contains("unfinished"));
    // Some answers are a result.
    assert!(measured("lstm --policies merge --rates 60 --deadline 5 --seconds 20").is_ok());
}

#[test]
fn doubtful_simulations_are_marked_in_all_results() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let line = "lstm --policies merge --rates 5 --seconds 5";
    let typed_json = typed(&format!("{line} --json"));
    let files = format!("{line} --csv {} --chart {}", at("a.csv"), at("a.svg"));
    let typed_files = typed(&files);
    for (factor, is_doubtful) in [(5.68, true), (0.3, true), (1.4, false)] {
        let of = |typed: &Arguments| {
            let (mut out, fleet) = (Vec::new(), Fleet::new(|_| 20));
            let context = Context {
                machines: Some(2),
                stretch: Some(factor),
                ..typed.context()
            };
            let flow = || ControlFlow::Continue(());
            measure(typed, &context, &fleet, flow, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let row: Value = serde_json::from_str(of(&typed_json).trim()).unwrap();
        assert_eq!(row["batch_times_factor"], factor);
        assert_eq!(row.get("doubtful").is_some(), is_doubtful, "{row}");
        let text = of(&typed_files);
        assert_eq!(text.contains("results are doubtful"), is_doubtful, "{text}");
        let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        assert!(
            read("a.csv").contains(&format!("2,{factor:.3},")),
            "{}",
            read("a.csv")
        );
        assert_eq!(read("a.svg").contains("doubtful"), is_doubtful);
    }
}

#[test]
fn nothing_answered_gives_no_peak() {
    let mut out = Vec::new();
    let slow = Fleet::new(|_| 10_000_000);
    let typed = typed("lstm --policies merge --drain-timeout 1");
    let failure = measure(
        &typed,
        &typed.context(),
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
