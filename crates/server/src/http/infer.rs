//! `POST …/infer`.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::Bytes;

use super::body::{self, JSON_LENGTH, Read};
use super::path::ModelPath;
use super::routes::App;
use crate::error::{ErrorKind, InferError};
use crate::listener::{Bodies, Client};
use crate::refusal::{error_response, error_response_and_close};
use crate::service::Target;

/// Answers a request for inference.
pub async fn infer(
    State(app): State<App>,
    path: ModelPath,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    // Before anything is refused: a connection with an unread body cannot be used again.
    let bodies = &app.service.bodies;
    let bytes = match bodies.whole(body, bodies.limits.bytes).await {
        Ok(bytes) => bytes,
        Err(error) => {
            app.service.metrics.refused(&error);
            return error_response_and_close(&headers, &error);
        }
    };
    match answer(&app, &path, &client, &headers, bytes).await {
        Ok(response) => response,
        Err(error) => error_response(&headers, &error),
    }
}

/// A request, and the model that it is for.
fn decoded<'a>(
    app: &App,
    path: &'a ModelPath,
    client: &Client,
    headers: &HeaderMap,
    bytes: &Bytes,
) -> Result<(Read, Target<'a>), InferError> {
    client.check(&path.model)?;
    // Known ones have been taken off by now.
    if let Some(encoding) = headers
        .get(CONTENT_ENCODING)
        .filter(|name| *name != "identity")
    {
        return Err(InferError::invalid(format!(
            "the body has the encoding {encoding:?}; gzip and deflate are known"
        )));
    }
    let json_length = json_length(headers)?;
    let received = Instant::now();
    let read = match json_length {
        Some(0) => {
            let model = app.service.model(&path.model, &path.version)?;
            body::read_single(bytes, model.network.interface())?
        }
        length => body::read(bytes, length)?,
    };
    let target = Target {
        model: &path.model,
        version: &path.version,
        client: client.clone(),
        received,
        reading: received.elapsed(),
        deadline: None,
    };
    Ok((read, target))
}

async fn answer(
    app: &App,
    path: &ModelPath,
    client: &Client,
    headers: &HeaderMap,
    bytes: Bytes,
) -> Result<Response, InferError> {
    let decoded = decoded(app, path, client, headers, &bytes);
    drop(bytes);
    let (read, target) = decoded.inspect_err(|error| app.service.metrics.refused(error))?;
    let response = app.service.infer(&target, &read.request, None).await?;
    let written = read.write(&response);
    let written = written.map_err(|why| InferError::new(ErrorKind::Internal, why))?;
    let mut answer = Response::new(Body::from(written.body));
    let headers = answer.headers_mut();
    match written.json_length {
        None => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Some(length) => {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("application/octet-stream"),
            );
            headers.insert(JSON_LENGTH, length.into());
        }
    }
    Ok(answer)
}

fn json_length(headers: &HeaderMap) -> Result<Option<usize>, InferError> {
    let Some(value) = headers.get(JSON_LENGTH) else {
        return Ok(None);
    };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    let wrong = || InferError::invalid(format!("{JSON_LENGTH} must be a number of bytes"));
    length.map(Some).ok_or_else(wrong)
}

/// Refuses a body by its length alone.
///
/// # Errors
/// [`ErrorKind::TooLarge`].
pub fn check_length(headers: &HeaderMap, most: usize) -> Result<(), InferError> {
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    let length = length.and_then(|text| text.parse::<u64>().ok());
    match length {
        Some(length) if length > most as u64 => Err(Bodies::too_large(most)),
        _ => Ok(()),
    }
}
