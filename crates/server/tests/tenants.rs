//! Tokens of several tenants: sequences belong to the token that began them, and each sees its own
//! models alone.

mod common;

use std::time::{Duration, Instant};

use common::{
    Answer, FEATURES, HIDDEN, Running, expected, floats, message_part, output, part, steps,
    with_channel, with_grpc,
};
use gatestream_protocol::ModelInferRequest;
use gatestream_protocol::infer_parameter::ParameterChoice;
use gatestream_server::ServerOptions;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const TOKENS: &str = "operator\none lstm\ntwo lstm\nother both\n";

/// A server with these tokens, and the folder of their file.
fn running(config: &str) -> (Running, TempDir) {
    let files = tempfile::tempdir().expect("a folder");
    let tokens = files.path().join("tokens");
    std::fs::write(&tokens, TOKENS).expect("written");
    let options = ServerOptions {
        tokens: Some(tokens),
        ..common::options()
    };
    let running = Running::with(&options, |folder| common::configure(folder, "lstm", config));
    (running, files)
}

fn send(running: &Running, token: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let body = body.to_string();
    running.post_bytes("/v2/models/lstm/infer", &headers, body.as_bytes())
}

fn get(running: &Running, token: &str, path: &str) -> String {
    let request = ureq::get(running.url(path)).header("authorization", format!("Bearer {token}"));
    let answer = request.call().expect("an answer");
    answer.into_body().read_to_string().expect("text")
}

/// Of step `at` of the three steps of a sequence.
fn step(xs: &[f32], at: usize, id: &Value) -> Value {
    part(&xs[at * FEATURES..][..FEATURES], id, at == 0, at == 2)
}

#[test]
fn tenants_with_the_same_ids_get_the_bits_of_runs_alone() {
    let (running, _files) = running("");
    let mut rng = fastrand::Rng::with_seed(1);
    for id in [json!(1), json!("1"), json!(u64::MAX)] {
        let all = ["operator", "one", "two"].map(|token| (token, steps(&mut rng, 3)));
        let mut found = vec![Vec::new(); all.len()];
        for at in 0..3 {
            for ((token, xs), found) in all.iter().zip(&mut found) {
                let answer = send(&running, token, &step(xs, at, &id));
                found.extend(output(&answer, "output"));
                let alone = expected(&common::lstm(1), &xs[..(at + 1) * FEATURES]);
                assert_eq!(output(&answer, "hn"), alone.hn, "{token} {at}");
            }
        }
        for ((token, xs), found) in all.iter().zip(found) {
            assert_eq!(found, expected(&common::lstm(1), xs).y, "{token}");
        }
    }
}

#[test]
fn an_id_of_another_tenant_is_an_unknown_one() {
    let (running, _files) = running("[sequences]\nper_client = 2\n");
    let xs = steps(&mut fastrand::Rng::with_seed(2), 3);
    let told = |token: &str, id: u64, start: bool, end: bool| {
        let answer = send(
            &running,
            token,
            &part(&xs[..FEATURES], &json!(id), start, end),
        );
        let error = answer.error().replace(&id.to_string(), "ID");
        let after = answer.headers.get("retry-after").cloned();
        (answer.status, error, after)
    };
    send(&running, "one", &step(&xs, 0, &json!(7)));
    for end in [false, true] {
        let unknown = told("two", 8, false, end);
        assert_ne!(unknown.0, 200);
        assert_eq!(told("two", 7, false, end), unknown);
    }
    // Each has the whole number of sequences of a client, whatever others have.
    assert_eq!(
        (told("two", 7, true, false).0, told("two", 8, true, false).0),
        (200, 200)
    );
    assert_eq!(told("two", 9, true, false).0, 429);
    let status: Value = serde_json::from_str(&get(&running, "operator", "/status")).expect("JSON");
    let lstm = status["models"].as_array().expect("a list").iter();
    let lstm = { lstm }
        .find(|model| model["name"] == "lstm")
        .expect("served");
    assert_eq!(lstm["sequences"], 3);
    // The end of one is not that of the other.
    assert_eq!(told("two", 7, false, true).0, 200);
    let next = send(&running, "one", &step(&xs, 1, &json!(7)));
    let alone = expected(&common::lstm(1), &xs[..2 * FEATURES]);
    assert_eq!(output(&next, "output"), alone.y[HIDDEN..]);
    assert_eq!(output(&next, "cn"), alone.cn);
}

#[test]
fn reasons_of_ends_are_told_to_their_tenant_alone() {
    let (running, _files) = running("[sequences]\nidle_seconds = 0.05\n");
    let send = |token: &str, id: u64, start: bool| {
        send(
            &running,
            token,
            &part(&[0.5; FEATURES], &json!(id), start, false),
        )
    };
    assert_eq!(send("one", 7, true).status, 200);
    let end = Instant::now() + Duration::from_secs(30);
    let ended = loop {
        let answer = send("one", 7, false);
        if answer.status != 200 {
            break answer;
        }
        assert!(Instant::now() < end, "it is still open");
        std::thread::sleep(Duration::from_millis(700));
    };
    assert!(ended.error().contains("no request came"), "{ended:?}");
    let (known, unknown) = (send("two", 7, false), send("two", 8, false));
    assert_eq!(known.status, unknown.status);
    assert_eq!(known.error().replace('7', "8"), unknown.error());
}

/// Also while a replaced version has the sequence of another tenant.
#[test]
fn a_reload_keeps_the_sequences_of_each_tenant() {
    let (running, _files) = running("");
    let id = json!(1);
    let xs = steps(&mut fastrand::Rng::with_seed(3), 3);
    let mut found = output(&send(&running, "one", &step(&xs, 0, &id)), "output");
    common::save(running.folder.path(), "lstm", 1, &common::lstm(9));
    let headers = [("authorization", "Bearer operator")];
    let load = "/v2/repository/models/lstm/load";
    assert_eq!(running.post_bytes(load, &headers, b"").status, 200);
    assert_ne!(send(&running, "two", &step(&xs, 1, &id)).status, 200);
    let mut of_two = output(&send(&running, "two", &step(&xs, 0, &id)), "output");
    for at in 1..3 {
        found.extend(output(
            &send(&running, "one", &step(&xs, at, &id)),
            "output",
        ));
        of_two.extend(output(
            &send(&running, "two", &step(&xs, at, &id)),
            "output",
        ));
    }
    assert_eq!(found, expected(&common::lstm(1), &xs).y);
    assert_eq!(of_two, expected(&common::lstm(9), &xs).y);
}

/// Clients without tokens are one: a sequence may go on over another connection or port.
#[test]
fn without_tokens_all_clients_own_the_same() {
    let running = Running::new();
    let xs = steps(&mut fastrand::Rng::with_seed(4), 3);
    let id = json!(1);
    assert_eq!(running.infer("lstm", &step(&xs, 0, &id)).status, 200);
    with_grpc(&running, async |mut client| {
        let asked = message(&xs, 1, 1);
        let answer = client.model_infer(asked).await.expect("an answer");
        let two = expected(&common::lstm(1), &xs[..2 * FEATURES]).y;
        assert_eq!(floats(answer.get_ref(), "output"), two[HIDDEN..]);
    });
    assert_eq!(running.infer("lstm", &step(&xs, 2, &id)).status, 200);
}

/// As [`step`].
fn message(xs: &[f32], at: usize, id: u64) -> ModelInferRequest {
    let x = &xs[at * FEATURES..][..FEATURES];
    message_part(x, ParameterChoice::Uint64Param(id), at == 0, at == 2)
}

fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let bearer = format!("Bearer {token}").parse().expect("a value");
    request.metadata_mut().insert("authorization", bearer);
    request
}

#[test]
fn tenants_are_apart_over_grpc_too() {
    let (running, _files) = running("");
    let mut rng = fastrand::Rng::with_seed(5);
    let [first, second] = [(); 2].map(|()| steps(&mut rng, 3));
    with_grpc(&running, async |mut client| {
        let asked = with_token(message(&first, 0, 1), "one");
        client.model_infer(asked).await.expect("an answer");
        let mut codes = Vec::new();
        for id in [1, 2] {
            let asked = with_token(message(&second, 1, id), "two");
            let refused = client.model_infer(asked).await.expect_err("not its own");
            let told = refused.message().replace(&id.to_string(), "ID");
            codes.push((refused.code(), told));
        }
        assert_eq!(codes[0], codes[1]);
        // The requests of a stream, too.
        let messages = tokio_stream::iter([0, 1, 2].map(|at| message(&second, at, 1)));
        let stream = client.model_stream_infer(with_token(messages, "two")).await;
        let mut stream = stream.expect("a stream").into_inner();
        let mut found = Vec::new();
        while let Some(answer) = stream.message().await.expect("an answer") {
            assert_eq!(answer.error_message, "");
            found.extend(floats(
                &answer.infer_response.expect("a response"),
                "output",
            ));
        }
        assert_eq!(found, expected(&common::lstm(1), &second).y);
        let asked = with_token(message(&first, 1, 1), "one");
        let answer = client.model_infer(asked).await.expect("an answer");
        let alone = expected(&common::lstm(1), &first[..2 * FEATURES]).y;
        assert_eq!(floats(answer.get_ref(), "output"), alone[HIDDEN..]);
    });
}

/// The health of the server needs no token, that of a model does.
#[test]
fn health_tells_no_other_models() {
    let (running, _files) = running("");
    with_channel(running.server.grpc_address(), async |channel| {
        let mut health = HealthClient::new(channel);
        let asked = |service: &str| HealthCheckRequest {
            service: service.into(),
        };
        let server = health.check(asked("")).await.expect("no token");
        assert_eq!(server.get_ref().status(), ServingStatus::Serving);
        let own = health.check(with_token(asked("lstm"), "one")).await;
        let own = own.expect("its own").into_inner();
        assert_eq!(own.status(), ServingStatus::Serving);
        let mut refused = async |name: &str, token: Option<&str>| {
            let asked = match token {
                Some(token) => with_token(asked(name), token),
                None => Request::new(asked(name)),
            };
            let refused = health.check(asked).await.expect_err("not told");
            (refused.code(), refused.message().replace(name, "NAME"))
        };
        let unknown = refused("none", Some("one")).await;
        assert_eq!(unknown.0, Code::NotFound);
        assert_eq!(refused("both", Some("one")).await, unknown);
        assert_eq!(refused("lstm", None).await, unknown);
        let watch = health.watch(asked("lstm")).await.expect_err("no token");
        assert_eq!(watch.code(), Code::Unauthenticated);
    });
}

#[test]
fn a_token_sees_its_models_alone() {
    let (running, _files) = running("");
    let broken = running.folder.path().join("broken");
    std::fs::create_dir_all(broken.join("1")).expect("a folder");
    std::fs::write(broken.join("1/model.safetensors"), "no model").expect("written");
    let headers = [("authorization", "Bearer operator")];
    let load = |name: &str| format!("/v2/repository/models/{name}/load");
    assert_eq!(
        running.post_bytes(&load("broken"), &headers, b"").status,
        400
    );
    for model in ["lstm", "both"] {
        for body in [common::request(&[0.5; FEATURES]), json!({})] {
            let path = format!("/v2/models/{model}/infer");
            running.post_bytes(&path, &headers, body.to_string().as_bytes());
        }
    }
    let body = common::request(&[0.5; FEATURES]).to_string();
    running.post_bytes("/v2/models/unknown/infer", &headers, body.as_bytes());
    for path in ["/metrics", "/status", "/v2/models/stats"] {
        let of = |token: &str| get(&running, token, path);
        let names = |text: &str| ["lstm", "both", "broken"].map(|name| text.contains(name));
        let has_failed = path != "/v2/models/stats";
        assert_eq!(names(&of("operator")), [true, true, has_failed], "{path}");
        assert_eq!(names(&of("one")), [true, false, false], "{path}");
        assert_eq!(names(&of("other")), [false, true, false], "{path}");
    }
    let of_all = "gatestream_failed_requests_total{model=\"\"";
    assert_eq!(running.get("/v2/models/lstm").status, 401);
    let metrics = get(&running, "operator", "/metrics");
    let unknown = format!("{of_all},version=\"\",reason=\"unauthenticated\"}} 1");
    assert!(metrics.contains(&unknown), "{metrics}");
    let metrics = get(&running, "one", "/metrics");
    assert!(!metrics.contains(of_all), "{metrics}");
    assert!(
        metrics.contains("gatestream_request_seconds_count{model=\"lstm\""),
        "{metrics}"
    );
    assert!(metrics.contains("gatestream_worker_alive"), "{metrics}");
    // Names are refused alike, whether there is such a model or not.
    let refused = |name: &str| {
        let headers = [("authorization", "Bearer one")];
        let path = format!("/v2/models/{name}/infer");
        let answer = running.post_bytes(&path, &headers, body.as_bytes());
        (answer.status, answer.error().replace(name, "NAME"))
    };
    assert_eq!(refused("both"), refused("none"));
    assert_eq!(refused("both").0, 403);
    with_grpc(&running, async |mut client| {
        let mut asked = message(&[0.5; FEATURES], 0, 1);
        asked.model_name = "both".into();
        let refused = client.model_infer(with_token(asked, "one")).await;
        assert_eq!(refused.expect_err("refused").code(), Code::PermissionDenied);
    });
}
