//! The protocol over gRPC.

mod convert;
mod documents;
mod service;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use cellstream_protocol::grpc_inference_service_server::GrpcInferenceServiceServer;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataValue;
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::doors::{Tokens, authenticate};
use crate::error::{ErrorKind, InferError};
use crate::service::Service;

/// All methods.
pub fn router(
    service: Arc<Service>,
    tokens: Arc<Tokens>,
    most_bytes: usize,
    may_load: bool,
) -> Router {
    let methods = service::Methods { service, may_load };
    let server = GrpcInferenceServiceServer::new(methods)
        .max_decoding_message_size(most_bytes)
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    Routes::new(server)
        .into_axum_router()
        .layer(middleware::from_fn_with_state(tokens, authenticate))
        .layer(middleware::from_fn(crate::http::log_access))
}

/// The status of an error.
pub fn status(error: &InferError) -> Status {
    let code = match error.kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Exists => Code::AlreadyExists,
        ErrorKind::TooLarge | ErrorKind::Overloaded => Code::ResourceExhausted,
        ErrorKind::Cancelled => Code::Cancelled,
        ErrorKind::Internal => Code::Internal,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Late => Code::DeadlineExceeded,
    };
    let mut status = Status::new(code, &error.message);
    if let Some(after) = error.retry_after {
        let milliseconds = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let value = MetadataValue::from(milliseconds);
        // The name that libraries of gRPC heed when they retry.
        status
            .metadata_mut()
            .insert("grpc-retry-pushback-ms", value);
    }
    status
}
