//! Metrics for Prometheus.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use gatestream_network::PlanStats;
use gatestream_serve::engine::ModelStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::error::InferError;
use crate::listener::{Bodies, Client};
use crate::models::{LoadedModel, Models};
use crate::networks::Network;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ModelLabels {
    model: String,
    version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct FailureLabels {
    model: String,
    version: String,
    reason: &'static str,
}

/// Metrics by their labels. Clones share them.
type ByLabels<L, M> = Arc<RwLock<BTreeMap<L, M>>>;

/// Counts of requests. Clones share them.
#[derive(Clone, Default)]
pub struct Metrics {
    latency: ByLabels<ModelLabels, Histogram>,
    failures: ByLabels<FailureLabels, Counter>,
}

/// The metric of these labels.
fn metric<L: Ord, M: Clone>(all: &ByLabels<L, M>, labels: L, new: impl FnOnce() -> M) -> M {
    let found = all.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = found.get(&labels) {
        return found.clone();
    }
    drop(found);
    let mut all = all.write().unwrap_or_else(PoisonError::into_inner);
    all.entry(labels).or_insert_with(new).clone()
}

/// Upper bounds in seconds.
fn histogram() -> Histogram {
    Histogram::new([
        0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
    ])
}

impl Metrics {
    /// A request was answered.
    pub fn answered(&self, model: &LoadedModel, time: Duration) {
        metric(&self.latency, labels(model), histogram).observe(time.as_secs_f64());
    }

    /// A request of a loaded model ended with an error.
    pub fn failed(&self, model: &LoadedModel, error: &InferError) {
        let ModelLabels { model, version } = labels(model);
        self.count(model, version, error);
    }

    /// A request had an error before it was read and its model found. Names that clients invent are
    /// no labels.
    pub fn refused(&self, error: &InferError) {
        self.count(String::new(), String::new(), error);
    }

    fn count(&self, model: String, version: String, error: &InferError) {
        let labels = FailureLabels {
            model,
            version,
            reason: error.kind.answer().name,
        };
        metric(&self.failures, labels, Counter::default).inc();
    }

    /// The text of the metrics that a client may see: those of its models and of the workers.
    ///
    /// # Errors
    /// None is known.
    pub fn text(
        &self,
        models: &Arc<Models>,
        bodies: &Arc<Bodies>,
        client: &Client,
    ) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("gatestream");
        registry.register_collector(Box::new(Visible {
            latency: Arc::clone(&self.latency),
            failures: Arc::clone(&self.failures),
            models: Arc::clone(models),
            client: client.clone(),
        }));
        registry.register_collector(Box::new(Receiving(Arc::clone(bodies))));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

fn labels(model: &LoadedModel) -> ModelLabels {
    ModelLabels {
        model: model.name.clone(),
        version: model.version.to_string(),
    }
}

/// The bodies that are being received.
#[derive(Debug)]
struct Receiving(Arc<Bodies>);

impl Collector for Receiving {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let value = |labels, value: f64| Value { labels, value };
        family(
            &mut encoder,
            "receiving_bytes",
            "Bytes of the bodies that are being received",
            vec![value(Vec::new(), self.0.bytes() as f64)],
            ConstGauge::new,
        )?;
        let refused =
            |reason: &str, count: u64| value(vec![("reason", reason.to_owned())], count as f64);
        family(
            &mut encoder,
            "refused_bodies",
            "Bodies that did not come in time, or for which there was no room",
            vec![
                refused("slow", self.0.slow()),
                refused("overloaded", self.0.overloaded()),
            ],
            ConstCounter::new,
        )
    }
}

/// The metrics of a client's models, and the state of the engines at the time of the call.
struct Visible {
    latency: ByLabels<ModelLabels, Histogram>,
    failures: ByLabels<FailureLabels, Counter>,
    models: Arc<Models>,
    client: Client,
}

impl std::fmt::Debug for Visible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Visible")
    }
}

impl Visible {
    /// The counts of requests. Those of models that were not found are of all clients.
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let latency = self.latency.read();
        let latency = latency.unwrap_or_else(PoisonError::into_inner);
        let help = "Time from the receipt of a request to its answer";
        let kind = histogram().metric_type();
        let mut family = encoder.encode_descriptor("request_seconds", help, None, kind)?;
        for (labels, value) in latency.iter() {
            if self.client.may_use(&labels.model) {
                value.encode(family.encode_family(labels)?)?;
            }
        }
        let failures = self.failures.read();
        let failures = failures.unwrap_or_else(PoisonError::into_inner);
        let help = "Requests that ended with an error";
        let kind = Counter::<u64>::default().metric_type();
        let mut family = encoder.encode_descriptor("failed_requests", help, None, kind)?;
        for (labels, value) in failures.iter() {
            if self.client.may_use(&labels.model) {
                value.encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

/// A number of a model or a worker.
struct Value {
    labels: Vec<(&'static str, String)>,
    value: f64,
}

impl Collector for Visible {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.requests(&mut encoder)?;
        let models: Vec<(Arc<LoadedModel>, Option<ModelStats>)> = { self.models.all().into_iter() }
            .filter(|model| self.client.may_use(&model.name))
            .map(|model| {
                let stats = model.model.as_ref().and_then(|model| model.stats());
                (model, stats)
            })
            .collect();
        let of_models = |value: &dyn Fn(&LoadedModel, Option<&ModelStats>) -> Option<f64>| {
            let values = models.iter().filter_map(|(model, stats)| {
                Some(Value {
                    value: value(model, stats.as_ref())?,
                    labels: vec![
                        ("model", model.name.clone()),
                        ("version", model.version.to_string()),
                    ],
                })
            });
            values.collect::<Vec<Value>>()
        };
        let of_plans = |value: fn(&PlanStats) -> f64| {
            of_models(&|model, _| match &model.network {
                Network::Graph(graph) => Some(value(&graph.plans())),
                _ => None,
            })
        };
        // A graph has no cells.
        let of_stats =
            |value: fn(&ModelStats) -> u64| of_models(&|_, stats| Some(value(stats?) as f64));
        let (mut busy, mut alive) = (Vec::new(), Vec::new());
        for (policy, engine) in self.models.running_engines() {
            let (stats, health) = (engine.stats(), engine.health());
            for (index, (worker, health)) in stats.workers.iter().zip(&health.workers).enumerate() {
                let value = |value: f64| Value {
                    labels: vec![
                        ("policy", policy.to_string()),
                        ("worker", index.to_string()),
                    ],
                    value,
                };
                busy.push(value(worker.busy.as_secs_f64()));
                alive.push(value(f64::from(u8::from(health.is_alive))));
            }
        }
        let failed = self.models.failures().into_iter();
        let failed = failed.filter(|failed| self.client.may_use(&failed.name));
        let failed = failed.map(|failed| Value {
            labels: vec![("model", failed.name)],
            value: 1.0,
        });
        let failed = failed.collect();
        let mut gauges =
            |name, help, values| family(&mut encoder, name, help, values, ConstGauge::new);
        gauges(
            "open_sequences",
            "Open sequences",
            of_models(&|model, _| Some(model.sequences.len() as f64)),
        )?;
        gauges(
            "unanswered_requests",
            "Accepted requests without an answer",
            of_stats(|stats| stats.unanswered as u64),
        )?;
        gauges(
            "ready_rows",
            "Rows that wait for a worker",
            of_stats(|stats| stats.ready as u64),
        )?;
        gauges(
            "kept_plans",
            "Plans of a graph for shapes of inputs",
            of_plans(|plans| plans.kept as f64),
        )?;
        gauges(
            "kept_plan_bytes",
            "Bytes of these plans, apart from the constants of the file",
            of_plans(|plans| plans.bytes as f64),
        )?;
        gauges("failed_loads", "Models whose last load has failed", failed)?;
        gauges("worker_alive", "Whether the worker runs", alive)?;
        let mut counters =
            |name, help, values| family(&mut encoder, name, help, values, ConstCounter::new);
        counters(
            "expired_sequences",
            "Sequences that ended because no request came",
            of_models(&|model, _| Some(model.sequences.expired() as f64)),
        )?;
        counters(
            "computed_rows",
            "Rows of batches",
            of_stats(|stats| stats.cells.iter().map(|cell| cell.rows).sum()),
        )?;
        counters(
            "batches",
            "Batches of cells",
            of_stats(|stats| stats.cells.iter().flat_map(|cell| &cell.batches).sum()),
        )?;
        counters(
            "made_plans",
            "Plans that were made for shapes of inputs",
            of_plans(|plans| plans.made as f64),
        )?;
        counters(
            "evicted_plans",
            "Plans that were given up for others",
            of_plans(|plans| plans.evicted as f64),
        )?;
        counters("worker_busy_seconds", "Time of batches", busy)
    }
}

/// A metric with these values.
fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Vec<Value>,
    metric: fn(f64) -> M,
) -> Result<(), std::fmt::Error> {
    let kind = metric(0.0).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for Value { labels, value } in values {
        metric(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
