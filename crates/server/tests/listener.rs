//! Addresses, TLS, tokens, and the reach of requests.

mod common;
#[path = "common/onnx.rs"]
mod onnx;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{FEATURES, Running, request};
use gatestream_server::{Server, ServerError, ServerOptions, TlsFiles};
use serde_json::json;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

#[test]
fn other_machines_need_tls_and_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = ServerOptions {
        http: "0.0.0.0:0".parse().expect("an address"),
        ..common::options()
    };
    let refused = Server::start(folder.path(), &open).err().expect("refused");
    assert!(matches!(refused, ServerError::Open { .. }), "{refused}");
    let trusting = ServerOptions {
        trusts_network: true,
        ..open
    };
    assert!(Server::start(folder.path(), &trusting).is_ok());
}

#[test]
fn a_token_is_for_its_models() {
    let files = tempfile::tempdir().expect("a folder");
    let tokens = files.path().join("tokens");
    std::fs::write(&tokens, "all\nsome lstm\n").expect("written");
    let options = ServerOptions {
        tokens: Some(tokens),
        ..common::options()
    };
    let running = Running::with(&options, |_| {});
    let body = request(&[0.5; FEATURES]).to_string();
    let infer = |model: &str, token: &str| {
        let value = format!("Bearer {token}");
        let headers = [("authorization", value.as_str())];
        let headers = if token.is_empty() {
            &[][..]
        } else {
            &headers[..]
        };
        running
            .post_bytes(
                &format!("/v2/models/{model}/infer"),
                headers,
                body.as_bytes(),
            )
            .status
    };
    assert_eq!((infer("lstm", "all"), infer("both", "all")), (200, 200));
    assert_eq!((infer("lstm", "some"), infer("both", "some")), (200, 403));
    assert_eq!((infer("lstm", ""), infer("lstm", "other")), (401, 401));
    for (path, status) in [
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/", 200),
        ("/v2", 401),
        ("/v2/models/lstm", 401),
        ("/metrics", 401),
        ("/status", 401),
        ("/v2/models/stats", 401),
    ] {
        assert_eq!(running.get(path).status, status, "{path}");
    }
    let load = |token: &str| {
        let value = format!("Bearer {token}");
        let path = "/v2/repository/models/lstm/load";
        running
            .post_bytes(path, &[("authorization", &value)], b"")
            .status
    };
    assert_eq!((load("some"), load("all")), (403, 200));
    let index = running.post_bytes(
        "/v2/repository/index",
        &[("authorization", "Bearer some")],
        b"",
    );
    assert_eq!(index.json.as_array().map(Vec::len), Some(1), "{index:?}");
}

#[test]
fn models_are_loaded_only_if_the_server_allows_it_and_from_the_repository() {
    let closed = ServerOptions {
        model_control: false,
        ..common::options()
    };
    let running = Running::with(&closed, |_| {});
    let answer = running.post("/v2/repository/models/lstm/unload", &json!({}));
    assert_eq!(answer.status, 403, "{answer:?}");
    let running = Running::new();
    let outside = tempfile::tempdir().expect("a folder");
    common::save(outside.path(), "secret", 1, &common::lstm(1));
    for name in [
        "..",
        ".",
        "%2e%2e",
        "..%2fsecret",
        "%2fetc",
        "lstm%2f1",
        "lstm%00",
    ] {
        let answer = running.post(&format!("/v2/repository/models/{name}/load"), &json!({}));
        assert_ne!(answer.status, 200, "{name}");
    }
    let file = json!({ "parameters": { "file:1/model.onnx": "AAAA" } });
    let answer = running.post("/v2/repository/models/lstm/load", &file);
    assert_eq!(answer.status, 501, "{answer:?}");
    assert_eq!(
        running.infer("lstm", &request(&[0.5; FEATURES])).status,
        200
    );
}

#[test]
fn both_ports_speak_tls() {
    let files = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    let path = |name: &str| files.path().join(name);
    std::fs::write(path("certificate"), made.cert.pem()).expect("written");
    std::fs::write(path("key"), made.signing_key.serialize_pem()).expect("written");
    let tls = TlsFiles {
        certificate: path("certificate"),
        key: path("key"),
    };
    let running = Running::with(
        &ServerOptions {
            tls: Some(tls),
            ..common::options()
        },
        |_| {},
    );
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(config, name).expect("a client");
    let stream = TcpStream::connect(running.server.http_address()).expect("connects");
    let mut stream = StreamOwned::new(client, stream);
    let head = b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(head).expect("written");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    // Without TLS nothing is answered.
    let mut plain = TcpStream::connect(running.server.grpc_address()).expect("connects");
    plain.write_all(head).expect("written");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"));
    let missing = TlsFiles {
        certificate: path("none"),
        key: path("key"),
    };
    let options = ServerOptions {
        tls: Some(missing),
        ..common::options()
    };
    let refused = Server::start(running.folder.path(), &options)
        .err()
        .expect("refused");
    assert!(refused.to_string().contains("none"), "{refused}");
}

/// A frame of HTTP 2: length, kind, flags, stream, payload (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[test]
fn requests_cancelled_at_once_do_not_end_their_connection() {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GO_AWAY: u8 = 7;
    let running = Running::new();
    for address in [running.server.http_address(), running.server.grpc_address()] {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frame(SETTINGS, 0, 0, &[]));
        for index in 0..200 {
            // Entries of HPACK's static table: POST, http, "/"; and an authority.
            let headers = [0x83, 0x86, 0x84, 0x41, 1, b'x'];
            // The end of the headers, not of the stream; then "cancel".
            sent.extend(frame(HEADERS, 4, 2 * index + 1, &headers));
            sent.extend(frame(RESET, 0, 2 * index + 1, &8u32.to_be_bytes()));
        }
        sent.extend(frame(PING, 0, 0, b"are here"));
        stream.write_all(&sent).expect("sent");
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).expect("a frame");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).expect("a payload");
            assert_ne!(head[3], GO_AWAY, "{}", String::from_utf8_lossy(&payload));
            if head[3] == PING && head[4] == 1 {
                assert_eq!(payload, b"are here");
                break;
            }
        }
    }
}

#[test]
fn pages_of_other_origins_are_let_in_if_the_server_names_them() {
    let preflight = |running: &Running, origin: &str| {
        let asked = ureq::http::Request::options(running.url("/v2/models/lstm/infer"))
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .body(())
            .expect("a request");
        let answer = common::agent().run(asked).expect("an answer");
        answer.headers().get("access-control-allow-origin").cloned()
    };
    let page = "https://page.example";
    assert_eq!(preflight(&Running::new(), page), None);
    let options = ServerOptions {
        origins: vec![page.into()],
        ..common::options()
    };
    let running = Running::with(&options, |_| {});
    assert_eq!(preflight(&running, page).expect("let in"), page);
    assert_eq!(preflight(&running, "https://other.example"), None);
    for wrong in [
        "page.example",
        "https://",
        "https://page.example/",
        "https://page .example",
        "https://Page.example",
        "https://page.example:443",
        "http://page.example:80",
        "https://page.example,https://other.example",
        "https://page.example?x",
        "null",
        "**",
    ] {
        let options = ServerOptions {
            origins: vec![
                "http://localhost:3000".into(),
                "http://[::1]:8080".into(),
                "tauri://localhost".into(),
                wrong.into(),
            ],
            ..common::options()
        };
        let refused = Server::start(running.folder.path(), &options).err();
        let refused = refused.expect("no browser sends it").to_string();
        assert!(refused.contains(wrong), "{refused}");
    }
}

/// A compressed answer is computed in parts, as the client takes them.
#[test]
fn a_client_that_stops_reading_loses_its_connection() {
    let options = ServerOptions {
        connections: 1,
        idle_time: Duration::from_millis(200),
        ..common::options()
    };
    let running = Running::with(&options, |folder| {
        let copy = onnx::node("Identity", &["x"], &["y"], &[]);
        onnx::save(folder, "copy", &onnx::file(vec![copy], Vec::new()), "");
    });
    let mut values = vec![0; 24 << 20];
    fastrand::Rng::with_seed(1).fill(&mut values);
    let json = json!({
        "inputs": [{
            "name": "x", "shape": [values.len() / 4], "datatype": "FP32",
            "parameters": { "binary_data_size": values.len() },
        }],
        "parameters": { "binary_data_output": true },
    });
    let json = json.to_string();
    let head = format!(
        "POST /v2/models/copy/infer HTTP/1.1\r\nhost: x\r\naccept-encoding: gzip\r\n\
         content-length: {}\r\ninference-header-content-length: {}\r\n\r\n{json}",
        json.len() + values.len(),
        json.len()
    );
    let mut stream = TcpStream::connect(running.server.http_address()).expect("connects");
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(&values).expect("sent");
    let mut answer = vec![0; 15];
    stream.read_exact(&mut answer).expect("the head");
    assert_eq!(answer, b"HTTP/1.1 200 OK");
    // There is room for one connection: another one is let in when the first has ended.
    let end = Instant::now() + Duration::from_secs(60);
    while common::agent().get(running.url("/v2")).call().is_err() {
        assert!(Instant::now() < end, "it is still open");
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.ends_with(b"0\r\n\r\n"), "no whole answer");
}
