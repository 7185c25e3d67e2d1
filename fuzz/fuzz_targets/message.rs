//! Messages over gRPC: a byte for the method, then messages, each after two bytes with its length.
#![no_main]

mod repository;

use libfuzzer_sys::fuzz_target;

const METHODS: [&str; 6] = [
    "ModelInfer",
    "ModelStreamInfer",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
];
const UNKNOWN: i32 = 2;
const INTERNAL: i32 = 13;

fuzz_target!(|data: &[u8]| {
    let Some((&method, mut rest)) = data.split_first() else {
        return;
    };
    let method = METHODS[usize::from(method) % METHODS.len()];
    let mut messages = Vec::new();
    while let Some((&length, after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(length)).min(after.len());
        let (message, after) = after.split_at(length);
        messages.push(message);
        rest = after;
    }
    let (code, why) = repository::server().call(method, &[], &messages);
    // Tonic's, for messages that are no protobuf, and for none.
    let is_tonics = ["decode", "Missing"].iter().any(|word| why.contains(word));
    assert!(
        code != UNKNOWN && (code != INTERNAL || is_tonics),
        "{code}: {why}"
    );
});
