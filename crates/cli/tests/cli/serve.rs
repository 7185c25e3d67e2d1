//! `gatestream serve` as a process, and `gatestream load` on it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Output, Stdio};

use gatestream::model::Lstm;
use serde_json::Value;

use crate::{program, run_in, text};

/// A server of the folder's `models`; killed when it is dropped.
struct Served {
    process: Child,
    http: String,
    grpc: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn save(folder: &Path) {
    let folder = folder.join("models").join("words").join("1");
    std::fs::create_dir_all(&folder).unwrap();
    let model = Lstm::new(3, 8).random(1).unwrap();
    model
        .save_safetensors(folder.join("model.safetensors"))
        .unwrap();
}

fn serve(folder: &Path, repository: &str) -> Served {
    serve_with(folder, repository, &[])
}

fn serve_with(folder: &Path, repository: &str, options: &[&str]) -> Served {
    let any = "127.0.0.1:0";
    let line = ["serve", repository, "--http", any, "--grpc", any];
    let mut process = program([&line, options].concat())
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let address = lines.map(Result::unwrap).find(|line| line.contains("://"));
    let address = address.expect("the address");
    let s = if address.starts_with("https") {
        "s"
    } else {
        ""
    };
    // http://127.0.0.1:40000 (gRPC 127.0.0.1:40001)
    let (http, grpc) = address.trim_end_matches(')').split_once(" (gRPC ").unwrap();
    Served {
        process,
        http: http.to_owned(),
        grpc: format!("grpc{s}://{grpc}"),
    }
}

#[test]
fn load_on_a_server() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path());
    let file = "models/words/1/model.safetensors";
    for (repository, model) in [("models", "words"), (file, "model")] {
        let served = serve(folder.path(), repository);
        for server in [&served.http, &served.grpc] {
            let streaming = ["--sequences", "3", "--streaming"];
            for sequences in [&[][..], &streaming[..2], &streaming] {
                if sequences.len() == 3 && server == &served.http {
                    continue;
                }
                let line = ["load", "lstm", "--server", server, "--model", model];
                let options = "--lengths 4 --rates 100 --seconds 0.2 --warm-up 0 --json";
                let all = line
                    .into_iter()
                    .chain(options.split(' '))
                    .chain(sequences.iter().copied());
                let output = run_in(folder.path(), all);
                assert!(output.status.success(), "{output:?}");
                let row: Value = serde_json::from_str(text(&output.stdout).trim()).unwrap();
                assert!(row["completed"].as_u64() > Some(0), "{row}");
                assert!(row["hidden"].is_null(), "the server knows it: {row}");
                let errors = row["errors"].as_object().unwrap();
                assert!(errors.values().all(|count| count == 0), "{row}");
            }
        }
    }
}

/// A short load on a server.
fn load_on(folder: &Path, server: &str, rest: &str) -> Output {
    let line = ["load", "--server", server];
    let options = "--rates 50 --seconds 0.2 --warm-up 0 --json";
    let all = line
        .into_iter()
        .chain(options.split(' '))
        .chain(rest.split(' '));
    run_in(folder, all)
}

/// The row of results if all requests were answered.
fn answered(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let row: Value = serde_json::from_str(text(&output.stdout).trim()).unwrap();
    assert!(row["counted"].as_u64() > Some(0), "{row}");
    let errors = row["errors"].as_object().unwrap();
    assert!(errors.values().all(|count| count == 0), "{row}");
    row
}

#[test]
fn load_on_a_server_with_tls_and_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    save(folder);
    let signed = |name: &str| {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".into()]).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), made.cert.pem()).unwrap();
        let key = made.signing_key.serialize_pem();
        std::fs::write(folder.join(format!("{name}.key")), key).unwrap();
    };
    signed("own");
    signed("other");
    std::fs::write(folder.join("token"), "0123456789abcdef\n").unwrap();
    std::fs::write(folder.join("wrong"), "fedcba9876543210\n").unwrap();
    std::fs::write(folder.join("lines"), "a\nb\n").unwrap();
    let options = "--certificate own.pem --key own.key --tokens token";
    let options: Vec<_> = options.split(' ').collect();
    let served = serve_with(folder, "models", &options);
    let plain = served.http.replace("https", "http");
    for server in [&served.http, &served.grpc] {
        let model = "lstm --model words --lengths 4";
        let load = |rest: &str| load_on(folder, server, &format!("{model} {rest}"));
        answered(&load("--ca own.pem --token token"));
        for (rest, says) in [
            ("--token token", "--ca"),
            ("--ca other.pem --token token", "certificate"),
            (
                "--ca token --token token",
                "--ca: the file has no certificate",
            ),
            ("--ca own.pem", "token"),
            ("--ca own.pem --token wrong", "token"),
            (
                "--ca own.pem --token lines",
                "--token: the file is no token",
            ),
            ("--ca none.pem", "none.pem"),
        ] {
            let output = load(rest);
            assert_eq!(output.status.code(), Some(1), "{server} {rest}: {output:?}");
            assert!(
                text(&output.stderr).contains(says),
                "{server} {rest}: {output:?}"
            );
        }
    }
    let output = load_on(folder, &plain, "lstm --model words --ca own.pem");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A server of a graph with the inputs `x` `[-1, 3, 5]`, of 6 steps or more, and `chosen`, a
/// condition.
fn serve_graph(folder: &Path) -> Served {
    let graph =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../network/tests/cores/among_others.onnx");
    std::fs::copy(graph, folder.join("whole.onnx")).unwrap();
    serve(folder, "whole.onnx")
}

#[test]
fn load_on_a_graph_by_its_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    save(folder);
    let served = serve_graph(folder);
    for server in [&served.http, &served.grpc] {
        let row = answered(&load_on(folder, server, "--model whole --lengths 6"));
        let inputs = "6, inputs x FP32 [length, 3, 5], chosen BOOL [] = 1";
        assert_eq!(row["requests"], inputs);
        let options = "--model whole --axis x.0=6:9 --value chosen=0 --value x=0:1";
        let row = answered(&load_on(folder, server, options));
        let inputs = "paper, inputs x FP32 [6:9, 3, 5] = 0:1, chosen BOOL [] = 0";
        assert_eq!(row["requests"], inputs);
        for (options, status, says) in [
            (
                "--axis y.0=1",
                1,
                "has no input y; it has x FP32 [-1, 3, 5]",
            ),
            ("--axis x.1=2", 1, "no open axis 1"),
            ("--value chosen=2", 1, "chosen BOOL [] = 2"),
            ("--axis x=1", 2, "INPUT.AXIS=SIZE"),
            ("lstm --axis x.0=1", 2, "--axis"),
        ] {
            let output = load_on(folder, server, &format!("--model whole {options}"));
            assert_eq!(output.status.code(), Some(status), "{options}: {output:?}");
            assert!(text(&output.stderr).contains(says), "{options}: {output:?}");
        }
    }
    // A model of another kind is filled alike.
    let words = serve(folder, "models");
    let row = answered(&load_on(folder, &words.grpc, "--model words --lengths 5"));
    assert_eq!(row["requests"], "5, inputs input FP32 [1, length, 3]");
    let output = run_in(folder, ["load", "--model", "whole"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn load_tells_why_no_request_was_answered() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let served = serve_graph(folder);
    for server in [&served.http, &served.grpc] {
        for loads in ["--rates 50", "--closed 2", "--load 0.5"] {
            let line = format!(
                "load lstm --server {server} --model whole {loads} --lengths 4 --seconds 0.3 \
                 --warm-up 0"
            );
            let output = run_in(folder, line.split(' '));
            assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
            let errors = text(&output.stderr);
            let error = errors.lines().last().unwrap();
            assert!(error.contains("was answered"), "{line}: {error}");
            // The graph has other axes than a layer.
            assert!(error.contains("[1, 4, 5]"), "{line}: {error}");
            // Without a peak there are no results.
            let printed = text(&output.stdout);
            let counted = printed
                .lines()
                .any(|line| line.contains(": ") && line.contains("[1, 4, 5]"));
            assert_eq!(counted, loads != "--load 0.5", "{line}: {printed}");
        }
    }
}

#[test]
fn load_names_the_server_that_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path());
    let served = serve(folder.path(), "models");
    for (server, model, says) in [
        (served.http.as_str(), "none", "not loaded"),
        (served.grpc.as_str(), "none", "not loaded"),
        ("http://127.0.0.1:1", "words", "http://127.0.0.1:1"),
        ("grpc://127.0.0.1:1", "words", "grpc://127.0.0.1:1"),
    ] {
        let line = [
            "load", "lstm", "--server", server, "--model", model, "--rates", "9",
        ];
        let output = run_in(folder.path(), line);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(says), "{output:?}");
    }
    let http = &served.http;
    let on = format!("--server {http} --model words");
    for usage in [
        "lstm --server 127.0.0.1:8000 --model words",
        &format!("lstm --server {http}"),
        &format!("lstm {on} --streaming"),
        &format!("lstm {on} --hidden 8"),
        &format!("lstm {on} --machines 2"),
        &format!("treelstm {on}"),
        &format!("lstm {on} --policies padding"),
    ] {
        let output = run_in(folder.path(), ["load"].into_iter().chain(usage.split(' ')));
        assert_eq!(output.status.code(), Some(2), "{usage}");
    }
}

#[test]
fn a_repository_without_models_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broken.safetensors"), "x").unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    for (repository, says) in [
        ("empty", "there is no model"),
        ("broken.safetensors", "broken"),
        ("none", "none"),
    ] {
        let any = "127.0.0.1:0";
        let line = ["serve", repository, "--http", any, "--grpc", any];
        let output = run_in(folder.path(), line);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let lines = text(&output.stderr);
        assert!(lines.lines().last().unwrap().contains(says), "{output:?}");
    }
    let open = ["serve", "empty", "--http", "0.0.0.0:0"];
    let output = run_in(folder.path(), open);
    assert!(text(&output.stderr).contains("certificate"), "{output:?}");
}
