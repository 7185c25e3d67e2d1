//! The status page.

use std::time::Instant;

use axum::extract::{Extension, State};
use axum::response::{Html, IntoResponse, Response};
use serde_json::{Value, json};

use super::routes::App;
use crate::listener::Client;

pub async fn page() -> Html<&'static str> {
    Html(include_str!("page.html"))
}

/// The numbers that the page shows.
pub async fn status(State(app): State<App>, Extension(client): Extension<Client>) -> Response {
    let service = &app.service;
    let models = service.models.all();
    let models = models
        .iter()
        .filter(|model| client.may_use(&model.name))
        .map(|model| {
            let stats = model.model.as_ref().and_then(|model| model.stats());
            let of = |value: &dyn Fn(&gatestream_serve::engine::ModelStats) -> Value| {
                stats.as_ref().map_or(Value::Null, value)
            };
            let minute = model.statistics.recent.minute(Instant::now());
            let percentiles = minute
                .percentiles
                .map(|all| all.map(|time| time.as_micros() as u64));
            json!({
                "name": model.name,
                "version": model.version.to_string(),
                "answered": model.statistics.success.count(),
                "failed": model.statistics.fail.count(),
                "nanoseconds": model.statistics.success.nanoseconds(),
                "sequences": model.sequences.len(),
                // A graph has no engine.
                "unanswered": match &stats {
                    Some(stats) => stats.unanswered as u64,
                    None => model.statistics.unanswered(),
                },
                "ready_rows": of(&|stats| json!(stats.ready)),
                "rows": of(&|stats| json!(stats.cells.iter().map(|cell| cell.rows).sum::<u64>())),
                "batches": model.batches(),
                "last_minute": {
                    "answered": minute.answered,
                    "percentiles_microseconds": percentiles,
                    "failures": minute.failures,
                },
            })
        });
    let models: Vec<Value> = models.collect();
    let failed = service.models.failures().into_iter();
    let failed = failed.filter(|failed| client.may_use(&failed.name));
    let failed = failed.map(|failed| {
        json!({ "name": failed.name, "reason": failed.why, "is_served": failed.is_served })
    });
    let failed: Vec<Value> = failed.collect();
    let workers = service
        .models
        .running_engines()
        .into_iter()
        .flat_map(|(policy, engine)| {
            let workers = engine.stats().workers.into_iter().enumerate();
            workers.map(move |(index, worker)| {
                json!({
                    "policy": policy.to_string(),
                    "worker": index,
                    "cores": worker.cores,
                    "busy_seconds": worker.busy.as_secs_f64(),
                })
            })
        });
    let workers: Vec<Value> = workers.collect();
    axum::Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": service.is_ready(),
        "draining": service.is_draining(),
        "models": models,
        "failed_models": failed,
        "workers": workers,
    }))
    .into_response()
}
