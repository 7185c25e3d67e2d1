#![doc = include_str!("../README.md")]
#![allow(
    missing_docs,
    reason = "generated; the file of messages describes them"
)]
#![allow(clippy::all, clippy::pedantic, reason = "generated")]

tonic::include_proto!("inference");

/// The file of messages as a `FileDescriptorSet`, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
