//! Codes of errors that Tonic finds, as the README's table has them.
//!
//! Tonic answers a message that it cannot read with INTERNAL. A defect of the server is marked, so
//! that the two differ.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use tonic::{Code, Status};

use crate::error::ErrorKind;
use crate::refusal::DEFECT;

const STATUS: &str = "grpc-status";

/// Middleware: an answer to a message that cannot be read says that the message is wrong.
pub async fn of_readme(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let is_marked = headers.remove(DEFECT).is_some();
    let internal = HeaderValue::from(Code::Internal as i32);
    if !is_marked && headers.get(STATUS) == Some(&internal) {
        let invalid = ErrorKind::Invalid.answer().grpc;
        headers.insert(STATUS, HeaderValue::from(invalid as i32));
    }
    response
}

/// The status of a stream whose messages cannot be read to their end.
pub fn of_stream(status: Status) -> Status {
    if status.code() == Code::Internal {
        return Status::new(ErrorKind::Invalid.answer().grpc, status.message());
    }
    status
}
