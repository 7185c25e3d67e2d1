//! `cellstream load` from the outside: every network and policy on tiny shapes, what is printed and written, what is
//! refused.
#![cfg(feature = "cli")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn load(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cellstream"))
        .arg("load")
        .args(line.split_whitespace())
        .output()
        .unwrap()
}

/// Short, small, and far below what any machine bears.
const TINY: &str = "--hidden 8 --input 4 --batch 4 --seconds 0.2 --warm-up 0.05 --rates 200 --json";

fn rows(line: &str) -> Vec<Value> {
    let output = load(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let rows = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

#[test]
fn every_network_is_served_with_every_policy_that_can() {
    let networks = [
        ("lstm --lengths 3", "cellular padding bucketing merge ideal"),
        (
            "gru --lengths paper:20 --precision int8",
            "cellular padding bucketing merge",
        ),
        (
            "seq2seq --lengths paper:6 --vocabulary 50",
            "cellular padding bucketing merge",
        ),
        ("treelstm --trees complete:4", "cellular merge ideal"),
        (
            "tree-child-sum --trees complete:4 --workers 1",
            "cellular merge ideal",
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
            // Of those due in the window, the last may end after it.
            assert!(count("completed") + 3 > count("due"), "{network}: {row}");
            let errors = row["errors"].as_object().unwrap();
            assert!(
                errors.len() == 4 && errors.values().all(|n| n == 0),
                "{network}: {row}"
            );
        }
    }
}

#[test]
fn files_of_lengths_and_trees_are_read_and_results_are_written() {
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
    assert_eq!(rows(&line).len(), 4);
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    assert_eq!(read("out.csv").lines().count(), 5);
    assert!(read("chart.svg").starts_with("<svg"));
    assert!(read("cdf.csv").lines().count() > 10);
    assert_eq!(
        rows(&format!("treelstm --trees {} {TINY}", path("trees.jsonl"))).len(),
        2
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
fn calibration_times_every_cell_at_every_size() {
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
fn what_makes_no_sense_is_refused_in_a_line_that_says_what_does() {
    let refused = [
        ("lstm --policies ideal", 2, "ideal needs identical requests"),
        ("treelstm --lengths 3", 2, "takes --trees"),
        ("lstm --trees complete:4", 2, "takes --lengths"),
        ("treelstm --trees complete:3", 2, "complete:3"),
        ("treelstm --precision int8", 2, "trees are computed in f32"),
        ("lstm --batch 4,8", 2, "--sweep"),
        ("lstm --lengths nowhere.csv:words", 1, "nowhere.csv"),
        ("lstm --workers 100", 2, "each worker needs a core"),
        ("lstm --hidden 65536 --input 65536", 1, "GiB"),
    ];
    for (line, status, says) in refused {
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
