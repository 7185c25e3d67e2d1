//! The protocol over gRPC.

mod codes;
mod convert;
mod documents;
mod health;
mod request;
mod service;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use gatestream_protocol::FILE_DESCRIPTOR_SET;
use gatestream_protocol::grpc_inference_service_server::GrpcInferenceServiceServer;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::listener::{Authentication, Bodies, Tokens, authenticate, log_access, open_span};
use crate::service::Service;

/// All methods.
pub fn router(service: Arc<Service>, tokens: Arc<Tokens>, may_load: bool) -> Router {
    let bodies = Arc::clone(&service.bodies);
    let most_bytes = bodies.limits.bytes;
    let authentication = Authentication {
        tokens,
        metrics: service.metrics.clone(),
    };
    let probed = Arc::clone(&service);
    let methods = service::Methods { service, may_load };
    let server = GrpcInferenceServiceServer::new(methods)
        .max_decoding_message_size(most_bytes)
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate);
    let health = HealthServer::new(health::Probe { service: probed });
    let mut routes = Routes::new(server).add_service(health);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    match reflection {
        Ok(reflection) => routes = routes.add_service(reflection),
        Err(why) => tracing::error!("there is no reflection: {why}"),
    }
    routes
        .into_axum_router()
        .layer(middleware::from_fn_with_state(bodies, receive))
        .layer(middleware::from_fn(codes::of_readme))
        .layer(middleware::from_fn_with_state(authentication, authenticate))
        .layer(middleware::from_fn(log_access))
        .layer(middleware::from_fn(open_span))
}

/// Methods whose requests are streams.
const STREAMS: [&str; 2] = ["/ModelStreamInfer", "/ServerReflectionInfo"];

/// Bounds the time and the bytes of a request.
async fn receive(State(bodies): State<Arc<Bodies>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_stream = STREAMS.iter().any(|method| path.ends_with(method));
    let request = request.map(|body: Body| bodies.messages(body, is_stream));
    next.run(request).await
}
