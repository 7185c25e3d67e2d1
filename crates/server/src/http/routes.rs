//! The paths of the protocol.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Extension, Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::decompression::RequestDecompressionLayer;

use super::infer::{ModelPath, bytes, check_length, infer};
use super::{documents, page};
use crate::doors::{Client, Tokens, authenticate, log_access, open_span};
use crate::error::{ErrorKind, InferError};
use crate::refusal::{last_refusal, refusal};
use crate::service::Service;

/// Limits of HTTP requests.
#[derive(Clone, Copy, Debug)]
pub struct HttpOptions {
    /// Largest body, decompressed.
    pub body_bytes: usize,
    /// Longest time until a body has come.
    pub body_time: Duration,
    /// Whether clients may load and unload models.
    pub may_load: bool,
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
        .method_not_allowed_fallback(unknown)
        .with_state(app)
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(panicked))
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn_with_state(
            options.body_bytes,
            limit_length,
        ))
        .layer(middleware::from_fn_with_state(tokens, authenticate))
        .layer(middleware::from_fn(log_access))
        .layer(middleware::from_fn(open_span))
}

/// A defect of a handler ends its request, and no other.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    let error = InferError::new(ErrorKind::Internal, "the server has a defect; see its log");
    refusal(&HeaderMap::new(), &error)
}

fn json_of(value: &Value) -> Response {
    axum::Json(value).into_response()
}

fn answered(headers: &HeaderMap, answer: Result<Value, InferError>) -> Response {
    match answer {
        Ok(value) => json_of(&value),
        Err(error) => refusal(headers, &error),
    }
}

async fn live(State(app): State<App>) -> StatusCode {
    match app.service.has_live_workers() {
        true => StatusCode::OK,
        false => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn ready(State(app): State<App>) -> StatusCode {
    match app.service.is_ready() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn model_ready(
    State(app): State<App>,
    Path(path): Path<ModelPath>,
    Extension(client): Extension<Client>,
) -> StatusCode {
    let model = app.service.model(&path.model, &path.version);
    match client.may_use(&path.model) && model.is_ok() && app.service.is_ready() {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    }
}

async fn model_metadata(
    State(app): State<App>,
    Path(path): Path<ModelPath>,
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
    Path(path): Path<ModelPath>,
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
    Path(path): Path<ModelPath>,
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

/// The JSON of a small body; null if there is none.
async fn json_body(body: Body, time: Duration) -> Result<Value, InferError> {
    let body = bytes(body, 1 << 16, time).await?;
    match body.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(&body).map_err(InferError::invalid),
    }
}

async fn index(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let index = async {
        let asked = json_body(body, app.options.body_time).await?;
        let only_ready = asked["ready"] == Value::Bool(true);
        let mut entries = app.service.models.index()?;
        entries.retain(|entry| client.may_use(&entry.name) && (entry.is_ready || !only_ready));
        Ok(documents::index(&entries))
    };
    answered(&headers, index.await)
}

async fn load(
    State(app): State<App>,
    Path(path): Path<ModelPath>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let loaded = async {
        let asked = json_body(body, app.options.body_time).await?;
        let parameters = asked["parameters"].as_object();
        if parameters.is_some_and(|parameters| !parameters.is_empty()) {
            return Err(InferError::new(
                ErrorKind::Unsupported,
                "a load has no parameters here: models and configurations are those of the \
                 repository",
            ));
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
    Path(path): Path<ModelPath>,
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

async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.service.metrics.text(&app.service.models) {
        Ok(text) => {
            const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, TEXT)], text).into_response()
        }
        Err(why) => refusal(&headers, &InferError::new(ErrorKind::Internal, why)),
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
    let error = match OTHER_EXTENSIONS
        .iter()
        .any(|extension| path.starts_with(extension))
    {
        true => InferError::new(
            ErrorKind::Unsupported,
            "the server has no shared memory, traces and settings of logs",
        ),
        false => InferError::not_found(format!("there is no {} {path:?}", request.method())),
    };
    last_refusal(request.headers(), &error)
}

async fn limit_length(State(most): State<usize>, request: Request, next: Next) -> Response {
    match check_length(request.headers(), most) {
        Ok(()) => next.run(request).await,
        Err(error) => last_refusal(request.headers(), &error),
    }
}
