//! `cellstream inspect` and `cellstream cut`, on a graph with recurrent nodes among others.

use std::path::{Path, PathBuf};

use super::{run_in, text};
use serde_json::Value;

fn graph() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../network/tests/cores/among_others.onnx")
}

/// Runs in a folder that has the graph as `whole.onnx`.
fn run(folder: &Path, arguments: &[&str]) -> std::process::Output {
    std::fs::copy(graph(), folder.join("whole.onnx")).unwrap();
    run_in(folder, arguments)
}

#[test]
fn the_contents_of_a_graph_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let out = run(folder.path(), &["inspect", "whole.onnx"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = text(&out.stdout);
    for part in [
        "opset 17",
        "input    \"x\" float32 [?, 3, 5]",
        "LSTM     \"y1_node\": bidirectional, input ?, hidden 4",
        "h0 zeros; c0 zeros",
        "within    If \"end_node\"",
        "linear_before_reset = 1",
        "tune, bench, explain: as a graph, with --array",
        "quantize: recurrent weights, to an .onnx file",
        "no stack of layers: ",
        "cut: writes",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let out = run(folder.path(), &["inspect", "whole.onnx", "--json"]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["recurrent"].as_array().unwrap().len(), 4);
    assert_eq!(json["recurrent"][1]["hidden"], 4);
    assert_eq!(json["operators"]["Reshape"], 2);
    assert!(json["stack"].is_string());
}

#[test]
fn the_core_of_a_graph_is_a_stack() {
    let folder = tempfile::tempdir().unwrap();
    let out = run(folder.path(), &["cut", "whole.onnx", "-o", "core.onnx"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let told = text(&out.stdout);
    for part in [
        "stack    2 layers",
        "input    \"relu\"",
        "output   \"y2\"",
        "not in ",
    ] {
        assert!(told.contains(part), "{part:?} in {told}");
    }
    let out = run_in(folder.path(), &["inspect", "core.onnx"]);
    assert!(text(&out.stdout).contains("explain, quantize: yes, as a stack of layers"));
    let one = run(
        folder.path(),
        &["cut", "whole.onnx", "--node", "y2_node", "-o", "core.onnx"],
    );
    assert!(text(&one.stdout).contains("stack    1 layers"), "{one:?}");
    for (arguments, part) in [
        (
            ["cut", "whole.onnx", "-o", "whole.onnx"].as_slice(),
            "the model",
        ),
        (
            &["cut", "whole.onnx", "--node", "x", "-o", "y.onnx"],
            "use one of y1_node",
        ),
    ] {
        let out = run(folder.path(), arguments);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert!(text(&out.stderr).contains(part), "{out:?}");
        assert!(!folder.path().join("y.onnx").exists());
    }
}
