//! `cellstream serve` as a process, and `cellstream load` on it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use cellstream::model::Lstm;
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
    let any = "127.0.0.1:0";
    let mut process = program(["serve", repository, "--http", any, "--grpc", any])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let address = lines.map(Result::unwrap).find(|line| line.contains("://"));
    let address = address.expect("the address");
    // http://127.0.0.1:40000 (gRPC 127.0.0.1:40001)
    let (http, grpc) = address.trim_end_matches(')').split_once(" (gRPC ").unwrap();
    Served {
        process,
        http: http.to_owned(),
        grpc: format!("grpc://{grpc}"),
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
