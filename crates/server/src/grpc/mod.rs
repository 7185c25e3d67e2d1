//! The protocol over gRPC.

mod asked;
mod convert;
mod documents;
mod service;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use cellstream_protocol::grpc_inference_service_server::GrpcInferenceServiceServer;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;

use crate::doors::{Tokens, authenticate, log_access, open_span};
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
        .layer(middleware::from_fn(log_access))
        .layer(middleware::from_fn(open_span))
}
