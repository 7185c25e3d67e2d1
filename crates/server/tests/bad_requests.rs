//! Thirteen thousand requests that are wrong at random: each has an answer, none is a defect of the
//! server, and the server goes on.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{FEATURES, Running, expected, output, part, request, steps, with_grpc};
use fastrand::Rng;
use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_protocol::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use gatestream_protocol::*;
use serde_json::{Value, json};
use tonic::Code;

/// Changes some bytes, or a piece, of a request.
fn spoiled(rng: &mut Rng, good: &[u8]) -> Vec<u8> {
    const PIECES: [&str; 14] = [
        "null",
        "-1",
        "1e999",
        "18446744073709551616",
        "[]",
        "{}",
        "\"\"",
        "[[[[[[1]]]]]]",
        "NaN",
        "true",
        "\u{0}",
        "\"\\ud800\"",
        ",",
        "}",
    ];
    let mut body = good.to_vec();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..=body.len());
        match rng.u8(..6) {
            0 => body.truncate(at),
            1 if at < body.len() => body[at] = rng.u8(..),
            2 if at < body.len() => drop(body.remove(at)),
            3 => {
                let piece = PIECES[rng.usize(..PIECES.len())].bytes();
                body.splice(at..at, piece);
            }
            4 => {
                // A number or a word becomes another.
                let end = (at + rng.usize(1..12)).min(body.len());
                let piece = PIECES[rng.usize(..PIECES.len())].bytes();
                body.splice(at..end, piece);
            }
            _ => {
                let end = (at + rng.usize(1..200)).min(body.len());
                let copy = body[at..end].to_vec();
                body.splice(at..at, copy);
            }
        }
    }
    body
}

/// A file with open axes of batch and steps, and four features.
const GRAPH: &str = "05_manual_bidirectional_t_dense_behind_dynamo";

/// Stacks, a decoder, and a whole graph.
fn all_kinds() -> Running {
    Running::with(&common::options(), |folder| {
        common::g2p(folder);
        let graph = folder.join("graph").join("1");
        std::fs::create_dir_all(&graph).expect("a folder");
        let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../network/tests/cases");
        let file = cases.join(format!("{GRAPH}.onnx"));
        std::fs::copy(file, graph.join("model.onnx")).expect("copied");
    })
}

/// A value of any type of JSON.
fn any_value(rng: &mut Rng) -> Value {
    match rng.u8(..9) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.u64(..4)),
        3 => json!(rng.i64(..)),
        4 => json!(0.5),
        5 => json!("Infinity"),
        6 => json!([31]),
        7 => json!({ "a": 1 }),
        _ => json!("s".repeat(rng.usize(..3000))),
    }
}

/// A request that is JSON of the protocol but for some of its values.
fn ill_typed(rng: &mut Rng) -> (&'static str, Value) {
    let axis = |rng: &mut Rng| json!(rng.i64(-1..5));
    let (model, name, datatype) = [
        ("lstm", "input", "FP32"),
        ("graph", "X", "FP32"),
        ("g2p", "source", "BYTES"),
    ][rng.usize(..3)];
    let shape: Vec<Value> = (0..rng.usize(..5)).map(|_| axis(rng)).collect();
    let count = shape
        .iter()
        .filter_map(Value::as_u64)
        .product::<u64>()
        .min(700);
    let element = |rng: &mut Rng| match rng.u8(..30) {
        0 => any_value(rng),
        1 => json!(1e39),
        _ if datatype == "BYTES" => json!("a"),
        _ => json!(0.5),
    };
    let data: Vec<Value> = (0..count).map(|_| element(rng)).collect();
    let mut input = json!({ "name": name, "datatype": datatype, "shape": shape, "data": data });
    let mut asked = json!({});
    let fields = ["id", "parameters", "outputs", "inputs"];
    if rng.u8(..8) == 0 {
        asked[fields[rng.usize(..fields.len())]] = any_value(rng);
    }
    let known = [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "binary_data_output",
        "binary_data_size",
        "binary_data",
        "classification",
        "other",
    ];
    for of in ["request", "input", "output"] {
        if rng.u8(..4) > 0 {
            continue;
        }
        let parameters = json!({ known[rng.usize(..known.len())]: any_value(rng) });
        match of {
            "request" => asked["parameters"] = parameters,
            "input" => input["parameters"] = parameters,
            _ => asked["outputs"] = json!([{ "name": "output", "parameters": parameters }]),
        }
    }
    if asked["inputs"].is_null() {
        asked["inputs"] = json!([input]);
    }
    (model, asked)
}

#[test]
fn of_wrong_types_shapes_and_methods() {
    let running = all_kinds();
    let mut rng = Rng::with_seed(5);
    let mut statuses = BTreeMap::new();
    for index in 0..3_000 {
        let answer = match index % 10 {
            0 => {
                let paths = [
                    "/v2/models/lstm/infer",
                    "/v2/models/%ff/infer",
                    "/v2/models/%00",
                    "/v2/repository/index",
                    "/v2/health/%e9",
                ];
                running.get(paths[rng.usize(..paths.len())])
            }
            1 => {
                let paths = ["/v2/repository/index", "/v2/repository/models/none/load"];
                let field = ["ready", "parameters"][rng.usize(..2)];
                let asked = json!({ field: any_value(&mut rng) });
                running.post(paths[rng.usize(..2)], &asked)
            }
            _ => {
                let (model, asked) = ill_typed(&mut rng);
                running.infer(model, &asked)
            }
        };
        *statuses.entry(answer.status).or_insert(0) += 1;
        if answer.status != 200 {
            assert!(!answer.error().is_empty(), "{answer:?}");
            assert!(answer.error().len() < 4096, "{}", answer.error().len());
            let typed = [400, 404, 405, 409, 501, 504];
            assert!(typed.contains(&answer.status), "{answer:?}");
        }
    }
    assert!(
        statuses[&400] > 1_000 && statuses[&405] > 20,
        "{statuses:?}"
    );
    assert!(statuses[&200] > 50, "{statuses:?}");
    let xs = steps(&mut rng, 4);
    let answer = running.infer("lstm", &request(&xs));
    assert_eq!(output(&answer, "output"), expected(&common::lstm(1), &xs).y);
}

#[test]
fn over_http() {
    let running = Running::new();
    let mut rng = Rng::with_seed(1);
    let xs = steps(&mut rng, 4);
    let json = [
        request(&xs).to_string(),
        part(&xs, &json!(7), true, true).to_string(),
        part(&xs, &json!("s"), false, false).to_string(),
    ];
    let raw: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
    let head = json!({
        "inputs": [{
            "name": "input", "shape": [1, 4, FEATURES], "datatype": "FP32",
            "parameters": { "binary_data_size": raw.len() },
        }],
        "parameters": { "binary_data_output": true, "timeout": 1_000_000 },
    })
    .to_string();
    let binary = [head.as_bytes(), &raw].concat();
    let mut statuses = BTreeMap::new();
    for index in 0..7_000 {
        let model = ["lstm", "both", "none"][rng.usize(..3)];
        let path = format!("/v2/models/{model}/infer");
        let length = match rng.u8(..4) {
            0 => rng.usize(..300).to_string(),
            1 => "x".to_owned(),
            _ => head.len().to_string(),
        };
        let headers = [("inference-header-content-length", length.as_str())];
        let answer = match index % 2 {
            0 => {
                let body = spoiled(&mut rng, json[index % json.len()].as_bytes());
                running.post_raw(&path, &[], &body)
            }
            _ => running.post_raw(&path, &headers, &spoiled(&mut rng, &binary)),
        };
        let mut answer = answer.expect("each request has an answer");
        let status = answer.status().as_u16();
        *statuses.entry(status).or_insert(0) += 1;
        if status != 200 {
            let text = answer.body_mut().read_to_string().expect("text");
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let why = json["error"].as_str().unwrap_or_default();
            assert!(!why.is_empty(), "{status}: {text}");
            assert!([400, 404, 409].contains(&status), "{status}: {text}");
        }
    }
    // Some changes leave a request right; most do not.
    assert!(
        statuses[&400] > 3_000 && statuses[&404] > 50,
        "{statuses:?}"
    );
    let answer = running.infer("lstm", &request(&xs));
    assert_eq!(output(&answer, "output"), expected(&common::lstm(1), &xs).y);
    assert_eq!(running.get("/v2/health/ready").status, 200);
}

fn parameter(rng: &mut Rng) -> InferParameter {
    InferParameter {
        parameter_choice: match rng.u8(..6) {
            0 => None,
            1 => Some(ParameterChoice::BoolParam(rng.bool())),
            2 => Some(ParameterChoice::Int64Param(rng.i64(..))),
            3 => Some(ParameterChoice::Uint64Param(rng.u64(..4))),
            4 => Some(ParameterChoice::DoubleParam(f64::NAN)),
            _ => Some(ParameterChoice::StringParam("s".repeat(rng.usize(..400)))),
        },
    }
}

fn message(rng: &mut Rng) -> ModelInferRequest {
    let names = ["input", "lengths", "h0", "c0", "", "x"];
    let types = ["FP32", "FP16", "BF16", "INT64", "BYTES", "BOOL", "FP8", ""];
    let axes = [0, 1, 2, 3, 4, -1, i64::MIN, i64::MAX];
    let mut message = ModelInferRequest {
        model_name: ["lstm", "both", "none", ""][rng.usize(..4)].into(),
        model_version: ["", "1", "2", "x"][rng.usize(..4)].into(),
        ..ModelInferRequest::default()
    };
    for _ in 0..rng.usize(..3) {
        let name = names[rng.usize(..names.len())];
        message.inputs.push(InferInputTensor {
            name: if rng.u8(..3) > 0 { "input" } else { name }.into(),
            datatype: if rng.u8(..3) > 0 {
                "FP32"
            } else {
                types[rng.usize(..types.len())]
            }
            .into(),
            shape: match rng.u8(..3) {
                0 => vec![1, 2, FEATURES as i64],
                _ => (0..rng.usize(..5))
                    .map(|_| axes[rng.usize(..axes.len())])
                    .collect(),
            },
            contents: rng.bool().then(|| InferTensorContents {
                fp32_contents: vec![f32::NAN; rng.usize(..9)],
                int64_contents: vec![rng.i64(..); rng.usize(..3)],
                bytes_contents: vec![vec![0; rng.usize(..9)]; rng.usize(..3)],
                ..InferTensorContents::default()
            }),
            ..InferInputTensor::default()
        });
    }
    for _ in 0..rng.usize(..3) {
        let raw = vec![rng.u8(..); rng.usize(..50)];
        message.raw_input_contents.push(raw.into());
    }
    for name in [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "timeout",
        "priority",
        "other",
    ] {
        if rng.u8(..4) == 0 {
            message.parameters.insert(name.into(), parameter(rng));
        }
    }
    if rng.bool() {
        message.outputs.push(InferRequestedOutputTensor {
            name: ["output", "hn", "x"][rng.usize(..3)].into(),
            ..InferRequestedOutputTensor::default()
        });
    }
    message
}

#[test]
fn over_grpc() {
    let running = Running::new();
    with_grpc(&running, async |mut client| {
        let mut rng = Rng::with_seed(2);
        let mut codes = BTreeMap::new();
        for _ in 0..3_000 {
            let asked = message(&mut rng);
            let told = format!("{asked:?}");
            let code = match client.model_infer(asked).await {
                Ok(_) => Code::Ok,
                Err(status) => {
                    assert!(!status.message().is_empty(), "{told}");
                    status.code()
                }
            };
            *codes.entry(i32::from(code)).or_insert(0) += 1;
            let typed = [
                Code::Ok,
                Code::InvalidArgument,
                Code::NotFound,
                Code::AlreadyExists,
                Code::DeadlineExceeded,
            ];
            assert!(typed.contains(&code), "{code:?}: {told}");
        }
        assert!(codes[&i32::from(Code::InvalidArgument)] > 300, "{codes:?}");
        assert!(codes[&i32::from(Code::NotFound)] > 30, "{codes:?}");
    });
    let xs = steps(&mut Rng::with_seed(3), 4);
    let answer = running.infer("lstm", &request(&xs));
    assert_eq!(output(&answer, "output"), expected(&common::lstm(1), &xs).y);
}
