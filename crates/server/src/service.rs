//! The operations of the protocol, independent of its transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tracing::field::{self, Empty};
use tracing::{Instrument, info_span};

use crate::error::{ErrorKind, InferError};
use crate::listener::{Bodies, Client, SPANS};
use crate::metrics::Metrics;
use crate::models::{FailedModel, LoadedModel, Models};
use crate::networks::{Answer, Call, Network};
use crate::sequences::SequenceKey;
use crate::statistics::{RequestTimes, Unanswered};
use crate::wire::{InferRequest, InferResponse, Tensor};

/// The name and the extensions of the protocol that the server has.
pub const NAME: &str = "gatestream";
pub const EXTENSIONS: [&str; 6] = [
    "model_configuration",
    "model_repository",
    "binary_tensor_data",
    "parameters",
    "sequence",
    "statistics",
];

/// See the [module](self).
pub struct Service {
    pub models: Arc<Models>,
    pub bodies: Arc<Bodies>,
    pub metrics: Metrics,
    /// Whether the server is ready only if no model is missing.
    is_strict: bool,
    loaded: AtomicBool,
    draining: AtomicBool,
    unanswered: AtomicU64,
}

/// The model and the times of a request beside its tensors.
pub struct Target<'a> {
    pub model: &'a str,
    /// Empty: the latest.
    pub version: &'a str,
    pub client: Client,
    /// When the whole request had come.
    pub received: Instant,
    /// Time of reading its tensors.
    pub reading: Duration,
    /// The deadline of the transport.
    pub deadline: Option<Instant>,
}

/// A request that runs. If it is dropped without an answer, its client has gone, or it panics.
struct Running<'a> {
    service: &'a Service,
    model: &'a LoadedModel,
    received: Instant,
    is_answered: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let error = if std::thread::panicking() {
                InferError::new(ErrorKind::Internal, "a panic")
            } else {
                InferError::new(ErrorKind::Cancelled, "the client has gone")
            };
            self.service.failed(self.model, &error, self.received);
        }
    }
}

impl Service {
    /// `is_strict`: not ready while a model of the repository is missing because its load failed.
    pub fn new(models: Arc<Models>, bodies: Bodies, is_strict: bool) -> Service {
        Service {
            models,
            bodies: Arc::new(bodies),
            metrics: Metrics::default(),
            is_strict,
            loaded: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            unanswered: AtomicU64::new(0),
        }
    }

    /// All models of the repository have been loaded, or cannot be.
    pub fn loaded(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    /// Refuses new requests and sequences from now on. Open sequences go on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Number of requests that have no answer yet.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Acquire)
    }

    /// Whether the server takes requests.
    pub fn is_ready(&self) -> bool {
        let is_missing = |failed: &FailedModel| !failed.is_served;
        let misses = || self.is_strict && self.models.failures().iter().any(is_missing);
        self.loaded.load(Ordering::Acquire)
            && !self.is_draining()
            && self.has_live_workers()
            && !misses()
    }

    /// Whether all workers live.
    pub fn has_live_workers(&self) -> bool {
        let engines = self.models.running_engines();
        engines
            .iter()
            .all(|(_, engine)| engine.health().workers.iter().all(|w| w.is_alive))
    }

    /// The version of a model.
    ///
    /// # Errors
    /// It is not loaded, or not yet.
    pub fn model(&self, name: &str, version: &str) -> Result<Arc<LoadedModel>, InferError> {
        self.models.find(name, version, None)
    }

    /// Computes a request. Dropping the future cancels it. The steps of a sequence are in the order
    /// in which their futures are first polled, if they are polled
    /// [without a budget](tokio::task::unconstrained).
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn infer(
        &self,
        target: &Target<'_>,
        request: &InferRequest,
        parts: Option<UnboundedSender<Tensor>>,
    ) -> Result<InferResponse, InferError> {
        let _unanswered = Unanswered::of(&self.unanswered);
        let sequence = request.options.sequence.as_ref();
        let key = sequence.map(|step| SequenceKey {
            tenant: target.client.tenant,
            id: step.id.clone(),
        });
        let model = self.models.find(target.model, target.version, key.as_ref());
        let model = match model {
            Ok(model) => model,
            Err(error) => {
                self.metrics.refused(&error);
                return Err(error);
            }
        };
        let span = info_span!(
            target: SPANS,
            "infer",
            model = model.name,
            version = model.version,
            request = request.id,
            sequence = sequence.map(|step| field::display(&step.id)),
            queue_microseconds = Empty,
            compute_microseconds = Empty,
            error = Empty,
        );
        let _unanswered_of_model = model.statistics.begun();
        let mut running = Running {
            service: self,
            model: &model,
            received: target.received,
            is_answered: false,
        };
        let ran = self.run(target, &model, request, parts);
        let ran = ran.instrument(span.clone()).await;
        running.is_answered = true;
        let whole = target.received.elapsed();
        match ran {
            Ok(answer) => {
                span.record("queue_microseconds", microseconds(answer.queueing));
                span.record("compute_microseconds", microseconds(answer.computing));
                let times = RequestTimes {
                    queue: answer.queueing,
                    input: target.reading,
                    infer: answer.computing,
                };
                model.statistics.answered(answer.rows, whole, times);
                self.metrics.answered(&model, whole);
                Ok(InferResponse {
                    id: request.id.clone(),
                    model: model.name.clone(),
                    version: model.version.to_string(),
                    outputs: answer.outputs,
                    is_final: true,
                })
            }
            Err(mut error) => {
                span.record("error", &error.message);
                if error.kind == ErrorKind::Overloaded {
                    error.retry_after = Some(model.statistics.retry_after());
                }
                self.failed(&model, &error, target.received);
                Err(error)
            }
        }
    }

    fn failed(&self, model: &LoadedModel, error: &InferError, received: Instant) {
        model.statistics.failed(error.kind, received.elapsed());
        self.metrics.failed(model, error);
    }

    async fn run(
        &self,
        target: &Target<'_>,
        model: &LoadedModel,
        request: &InferRequest,
        parts: Option<UnboundedSender<Tensor>>,
    ) -> Result<Answer, InferError> {
        let step = request.options.sequence.as_ref();
        if self.is_draining() && step.is_none_or(|step| step.start) {
            let mut error = InferError::new(
                ErrorKind::Unavailable,
                "the server is being stopped; send the request to another one",
            );
            error.retry_after = Some(Duration::from_secs(1));
            return Err(error);
        }
        let timeout = request
            .options
            .timeout
            .map(|timeout| target.received.checked_add(timeout));
        let call = Call {
            priority: request.options.engine_priority(),
            // A timeout that the clock cannot express is none.
            deadline: [timeout.flatten(), target.deadline]
                .into_iter()
                .flatten()
                .min(),
            client: target.client.id,
            tenant: target.client.tenant,
            parts,
        };
        // Before any work on it.
        if call
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now())
        {
            return Err(InferError::late());
        }
        let Some(step) = step else {
            if model.takes_only_sequences {
                return Err(InferError::invalid(format!(
                    "model {:?} takes only requests of sequences: give sequence_id and, at the \
                     first one, sequence_start",
                    model.name
                )));
            }
            return model
                .network
                .run(model.model.as_ref(), request, &call)
                .await;
        };
        let (Network::Stack(network), Some(engine)) = (&model.network, &model.model) else {
            return Err(no_sequences(model));
        };
        if network.interface.has_states {
            model.network.check(request)?;
            model
                .sequences
                .run(network, engine, request, step, &call)
                .await
        } else {
            Err(no_sequences(model))
        }
    }

    /// Loads or unloads a model for a client.
    ///
    /// # Errors
    /// The client may not; there is no such model, or it cannot be loaded.
    pub async fn change_models(
        &self,
        may_load: bool,
        client: &Client,
        model: String,
        loads: bool,
    ) -> Result<(), InferError> {
        if !may_load {
            return Err(InferError::new(
                ErrorKind::Forbidden,
                "models are not loaded by requests; start the server with --model-control",
            ));
        }
        client.check_all_models()?;
        let models = Arc::clone(&self.models);
        let change = move || {
            if loads {
                models.load(&model)
            } else {
                models.unload(&model)
            }
        };
        let changed = tokio::task::spawn_blocking(change).await;
        changed.map_err(|why| InferError::new(ErrorKind::Internal, why))?
    }

    /// Waits until all requests are answered and no sequence is open, at most until `end`.
    pub async fn idle(&self, end: Instant) {
        while (self.unanswered() > 0 || self.models.open_sequences() > 0) && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn no_sequences(model: &LoadedModel) -> InferError {
    InferError::invalid(format!(
        "model {:?} has no states that could be held from one request to the next; send its \
         requests without sequence_id",
        model.name
    ))
}
