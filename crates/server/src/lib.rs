//! A server of recurrent networks: [Open Inference
//! Protocol](https://github.com/kserve/open-inference-protocol) v2 over HTTP and gRPC, with
//! sequences whose states the server holds.
//!
//! ```text
//! listener/      addresses, TLS, authentication, limits of connections and bodies, access log
//! http/, grpc/   the protocol; each reads a request and writes its response
//! refusal.rs     errors as answers of both
//! wire/          tensors and requests, independent of both
//! service.rs     the operations of the protocol
//! sequences.rs   open sequences by their ids
//! models.rs      loaded models by name and version; an engine for each policy
//! networks/      kinds of networks: tensors as requests of the engine
//! repository/    the folder of models and their configurations
//! warm_up.rs     requests that a model must answer before it is ready
//! statistics.rs, recent.rs, metrics.rs
//! server.rs      starts and stops all of it
//! otlp.rs        spans to an OpenTelemetry collector
//! command.rs     the subcommand `serve`
//! log.rs         its log
//! ```
#![doc = include_str!("../README.md")]

pub mod command;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod grpc;
mod http;
#[cfg(any(test, fuzzing))]
pub mod in_process;
mod listener;
mod log;
mod metrics;
mod models;
mod networks;
#[cfg(feature = "otlp")]
mod otlp;
mod recent;
mod refusal;
mod repository;
mod sequences;
mod server;
mod service;
mod statistics;
mod warm_up;
mod wire;

pub use server::{ModelFailure, ServedModel, Server, ServerError, ServerOptions, TlsFiles};
