//! `gatestream explain` as a user sees it: the facts against numbers worked out by hand, its page,
//! its drawing, its exit codes.

use std::process::Output;

use gatestream::Plan;
use gatestream::model::{Lstm, Model};
use gatestream::plan::{Cost, Measured};
use serde_json::Value;

use crate::{program, stdout, text};

fn explain(arguments: &[&str]) -> Output {
    program(["explain"].iter().chain(arguments))
        .output()
        .unwrap()
}

fn done(arguments: &[&str]) -> String {
    stdout(&explain(arguments))
}

/// The words of a page, wherever its lines end.
fn words(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn json(arguments: &[&str]) -> Value {
    let text = done(&[arguments, &["--json"]].concat());
    assert_eq!(text.lines().count(), 1);
    serde_json::from_str(&text).unwrap()
}

const LSTM: [&str; 3] = ["--cell=lstm", "--input=64", "--hidden=256"];
const QUIET: &str = "--no-measure";

fn with<'a>(shape: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [shape, more].concat()
}

#[test]
fn lstm_facts() {
    let facts = json(&with(&LSTM, &["--steps=50", QUIET]));
    // Weights of 4 gates, and two biases.
    let values = 4 * 256 * (64 + 256 + 2);
    assert_eq!(facts["model"]["weight_bytes"], 4 * values);
    let graph = &facts["graph"];
    assert_eq!(graph["products_per_step"], 8);
    assert_eq!(graph["products"], 8 * 50);
    assert_eq!(graph["input_products"], 4 * 50);
    // Each of 4 products with the state needs all 8 of the step before.
    assert_eq!(graph["dependences"], 49 * 4 * 8);
    assert_eq!(graph["longest_chain"], 50);
    let schedules = facts["schedules"].as_array().unwrap();
    let log10 = |row: &Value| row["log10"].as_f64().unwrap();
    assert!(schedules.is_sorted_by(|a, b| log10(a) >= log10(b)));
    assert!(log10(&schedules[0]) > 100.0);
    let left: Vec<_> = schedules[3..].iter().map(|row| &row["left"]).collect();
    assert_eq!(left, ["16", "16"]);

    let layer = &facts["layers"][0];
    let cores = layer["cores"].as_array().unwrap();
    assert_eq!(
        cores.len() as u64,
        facts["plan"]["threads"].as_u64().unwrap()
    );
    let chunk = layer["chunk_steps"].as_u64().unwrap();
    let mut next = 0;
    for core in cores {
        let units = &core["units"][0];
        assert_eq!(units["start"], next);
        next = units["end"].as_u64().unwrap();
        let units = (next - units["start"].as_u64().unwrap()).next_multiple_of(16);
        assert_eq!(core["step_weights"], units * 256 * 4 * 4);
        assert_eq!(core["ahead_weights"], units * 64 * 4 * 4);
        assert_eq!(core["ahead_results"], units * chunk * 4 * 4);
    }
    assert_eq!(next, 256);
    let ahead = &layer["phases"][0]["products"][0];
    assert_eq!(ahead["weights"].as_array().unwrap().len(), 4);
    assert_eq!(ahead["depth"], 64);
    assert_eq!(layer["phases"][1]["products"][0]["columns"], 1024);
    assert!(facts["bound"].is_null() && facts["measured"].is_null());
}

#[test]
fn bytes_by_precision() {
    for (name, bytes, scales) in [("bf16", 2, 0), ("int8", 1, 4 * 1024 * 2)] {
        let precision = format!("--precision={name}");
        let asked = with(&LSTM, &[&precision, "--threads=1", QUIET]);
        let facts = json(&asked);
        assert_eq!(facts["model"]["precision"], name);
        // Biases stay as they are; int8 has a scale for each row of W and of U.
        let weights = 1024 * (64 + 256) * bytes + scales + 4 * 2 * 1024;
        assert_eq!(facts["model"]["weight_bytes"], weights, "{name}");
        let core = &facts["layers"][0]["cores"][0];
        assert_eq!(core["step_weights"], 1024 * 256 * bytes);
        assert_eq!(core["ahead_weights"], 1024 * 64 * bytes);
        let page = done(&asked);
        assert!(page.contains(&format!("of weights ({name})")), "{page}");
        assert!(page.contains(&format!(" {} KiB", 256 * bytes)), "{page}");
        assert!(page.lines().count() <= 48, "{page}");
        assert!(
            page.lines().all(|line| line.chars().count() <= 100),
            "{page}"
        );
    }
}

#[test]
fn traffic_is_summed_over_layers() {
    let shape = [
        "--cell=gru",
        "--input=32",
        "--hidden=32",
        "--threads=1",
        QUIET,
    ];
    let (one, two) = (json(&shape), json(&with(&shape, &["--layers=2"])));
    assert_eq!(two["layers"].as_array().unwrap().len(), 1, "{two}");
    assert_eq!(
        (&two["layers"][0]["first"], &two["layers"][0]["last"]),
        (&0.into(), &1.into())
    );
    let moved = |facts: &Value, of: &str| facts["moved"]["all"]["steps"][of].as_u64().unwrap();
    for of in ["first_step", "per_step", "total"] {
        assert_eq!(moved(&two, of), 2 * moved(&one, of), "{of}");
    }
    // All weights, and room for every value between.
    let weights = 32 * 32 * 3 * 4;
    let first = moved(&one, "first_step");
    assert!((weights..weights + 2048).contains(&first), "{first}");
}

#[test]
fn page_width() {
    let cases: [&[&str]; 6] = [
        &LSTM,
        &["--cell=gru", "--input=1024", "--hidden=1024", "--batch=10"],
        &["--cell=rnn-relu", "--input=3", "--hidden=5", "--steps=1"],
        &[
            "--cell=lstm",
            "--input=8",
            "--hidden=16",
            "--layers=1024",
            "--steps=1048576",
        ],
        &[
            "--cell=lstm",
            "--input=64",
            "--hidden=256",
            "--layers=2",
            "--bidirectional",
        ],
        &[
            "--cell=gru",
            "--input=7",
            "--hidden=4096",
            "--batch=65536",
            "--steps=1048576",
        ],
    ];
    for case in cases {
        let page = done(&with(case, &[QUIET]));
        let lines = page.lines().count();
        assert!(lines <= 48, "{lines} lines: {page}");
        for line in page.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let from = page.lines().position(|l| l.starts_with("schedules"));
        let to = page.lines().position(|l| l.starts_with("chosen"));
        assert!(to.unwrap() - from.unwrap() <= 10, "{page}");
        for part in [
            "model ",
            "rule 3, ",
            "chosen ",
            "moved ",
            "bound ",
            "measured ",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }
    let page = done(&with(&LSTM, &[QUIET]));
    for part in [
        "8 matrix products per step",
        "[U_i U_f U_g U_o]·h",
        "  16  can be run",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
}

#[test]
fn bound_of_measured_ceilings() {
    let facts = json(&with(&LSTM, &["--threads=1"]));
    let bound = &facts["bound"];
    assert_eq!(bound["flops"], f64::from(2 * 100 * 4 * 256 * (64 + 256)));
    let peak = bound["ceilings"]["one"]["fma_f32_gflops"]["value"]
        .as_f64()
        .unwrap();
    let seconds = bound["seconds"].as_f64().unwrap();
    assert!(seconds >= 0.99 * bound["flops"].as_f64().unwrap() / (1e9 * peak));
    // Of int8 it is held against the peak of dot products.
    let int8 = json(&with(&LSTM, &["--threads=1", "--precision=int8"]));
    let bound_of = &int8["bound"];
    assert_eq!(bound_of["flops"], bound["flops"]);
    assert_eq!(bound_of["operations"]["int8"], bound["flops"]);
    assert_eq!(bound["operations"]["f32"], bound["flops"]);
    let peak = bound_of["ceilings"]["one"]["dot_int8_gops"]["value"]
        .as_f64()
        .unwrap();
    let least = bound["flops"].as_f64().unwrap() / (1e9 * peak);
    assert!(bound_of["seconds"].as_f64().unwrap() >= 0.99 * least);
    let page = words(&done(&with(&LSTM, &["--precision=int8"])));
    let part = "MOP in int8";
    assert!(
        page.contains("int8 arithmetic") && page.contains(part),
        "{page}"
    );
    let by = bound["by"].as_str().unwrap();
    assert!(
        ["compute", "l1", "l2", "l3", "memory"].contains(&by),
        "{by}"
    );
    let page = words(&done(&LSTM));
    assert!(
        page.contains("GFLOP/s") && page.contains("can be faster than"),
        "{page}"
    );
}

/// Boxes and arrows of a drawing.
fn drawn(text: &str) -> (usize, usize) {
    assert!(
        text.starts_with("digraph ") && text.trim_end().ends_with('}'),
        "{text}"
    );
    let arrows = text.lines().filter(|line| line.contains(" -> ")).count();
    let boxes = text.lines().filter(|line| line.contains(", fillcolor="));
    (boxes.count(), arrows)
}

#[test]
fn graph_drawings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lstm.dot");
    let path = path.to_str().unwrap();
    let page = words(&done(&with(&LSTM, &["--steps=8", "--dot", path, QUIET])));
    assert!(page.contains("all steps"), "{page}");
    assert_eq!(
        drawn(&std::fs::read_to_string(path).unwrap()),
        (8 * 8, 7 * 4 * 8)
    );
    let page = words(&done(&with(&LSTM, &["--steps=9", "--dot", path, QUIET])));
    assert!(page.contains("3 of the 9"), "{page}");
    assert_eq!(
        drawn(&std::fs::read_to_string(path).unwrap()),
        (3 * 8, 2 * 4 * 8)
    );

    let out = explain(&with(&LSTM, &["--steps=9", "--dot=-"]));
    assert_eq!(
        drawn(str::from_utf8(&out.stdout).unwrap()),
        (3 * 8, 2 * 4 * 8)
    );
    let note = text(&out.stderr);
    assert!(
        note.lines().count() == 1 && note.contains("3 steps"),
        "{note}"
    );
    let out = explain(&with(&LSTM, &["--steps=2", "--dot=-"]));
    assert_eq!(
        (
            drawn(str::from_utf8(&out.stdout).unwrap()),
            out.stderr.len()
        ),
        ((16, 32), 0)
    );
}

/// A plan file for 1 sequence of 100 steps in 3 ms and 10 of 100 in 20 ms.
fn tuned(model: &Model, path: &std::path::Path) {
    let cost = |median_ns, spread_ns| Cost {
        median_ns,
        spread_ns,
    };
    let entry = |batch, median| {
        let mut entry = Plan::with_threads(model, batch, 100, 1).entries.remove(0);
        entry.measured = Some(Measured {
            cost: cost(median, median / 50),
            runner_up: Some(("serpentine\u{1b}[2J".into(), cost(2 * median, 0))),
        });
        entry
    };
    let plan = Plan {
        entries: vec![entry(1, 3_000_000), entry(10, 20_000_000)],
    };
    plan.save(path, model).unwrap();
}

#[test]
fn measured_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lstm.plan");
    tuned(&Lstm::new(64, 256).random(7).unwrap(), &path);
    let plan = ["--plan", path.to_str().unwrap()];
    let facts = json(&with(&LSTM, &plan));
    assert_eq!(facts["plan"]["origin"], "tuned");
    let measured = &facts["measured"];
    assert_eq!(
        (&measured["batch"], &measured["seconds"]),
        (&1.into(), &0.003.into())
    );
    let number = |value: &Value| value.as_f64().unwrap();
    assert!((number(&measured["spread"]) - 0.01).abs() < 1e-9);
    let fraction = number(&facts["bound"]["seconds"]) / 0.003;
    assert!((number(&measured["fraction_of_bound"]) - fraction).abs() < 1e-9);
    assert_eq!(measured["runner_up"]["seconds"], 0.006);

    let page = words(&done(&with(&LSTM, &with(&plan, &[QUIET]))));
    assert!(
        page.contains("3 ms ± 1.0 %") && page.contains("Runner-up: 6 ms"),
        "{page}"
    );
    // What a file says is kept from the terminal.
    assert!(!page.contains('\u{1b}'), "{page:?}");
    let page = words(&done(&with(&LSTM, &with(&plan, &["--batch=16", QUIET]))));
    assert!(
        page.contains("20 ms ± 1.0 % for 10 sequences of 100 steps, the nearest"),
        "{page}"
    );

    let plan_file = std::fs::read_to_string(&path).unwrap();
    let (start, _) = plan_file.rsplit_once("checksum").unwrap();
    std::fs::write(&path, start.to_string() + "checksum none").unwrap();
    let page = words(&done(&with(&LSTM, &with(&plan, &[QUIET]))));
    assert!(
        page.contains("edited by hand") && !page.contains("±"),
        "{page}"
    );

    let other = ["--cell=lstm", "--input=65", "--hidden=256", QUIET];
    let out = explain(&with(&other, &plan));
    assert_eq!(out.status.code(), Some(0));
    let (page, why) = (text(&out.stdout), text(&out.stderr));
    assert!(
        page.contains("by estimate") && why.contains("going on with the estimate"),
        "{why}"
    );
}

#[test]
fn refusals() {
    let cases: [(&[&str], i32, &str); 6] = [
        (&[], 2, "--hidden"),
        (
            &[
                "--cell=lstm",
                "--input=4",
                "--hidden=4",
                "--dot=-",
                "--json",
            ],
            2,
            "--dot",
        ),
        (
            &[
                "--cell=lstm",
                "--input=4",
                "--hidden=4",
                "--dot=/nowhere/a.dot",
            ],
            1,
            "/nowhere/a.dot",
        ),
        (
            &[
                "--cell=lstm",
                "--input=4",
                "--hidden=4",
                "--plan=/nowhere/a.plan",
            ],
            1,
            "a.plan",
        ),
        (&["/nowhere/a.onnx"], 1, "a.onnx"),
        (
            &["/nowhere/a.onnx", "--hidden=4"],
            2,
            "a model file has its own",
        ),
    ];
    for (arguments, status, part) in cases {
        let out = explain(arguments);
        let line = text(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{line}");
        assert!(line.lines().count() == 1 && line.contains(part), "{line}");
        assert!(out.stdout.is_empty());
    }
    for bad in ["--batch=0", "--steps=0", "--steps=1048577", "--threads=0"] {
        assert_eq!(
            explain(&with(&LSTM, &[bad])).status.code(),
            Some(2),
            "{bad}"
        );
    }
}
