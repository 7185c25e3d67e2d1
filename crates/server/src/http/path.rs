//! The model and the version in a path.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;

use super::routes::App;
use crate::error::InferError;
use crate::refusal::error_response_and_close;

/// See the [module](self).
#[derive(Debug, Deserialize)]
pub struct ModelPath {
    pub model: String,
    /// Empty: the latest.
    #[serde(default)]
    pub version: String,
}

impl FromRequestParts<App> for ModelPath {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<ModelPath, Response> {
        match Path::from_request_parts(parts, app).await {
            Ok(Path(path)) => Ok(path),
            // It is no UTF-8 after its escapes.
            Err(why) => {
                let error =
                    InferError::invalid(format!("the path cannot be read: {}", why.body_text()));
                app.service.metrics.refused(&error);
                Err(error_response_and_close(&parts.headers, &error))
            }
        }
    }
}
