//! Whole graphs: their limits, requests that wait, plans for shapes.

mod common;
#[path = "common/onnx.rs"]
mod onnx;

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Answer, Running};
use serde_json::{Value, json};

/// A run takes long.
fn slow() -> Vec<u8> {
    onnx::slow_file(1_500_000, None)
}

/// A request with so many ones.
fn ones(shape: &[usize]) -> Value {
    let data = vec![1.0; shape.iter().product()];
    json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": shape, "data": data }] })
}

fn within(microseconds: u64) -> Value {
    let mut request = ones(&[1, 1, 1]);
    request["parameters"] = json!({ "timeout": microseconds });
    request
}

/// Sends requests that become late until the model has answered one without a deadline; the answers
/// that came before.
fn while_one_runs(running: &Running, model: &str, mut ask: impl FnMut() -> Answer) -> Vec<Answer> {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            let answer = running.infer(model, &ones(&[1, 1, 1]));
            has_ended.store(true, Ordering::SeqCst);
            answer
        });
        let mut answers = Vec::new();
        loop {
            let answer = ask();
            if has_ended.load(Ordering::SeqCst) {
                break;
            }
            answers.push(answer);
        }
        assert_eq!(long.join().expect("no panic").status, 200);
        answers
    })
}

#[test]
fn a_request_that_waits_ends_at_its_deadline() {
    let running = Running::with(&common::options(), |folder| {
        onnx::save(folder, "slow", &slow(), "")
    });
    let answers = while_one_runs(&running, "slow", || running.infer("slow", &within(20_000)));
    // One of them may be the first to run.
    assert!(
        answers.len() > 2,
        "they end with the request that runs: {answers:?}"
    );
    for answer in answers {
        assert_eq!(answer.status, 504, "{answer:?}");
        assert!(answer.error().contains("deadline"), "{answer:?}");
    }
}

#[test]
fn a_request_that_waits_ends_when_its_client_goes() {
    let config = "[limits]\nrequests = 2\n";
    let running = Running::with(&common::options(), |folder| {
        onnx::save(folder, "slow", &slow(), config)
    });
    let body = ones(&[1, 1, 1]).to_string();
    let head = "POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length";
    let request = format!("{head}: {}\r\n\r\n{body}", body.len());
    let mut waiting = None;
    let mut is_refused = false;
    let answers = while_one_runs(&running, "slow", || {
        let answer = running.infer("slow", &within(20_000));
        match answer.status {
            // Both requests are there: this one goes.
            429 => is_refused = waiting.take().is_some() || is_refused,
            // There is room for one that waits. It may come after the next one, which then takes
            // its place.
            _ if !is_refused => {
                let mut client =
                    TcpStream::connect(running.server.http_address()).expect("connects");
                client.write_all(request.as_bytes()).expect("sent");
                waiting = Some(client);
                std::thread::sleep(Duration::from_millis(30));
            }
            _ => {}
        }
        answer
    });
    let refused = answers.iter().position(|answer| answer.status == 429);
    let refused = refused.expect("the limit is reached");
    let mut later = answers[refused..].iter();
    assert!(
        later.any(|answer| answer.status == 504),
        "its place is free: {answers:?}"
    );
}

#[test]
fn limits_of_graphs_are_kept() {
    let limits = ["bytes = 16", "nodes = 1", "request_nodes = 1"];
    let running = Running::with(&common::options(), |folder| {
        for (index, limit) in limits.iter().enumerate() {
            onnx::save(
                folder,
                &format!("model{index}"),
                &onnx::sums_file(),
                &format!("[limits]\n{limit}\n"),
            );
        }
        onnx::save(
            folder,
            "roomy",
            &onnx::sums_file(),
            "[limits]\nbytes = 16\nnodes = 2\nrequest_nodes = 2\n",
        );
    });
    let five = ones(&[5]);
    for (index, limit) in limits.iter().enumerate() {
        let refused = running.infer(&format!("model{index}"), &five);
        assert_eq!(refused.status, 413, "{limit}: {refused:?}");
        let what = if index == 0 { "bytes" } else { "nodes" };
        assert!(refused.error().contains(what), "{refused:?}");
    }
    // Strings are refused for what they are.
    let mut strings = ones(&[5]);
    strings["inputs"][0]["datatype"] = json!("BYTES");
    strings["inputs"][0]["data"] = json!(vec![""; 5]);
    assert_eq!(running.infer("model0", &strings).status, 400);
    // Each gives back its share.
    for _ in 0..3 {
        let answer = running.infer("roomy", &ones(&[4]));
        assert_eq!(common::output(&answer, "y"), [-2.0; 4]);
        assert_eq!(running.infer("roomy", &five).status, 413);
    }
}

#[test]
fn plans_are_kept_and_counted() {
    let running = Running::with(&common::options(), |folder| {
        onnx::save(folder, "kept", &onnx::sums_file(), "");
        onnx::save(folder, "one", &onnx::sums_file(), "plan_bytes = 1\n");
    });
    for round in 0..3 {
        for size in 1..=12 {
            for model in ["kept", "one"] {
                let answer = running.infer(model, &ones(&[size]));
                assert_eq!(common::output(&answer, "y"), vec![-2.0; size], "{round}");
            }
        }
    }
    let text = running.text("/metrics");
    let value = |metric: &str, model: &str| {
        let start = format!("gatestream_{metric}{{model=\"{model}\",version=\"1\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        let line = line.unwrap_or_else(|| panic!("{start} in {text}"));
        line.parse::<f64>().expect("a number")
    };
    assert_eq!(value("kept_plans", "kept"), 12.0);
    assert_eq!(value("made_plans_total", "kept"), 12.0);
    assert_eq!(value("evicted_plans_total", "kept"), 0.0);
    assert!(value("kept_plan_bytes", "kept") > 12.0);
    assert_eq!(value("kept_plans", "one"), 1.0);
    assert_eq!(value("made_plans_total", "one"), 36.0);
    assert_eq!(value("evicted_plans_total", "one"), 35.0);
    assert!(!text.contains("kept_plans{model=\"lstm\""));
}

#[test]
fn the_index_says_why_a_file_is_run_as_a_graph() {
    let running = Running::with(&common::options(), |folder| {
        onnx::save(folder, "sums", &onnx::sums_file(), "");
    });
    let index = running.post("/v2/repository/index", &json!({})).json;
    let entries = index.as_array().expect("a list");
    let reason = |model: &str| {
        let of_model = |entry: &&Value| entry["name"] == model;
        let entry = entries.iter().find(of_model).expect("an entry");
        assert_eq!(entry["state"], "READY", "{entry}");
        entry["reason"].as_str().expect("text").to_owned()
    };
    let of_graph = reason("sums");
    assert!(
        of_graph.contains("no stack of layers: tensor \"x\""),
        "{of_graph}"
    );
    assert_eq!(reason("lstm"), "");
}
