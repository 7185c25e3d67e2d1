//! The span of a request.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use tracing::field::Empty;
use tracing::{Instrument, info_span};

/// The target of all spans of requests. Their level is `info`.
pub const SPANS: &str = "gatestream::request";

/// A span from the head of a request to that of its response. With the feature `otlp` it continues
/// the trace of the header `traceparent`
/// ([W3C Trace Context](https://www.w3.org/TR/trace-context)).
pub async fn open_span(request: Request, next: Next) -> Response {
    let span = info_span!(
        target: SPANS,
        "request",
        otel.kind = "server",
        http.request.method = %request.method(),
        url.path = request.uri().path(),
        http.response.status_code = Empty,
    );
    if span.is_disabled() {
        return next.run(request).await;
    }
    #[cfg(feature = "otlp")]
    crate::otlp::continue_trace(&span, request.headers());
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    response
}
