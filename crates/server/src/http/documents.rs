//! The JSON of metadata, configuration, statistics and the repository.

use serde_json::{Value, json};

use crate::models::{IndexEntry, LoadedModel};
use crate::networks::Port;
use crate::service::{EXTENSIONS, NAME};
use crate::statistics::{Statistics, Total};

pub fn server() -> Value {
    json!({ "name": NAME, "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS })
}

pub fn model(of: &LoadedModel, versions: &[u64]) -> Value {
    let interface = of.network.interface();
    let port = |port: &Port| {
        json!({
            "name": port.name,
            "datatype": port.datatype.name(),
            "shape": port.shape,
        })
    };
    let versions: Vec<String> = versions.iter().map(u64::to_string).collect();
    json!({
        "name": of.name,
        "versions": versions,
        "platform": NAME,
        "inputs": interface.needed().map(port).collect::<Vec<_>>(),
        "outputs": interface.outputs.iter().map(port).collect::<Vec<_>>(),
    })
}

pub fn config(of: &LoadedModel) -> Value {
    let interface = of.network.interface();
    let port = |port: &Port| {
        json!({
            "name": port.name,
            "data_type": port.datatype.config_name(),
            "dims": interface.dims(port),
        })
    };
    let mut config = json!({
        "name": of.name,
        "platform": NAME,
        "backend": NAME,
        "max_batch_size": interface.max_batch,
        "input": interface.needed().map(port).collect::<Vec<_>>(),
        "output": interface.outputs.iter().map(port).collect::<Vec<_>>(),
        "model_transaction_policy": { "decoupled": interface.is_streaming },
    });
    if of.takes_only_sequences {
        let idle = u64::try_from(of.sequences.idle().as_micros()).unwrap_or(u64::MAX);
        config["sequence_batching"] = json!({ "max_sequence_idle_microseconds": idle });
    } else {
        config["dynamic_batching"] = json!({})
    }
    config
}

pub fn statistics(models: &[std::sync::Arc<LoadedModel>]) -> Value {
    let total = |total: &Total| json!({ "count": total.count(), "ns": total.nanoseconds() });
    let of = |of: &Statistics| {
        json!({
            "success": total(&of.success),
            "fail": total(&of.fail),
            "queue": total(&of.queue),
            "compute_input": total(&of.compute_input),
            "compute_infer": total(&of.compute_infer),
            "compute_output": total(&of.compute_output),
            "cache_hit": { "count": 0, "ns": 0 },
            "cache_miss": { "count": 0, "ns": 0 },
        })
    };
    let model = |model: &std::sync::Arc<LoadedModel>| {
        json!({
            "name": model.name,
            "version": model.version.to_string(),
            "last_inference": model.statistics.last_milliseconds(),
            "inference_count": model.statistics.rows(),
            "execution_count": model.batches(),
            "inference_stats": of(&model.statistics),
            "batch_stats": [],
        })
    };
    json!({ "model_stats": models.iter().map(model).collect::<Vec<_>>() })
}

pub fn index(entries: &[IndexEntry]) -> Value {
    let entry = |entry: &IndexEntry| {
        json!({
            "name": entry.name,
            "version": entry.version,
            "state": entry.state(),
            "reason": entry.reason,
        })
    };
    entries.iter().map(entry).collect()
}
