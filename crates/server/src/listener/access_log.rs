//! The access log.

use std::time::Instant;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

use super::Peer;

/// One line for each request, at the level `info` of the target `gatestream::access`.
pub async fn log_access(request: Request, next: Next) -> Response {
    if !tracing::enabled!(target: "gatestream::access", tracing::Level::INFO) {
        return next.run(request).await;
    }
    let begun = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let peer = request
        .extensions()
        .get::<Peer>()
        .map(|peer| peer.0.to_string());
    let response = next.run(request).await;
    tracing::info!(
        target: "gatestream::access",
        peer = peer.unwrap_or_default(),
        %method,
        path,
        status = response.status().as_u16(),
        microseconds = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
    );
    response
}
