//! Each status of the README's table, provoked over both protocols.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{FEATURES, Running, part, request, with_grpc};
use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_protocol::*;
use gatestream_server::ServerOptions;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tonic::{Code, Request};

/// `400`, `INVALID_ARGUMENT` and the other rows.
fn table() -> BTreeMap<u16, String> {
    let readme = include_str!("../README.md");
    let rows = readme.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let status = cells.next()?.parse().ok()?;
        Some((status, cells.next()?.to_owned()))
    });
    rows.collect()
}

/// Names of gRPC, as the table has them.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::Internal => "INTERNAL",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Unavailable => "UNAVAILABLE",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        _ => "another",
    }
}

/// The rows that were seen.
struct Seen {
    table: BTreeMap<u16, String>,
    http: Vec<u16>,
    grpc: Vec<u16>,
}

impl Seen {
    fn http(&mut self, status: u16, answer: &common::Answer) {
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(!answer.error().is_empty(), "{answer:?}");
        self.http.push(status);
    }

    /// The code of the row of this status.
    fn grpc<T: std::fmt::Debug>(&mut self, status: u16, answer: Result<T, tonic::Status>) {
        let found = answer.expect_err("refused");
        assert_eq!(
            name(found.code()),
            self.table[&status],
            "{status}: {found:?}"
        );
        assert!(!found.message().is_empty(), "{found:?}");
        self.grpc.push(status);
    }
}

fn message(model: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.into(),
        ..with(&[])
    }
}

fn with(parameters: &[(&str, ParameterChoice)]) -> ModelInferRequest {
    common::message(&[0.0; FEATURES], parameters)
}

fn start(id: i64) -> ModelInferRequest {
    common::message_part(
        &[0.0; FEATURES],
        ParameterChoice::Int64Param(id),
        true,
        false,
    )
}

fn with_parameters(parameters: Value) -> Value {
    let mut asked = request(&[0.5; FEATURES]);
    asked["parameters"] = parameters;
    asked
}

#[test]
fn each_row_of_the_table_is_seen_over_both_protocols() {
    let mut seen = Seen {
        table: table(),
        http: Vec::new(),
        grpc: Vec::new(),
    };
    let files = tempfile::tempdir().expect("a folder");
    let tokens = files.path().join("tokens");
    std::fs::write(&tokens, "all\nsome lstm\n").expect("written");
    let closed = ServerOptions {
        tokens: Some(tokens),
        ..common::options()
    };
    who_asks(&mut seen, &Running::with(&closed, |_| {}));
    requests(
        &mut seen,
        &Running::with(&common::options(), |folder| {
            let config = "max_steps = 4\n[sequences]\nper_client = 2\n";
            common::configure(folder, "lstm", config);
        }),
    );
    bodies(&mut seen);
    defect(&mut seen, &Running::new());
    stop(&mut seen, Running::new());
    let mut all: Vec<u16> = seen.table.keys().copied().collect();
    // A client that has gone sees nothing.
    all.retain(|&status| status != 499);
    for mut found in [seen.http, seen.grpc] {
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, all);
    }
}

fn who_asks(seen: &mut Seen, running: &Running) {
    let body = request(&[0.5; FEATURES]).to_string();
    let infer = |headers: &[(&str, &str)]| {
        running.post_bytes("/v2/models/both/infer", headers, body.as_bytes())
    };
    seen.http(401, &infer(&[]));
    seen.http(403, &infer(&[("authorization", "Bearer some")]));
    with_grpc(running, async |mut client| {
        seen.grpc(401, client.model_infer(message("both")).await);
        let mut some = Request::new(message("both"));
        let token = "Bearer some".parse().expect("a value");
        some.metadata_mut().insert("authorization", token);
        seen.grpc(403, client.model_infer(some).await);
    });
}

fn requests(seen: &mut Seen, running: &Running) {
    let infer = |parameters| running.infer("lstm", &with_parameters(parameters));
    seen.http(400, &infer(json!({ "priority": "first" })));
    seen.http(404, &running.infer("none", &request(&[0.5; FEATURES])));
    seen.http(404, &infer(json!({ "sequence_id": 1 })));
    seen.http(405, &running.get("/v2/models/lstm/infer"));
    let open = |id| running.infer("lstm", &part(&[0.5; FEATURES], &json!(id), true, false));
    assert_eq!(open(1).status, 200);
    seen.http(409, &open(1));
    assert_eq!(open(2).status, 200);
    seen.http(429, &open(3));
    seen.http(413, &running.infer("lstm", &request(&[0.5; 5 * FEATURES])));
    seen.http(504, &infer(json!({ "timeout": 1 })));
    let mut shared = request(&[0.5; FEATURES]);
    shared["inputs"][0]["parameters"] = json!({ "shared_memory_region": "r" });
    seen.http(501, &running.infer("lstm", &shared));
    with_grpc(running, async |mut client| {
        let text = |text: &str| ParameterChoice::StringParam(text.into());
        seen.grpc(
            400,
            client
                .model_infer(with(&[("priority", text("first"))]))
                .await,
        );
        seen.grpc(404, client.model_infer(message("none")).await);
        let step = with(&[("sequence_id", ParameterChoice::Int64Param(9))]);
        seen.grpc(404, client.model_infer(step).await);
        seen.grpc(409, client.model_infer(start(1)).await);
        seen.grpc(429, client.model_infer(start(3)).await);
        let mut long = message("lstm");
        long.inputs[0].shape[1] = 5;
        long.raw_input_contents = vec![vec![0; 4 * 5 * FEATURES].into()];
        seen.grpc(413, client.model_infer(long).await);
        let late = with(&[("timeout", ParameterChoice::Int64Param(1))]);
        seen.grpc(504, client.model_infer(late).await);
        let mut shared = message("lstm");
        let region = common::parameter(text("r"));
        shared.inputs[0]
            .parameters
            .insert("shared_memory_region".into(), region);
        seen.grpc(501, client.model_infer(shared).await);
    });
    // What the generated client does not send.
    let call = |path: &str, body: &[u8]| raw(running, path, body, true);
    let infer = "/inference.GRPCInferenceService/ModelInfer";
    assert_eq!(
        call("/inference.GRPCInferenceService/None", &[]),
        Code::Unimplemented
    );
    seen.grpc.push(405);
    for wrong in [
        &[][..],
        // A field without an end.
        &[0, 0, 0, 0, 1, 0x0a],
        // The end of the body amid a message, and an unknown flag.
        &[0, 0, 0, 0, 9, 1],
        &[7, 0, 0, 0, 0],
        // Compressed, but by nothing.
        &[1, 0, 0, 0, 1, 1],
    ] {
        assert_eq!(call(infer, wrong), Code::InvalidArgument, "{wrong:?}");
        let stream = "/inference.GRPCInferenceService/ModelStreamInfer";
        if !wrong.is_empty() {
            assert_eq!(call(stream, wrong), Code::InvalidArgument, "{wrong:?}");
        }
    }
}

/// Sends a body of gRPC as it is, and ends it or not.
fn raw(running: &Running, path: &str, body: &[u8], ends: bool) -> Code {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let address = running.server.grpc_address();
        let stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("connects");
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.expect("HTTP/2");
        tokio::spawn(connection);
        let bytes = bytes::Bytes::copy_from_slice(body);
        let (parts, body) = tokio::sync::mpsc::unbounded_channel();
        parts
            .send(Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(
                bytes,
            )))
            .expect("open");
        let parts = Some(parts).filter(|_| !ends);
        let body = tokio_stream::wrappers::UnboundedReceiverStream::new(body);
        let request = hyper::Request::post(format!("http://{address}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(http_body_util::StreamBody::new(body))
            .expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        let (head, body) = response.into_parts();
        let body = body.collect().await;
        let trailers = body.ok().and_then(|body| body.trailers().cloned());
        drop(parts);
        let of = |headers: &hyper::HeaderMap| headers.get("grpc-status").cloned();
        let code = of(&head.headers)
            .or_else(|| of(&trailers?))
            .expect("a status");
        Code::from_bytes(code.as_bytes())
    })
}

fn bodies(seen: &mut Seen) {
    let slow = ServerOptions {
        body_time: Duration::from_millis(100),
        ..common::options()
    };
    let running = Running::with(&slow, |_| {});
    seen.http(408, &half_sent(&running));
    for method in ["ModelInfer", "ModelStreamInfer", "ServerLive"] {
        let path = format!("/inference.GRPCInferenceService/{method}");
        let code = raw(&running, &path, &[0, 0, 0, 0, 9, 1], false);
        assert_eq!(name(code), seen.table[&408], "{method}");
    }
    let metrics = running.text("/metrics");
    assert!(
        metrics.contains("refused_bodies_total{reason=\"slow\"} 4"),
        "{metrics}"
    );
    seen.grpc.push(408);
    let small = ServerOptions {
        body_bytes: 100,
        ..common::options()
    };
    let running = Running::with(&small, |_| {});
    seen.http(
        413,
        &running.infer("lstm", &request(&[0.5; 100 * FEATURES])),
    );
    with_grpc(&running, async |mut client| {
        let mut large = message("lstm");
        large.id = "x".repeat(200);
        seen.grpc(413, client.model_infer(large.clone()).await);
        // A stream ends with the status, because its rest cannot be read.
        let stream = client.model_stream_infer(tokio_stream::iter([large])).await;
        let ended = stream.expect("a stream").into_inner().message().await;
        seen.grpc(413, ended);
    });
    let metrics = running.text("/metrics");
    for line in [
        "gatestream_receiving_bytes 0",
        "gatestream_refused_bodies_total{reason=\"overloaded\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

/// A request over HTTP whose body does not come.
fn half_sent(running: &Running) -> common::Answer {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(running.server.http_address()).expect("connects");
    let head = "POST /v2/models/lstm/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 90\r\n\r\n{";
    stream.write_all(head.as_bytes()).expect("written");
    let wait = Some(Duration::from_secs(20));
    stream.set_read_timeout(wait).expect("set");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("an answer, and the end");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    common::Answer {
        status: head[9..12].parse().expect("a status"),
        json: serde_json::from_str(body).expect("JSON"),
        headers: ureq::http::HeaderMap::new(),
    }
}

/// The repository is taken away.
fn defect(seen: &mut Seen, running: &Running) {
    std::fs::remove_dir_all(running.folder.path()).expect("removed");
    seen.http(500, &running.post("/v2/repository/index", &json!({})));
    with_grpc(running, async |mut client| {
        let index = client.repository_index(RepositoryIndexRequest::default());
        seen.grpc(500, index.await);
    });
}

/// A sequence is open, and so the server waits.
fn stop(seen: &mut Seen, running: Running) {
    let (ready, infer) = (
        running.url("/v2/health/ready"),
        running.url("/v2/models/lstm/infer"),
    );
    let grpc = running.server.grpc_address();
    let agent = common::agent();
    let post = |body: &Value| {
        let sent = agent.post(&infer).send(body.to_string().as_bytes());
        common::answer(sent)
    };
    let sequence = |start, end| part(&[0.5; FEATURES], &json!(1), start, end);
    assert_eq!(post(&sequence(true, false)).status, 200);
    let Running { server, folder, .. } = running;
    let stopping = std::thread::spawn(move || server.stop(Duration::from_secs(60)));
    let end = Instant::now() + Duration::from_secs(30);
    while common::answer(agent.get(&ready).call()).status == 200 {
        assert!(Instant::now() < end, "it is still ready");
    }
    seen.http(503, &post(&request(&[0.5; FEATURES])));
    common::with_grpc_at(grpc, async |mut client| {
        seen.grpc(503, client.model_infer(message("lstm")).await);
    });
    assert_eq!(post(&sequence(false, true)).status, 200);
    assert_eq!(stopping.join().expect("no panic"), 0);
    drop(folder);
}
