//! `gatestream inspect` and `gatestream cut`, on a graph with recurrent nodes among others.

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

fn checkpoint(name: &str) -> String {
    let fixtures = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/checkpoints"
    );
    format!("{fixtures}/{name}")
}

#[test]
fn the_contents_of_a_checkpoint_are_printed_whatever_else_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    for (name, parts) in [
        (
            "training.pt",
            &[
                "--prefix \"state_dict.encoder\"",
                "stack    2 layers",
                "layer 2   lstm bidirectional, input 8, hidden 4",
                "other tensors: 1",
                "\"state_dict.head.weight\" F32 [2, 2]",
            ][..],
        ),
        (
            "tied.pt",
            &[
                "--prefix \"again\"",
                "--prefix \"copy\"",
                "--prefix \"lstm\"",
                "\"wide\" F32 [1099511627776]",
            ],
        ),
        (
            "quantised.pt",
            &["\"weight_hh_l1\" of the type torch._utils._rebuild_qtensor"],
        ),
        (
            "spectral_norm.pt",
            &["\"parametrizations.weight_hh_l0.original\" F32 [4, 4]"],
        ),
        ("module.pt", &["stack    2 layers"]),
    ] {
        let out = run_in(folder.path(), ["inspect", &checkpoint(name)]);
        let told = super::stdout(&out);
        for part in parts {
            assert!(told.contains(part), "{name}: {part:?} in {told}");
        }
    }
    let file = checkpoint("training.pt");
    let selected = ["inspect", &file, "--prefix", "state_dict.encoder"];
    assert!(super::stdout(&run_in(folder.path(), selected)).starts_with("stack    2 layers"));
    let other = run_in(folder.path(), ["inspect", &file, "--prefix", "decoder"]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
}

#[test]
fn a_graph_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let tried = |more: &[&str]| {
        let arguments = [&["inspect", "whole.onnx"][..], more].concat();
        super::stdout(&run(folder.path(), &arguments))
    };
    // Its constant lengths need six steps and more, so four are tried in vain.
    let yes = tried(&[]);
    assert!(yes.contains("run: yes (tried with x [16, 3, 5]"), "{yes}");
    let given = tried(&["--shape", "x=7,3,5"]);
    assert!(
        given.contains("run: yes (tried with x [7, 3, 5]"),
        "{given}"
    );
    let no = tried(&["--shape", "x=7,3,6"]);
    assert!(
        no.contains("run: no with ones of these shapes: x [7, 3, 6]"),
        "{no}"
    );
    assert!(!no.contains("with --array"), "{no}");
    let unknown = tried(&["--shape", "z=7"]);
    assert!(
        unknown.contains("it has no input \"z\"; use one of x"),
        "{unknown}"
    );
    assert!(tried(&["--no-run"]).contains("run: not tried"));
    let json: Value = serde_json::from_str(&tried(&["--json", "--shape", "x=7,3,6"])).unwrap();
    assert!(json["run"]["failure"].is_string(), "{json}");
    assert_eq!(json["run"]["shapes"]["x"][2], 6);
}

#[test]
fn commands_on_layers_ask_for_the_arrays_of_a_graph() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["tune", "bench", "explain"] {
        let out = run(folder.path(), &[command, "whole.onnx"]);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        let told = text(&out.stderr);
        assert!(
            told.contains("--array x=X.npy (float32 [?, 3, 5])"),
            "{command}: {told}"
        );
        assert!(told.contains("`gatestream cut`"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

/// y = operator(x), of three values.
fn one_node(operator: &str) -> Vec<u8> {
    let length = operator.len() as u8;
    let axes = b"\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x03";
    [
        &[0x08, 0x08, 0x3a, 47 + length, 0x0a, 8 + length][..],
        b"\x0a\x01x\x12\x01y\x22",
        &[length],
        operator.as_bytes(),
        b"\x12\x01gZ\x0f\x0a\x01x",
        axes,
        b"b\x0f\x0a\x01y",
        axes,
        b"B\x02\x10\x11",
    ]
    .concat()
}

#[test]
fn an_unchecked_operator_is_tried_on_request_alone() {
    let folder = tempfile::tempdir().unwrap();
    // tract has it; ONNX does not.
    std::fs::write(folder.path().join("root.onnx"), one_node("Rsqrt")).unwrap();
    let told = |more: &[&str]| {
        let arguments = [&["inspect", "root.onnx"][..], more].concat();
        super::stdout(&run_in(folder.path(), arguments))
    };
    let no = told(&[]);
    assert!(
        no.contains("run: no: ") && no.contains("--unchecked"),
        "{no}"
    );
    let yes = told(&["--unchecked"]);
    assert!(yes.contains("run: yes"), "{yes}");
}

/// No recurrent node: no advice to cut one out.
#[test]
fn a_graph_without_recurrent_nodes_is_not_to_be_cut() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other.onnx"), one_node("Frobnicate")).unwrap();
    for arguments in [
        &[
            "run",
            "other.onnx",
            "--input",
            "x=x.npy",
            "--output",
            "y=y.npy",
        ][..],
        &["bench", "other.onnx"],
        &["inspect", "other.onnx"],
    ] {
        let out = run_in(folder.path(), arguments);
        let told = text(&out.stdout) + &text(&out.stderr);
        assert!(told.contains("Frobnicate"), "{arguments:?}: {told}");
        assert!(!told.contains("cut"), "{arguments:?}: {told}");
        assert!(!told.contains("run: yes"), "{told}");
    }
}

#[test]
fn what_is_no_model_is_told_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    std::fs::write(folder.path().join("model.onnx"), pointer).unwrap();
    std::fs::write(
        folder.path().join("model.pt"),
        "<!DOCTYPE html><html></html>",
    )
    .unwrap();
    std::fs::copy(checkpoint("scripted.pt"), folder.path().join("model.bin")).unwrap();
    for (file, way) in [
        ("model.onnx", "git lfs pull"),
        ("model.pt", "web page"),
        ("model.bin", "model.state_dict()"),
    ] {
        for arguments in [
            &["run", file, "--input", "x=x.npy", "--output", "y=y.npy"][..],
            &["bench", file],
            &["explain", file],
            &["inspect", file],
            &[
                "quantize",
                file,
                "-o",
                "int8.safetensors",
                "--precision",
                "int8",
            ],
            &[
                "serve",
                file,
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
            ],
        ] {
            let out = run_in(folder.path(), arguments);
            assert_eq!(out.status.code(), Some(1), "{arguments:?}: {out:?}");
            let told = text(&out.stderr);
            assert!(told.contains(way), "{arguments:?}: {told}");
            assert!(
                told.contains(file) || told.contains("\"model\""),
                "{arguments:?}: {told}"
            );
        }
    }
}

/// The checkpoint of a trainer, whose ending says nothing.
#[test]
fn a_checkpoint_of_any_ending_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(checkpoint("training.pt"), folder.path().join("last.ckpt")).unwrap();
    let explain = [
        "explain",
        "last.ckpt",
        "--prefix",
        "state_dict.encoder",
        "--no-measure",
    ];
    assert!(super::stdout(&run_in(folder.path(), explain)).contains("lstm"));
}
