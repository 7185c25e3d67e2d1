#![doc = include_str!("../README.md")]
#![allow(
    missing_docs,
    reason = "generated; the file of messages describes them"
)]
#![allow(clippy::all, clippy::pedantic, reason = "generated")]

tonic::include_proto!("inference");
