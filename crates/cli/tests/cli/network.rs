//! `tune`, `explain`, `bench` and `run` of a whole graph.

use std::path::{Path, PathBuf};

use super::{npy, program, run_in, stdout, text};
use serde_json::Value;

const ARRAYS: [&str; 4] = ["--array", "x=x.npy", "--array", "chosen=chosen.npy"];

/// A folder with a graph of four recurrent nodes, one of them within a branch, and its inputs.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let graph: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../network/tests/cores/among_others.onnx");
    std::fs::copy(graph, folder.path().join("whole.onnx")).unwrap();
    let values: Vec<f32> = (0..6 * 3 * 5).map(|i| (i as f32).sin()).collect();
    std::fs::write(
        folder.path().join("x.npy"),
        npy::floats(&[6, 3, 5], &values),
    )
    .unwrap();
    let chosen = npy::bytes("|b1", &[], &[1]);
    std::fs::write(folder.path().join("chosen.npy"), chosen).unwrap();
    folder
}

fn on_arrays(folder: &Path, arguments: &[&str]) -> std::process::Output {
    run_in(folder, [arguments, &ARRAYS].concat())
}

/// The bytes of the output of a run.
fn end(folder: &Path, more: &[&str]) -> Vec<u8> {
    let inputs = ["run", "whole.onnx", "--input", "x=x.npy", "--input"];
    let others = ["chosen=chosen.npy", "--output", "end=end.npy"];
    let out = run_in(folder, [&inputs[..], &others, more].concat());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    std::fs::read(folder.join("end.npy")).unwrap()
}

#[test]
fn a_tuned_plan_is_used_and_changes_no_bit() {
    let folder = folder();
    let folder = folder.path();
    let expected = end(folder, &[]);
    let tune = ["tune", "whole.onnx", "--seconds", "0.3", "-o", "whole.plan"];
    let told = stdout(&on_arrays(folder, &tune));
    for part in [
        "with estimated plans",
        "with tuned plans",
        "written to whole.plan",
    ] {
        assert!(told.contains(part), "{part:?} in {told}");
    }
    assert!(end(folder, &["--plan", "whole.plan"]) == expected);
    let plan = std::fs::read_to_string(folder.join("whole.plan")).unwrap();
    assert!(plan.starts_with("gatestream network plan 1\n"));
    let explain = ["explain", "whole.onnx", "--plan", "whole.plan", "--json"];
    let json: Value = serde_json::from_str(&stdout(&on_arrays(folder, &explain))).unwrap();
    let regions = json["regions"].as_array().unwrap();
    assert!(regions.len() >= 3, "{json}");
    for region in regions {
        let node = region["node"].as_str().unwrap();
        assert!(plan.contains(&format!("region \"{node}\"")), "{node}");
    }

    // A second tuning keeps the entries of other sizes.
    let values: Vec<f32> = (0..8 * 3 * 5).map(|i| (i as f32).cos()).collect();
    std::fs::write(folder.join("x.npy"), npy::floats(&[8, 3, 5], &values)).unwrap();
    stdout(&on_arrays(folder, &tune));
    let plan = std::fs::read_to_string(folder.join("whole.plan")).unwrap();
    assert!(
        plan.contains("steps 6\n") && plan.contains("steps 8\n"),
        "{plan}"
    );
}

/// As of another machine: the line of the processor differs.
fn of_another_machine(plan: &str) -> String {
    let lines = plan.lines().map(|line| match line.split(' ').next() {
        Some("cpu") => "cpu of another machine\n".to_owned(),
        Some("checksum") => "checksum none\n".to_owned(),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

#[test]
fn a_plan_of_another_machine_causes_a_warning() {
    let folder = folder();
    let folder = folder.path();
    let expected = end(folder, &[]);
    let tune = ["tune", "whole.onnx", "--seconds", "0.1", "-o", "whole.plan"];
    stdout(&on_arrays(folder, &tune));
    let plan = std::fs::read_to_string(folder.join("whole.plan")).unwrap();
    std::fs::write(folder.join("whole.plan"), of_another_machine(&plan)).unwrap();
    assert!(end(folder, &["--plan", "whole.plan"]) == expected);
    let out = on_arrays(folder, &["explain", "whole.onnx", "--plan", "whole.plan"]);
    let told = text(&out.stderr);
    assert!(told.contains("going on with estimates"), "{told}");
    let out = on_arrays(folder, &tune);
    assert!(text(&out.stderr).contains("written anew"), "{out:?}");
    let plan = std::fs::read_to_string(folder.join("whole.plan")).unwrap();
    assert!(!plan.contains("another machine"), "{plan}");
}

/// A graph that is also a stack of layers: `run` takes the plan for what it is.
#[test]
fn a_stack_runs_with_the_plan_of_a_graph() {
    let folder = folder();
    let folder = folder.path();
    let cut = ["cut", "whole.onnx", "--node", "y1_node", "-o", "core.onnx"];
    stdout(&run_in(folder, cut));
    let lengths: Vec<u8> = [6i32, 2, 5].iter().flat_map(|l| l.to_le_bytes()).collect();
    let lengths = npy::bytes("<i4", &[3], &lengths);
    std::fs::write(folder.join("lengths.npy"), lengths).unwrap();
    let inputs = ["relu=x.npy", "lengths=lengths.npy"];
    let run = |more: &[&str]| {
        let run = [
            "run",
            "core.onnx",
            "--input",
            inputs[0],
            "--input",
            inputs[1],
        ];
        let output = ["--output", "y1=y1.npy"];
        stdout(&run_in(folder, [&run[..], &output, more].concat()));
        std::fs::read(folder.join("y1.npy")).unwrap()
    };
    let expected = run(&[]);
    let tune = [
        "tune",
        "core.onnx",
        "--array",
        inputs[0],
        "--array",
        inputs[1],
    ];
    let options = ["--seconds", "0.1", "-o", "core.plan"];
    stdout(&run_in(folder, [&tune[..], &options].concat()));
    assert!(run(&["--plan", "core.plan"]) == expected);
}

#[test]
fn shares_of_regions_are_printed() {
    let folder = folder();
    let folder = folder.path();
    let told = stdout(&on_arrays(folder, &["explain", "whole.onnx"]));
    for part in [
        "where the time went",
        "of time",
        "other",
        "plans (estimated",
        "y1_node: ",
    ] {
        assert!(told.contains(part), "{part:?} in {told}");
    }
    let bench = ["bench", "whole.onnx", "--seconds", "0.1", "--profile"];
    let told = stdout(&on_arrays(folder, &bench));
    assert!(told.contains("recurrent regions take"), "{told}");
    assert!(told.contains("y1_node"), "{told}");
    let json = stdout(&on_arrays(folder, &[&bench[..], &["--json"]].concat()));
    let row: Value = serde_json::from_str(&json).unwrap();
    let share = row["recurrent_share"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0, "{row}");
    let of_regions = row["regions"].as_array().unwrap().iter();
    let sum: f64 = of_regions
        .map(|region| region["share"].as_f64().unwrap())
        .sum();
    assert!((sum - share).abs() < 1e-9, "{row}");

    let run = [
        "run",
        "whole.onnx",
        "--input",
        "x=x.npy",
        "--input",
        "chosen=chosen.npy",
    ];
    let mut traced = program([&run[..], &["--output", "end=end.npy"]].concat());
    let traced = traced.env("GATESTREAM_TRACE", "1").current_dir(folder);
    let out = traced.output().unwrap();
    assert!(text(&out.stderr).contains("y1_node"), "{out:?}");
}

/// In int8 the answers are others, but close; a plan holds for its precision.
#[test]
fn regions_have_the_precision_that_is_asked_for() {
    let folder = folder();
    let folder = folder.path();
    let tune = ["tune", "whole.onnx", "--seconds", "0.1", "-o", "int8.plan"];
    let tune = [&tune[..], &["--precision", "int8"]].concat();
    stdout(&on_arrays(folder, &tune));
    let plan = std::fs::read_to_string(folder.join("int8.plan")).unwrap();
    assert!(plan.contains("precision int8"), "{plan}");
    end(folder, &[]);
    let (shape, wide) = npy::read_floats(&folder.join("end.npy"));
    end(folder, &["--precision", "int8", "--plan", "int8.plan"]);
    let (of_int8, reduced) = npy::read_floats(&folder.join("end.npy"));
    assert_eq!(shape, of_int8);
    assert_ne!(wide, reduced);
    let differences = wide.iter().zip(&reduced).map(|(a, b)| (a - b).abs());
    assert!(differences.fold(0.0, f32::max) < 0.05);
}

#[test]
fn a_quantized_graph_is_written() {
    let folder = folder();
    let folder = folder.path();
    let quantize = [
        "quantize",
        "whole.onnx",
        "--precision",
        "int8",
        "-o",
        "small.onnx",
    ];
    let told = stdout(&run_in(folder, quantize));
    assert!(told.contains("written to small.onnx"), "{told}");
    end(folder, &["--precision", "int8"]);
    let (_, expected) = npy::read_floats(&folder.join("end.npy"));
    std::fs::rename(folder.join("small.onnx"), folder.join("whole.onnx")).unwrap();
    end(folder, &["--precision", "int8"]);
    let (_, found) = npy::read_floats(&folder.join("end.npy"));
    for (a, b) in expected.iter().zip(&found) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    let out = run_in(
        folder,
        [
            "quantize",
            "whole.onnx",
            "--precision",
            "bf16",
            "-o",
            "b.onnx",
        ],
    );
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_input_may_be_a_pipe() {
    use std::io::Write;
    use std::process::Stdio;

    let folder = folder();
    let folder = folder.path();
    let expected = end(folder, &[]);
    let run = [
        "run",
        "whole.onnx",
        "--input",
        "x=/dev/stdin",
        "--input",
        "chosen=chosen.npy",
    ];
    let mut piped = program([&run[..], &["--output", "end=end.npy"]].concat());
    let piped = piped.current_dir(folder).stdin(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let bytes = std::fs::read(folder.join("x.npy")).unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(std::fs::read(folder.join("end.npy")).unwrap() == expected);
}

#[test]
fn mistakes_are_named() {
    let folder = folder();
    let folder = folder.path();
    for (arguments, status, part) in [
        (&["bench", "whole.onnx", "--batch", "2"][..], 2, "--batch"),
        (
            &["tune", "whole.onnx", "-o", "whole.onnx"],
            1,
            "not a plan file",
        ),
        (
            &["bench", "whole.onnx", "--tune"],
            2,
            "gatestream tune --array",
        ),
        (
            &["explain", "whole.onnx", "--precision", "int8,f32"],
            2,
            "one --precision",
        ),
        (
            &["bench", "whole.onnx", "--precision", "auto:0.1"],
            2,
            "auto",
        ),
        (&["explain", "none.onnx"], 1, "none.onnx"),
        (&["explain", "whole.onnx", "--dot", "x.dot"], 2, "--dot"),
        (&["tune", "whole.onnx", "--lengths", "3"], 2, "--lengths"),
        (&["bench", "whole.onnx", "--plan", "no.plan"], 1, "no.plan"),
        (
            &["explain", "whole.onnx", "--plan", "x.npy"],
            1,
            "plan file",
        ),
        (
            &["bench", "whole.onnx", "--array", "y=x.npy"],
            1,
            "no such input",
        ),
    ] {
        let out = on_arrays(folder, arguments);
        assert_eq!(out.status.code(), Some(status), "{arguments:?}: {out:?}");
        let told = text(&out.stderr);
        assert!(told.contains(part), "{part:?} in {told}");
    }
}
