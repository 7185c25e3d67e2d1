//! Certificates and tokens that change while the server runs.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use common::{FEATURES, Running, expected, output, part, steps, with_grpc};
use gatestream_protocol::{ModelInferRequest, ModelStreamInferResponse};
use gatestream_server::{ServerOptions, TlsFiles};
use serde_json::json;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tonic::Request;

type Connection = StreamOwned<ClientConnection, TcpStream>;

/// Writes a new certificate and its key.
fn renew(files: &TlsFiles) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    std::fs::write(&files.certificate, made.cert.pem()).expect("written");
    std::fs::write(&files.key, made.signing_key.serialize_pem()).expect("written");
    made.cert.der().clone()
}

/// A connection to a server that must have this certificate.
fn connect(address: SocketAddr, root: &CertificateDer<'static>) -> Connection {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).expect("a root");
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    StreamOwned::new(client, TcpStream::connect(address).expect("connects"))
}

/// The status of a request on this connection; `None`: it is refused.
fn get(connection: &mut Connection, path: &str, token: &str) -> Option<u16> {
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    connection.write_all(head.as_bytes()).ok()?;
    let mut answer = [0; 12];
    connection.read_exact(&mut answer).ok()?;
    // The rest of the head.
    let mut last = [0; 4];
    while last != *b"\r\n\r\n" {
        last.rotate_left(1);
        connection.read_exact(&mut last[3..]).expect("a head");
    }
    std::str::from_utf8(&answer[9..]).ok()?.parse().ok()
}

/// Whether a request without a body of its answer succeeds.
fn answers(connection: &mut Connection) -> bool {
    get(connection, "/v2/health/ready", "") == Some(200)
}

#[test]
fn a_new_certificate_is_for_new_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = TlsFiles {
        certificate: folder.path().join("certificate"),
        key: folder.path().join("key"),
    };
    let first = renew(&files);
    let options = ServerOptions {
        tls: Some(files.clone()),
        ..common::options()
    };
    let running = Running::with(&options, |_| {});
    let address = running.server.http_address();
    let mut open = connect(address, &first);
    assert!(answers(&mut open));

    let second = renew(&files);
    assert!(answers(&mut connect(address, &first)), "not yet read");
    running.server.reload().expect("files that fit");
    for address in [address, running.server.grpc_address()] {
        let complete = |root| {
            let mut connection = connect(address, root);
            connection.conn.complete_io(&mut connection.sock).is_ok()
        };
        assert!(complete(&second) && !complete(&first), "{address}");
    }
    assert!(answers(&mut open), "an open connection goes on");

    // A key of another certificate, and no key.
    let third = files.clone();
    renew(&files);
    let key = std::fs::read(&third.key).expect("read");
    renew(&files);
    for broken in [&key[..], b"no key", b""] {
        std::fs::write(&files.key, broken).expect("written");
        let refused = running.server.reload().expect_err("refused").to_string();
        assert!(
            refused.contains(folder.path().to_str().expect("UTF-8")),
            "{refused}"
        );
        assert!(answers(&mut connect(address, &second)), "the old one stays");
    }
    assert!(answers(&mut open));
}

fn with_token(path: &Path) -> ServerOptions {
    ServerOptions {
        tokens: Some(path.to_owned()),
        ..common::options()
    }
}

#[test]
fn new_tokens_are_known_and_sequences_of_old_ones_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokens");
    std::fs::write(&path, "gone\nstays lstm\n").expect("written");
    let running = Running::with(&with_token(&path), |_| {});
    let xs = steps(&mut fastrand::Rng::with_seed(1), 3);
    let send = |token: &str, at: usize| {
        let bearer = format!("Bearer {token}");
        let body = part(
            &xs[at * FEATURES..][..FEATURES],
            &json!(1),
            at == 0,
            at == 2,
        );
        let headers = [("authorization", bearer.as_str())];
        running.post_bytes(
            "/v2/models/lstm/infer",
            &headers,
            body.to_string().as_bytes(),
        )
    };
    let mut found = output(&send("stays", 0), "output");
    assert_eq!(send("gone", 0).status, 200);
    assert_eq!(send("new", 0).status, 401);
    // The token that stays has another line and other models.
    std::fs::write(&path, "new both\n# moved\n\nstays lstm,both\n").expect("written");
    running.server.reload().expect("tokens");
    for at in 1..3 {
        found.extend(output(&send("stays", at), "output"));
    }
    assert_eq!(found, expected(&common::lstm(1), &xs).y);
    assert_eq!((send("gone", 1).status, send("new", 0).status), (401, 403));
    for broken in ["", "new both\nnew lstm\n"] {
        std::fs::write(&path, broken).expect("written");
        running.server.reload().expect_err("refused");
        assert_eq!(
            (send("stays", 0).status, send("stays", 2).status),
            (200, 200)
        );
    }
    std::fs::remove_file(&path).expect("removed");
    running.server.reload().expect_err("refused");
    assert_eq!(send("new", 0).status, 403);
}

/// A stream that began with a token must not outlive it.
#[test]
fn an_open_stream_of_a_token_that_is_gone_gets_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokens");
    std::fs::write(&path, "gone\nstays\n").expect("written");
    let running = Running::with(&with_token(&path), |_| {});
    let error = |answer: Option<ModelStreamInferResponse>| answer.expect("open").error_message;
    with_grpc(&running, async |mut client| {
        let (messages, received) = tokio::sync::mpsc::unbounded_channel();
        let received = tokio_stream::wrappers::UnboundedReceiverStream::new(received);
        let mut request = Request::new(received);
        let bearer = "Bearer gone".parse().expect("a value");
        request.metadata_mut().insert("authorization", bearer);
        let asked = || ModelInferRequest {
            model_name: "lstm".into(),
            ..ModelInferRequest::default()
        };
        messages.send(asked()).expect("sent");
        let stream = client.model_stream_infer(request).await;
        let mut stream = stream.expect("a stream").into_inner();
        let before = error(stream.message().await.expect("a message"));
        assert!(before.contains("missing"), "{before}");
        std::fs::write(&path, "stays\n").expect("written");
        running.server.reload().expect("tokens");
        messages.send(asked()).expect("sent");
        let after = error(stream.message().await.expect("a message"));
        assert!(after.contains("token"), "{after}");
    });
}

/// The signal, which would otherwise end this process.
#[cfg(unix)]
#[test]
fn a_hangup_reads_the_files_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokens");
    std::fs::write(&path, "old\n").expect("written");
    let files = TlsFiles {
        certificate: folder.path().join("certificate"),
        key: folder.path().join("key"),
    };
    let root = renew(&files);
    let options = ServerOptions {
        reloads_on_hangup: true,
        tls: Some(files.clone()),
        ..with_token(&path)
    };
    let running = Running::with(&options, |_| {});
    let status_by = |root: &_, token: &str| {
        let mut connection = connect(running.server.http_address(), root);
        get(&mut connection, "/v2", token)
    };
    let status = |token: &str| status_by(&root, token);
    let hang_up = || {
        let process = std::process::id();
        let mut shell = std::process::Command::new("sh");
        let sent = shell.args(["-c", &format!("kill -HUP {process}")]).status();
        assert!(sent.expect("runs").success());
    };
    let wait_for = |is_read: &dyn Fn() -> bool| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_read() {
            assert!(std::time::Instant::now() < end, "it is not read");
        }
    };
    assert_eq!((status("old"), status("new")), (Some(200), Some(401)));
    // A key that is wrong changes nothing: the certificate is read before the tokens.
    std::fs::write(&files.key, "").expect("written");
    std::fs::write(&path, "new\n").expect("written");
    hang_up();
    wait_for(&|| status("new") == Some(200));
    assert_eq!(status("old"), Some(401));
    let renewed = renew(&files);
    hang_up();
    wait_for(&|| status_by(&renewed, "new") == Some(200));
    assert_eq!(status("new"), None, "the former certificate");
}
