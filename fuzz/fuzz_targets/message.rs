//! Messages over gRPC: a byte for the method and for the form, then messages, each after two bytes
//! with its length; or a body as it is, with its own flags and lengths.
#![no_main]

mod repository;

use libfuzzer_sys::fuzz_target;

// The order is that of the corpus.
const METHODS: [&str; 12] = [
    "ModelInfer",
    "ModelStreamInfer",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
];
/// From here on the body is as it is; from the next on it says that it is compressed.
const RAW: u8 = 128;
const COMPRESSED: u8 = 192;
const UNKNOWN: i32 = 2;
const INTERNAL: i32 = 13;

fuzz_target!(|data: &[u8]| {
    let Some((&method, mut rest)) = data.split_first() else {
        return;
    };
    let form = method;
    let method = METHODS[usize::from(method) % METHODS.len()];
    let server = repository::server();
    if form >= RAW {
        let gzip = [("grpc-encoding", "gzip")];
        let headers = if form >= COMPRESSED { &gzip[..] } else { &[] };
        return check(server.call_raw(method, headers, rest));
    }
    let mut messages = Vec::new();
    while let Some((&length, after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(length)).min(after.len());
        let (message, after) = after.split_at(length);
        messages.push(message);
        rest = after;
    }
    check(server.call(method, &[], &messages));
});

/// No request is a defect of the server.
fn check((code, why): (i32, String)) {
    assert!(code != UNKNOWN && code != INTERNAL, "{code}: {why}");
}
