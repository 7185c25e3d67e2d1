//! The paths of the protocol.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::decompression::RequestDecompressionLayer;

use super::body::JSON_LENGTH;
use super::infer::{check_length, infer};
use super::path::ModelPath;
use super::{documents, page};
use crate::error::{ErrorKind, InferError};
use crate::listener::{Authentication, Client, Tokens, authenticate, log_access, open_span};
use crate::metrics::Metrics;
use crate::refusal::{error_response, error_response_and_close};
use crate::service::Service;

/// Limits of HTTP requests.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Whether clients may load and unload models.
    pub may_load: bool,
    /// Origins whose pages may send requests from a browser; `*`: all.
    pub origins: Vec<HeaderValue>,
}

/// The state of the handlers.
#[derive(Clone)]
pub struct App {
    pub service: Arc<Service>,
    pub options: HttpOptions,
}

/// All paths.
pub fn router(service: Arc<Service>, tokens: Arc<Tokens>, options: HttpOptions) -> Router {
    let model = Router::new()
        .route("/", get(model_metadata))
        .route("/ready", get(model_ready))
        .route("/config", get(model_config))
        .route("/stats", get(model_statistics))
        .route("/infer", post(infer));
    let cors = cross_origin(&options.origins);
    let limit = LengthLimit {
        bytes: service.bodies.limits.bytes,
        metrics: service.metrics.clone(),
    };
    let authentication = Authentication {
        tokens,
        metrics: service.metrics.clone(),
    };
    let app = App { service, options };
    Router::new()
        .route("/", get(page::page))
        .route("/status", get(page::status))
        .route("/metrics", get(metrics))
        .route("/v2", get(async || json_of(&documents::server())))
        .route("/v2/", get(async || json_of(&documents::server())))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/stats", get(all_statistics))
        .nest("/v2/models/{model}", model.clone())
        .nest("/v2/models/{model}/versions/{version}", model)
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(panicked))
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn_with_state(limit, limit_length))
        .layer(middleware::from_fn_with_state(authentication, authenticate))
        // A browser asks without a token whether it may ask.
        .layer(option_layer(cors))
        .layer(middleware::from_fn(log_access))
        .layer(middleware::from_fn(open_span))
}

/// Lets pages of these origins read answers; by default those of none.
fn cross_origin(origins: &[HeaderValue]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().cloned())
    };
    let length = HeaderName::from_static(JSON_LENGTH);
    let cors = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([
            AUTHORIZATION,
            CONTENT_TYPE,
            CONTENT_ENCODING,
            length.clone(),
        ])
        .expose_headers([
            length,
            RETRY_AFTER,
            HeaderName::from_static("retry-after-ms"),
        ]);
    Some(cors)
}

/// A defect of a handler ends its request, and no other.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    let error = InferError::new(ErrorKind::Internal, "the server has a defect; see its log");
    error_response(&HeaderMap::new(), &error)
}

fn json_of(value: &Value) -> Response {
    axum::Json(value).into_response()
}

fn answered(headers: &HeaderMap, answer: Result<Value, InferError>) -> Response {
    match answer {
        Ok(value) => json_of(&value),
        Err(error) => error_response(headers, &error),
    }
}

async fn live(State(app): State<App>) -> StatusCode {
    if app.service.has_live_workers() {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    }
}

async fn ready(State(app): State<App>) -> StatusCode {
    if app.service.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

async fn model_ready(
    State(app): State<App>,
    path: ModelPath,
    Extension(client): Extension<Client>,
) -> StatusCode {
    if !client.may_use(&path.model) {
        return StatusCode::BAD_REQUEST;
    }
    match app.service.model(&path.model, &path.version) {
        Ok(_) if app.service.is_ready() => StatusCode::OK,
        Err(error) if error.kind == ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

async fn model_metadata(
    State(app): State<App>,
    path: ModelPath,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
) -> Response {
    let metadata = || {
        client.check(&path.model)?;
        let model = app.service.model(&path.model, &path.version)?;
        Ok(documents::model(
            &model,
            &app.service.models.versions(&path.model),
        ))
    };
    answered(&headers, metadata())
}

async fn model_config(
    State(app): State<App>,
    path: ModelPath,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
) -> Response {
    let config = || {
        client.check(&path.model)?;
        Ok(documents::config(
            &*app.service.model(&path.model, &path.version)?,
        ))
    };
    answered(&headers, config())
}

async fn model_statistics(
    State(app): State<App>,
    path: ModelPath,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
) -> Response {
    let statistics = || {
        client.check(&path.model)?;
        let model = app.service.model(&path.model, &path.version)?;
        Ok(documents::statistics(&[model]))
    };
    answered(&headers, statistics())
}

async fn all_statistics(State(app): State<App>, Extension(client): Extension<Client>) -> Response {
    let mut models = app.service.models.all();
    models.retain(|model| client.may_use(&model.name));
    json_of(&documents::statistics(&models))
}

/// Bytes of a body that has no tensors.
const SMALL: usize = 1 << 16;

/// The JSON of a small body; null if there is none.
async fn json_body(app: &App, body: Body) -> Result<Value, InferError> {
    let body = app.service.bodies.whole(body, SMALL).await;
    let body = body.map_err(|error| match error.kind {
        // No option raises it.
        ErrorKind::TooLarge => InferError::new(
            error.kind,
            format!("the body is larger than {SMALL} bytes, the most of this path"),
        ),
        _ => error,
    })?;
    if body.is_empty() {
        return Ok(Value::Null);
    }
    let read: Value = serde_json::from_slice(&body)
        .map_err(|why| InferError::invalid(format!("the body is no JSON: {why}")))?;
    if read.is_object() || read.is_null() {
        return Ok(read);
    }
    Err(InferError::invalid("the body must be a JSON object"))
}

async fn index(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let index = async {
        let asked = json_body(&app, body).await?;
        let only_ready = match &asked["ready"] {
            Value::Null => false,
            Value::Bool(only_ready) => *only_ready,
            _ => return Err(InferError::invalid("\"ready\" must be true or false")),
        };
        let mut entries = app.service.models.index()?;
        entries.retain(|entry| client.may_use(&entry.name) && (entry.is_ready || !only_ready));
        Ok(documents::index(&entries))
    };
    answered(&headers, index.await)
}

async fn load(
    State(app): State<App>,
    path: ModelPath,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let loaded = async {
        let asked = json_body(&app, body).await?;
        match &asked["parameters"] {
            Value::Null => {}
            Value::Object(parameters) if parameters.is_empty() => {}
            Value::Object(_) => {
                return Err(InferError::new(
                    ErrorKind::Unsupported,
                    "a load has no parameters here: models and configurations are those of the \
                     repository",
                ));
            }
            _ => return Err(InferError::invalid("\"parameters\" must be an object")),
        }
        app.service
            .change_models(app.options.may_load, &client, path.model, true)
            .await?;
        Ok(Value::Null)
    };
    answered(&headers, loaded.await)
}

async fn unload(
    State(app): State<App>,
    path: ModelPath,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
) -> Response {
    let may = app.options.may_load;
    let unloaded = app
        .service
        .change_models(may, &client, path.model, false)
        .await;
    answered(&headers, unloaded.map(|()| Value::Null))
}

async fn metrics(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
) -> Response {
    let service = &app.service;
    let text = (service.metrics).text(&service.models, &service.bodies, &client);
    match text {
        Ok(text) => {
            const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, TEXT)], text).into_response()
        }
        Err(why) => error_response(&headers, &InferError::new(ErrorKind::Internal, why)),
    }
}

/// Extensions that clients of Triton know and this server does not have.
const OTHER_EXTENSIONS: [&str; 4] = [
    "/v2/systemsharedmemory",
    "/v2/cudasharedmemory",
    "/v2/trace",
    "/v2/logging",
];

async fn unknown(request: Request) -> Response {
    let path = request.uri().path();
    let error = if OTHER_EXTENSIONS
        .iter()
        .any(|extension| path.starts_with(extension))
    {
        InferError::new(
            ErrorKind::Unsupported,
            "the server has no shared memory, traces and settings of logs",
        )
    } else {
        InferError::not_found(format!("there is no {} {path:?}", request.method()))
    };
    error_response_and_close(request.headers(), &error)
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let error = InferError::new(
        ErrorKind::WrongMethod,
        format!("{path:?} has no method {method}; the header Allow lists those that it has"),
    );
    error_response_and_close(request.headers(), &error)
}

/// The state of [`limit_length`].
#[derive(Clone)]
struct LengthLimit {
    bytes: usize,
    /// They count refusals.
    metrics: Metrics,
}

async fn limit_length(State(limit): State<LengthLimit>, request: Request, next: Next) -> Response {
    match check_length(request.headers(), limit.bytes) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            limit.metrics.refused(&error);
            error_response_and_close(request.headers(), &error)
        }
    }
}
