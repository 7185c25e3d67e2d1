//! Errors as answers of HTTP and of gRPC.

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::error::{ErrorKind, InferError};

/// Marks the status of a defect on its way through the server.
pub const DEFECT: &str = "gatestream-defect";

/// The answer to a request that is refused, in the protocol that its headers tell.
pub fn error_response(headers: &HeaderMap, error: &InferError) -> Response {
    if is_grpc(headers) {
        return status(error).into_http::<Body>();
    }
    let status = StatusCode::from_u16(error.kind.answer().http);
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, axum::Json(json!({ "error": error.message }))).into_response();
    if let Some(milliseconds) = retry_milliseconds(error) {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, milliseconds.div_ceil(1000).into());
        headers.insert("retry-after-ms", milliseconds.into());
    }
    response
}

/// An [`error_response`] before the body was read: a connection of HTTP/1 ends with it.
pub fn error_response_and_close(headers: &HeaderMap, error: &InferError) -> Response {
    let mut response = error_response(headers, error);
    if !is_grpc(headers) {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

/// The status of gRPC.
pub fn status(error: &InferError) -> Status {
    let mut status = Status::new(error.kind.answer().grpc, &error.message);
    if error.kind == ErrorKind::Internal {
        let metadata = status.metadata_mut();
        metadata.insert(DEFECT, MetadataValue::from_static("1"));
    }
    if let Some(milliseconds) = retry_milliseconds(error) {
        // The name that libraries of gRPC heed when they retry.
        let value = MetadataValue::from(milliseconds);
        status
            .metadata_mut()
            .insert("grpc-retry-pushback-ms", value);
    }
    status
}

fn retry_milliseconds(error: &InferError) -> Option<u64> {
    let after = error.retry_after?;
    Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
    headers.get(CONTENT_TYPE).is_some_and(is_grpc)
}
