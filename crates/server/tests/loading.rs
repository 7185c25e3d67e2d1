//! The server while it loads models, and models that fail.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{FEATURES, Running, request};
use gatestream_protocol::{
    ModelInferRequest, ModelMetadataRequest, ModelReadyRequest, ServerLiveRequest,
    ServerReadyRequest,
};
use gatestream_server::{Server, ServerOptions};
use serde_json::{Value, json};
use tonic::Code;

/// A port that nobody has.
fn free() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// The load of the model `slow` waits for someone who writes its configuration into a pipe.
#[cfg(unix)]
#[test]
fn a_model_that_is_being_loaded_is_unavailable_and_not_unknown() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["lstm", "slow", "then"] {
        common::save(folder.path(), name, 1, &common::lstm(1));
    }
    let pipe = folder.path().join("slow/config.toml");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("runs").success());
    let options = ServerOptions {
        http: free(),
        grpc: free(),
        ..common::options()
    };
    let (http, grpc) = (options.http, options.grpc);
    let path = folder.path().to_owned();
    let starting = std::thread::spawn(move || Server::start(path, &options).expect("starts"));
    let agent = common::agent();
    let end = Instant::now() + Duration::from_secs(60);
    let ask = |method: &str, path: &str| {
        let url = format!("http://{http}{path}");
        loop {
            let body = request(&[0.5; FEATURES]).to_string();
            let answer = if method == "GET" {
                agent.get(&url).call()
            } else {
                agent.post(&url).send(&body)
            };
            match answer {
                Ok(answer) => return answer,
                Err(why) => assert!(Instant::now() < end, "{why}"),
            }
        }
    };
    let status = |method: &str, path: &str| ask(method, path).status().as_u16();
    let infer = |model: &str| status("POST", &format!("/v2/models/{model}/infer"));
    while infer("lstm") != 200 {
        assert!(Instant::now() < end, "it is not loaded");
    }
    assert_eq!(status("GET", "/v2/health/live"), 200);
    assert_eq!(status("GET", "/v2/health/ready"), 503);
    assert_eq!(infer("none"), 404);
    for name in ["slow", "then"] {
        for (method, path) in [
            ("POST", "infer"),
            ("POST", "versions/1/infer"),
            ("GET", ""),
            ("GET", "config"),
            ("GET", "stats"),
            ("GET", "ready"),
        ] {
            let path = format!("/v2/models/{name}/{path}");
            let path = path.trim_end_matches('/');
            let answer = ask(method, path);
            assert_eq!(answer.status().as_u16(), 503, "{path}");
            if !path.ends_with("ready") {
                let after = answer.headers()["retry-after"].to_str().expect("text");
                assert!(after.parse::<u64>().expect("seconds") >= 1);
            }
        }
    }
    let index = ask("POST", "/v2/repository/index")
        .into_body()
        .read_to_string();
    let index: Value = serde_json::from_str(&index.expect("text")).expect("JSON");
    let slow = json!({ "name": "slow", "version": "", "state": "LOADING", "reason": "loading" });
    assert!(index.as_array().expect("a list").contains(&slow), "{index}");
    common::with_grpc_at(grpc, async |mut client| {
        let live = client.server_live(ServerLiveRequest {}).await;
        assert!(live.expect("an answer").into_inner().live);
        let ready = client.server_ready(ServerReadyRequest {}).await;
        assert!(!ready.expect("an answer").into_inner().ready);
        let ready = client.model_ready(ModelReadyRequest {
            name: "slow".into(),
            ..ModelReadyRequest::default()
        });
        assert!(!ready.await.expect("an answer").into_inner().ready);
        let infer = client.model_infer(ModelInferRequest {
            model_name: "slow".into(),
            ..ModelInferRequest::default()
        });
        let error = infer.await.expect_err("not yet");
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.metadata().contains_key("grpc-retry-pushback-ms"));
        let metadata = client.model_metadata(ModelMetadataRequest {
            name: "then".into(),
            ..ModelMetadataRequest::default()
        });
        let error = metadata.await.expect_err("not yet");
        assert_eq!(error.code(), Code::Unavailable);
    });
    std::fs::write(&pipe, "").expect("written");
    let server = starting.join().expect("no panic");
    assert_eq!((infer("slow"), infer("then")), (200, 200));
    assert_eq!(status("GET", "/v2/health/ready"), 200);
    drop(server);
}

fn break_model(folder: &Path, name: &str) {
    let file = folder.join(name).join("1/model.safetensors");
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    std::fs::write(file, "no model").expect("written");
}

#[test]
fn a_failed_model_is_shown_and_a_strict_server_is_not_ready() {
    for strict in [false, true] {
        let options = ServerOptions {
            strict,
            ..common::options()
        };
        let running = Running::with(&options, |folder| break_model(folder, "broken"));
        let ready = || {
            let status = running.get("/v2/health/ready").status;
            with_grpc_ready(&running, status == 200);
            status
        };
        let of_model = "gatestream_failed_loads{model=\"broken\"} 1";
        assert_eq!(ready(), if strict { 503 } else { 200 });
        assert_eq!(running.get("/v2/health/live").status, 200);
        assert_eq!(
            running.infer("lstm", &request(&[0.5; FEATURES])).status,
            200
        );
        let failed = running.get("/status").json["failed_models"].clone();
        assert_eq!(failed[0]["name"], "broken");
        assert_ne!(failed[0]["reason"], "");
        assert!(running.text("/metrics").contains(of_model));
        let load = |name: &str| {
            let path = format!("/v2/repository/models/{name}/load");
            running.post(&path, &json!({})).status
        };
        assert_eq!(load("broken"), 400);
        assert_eq!(ready(), if strict { 503 } else { 200 });

        common::save(running.folder.path(), "broken", 1, &common::lstm(2));
        assert_eq!((load("broken"), ready()), (200, 200));
        assert!(!running.text("/metrics").contains("failed_loads{"));
        // A load that fails leaves the version before it: no model is missing.
        break_model(running.folder.path(), "broken");
        assert_eq!((load("broken"), ready()), (400, 200));
        assert_eq!(
            running.infer("broken", &request(&[0.5; FEATURES])).status,
            200
        );
        let failed = running.get("/status").json["failed_models"].clone();
        assert_eq!(failed[0]["is_served"], true);
        assert!(running.text("/metrics").contains(of_model));
    }
}

fn with_grpc_ready(running: &Running, expected: bool) {
    common::with_grpc(running, async |mut client| {
        let ready = client.server_ready(ServerReadyRequest {}).await;
        assert_eq!(ready.expect("an answer").into_inner().ready, expected);
    });
}
