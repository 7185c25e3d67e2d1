//! `gatestream load` from the outside: every network and policy on tiny shapes, what is printed and
//! written, what is refused.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

#[cfg(target_os = "linux")]
use crate::interrupt;
use crate::{program, text};

fn load(line: &str) -> Output {
    let words = line.split_whitespace();
    program(["load"].into_iter().chain(words)).output().unwrap()
}

/// Short, small, and far below what any machine bears.
const TINY: &str = "--hidden 8 --input 4 --batch 4 --seconds 0.2 --warm-up 0.05 --rates 200 --json";

fn rows(line: &str) -> Vec<Value> {
    let output = load(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    let lines = text(&output.stdout);
    let rows = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

/// Whether all requests were answered.
fn no_errors(row: &Value) -> bool {
    let errors = row["errors"].as_object().unwrap();
    errors.len() == 4 && errors.values().all(|count| count == 0)
}

/// Rows of a batch of this cell, and how many batches had so many.
fn batches(row: &Value, cell: &str) -> impl Iterator<Item = (u64, u64)> {
    let batches = row["batches"][cell].as_object().unwrap();
    let count =
        |(rows, batches): (&String, &Value)| (rows.parse().unwrap(), batches.as_u64().unwrap());
    batches.iter().map(count)
}

/// How often this cell ran, for one row each.
fn steps_ran(row: &Value, cell: &str) -> u64 {
    batches(row, cell)
        .map(|(rows, batches)| rows * batches)
        .sum()
}

#[test]
fn every_network_and_policy() {
    let networks = [
        (
            "lstm --lengths 3",
            "cellular shortest ebatch padding bucketing merge ideal",
        ),
        (
            "gru --lengths paper:20 --precision int8",
            "cellular shortest ebatch padding bucketing merge",
        ),
        (
            "seq2seq --lengths paper:6 --vocabulary 50",
            "cellular shortest ebatch padding bucketing merge",
        ),
        (
            "treelstm --trees complete:4",
            "cellular shortest merge ideal",
        ),
        (
            "treelstm --trees complete:4 --precision int8",
            "cellular shortest merge ideal",
        ),
        (
            "tree-child-sum --trees complete:4 --workers 1 --precision bf16",
            "cellular shortest merge ideal",
        ),
    ];
    for (network, policies) in networks {
        let rows = rows(&format!("{network} {TINY}"));
        let served: Vec<_> = rows
            .iter()
            .map(|row| row["policy"].as_str().unwrap())
            .collect();
        assert_eq!(served.join(" "), policies, "{network}");
        for row in &rows {
            let count = |name: &str| row[name].as_u64().unwrap();
            assert!(count("due") > 5, "{network}: {row}");
            // How many of them end in it is a matter of the machine, but none is lost: who came and
            // did not go is under way.
            let backlog = row["backlog"].as_i64().unwrap();
            assert_eq!(
                count("completed") as i64 + backlog,
                count("due") as i64,
                "{network}: {row}"
            );
            assert!(no_errors(row), "{network}: {row}");
        }
    }
}

/// One user's requests, one after the other: what is computed is known to the step.
#[test]
fn large_requests() {
    const REQUESTS: u64 = 3;
    // More values than four millions, which rows of most widths do not divide.
    for (network, cells) in [
        (
            "lstm --lengths 100 --input 65536",
            [("chain", 100)].as_slice(),
        ),
        ("gru --lengths 100 --input 60001", &[("chain", 100)]),
        (
            "treelstm --trees complete:128 --input 65536",
            &[("tree leaf", 128), ("tree node", 127)],
        ),
        (
            "tree-child-sum --trees complete:64 --input 60001",
            &[("tree child", 126), ("tree node", 127)],
        ),
    ] {
        let rows = rows(&format!(
            "{network} --hidden 2 --policies cellular --closed 1 --requests {REQUESTS} \
             --warm-up 0 --seconds 60 --json"
        ));
        let [row] = &rows[..] else {
            panic!("{network}: {} rows", rows.len());
        };
        assert_eq!(row["counted"], REQUESTS, "{network}: {row}");
        assert!(no_errors(row), "{network}: {row}");
        for &(cell, steps) in cells {
            let ran = steps_ran(row, cell);
            // The last goes out when the others are answered, and what it gets done by then counts,
            // too. (All of them cut to the 64 rows that four million values have would be 192 steps
            // at most.)
            let all = (REQUESTS - 1) * steps..=REQUESTS * steps;
            assert!(all.contains(&ran), "{network}: {cell} ran {ran} times");
        }
    }
}

#[test]
fn trace_replay() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.csv");
    // One in the warm-up of 50 ms, six in the window of 200 ms, two of them at once, and two after
    // it.
    let times = "seconds\n0.01\n0.06\n0.06\n0.1\n0.15\n0.2\n0.24\n0.26\n9\n";
    std::fs::write(&trace, times).unwrap();
    let rows = rows(&format!(
        "lstm --lengths 3 --hidden 8 --input 4 --batch 4 --warm-up 0.05 --seconds 0.2 --rounds 2 \
         --json --trace {}",
        trace.display()
    ));
    assert_eq!(rows.len(), 7);
    for row in &rows {
        assert_eq!(
            (&row["arrivals"], row.get("rate")),
            (&"trace".into(), None),
            "{row}"
        );
        let counts = ["rounds", "due", "counted"].map(|name| row[name].as_u64());
        assert_eq!(counts, [Some(2), Some(12), Some(12)], "{row}");
        assert!(no_errors(row), "{row}");
        let window = row["window_s"].as_f64().unwrap();
        assert!((window - 0.4).abs() < 1e-9, "{row}");
    }
}

#[test]
fn progress_of_all_policies_in_lines() {
    let output = load(&format!("gru --policies all --lengths 3 {TINY}"));
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(text(&output.stdout).lines().count(), 7);
    let first = "gatestream: run 1 of 7  cellular, batch 4, at 200.0/s, round 1\n";
    assert!(errors.contains(first), "{errors}");
}

#[test]
fn closed_loop() {
    let rows = rows(
        "gru --lengths 5 --hidden 8 --input 4 --batch 8 --closed 3 --requests 40 --warm-up 0 \
         --seconds 60 --json",
    );
    assert_eq!(rows.len(), 7);
    for row in &rows {
        assert_eq!(
            (&row["arrivals"], &row["outstanding"]),
            (&"closed".into(), &3.into()),
            "{row}"
        );
        let counts = ["due", "counted"].map(|name| row[name].as_u64());
        assert_eq!(counts, [Some(40), Some(40)], "{row}");
        assert!(no_errors(row), "{row}");
        // All but the last three are answered before the last goes out; no batch has a row of a
        // fourth user.
        let ran = steps_ran(row, "chain");
        assert!((37 * 5..=40 * 5).contains(&ran), "{ran}: {row}");
        let largest = batches(row, "chain").map(|(rows, _)| rows).max();
        assert!(largest <= Some(3), "{row}");
    }
}

#[test]
fn input_and_output_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("lengths.csv"), "of,words\na,3\nb,5\n").unwrap();
    std::fs::write(path("trees.jsonl"), "[2,0,2]\n[0]\n[0,1,2,2]\n").unwrap();
    let line = format!(
        "lstm --lengths {}:words {TINY} --csv {} --cdf {} --chart {}",
        path("lengths.csv"),
        path("out.csv"),
        path("cdf.csv"),
        path("chart.svg")
    );
    assert_eq!(rows(&line).len(), 6);
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    assert_eq!(read("out.csv").lines().count(), 7);
    assert!(read("chart.svg").starts_with("<svg"));
    assert!(read("cdf.csv").lines().count() > 10);
    assert_eq!(
        rows(&format!("treelstm --trees {} {TINY}", path("trees.jsonl"))).len(),
        3
    );

    // An input is not written over.
    let line = format!(
        "lstm --lengths {0}:words {TINY} --csv {0}",
        path("lengths.csv")
    );
    assert_eq!(load(&line).status.code(), Some(1));
    assert!(Path::new(&path("lengths.csv")).exists() && read("lengths.csv").starts_with("of"));
}

#[test]
fn calibration() {
    let rows = rows("seq2seq --hidden 8 --input 4 --vocabulary 50 --batch 6 --calibrate --json");
    for cell in ["encoder", "decoder"] {
        let of_cell: Vec<_> = rows.iter().filter(|row| row["cell"] == cell).collect();
        let sizes: Vec<_> = of_cell
            .iter()
            .map(|row| row["rows"].as_u64().unwrap())
            .collect();
        assert_eq!(sizes, [1, 2, 4, 6]);
        assert_eq!(
            of_cell.iter().filter(|row| row["chosen"] == true).count(),
            1
        );
        assert!(of_cell.iter().all(|row| row["us"].as_f64().unwrap() > 0.0));
    }
    assert_eq!(rows.len(), 8);
}

#[test]
fn simulated_machines() {
    let line = "--hidden 64 --input 64 --batch 4 --policies cellular --lengths 50 --seconds 0.2 \
                --warm-up 0.05 --json --machines 1,4";
    for network in ["lstm", "seq2seq --vocabulary 9"] {
        let closed = rows(&format!("{network} {line} --closed 64"));
        let runs: Vec<_> = closed.iter().filter(|row| row["kind"] == "run").collect();
        let [one, four] = [1, 4].map(|machines| {
            let run = runs.iter().find(|row| row["machines"] == machines);
            let run = run.unwrap();
            assert!(no_errors(run), "{run}");
            run["throughput"].as_f64().unwrap()
        });
        assert_eq!(runs.len(), 2);
        // 64 users fill the batches of one machine, and those of four.
        assert!((four / one / 4.0 - 1.0).abs() < 0.1, "{four} of {one}");
    }
    // Loads are fractions of the peak of all machines.
    let half = rows(&format!("lstm {line} --load 0.5"));
    let rates: Vec<_> = half.iter().filter_map(|row| row["rate"].as_f64()).collect();
    let [one, four] = rates[..] else {
        panic!("{half:?}")
    };
    assert!((four / one / 4.0 - 1.0).abs() < 0.1, "{four} of {one}");
    for (refused, says) in [
        ("treelstm --machines 2 --rates 9", "trees are not simulated"),
        (
            "lstm --machines 1,2 --rates 9 --csv x.csv",
            "one number of --machines",
        ),
        ("lstm --routing random --rates 9", "--machines"),
    ] {
        let refused = load(refused);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(text(&refused.stderr).contains(says), "{refused:?}");
    }
}

#[test]
fn sweep_of_batch_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("all.csv");
    let line = format!(
        "seq2seq --lengths paper:6 --hidden 8 --input 4 --vocabulary 50 --policies cellular,merge \
         --batch 4:2,2,calibrated --sweep --tasks-at-once 2 --seconds 0.2 --warm-up 0.05 \
         --rates 100,200 --saturation 8 --csv {}",
        csv.display()
    );
    let all = rows(&format!("{line} --json"));
    let of = |kind: &str, policy: &str| {
        let of = all.iter();
        let of = of.filter(|row| row["kind"] == kind && row["policy"] == policy);
        of.collect::<Vec<_>>()
    };
    // What calibration finds, by its definition: the fewest rows within 3 % of the best rate.
    let found = ["encoder", "decoder"].map(|cell| {
        let of_cell: Vec<_> = all.iter().filter(|row| row["cell"] == cell).collect();
        let sizes: Vec<_> = of_cell.iter().map(|row| row["rows"].as_u64()).collect();
        assert_eq!(sizes, [Some(1), Some(2), Some(4)]);
        let rate = |row: &Value| row["rows_per_s"].as_f64().unwrap();
        let best = of_cell.iter().map(|row| rate(row)).fold(0.0, f64::max);
        let close = of_cell.iter().find(|row| rate(row) >= 0.97 * best);
        close.unwrap()["rows"].as_u64().unwrap()
    });
    let shown = |row: &Value| match &row["batch"] {
        Value::Array(cells) => format!("{}:{}", cells[0], cells[1]),
        one => one.to_string(),
    };
    let calibrated = match found {
        [encoder, decoder] if encoder == decoder => encoder.to_string(),
        [encoder, decoder] => format!("{encoder}:{decoder}"),
    };
    let peaks: Vec<_> = of("peak", "cellular").into_iter().map(shown).collect();
    let mut expected = vec!["4:2".into(), "2".into(), calibrated.clone()];
    expected.sort();
    expected.dedup();
    let mut sorted = peaks.clone();
    sorted.sort();
    assert_eq!(sorted, expected);
    // Merged levels of a cell have its size, too.
    let mut merged: Vec<_> = of("peak", "merge").into_iter().map(shown).collect();
    merged.sort();
    assert_eq!(merged, expected);
    for policy in ["cellular", "merge"] {
        let best = of("run", policy)
            .into_iter()
            .filter(|row| row["best"] == true);
        assert_eq!(best.count(), 2, "{policy}");
    }
    for row in all.iter().filter(|row| row["kind"] == "run") {
        assert_eq!(row["tasks_at_once"], 2);
        for cell in ["encoder", "decoder"] {
            let step = &row["step_ms"][cell];
            let [p50, p99] = ["p50", "p99"].map(|name| step[name].as_f64().unwrap());
            assert!(0.0 < p50 && p50 <= p99, "{row}");
        }
        let p99 = |name: &str| row[name]["p99"].as_f64().unwrap();
        assert!(
            p99("submitted_queueing_ms") <= 1.01 * p99("queueing_ms"),
            "{row}"
        );
    }
    let written = all
        .iter()
        .filter(|row| row["kind"] == "run" || row["kind"] == "peak");
    let csv = std::fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 1 + written.count());
    assert!(csv.contains(",cellular,4:2,"));

    let output = load(&line);
    let text = text(&output.stdout);
    for words in [
        "2 task(s) and 4 step(s) at once",
        "calibrated: batch ",
        "cellular   batch 4:2 ",
        "all settings measured",
        "subm. p99",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn invalid_arguments() {
    let refused = [
        ("lstm --policies ideal", 2, "ideal needs identical requests"),
        ("treelstm --lengths 3", 2, "takes --trees"),
        ("lstm --trees complete:4", 2, "takes --lengths"),
        ("treelstm --trees complete:3", 2, "complete:3"),
        ("lstm --batch 4,8", 2, "--sweep"),
        ("lstm --batch 8:4", 2, "lstm has 1: chain"),
        ("seq2seq --batch 8:4:2", 2, "seq2seq has 2: encoder:decoder"),
        ("treelstm --batch 8:", 2, "of each in their order (64:32)"),
        ("lstm --batch 0", 2, "1 to 4096"),
        ("lstm --drain-timeout -1", 2, "'-1' for '--drain-timeout"),
        ("lstm --rates -5,10", 2, "'-5' for '--rates"),
        ("lstm --load -0.5,0.8", 2, "'-0.5' for '--load"),
        ("lstm --batch calibrate", 2, "or calibrated"),
        ("lstm --tasks-at-once 0", 2, "1..=1024"),
        ("lstm --sweep=peak", 2, "--sweep"),
        ("lstm --lengths -1", 2, "a length is in 1..=65536"),
        ("lstm --calibrate", 2, "'--calibrate' cannot be used with"),
        ("lstm --lengths nowhere.csv:words", 1, "nowhere.csv"),
        ("lstm --workers 100", 2, "each worker needs a core"),
        ("lstm --hidden 65536 --input 65536", 1, "GiB"),
    ];
    for (line, status, says) in refused {
        // Given twice, an argument is refused for that.
        let short = if line.contains("--hidden") || line.contains("--batch") {
            "--rates 10"
        } else {
            TINY
        };
        let output = load(&format!("{line} {short}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}: {errors}");
        assert!(errors.contains(says), "{line}: {errors}");
    }
}

/// What was measured is not lost with the file that it should go into.
#[cfg(target_os = "linux")]
#[test]
fn unwritable_output() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("chart.svg");
    let output = load(&format!(
        "lstm {TINY} --csv /dev/full --chart {}",
        chart.display()
    ));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("/dev/full"), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("cellular"), "{printed}");
    let drawn = std::fs::read_to_string(chart).unwrap();
    assert!(drawn.contains("</svg>"), "nor does it cost another file");
}

#[test]
fn requests_beyond_memory() {
    let folder = tempfile::tempdir().unwrap();
    let trees = folder.path().join("wide.jsonl");
    // One sentence: the first of two million words is the head of all others.
    std::fs::write(&trees, format!("[0{}]\n", ",1".repeat(1 << 21))).unwrap();
    let output = load(&format!(
        "tree-child-sum --trees {} --hidden 2 --input 65536 --closed 1 --requests 1",
        trees.display()
    ));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    // 512 GiB of values, once in the pool and, with room for growth, twice in each half of what is
    // left; and the rest.
    let says = "weights and the values of requests need 2560.1 GiB of memory and ";
    assert!(
        errors.contains(says) && errors.contains("--trees"),
        "{errors}"
    );
}

/// `chrt` asks the system for the same rank, by itself.
#[cfg(target_os = "linux")]
#[test]
fn priority_warning_is_printed_once() {
    let unprivileged = "prlimit --rtprio=0:0";
    let root = "setpriv --inh-caps=-sys_nice --bounding-set=-sys_nice";
    for wrapper in [
        "env".into(),
        unprivileged.into(),
        format!("{unprivileged} {root}"),
    ] {
        let run = |line: &str| {
            let mut words = wrapper.split(' ').chain(line.split(' '));
            let output = Command::new(words.next().unwrap()).args(words).output();
            output.ok().filter(|output| output.status.success())
        };
        // Not all may give up rights, and some systems have no such tools.
        if run("chrt --max").is_none() {
            eprintln!("skipped: `{wrapper} chrt` does not run here");
            continue;
        }
        let allowed = run("chrt --fifo 1 true").is_some();
        // Two policies: two servers are started.
        let line = format!(
            "{} load lstm --policies cellular,merge --hidden 8 --input 4 --rates 100 \
             --seconds 0.05 --warm-up 0",
            env!("CARGO_BIN_EXE_gatestream")
        );
        let errors = run(&line).unwrap().stderr;
        let errors = String::from_utf8(errors).unwrap();
        let said = errors.matches("the load generator has no right to go before the workers");
        assert_eq!(said.count(), usize::from(!allowed), "{wrapper}: {errors}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn interrupt_keeps_measured_loads() {
    use std::process::Stdio;
    use std::time::Duration;

    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("curves.csv");
    let rates: Vec<String> = (100..1000).map(|rate| rate.to_string()).collect();
    // Sooner or later one of the loads has been measured, and not all.
    let mut after = Duration::from_millis(500);
    let (said, printed) = loop {
        let line =
            "load lstm --policies cellular --hidden 8 --input 4 --batch 4 --json --seconds 0.1";
        let mut command = program(line.split(' '));
        command.args(["--warm-up", "0", "--rates", &rates.join(",")]);
        command.arg("--csv").arg(&csv);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        interrupt::interrupt(&mut child, after);
        let done = child.wait_with_output().unwrap();
        let said = text(&done.stderr);
        assert!(said.contains("Ctrl-C again exits immediately"), "{said}");
        if done.status.success() {
            break (said, text(&done.stdout));
        }
        assert!(
            said.contains("interrupted before a load was measured"),
            "{said}"
        );
        after *= 2;
    };
    let loads = printed.lines().count();
    assert!((1..900).contains(&loads), "{loads}");
    let notice = format!("interrupted: {loads} of 900 loads, the last in 1 of 1 rounds\n");
    // What else may be said is that the generator has no rank of its own.
    assert!(said.ends_with(&notice), "{said}");
    let written = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(written.lines().count(), 1 + loads);
}

/// Who reads what is printed may leave at once: files are written all the same.
#[test]
fn files_are_written_after_stdout_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("curves.csv");
    let line = "load lstm --policies cellular --hidden 8 --input 4 --batch 4";
    let mut command = program(line.split(' '));
    command.args("--seconds 0.1 --warm-up 0 --rates 100,200 --csv".split(' '));
    command.arg(&csv).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    let written = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(written.lines().count(), 1 + 2);
}
