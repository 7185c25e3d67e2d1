//! The protocol over HTTP: answers are those of the reference, errors name the correction.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{FEATURES, HIDDEN, Running, expected, output, request, steps};
use gatestream::model::Lstm;
use serde_json::{Value, json};

#[test]
fn answers_are_those_of_the_reference() {
    let running = Running::new();
    let mut rng = fastrand::Rng::with_seed(1);
    for (name, model) in [("lstm", common::lstm(1)), ("both", common::bidirectional())] {
        for count in [1, 2, 9] {
            let xs = steps(&mut rng, count);
            let answer = running.infer(name, &request(&xs));
            let expected = expected(&model, &xs);
            assert_eq!(output(&answer, "output"), expected.y, "{name}");
            assert_eq!(output(&answer, "hn"), expected.hn, "{name}");
            if !expected.cn.is_empty() {
                assert_eq!(output(&answer, "cn"), expected.cn, "{name}");
            }
        }
    }
}

#[test]
fn sequences_of_a_batch_have_lengths_and_initial_states() {
    let running = Running::new();
    let mut rng = fastrand::Rng::with_seed(2);
    for (name, model) in [("lstm", common::lstm(1)), ("both", common::bidirectional())] {
        let xs = steps(&mut rng, 3 * 6);
        let lengths = [6, 1, 4];
        let asked = json!({
            "id": "a",
            "inputs": [
                { "name": "input", "shape": [3, 6, FEATURES], "datatype": "FP32", "data": xs },
                { "name": "lengths", "shape": [3, 1], "datatype": "INT64", "data": lengths },
            ],
            "outputs": [{ "name": "output" }, { "name": "hn" }],
        });
        let answer = running.infer(name, &asked);
        assert_eq!(answer.json["id"], "a");
        let (y, hn) = (output(&answer, "output"), output(&answer, "hn"));
        let of = model.signature();
        for (row, len) in lengths.into_iter().enumerate() {
            let alone = expected(&model, &xs[row * 6 * FEATURES..][..len * FEATURES]);
            let mut padded = alone.y;
            padded.resize(6 * of.output, 0.0);
            assert_eq!(y[row * 6 * of.output..][..6 * of.output], padded);
            assert_eq!(hn[row * of.hidden_state..][..of.hidden_state], alone.hn);
        }
    }
    // A sequence in two requests, the second from the states of the first.
    let xs = steps(&mut rng, 5);
    let whole = expected(&common::lstm(1), &xs);
    let first = running.infer("lstm", &request(&xs[..2 * FEATURES]));
    let mut second = request(&xs[2 * FEATURES..]);
    for (given, found) in [("h0", "hn"), ("c0", "cn")] {
        let states = output(&first, found);
        let input = json!({
            "name": given, "shape": [1, states.len()], "datatype": "FP32", "data": states,
        });
        second["inputs"].as_array_mut().expect("a list").push(input);
    }
    let second = running.infer("lstm", &second);
    assert_eq!(output(&second, "output"), whole.y[2 * HIDDEN..]);
    assert_eq!(output(&second, "cn"), whole.cn);
}

/// JSON, then the bytes of the inputs.
fn binary(json: &Value, raw: &[u8]) -> (Vec<u8>, String) {
    let mut body = json.to_string().into_bytes();
    let length = body.len().to_string();
    body.extend_from_slice(raw);
    (body, length)
}

#[test]
fn tensors_are_sent_as_bytes_too() {
    let running = Running::new();
    let xs = steps(&mut fastrand::Rng::with_seed(3), 4);
    let raw: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
    let y: Vec<u8> = expected(&common::lstm(1), &xs)
        .y
        .iter()
        .flat_map(|y| y.to_le_bytes())
        .collect();
    let asked = json!({
        "inputs": [{
            "name": "input", "shape": [1, 4, FEATURES], "datatype": "FP32",
            "parameters": { "binary_data_size": raw.len() },
        }],
        "outputs": [{ "name": "output", "parameters": { "binary_data": true } }],
    });
    let (body, length) = binary(&asked, &raw);
    let headers = [("inference-header-content-length", length.as_str())];
    let read = |response: ureq::http::Response<ureq::Body>| {
        let length = &response.headers()["inference-header-content-length"];
        let length: usize = length.to_str().expect("text").parse().expect("a number");
        let body = response.into_body().read_to_vec().expect("a body");
        let json: Value = serde_json::from_slice(&body[..length]).expect("JSON");
        (json, body[length..].to_vec())
    };
    let response = running
        .post_raw("/v2/models/lstm/infer", &headers, &body)
        .expect("an answer");
    let (json, found) = read(response);
    assert_eq!(found, y);
    assert_eq!(
        json["outputs"][0]["parameters"]["binary_data_size"],
        y.len()
    );
    assert!(json["outputs"][0]["data"].is_null());

    // The same compressed.
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&body).expect("written");
    let headers = [headers[0], ("content-encoding", "gzip")];
    let compressed = gzip.finish().expect("ended");
    let response = running.post_raw("/v2/models/lstm/infer", &headers, &compressed);
    assert_eq!(read(response.expect("an answer")).1, y);

    // Raw: the body is the only input. Two of its axes are of any size, the batch is 1.
    let headers = [("inference-header-content-length", "0")];
    let response = running
        .post_raw("/v2/models/lstm/infer", &headers, &raw)
        .expect("an answer");
    assert_eq!(read(response).1[..y.len()], y);
}

#[test]
fn each_wrong_request_has_a_status_and_a_sentence() {
    let running = Running::new();
    let good = request(&steps(&mut fastrand::Rng::with_seed(4), 2));
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut request = good.clone();
        change(&mut request);
        request.to_string()
    };
    let input = |name: &'static str, value: Value| {
        changed(&|request| request["inputs"][0][name] = value.clone())
    };
    for (body, says) in [
        ("".to_owned(), "no JSON"),
        ("{".to_owned(), "no JSON"),
        ("[]".to_owned(), "no JSON"),
        ("{}".to_owned(), "inputs"),
        ("\u{0}".to_owned(), "no JSON"),
        (json!({ "inputs": [] }).to_string(), "\"input\" is missing"),
        (input("name", json!("x")), "no input \"x\""),
        (input("datatype", json!("FP31")), "unknown datatype"),
        (input("datatype", json!("INT64")), "integers"),
        (input("data", json!(["1"])), "numbers"),
        (input("data", json!([1.0])), "1 elements"),
        (input("shape", json!([1, 2])), "shape"),
        (input("shape", json!([-1, 2, 3])), "axes are 0 or more"),
        (input("shape", json!([1, 3, 2])), "[-1, -1, 3]"),
        (input("shape", json!([2, 1, 3])), ""),
        (
            input("parameters", json!({ "binary_data_size": 4 })),
            "binary_data_size",
        ),
        (
            changed(&|r| r["outputs"] = json!([{ "name": "z" }])),
            "no output \"z\"",
        ),
        (
            changed(&|r| r["parameters"] = json!({ "timeout": "soon" })),
            "timeout",
        ),
        (
            changed(&|r| r["parameters"] = json!({ "sequence_id": -1 })),
            "sequence_id",
        ),
        (
            changed(&|r| {
                let copy = r["inputs"][0].clone();
                r["inputs"].as_array_mut().expect("a list").push(copy);
            }),
            "twice",
        ),
    ] {
        let answer = running.post_bytes("/v2/models/lstm/infer", &[], body.as_bytes());
        if says.is_empty() {
            assert_eq!(answer.status, 200, "{body}: {answer:?}");
            continue;
        }
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert!(answer.error().contains(says), "{body}: {answer:?}");
    }
    for (path, status) in [
        ("/v2/models/none/infer", 404),
        ("/v2/models/lstm/versions/2/infer", 404),
        ("/v2/models/..%2f..%2fetc%2fpasswd/infer", 404),
        ("/v2/nothing", 404),
        ("/v2/systemsharedmemory/status", 501),
    ] {
        let answer = running.post(path, &good);
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(!answer.error().is_empty(), "{path}");
    }
    let headers = [("content-encoding", "br")];
    let answer = running.post_bytes("/v2/models/lstm/infer", &headers, b"{}");
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("encoding \"br\""), "{answer:?}");
    for length in ["x", "-1", "999999"] {
        let headers = [("inference-header-content-length", length)];
        let body = good.to_string();
        let answer = running.post_bytes("/v2/models/lstm/infer", &headers, body.as_bytes());
        assert_eq!(answer.status, 400, "{length}");
    }
    assert_eq!(
        running.infer("lstm", &good).status,
        200,
        "and the server goes on"
    );
}

/// A parameter that was dropped would change the answer without a word.
#[test]
fn known_parameters_of_a_wrong_type_are_refused() {
    let running = Running::new();
    let good = request(&steps(&mut fastrand::Rng::with_seed(4), 2));
    let any = [json!(null), json!([31]), json!({}), json!(1.5), json!("x")];
    let refused = |asked: &Value, named: &str| {
        let answer = running.infer("lstm", asked);
        assert_eq!(answer.status, 400, "{asked}: {answer:?}");
        assert!(answer.error().contains(named), "{asked}: {answer:?}");
    };
    for (name, takes_text) in [
        ("sequence_id", true),
        ("sequence_start", false),
        ("sequence_end", false),
        ("priority", false),
        ("timeout", false),
        ("binary_data_output", false),
        ("triton_enable_empty_final_response", false),
    ] {
        for value in &any {
            if !(takes_text && value.is_string()) {
                let mut asked = good.clone();
                asked["parameters"] = json!({ name: value });
                refused(&asked, name);
            }
        }
    }
    for value in &any {
        let mut asked = good.clone();
        asked["inputs"][0]["parameters"] = json!({ "binary_data_size": value });
        refused(&asked, "binary_data_size");
        for name in ["binary_data", "classification"] {
            let mut asked = good.clone();
            let output = json!({ "name": "output", "parameters": { name: value } });
            asked["outputs"] = json!([output]);
            refused(&asked, name);
        }
    }
    for (name, value) in [
        ("id", json!(5)),
        ("id", json!([])),
        ("parameters", json!([])),
        ("parameters", json!("x")),
        ("outputs", json!({})),
    ] {
        let mut asked = good.clone();
        asked[name] = value;
        refused(&asked, "no JSON of the protocol");
    }
    // Some clients write null where they have nothing to say.
    let mut nulls = good.clone();
    for name in ["id", "parameters", "outputs"] {
        nulls[name] = Value::Null;
    }
    nulls["inputs"][0]["parameters"] = Value::Null;
    assert_eq!(running.infer("lstm", &nulls).status, 200);
    // Unknown ones are for other servers.
    let mut others = good.clone();
    others["parameters"] = json!({ "other": [1] });
    assert_eq!(running.infer("lstm", &others).status, 200);
    let index = running.post("/v2/repository/index", &json!({ "ready": "yes" }));
    assert_eq!(index.status, 400, "{index:?}");
    let load = running.post(
        "/v2/repository/models/lstm/load",
        &json!({ "parameters": [1] }),
    );
    assert_eq!(load.status, 400, "{load:?}");
}

/// Metadata tell the axes; the values of another shape are not taken in their order.
#[test]
fn tensors_have_the_axes_that_metadata_tell() {
    let running = Running::with(&common::options(), common::g2p);
    fn asked(name: &str, datatype: &str, shape: &[usize], data: Value) -> Value {
        json!({ "name": name, "datatype": datatype, "shape": shape, "data": data })
    }
    let source = |shape: &[usize]| {
        let word = json!(["w", "o", "r", "d"]);
        json!({ "inputs": [asked("source", "BYTES", shape, word)] })
    };
    assert_eq!(running.infer("g2p", &source(&[4])).status, 200);
    for shape in [&[2, 2][..], &[1, 4], &[4, 1], &[1, 1, 4]] {
        let answer = running.infer("g2p", &source(shape));
        assert_eq!(answer.status, 400, "{shape:?}: {answer:?}");
        assert!(answer.error().contains("expected: [-1]"), "{answer:?}");
    }
    // Two layers of five units.
    let states = 2 * HIDDEN;
    for (name, datatype, shape) in [
        ("h0", "FP32", [states, 1]),
        ("c0", "FP32", [2, HIDDEN]),
        ("lengths", "INT64", [2, 1]),
    ] {
        let mut all = request(&steps(&mut fastrand::Rng::with_seed(4), 2));
        let data = vec![1; shape.iter().product()];
        let more = asked(name, datatype, &shape, json!(data));
        all["inputs"].as_array_mut().expect("a list").push(more);
        let answer = running.infer("lstm", &all);
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
    }
}

#[test]
fn infinities_and_no_numbers_have_names_in_json() {
    let running = Running::new();
    let mut asked = request(&[0.5; FEATURES]);
    asked["inputs"][0]["data"] = json!([0.5, "NaN", 0.5]);
    let answer = running.infer("lstm", &asked);
    assert_eq!(answer.json["outputs"][0]["data"][0], "NaN", "{answer:?}");
    // The largest of FP32 is 3.4e38.
    asked["inputs"][0]["data"] = json!([0.5, 1e39, 0.5]);
    let answer = running.infer("lstm", &asked);
    assert_eq!(answer.status, 400, "{answer:?}");
}

#[test]
fn errors_are_json_without_the_names_and_paths_of_others() {
    let running = Running::with(&common::options(), |folder| {
        std::fs::create_dir_all(folder.join("empty").join("1")).expect("a folder");
        std::fs::create_dir_all(folder.join("spoilt").join("1")).expect("a folder");
        let file = folder.join("spoilt").join("1").join("model.onnx");
        std::fs::write(file, "no model").expect("written");
        std::fs::create_dir_all(folder.join("odd").join("1")).expect("a folder");
        common::configure(folder, "odd", "kind = 5");
    });
    let unreadable = running.get("/v2/models/%ff");
    assert_eq!(unreadable.status, 400, "{unreadable:?}");
    assert!(!unreadable.error().is_empty(), "{unreadable:?}");
    let wrong = running.get("/v2/models/lstm/infer");
    assert_eq!(wrong.status, 405, "{wrong:?}");
    assert_eq!(wrong.headers["allow"], "POST");
    let long = "n".repeat(1 << 20);
    let mut asked = request(&[0.5; FEATURES]);
    asked["inputs"][0]["name"] = json!(long);
    let answer = running.infer("lstm", &asked);
    assert_eq!(answer.status, 400);
    assert!(answer.error().len() < 4096, "{}", answer.error().len());
    let index = running.post("/v2/repository/index", &json!({})).json;
    let reasons: Vec<&str> = { index.as_array().expect("a list").iter() }
        .filter_map(|entry| entry["reason"].as_str().filter(|reason| !reason.is_empty()))
        .collect();
    assert_eq!(reasons.len(), 3, "{index}");
    let folder = running.folder.path().to_str().expect("text");
    assert!(!index.to_string().contains(folder), "{index}");
}

#[test]
fn bodies_are_bounded_also_after_decompression() {
    let options = gatestream_server::ServerOptions {
        body_bytes: 10_000,
        ..common::options()
    };
    let running = Running::with(&options, |_| {});
    let large = vec![b' '; 20_000];
    let answer = running.post_bytes("/v2/models/lstm/infer", &[], &large);
    assert_eq!(answer.status, 413, "{answer:?}");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&vec![b' '; 50_000_000]).expect("written");
    let bomb = gzip.finish().expect("ended");
    // Small enough as it comes.
    let headers = [("content-encoding", "gzip")];
    let most = gatestream_server::ServerOptions {
        body_bytes: 200_000,
        ..common::options()
    };
    let running = Running::with(&most, |_| {});
    assert!(bomb.len() < 100_000);
    let answer = running.post_bytes("/v2/models/lstm/infer", &headers, &bomb);
    assert_eq!(answer.status, 413, "{answer:?}");
    let answer = running.post_bytes("/v2/repository/index", &[], &[b' '; 70_000]);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(
        answer.error().contains("the most of this path"),
        "{answer:?}"
    );
}

/// A small request may ask for much: its outputs are padded to the longest sequence.
#[test]
fn outputs_are_bounded() {
    let running = Running::with(&common::options(), |folder| {
        let wide = Lstm::new(1, 2_000).random(1).expect("a model");
        common::save(folder, "wide", 1, &wide);
    });
    let asked = |outputs: Value| {
        json!({
            "inputs": [
                { "name": "input", "shape": [64, 2100, 1], "datatype": "FP32",
                  "data": vec![0.0; 64 * 2100] },
                { "name": "lengths", "shape": [64, 1], "datatype": "INT64", "data": vec![1; 64] },
            ],
            "outputs": outputs,
        })
    };
    let answer = running.infer("wide", &asked(json!([])));
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(answer.error().contains("divide the request"), "{answer:?}");
    assert_eq!(
        running
            .infer("wide", &asked(json!([{ "name": "hn" }])))
            .status,
        200
    );
}

#[test]
fn metadata_configuration_statistics_and_health_are_told() {
    let running = Running::new();
    for path in [
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/lstm/ready",
    ] {
        assert_eq!(running.get(path).status, 200, "{path}");
    }
    assert_ne!(running.get("/v2/models/none/ready").status, 200);
    let server = running.get("/v2").json;
    assert!(
        server["extensions"]
            .as_array()
            .expect("a list")
            .contains(&json!("statistics"))
    );
    let metadata = running.get("/v2/models/lstm").json;
    let input = json!({ "name": "input", "datatype": "FP32", "shape": [-1, -1, 3] });
    assert_eq!(
        metadata["inputs"],
        json!([input]),
        "those that a request needs"
    );
    assert_eq!(metadata["versions"], json!(["1"]));
    assert_eq!(running.get("/v2/models/lstm/versions/1").json, metadata);
    let config = running.get("/v2/models/lstm/config").json;
    assert_eq!(
        config["input"][0]["dims"],
        json!([-1, 3]),
        "without the axis of the batch"
    );
    assert_eq!(config["max_batch_size"], 64);
    let before = running.get("/v2/models/lstm/stats").json;
    running.infer("lstm", &request(&[0.0; FEATURES]));
    running.infer("lstm", &request(&[0.0; 2]));
    let after = running.get("/v2/models/lstm/stats").json;
    let count = |stats: &Value, kind: &str| {
        let stats = &stats["model_stats"][0]["inference_stats"];
        stats[kind]["count"].as_u64().expect("a number")
    };
    assert_eq!(count(&after, "success"), count(&before, "success") + 1);
    assert_eq!(
        running.get("/v2/models/stats").json["model_stats"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    let metrics = running
        .post_raw("/metrics", &[], &[])
        .expect("an answer")
        .status();
    assert_eq!(metrics.as_u16(), 405, "only GET");
    let text = running.text("/metrics");
    // Those that `docs/deploy.md` names, beside the count of answers.
    for line in [
        "gatestream_request_seconds_count{model=\"lstm\",version=\"1\"} 1",
        "gatestream_ready_rows{model=\"lstm\",version=\"1\"} 0",
        "gatestream_open_sequences{model=\"both\",version=\"1\"} 0",
        "gatestream_worker_busy_seconds_total{policy=\"ebatch\",worker=\"0\"}",
        "gatestream_worker_alive{policy=\"ebatch\",worker=\"0\"} 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn a_deadline_is_heeded_before_and_during_work() {
    let running = Running::new();
    let batches = || {
        let stats = running.get("/v2/models/lstm/stats").json;
        stats["model_stats"][0]["execution_count"]
            .as_u64()
            .expect("a number")
    };
    let mut asked = request(&vec![0.1; 9_000 * FEATURES]);
    let (mut before, mut during) = (0, 0);
    for milliseconds in 1..200 {
        asked["parameters"] = json!({ "timeout": 1_000 * milliseconds, "priority": 1 });
        let begun = batches();
        let answer = running.infer("lstm", &asked);
        if answer.status == 200 {
            break;
        }
        assert_eq!(answer.status, 504, "{answer:?}");
        if batches() > begun {
            during += 1
        } else {
            before += 1
        }
    }
    assert!(
        before > 0 && during > 0,
        "{before} before, {during} during work"
    );
    asked["parameters"] = json!({ "timeout": 60_000_000 });
    assert_eq!(running.infer("lstm", &asked).status, 200);
}

#[test]
fn an_overloaded_model_says_when_to_try_again() {
    let running = Running::with(&common::options(), |folder| {
        common::configure(folder, "lstm", "[limits]\nnodes = 12000\n");
    });
    let path = running.url("/v2/models/lstm/infer");
    let long = request(&vec![0.1; 9_000 * FEATURES]).to_string();
    std::thread::scope(|scope| {
        let first: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let sent = common::agent().post(&path).send(&long);
                    sent.expect("an answer")
                })
            })
            .collect();
        let answers = first
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let refused: Vec<_> = answers
            .filter(|answer| answer.status().as_u16() == 429)
            .collect();
        assert!(!refused.is_empty(), "a request has 9,000 nodes of 12,000");
        for answer in refused {
            let after = answer.headers()["retry-after"]
                .to_str()
                .expect("text")
                .parse::<u64>();
            assert!(after.expect("seconds") >= 1);
        }
    });
    // Too large for the limit is no matter of time.
    let answer = running.infer(
        "lstm",
        &json!({ "inputs": [{
            "name": "input", "shape": [2, 9000, FEATURES], "datatype": "FP32",
            "data": vec![0.1; 2 * 9_000 * FEATURES],
        }]}),
    );
    assert_eq!(answer.status, 413, "{answer:?}");
}

#[test]
fn a_client_that_goes_away_frees_its_request() {
    let running = Running::with(&common::options(), |folder| {
        common::configure(folder, "lstm", "max_steps = 200000\n");
    });
    let body = request(&vec![0.1; 100_000 * FEATURES]).to_string();
    let mut stream = TcpStream::connect(running.server.http_address()).expect("connects");
    let head = format!(
        "POST /v2/models/lstm/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("written");
    stream.write_all(body.as_bytes()).expect("written");
    let unanswered = || {
        let status = running.get("/status").json;
        let models = status["models"].as_array().expect("a list");
        let model = models.iter().find(|model| model["name"] == "lstm");
        model.expect("served")["unanswered"]
            .as_u64()
            .expect("a number")
    };
    let wait_for = |expected: u64| {
        let end = Instant::now() + Duration::from_secs(20);
        while unanswered() != expected {
            assert!(Instant::now() < end, "{expected} unanswered requests");
            std::thread::yield_now();
        }
    };
    wait_for(1);
    drop(stream);
    wait_for(0);
    let cancelled = "failed_requests_total{model=\"lstm\",version=\"1\",reason=\"cancelled\"} 1";
    let end = Instant::now() + Duration::from_secs(20);
    while !running.text("/metrics").contains(cancelled) {
        assert!(Instant::now() < end, "it is not counted");
    }
    let stats = running.get("/v2/models/lstm/stats").json;
    let success = &stats["model_stats"][0]["inference_stats"]["success"]["count"];
    assert_eq!(success, 0, "it was cancelled, not computed");
}

#[test]
fn a_connection_without_a_request_is_closed() {
    let options = gatestream_server::ServerOptions {
        header_time: Duration::from_millis(100),
        ..common::options()
    };
    let running = Running::with(&options, |_| {});
    for (address, bytes) in [
        (running.server.http_address(), &b""[..]),
        (running.server.http_address(), b"POST / HT"),
        (running.server.http_address(), b"GET /v2 HTTP/1.1\r\nhost: "),
        (running.server.grpc_address(), b"PRI * HTTP/2.0\r\n"),
    ] {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.write_all(bytes).expect("written");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        let mut answer = Vec::new();
        // Closed: the read ends.
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("200 OK"), "{text}");
    }
}

/// Whether the server has closed the connection at the end of its answers.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_ok()
}

#[test]
fn an_idle_connection_stays_longer_than_a_head_that_is_sent_slowly() {
    let options = gatestream_server::ServerOptions {
        header_time: Duration::from_secs(1),
        idle_time: Duration::from_secs(3600),
        ..common::options()
    };
    let running = Running::with(&options, |_| {});
    let mut stream = TcpStream::connect(running.server.http_address()).expect("connects");
    let get = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n";
    for wait in [0, 1500] {
        // Longer than the time of a head.
        std::thread::sleep(Duration::from_millis(wait));
        stream.write_all(get).expect("written");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("still open");
        assert_eq!(&answer, b"HTTP/1.1 200");
        // The rest of the answer has no body.
        let mut last = [0; 4];
        while &last != b"\r\n\r\n" {
            last.rotate_left(1);
            stream.read_exact(&mut last[3..]).expect("the rest");
        }
    }
    stream.write_all(b"GET /v2").expect("written");
    assert!(is_closed(&mut stream), "a head that has begun");

    let options = gatestream_server::ServerOptions {
        header_time: Duration::from_secs(3600),
        idle_time: Duration::from_millis(100),
        ..common::options()
    };
    let running = Running::with(&options, |_| {});
    let mut stream = TcpStream::connect(running.server.http_address()).expect("connects");
    stream.write_all(get).expect("written");
    assert!(is_closed(&mut stream), "idle");
}
