//! Sequences whose states the server holds, by their owners and ids.
//!
//! ```text
//! sequence_start       opens a stream of the engine, from `h0` and `c0` if they are given
//! further requests     add their steps to it
//! sequence_end         closes it after the request's steps
//! ```
//!
//! A request holds its sequence's lock until its steps are answered; so requests of one sequence
//! keep their order, and those of others do not wait. One that waits ends at its deadline. As many
//! may wait as the limits allow requests; others have the room of their sequence. The states change
//! by all steps of a request or by none: otherwise (its deadline passes between two of its steps,
//! or the server stops) the sequence ends.
//!
//! An id belongs to the token that started it. For all others it is an id like any that is not
//! open.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gatestream_serve::engine::{self, Step, StepOptions, Stream};
use gatestream_serve::scheduler::{ClientId, Refused};

use crate::error::{ErrorKind, InferError};
use crate::listener::Tenant;
use crate::networks::{Admissions, Answer, Call, Needs, Part, StackNetwork, States, Wanted};
use crate::wire::{InferRequest, SequenceId, SequenceStep};

/// Limits of the sequences of a model.
#[derive(Clone, Debug)]
pub struct SequenceLimits {
    pub idle: Duration,
    pub per_client: usize,
    /// Of requests that wait for another one of their sequence.
    pub waiting: Admissions,
}

/// The open sequences of a version of a model.
pub struct Sequences {
    limits: SequenceLimits,
    all: Mutex<Table>,
}

/// Names a sequence of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SequenceKey {
    pub tenant: Tenant,
    pub id: SequenceId,
}

#[derive(Default)]
struct Table {
    open: HashMap<SequenceKey, Arc<Sequence>>,
    by_client: HashMap<ClientId, usize>,
    ended: HashMap<Tenant, Ended>,
    expired: u64,
}

/// The sequences of a tenant that ended otherwise than by their last request.
#[derive(Default)]
struct Ended {
    /// The oldest first.
    ids: VecDeque<SequenceId>,
    reasons: HashMap<SequenceId, String>,
}

/// Ends of a tenant that are remembered.
const REMEMBERED: usize = 4096;

struct Sequence {
    client: ClientId,
    last_used: Mutex<Instant>,
    stream: Arc<tokio::sync::Mutex<Open>>,
}

/// The stream of a sequence, held by one request at a time.
struct Open {
    /// `None`: the sequence has ended.
    stream: Option<Stream>,
    /// Whether a request has added a part of its steps; true for ever if it was dropped then.
    is_partial: bool,
}

type Held = tokio::sync::OwnedMutexGuard<Open>;

impl Table {
    fn remove(&mut self, key: &SequenceKey) -> Option<Arc<Sequence>> {
        let removed = self.open.remove(key)?;
        if let Some(count) = self.by_client.get_mut(&removed.client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&removed.client);
            }
        }
        Some(removed)
    }

    /// Remembers why a sequence has ended.
    fn ended(&mut self, key: SequenceKey, why: String) {
        let ended = self.ended.entry(key.tenant).or_default();
        if ended.ids.len() >= REMEMBERED
            && let Some(oldest) = ended.ids.pop_front()
        {
            ended.reasons.remove(&oldest);
        }
        ended.ids.push_back(key.id.clone());
        ended.reasons.insert(key.id, why);
    }

    fn reason(&self, key: &SequenceKey) -> Option<&String> {
        self.ended.get(&key.tenant)?.reasons.get(&key.id)
    }
}

impl Sequences {
    pub fn new(limits: SequenceLimits) -> Sequences {
        Sequences {
            limits,
            all: Mutex::default(),
        }
    }

    /// A sequence ends so long after its last request.
    pub fn idle(&self) -> Duration {
        self.limits.idle
    }

    /// Number of open sequences.
    pub fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// Number of sequences that ended because no request came.
    pub fn expired(&self) -> u64 {
        self.lock().expired
    }

    /// Whether a sequence is open.
    pub fn has(&self, key: &SequenceKey) -> bool {
        self.lock().open.contains_key(key)
    }

    /// Ends all sequences.
    pub fn end_all(&self, why: &str) {
        let mut table = self.lock();
        let keys: Vec<SequenceKey> = table.open.keys().cloned().collect();
        for key in keys {
            table.remove(&key);
            table.ended(key, why.to_owned());
        }
    }

    /// Ends the sequences that have had no request for too long.
    pub fn expire(&self, now: Instant) {
        let idle = self.limits.idle;
        let mut table = self.lock();
        let ends = |sequence: &Sequence| {
            let is_idle = now.saturating_duration_since(*lock(&sequence.last_used)) > idle;
            // A request that holds the lock is using it; one that waits for it finds no stream.
            match sequence.stream.try_lock() {
                Ok(mut open) if is_idle => open.stream.take().is_some(),
                _ => false,
            }
        };
        let keys: Vec<SequenceKey> = { table.open.iter() }
            .filter(|(_, sequence)| ends(sequence))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            table.remove(&key);
            let seconds = idle.as_secs_f64();
            table.ended(key, format!("no request came for {seconds} s"));
            table.expired += 1;
        }
    }

    /// Runs the steps of a request.
    ///
    /// # Errors
    /// The sequence is not open, or is open already at its start; the steps do not fit, were
    /// refused, or ended without an answer.
    pub async fn run(
        &self,
        network: &StackNetwork,
        model: &engine::Model,
        request: &InferRequest,
        step: &SequenceStep,
        call: &Call,
    ) -> Result<Answer, InferError> {
        let Part { xs, count, initial } = network.sequence(request)?;
        if initial.is_some() && !step.start {
            return Err(InferError::invalid(
                "initial states are given with sequence_start; later steps go on from the server's",
            ));
        }
        let key = SequenceKey {
            tenant: call.tenant,
            id: step.id.clone(),
        };
        let (sequence, mut held) = if step.start {
            let states = initial.as_deref();
            self.open(&key, call, || Ok(model.stream(network.cell(), states)?))?
        } else {
            let sequence = self.find(&key)?;
            let held = self.hold(&sequence, request, call).await?;
            (sequence, held)
        };
        if held.is_partial {
            let why = "a client has gone amid the steps of a request";
            self.end(&key, &mut held, why);
        }
        let begun = Instant::now();
        let wants = Wanted::of(request);
        let mut answers = Answers::new(wants.output);
        let steps = xs.chunks_exact(network.features().max(1)).take(count);
        let ran = self.steps(&key, &mut held, steps, call, &mut answers);
        if let Err(error) = ran.await {
            let is_partial = answers.taken > 0 || (1..count).contains(&answers.added);
            if is_partial {
                let why = format!("amid the steps of a request: {error}");
                self.end(&key, &mut held, &why);
            } else if step.start {
                // As if it had not begun.
                held.stream = None;
                self.lock().remove(&key);
            }
            return Err(error);
        }
        let mut states = States::default();
        if let Some(stream) = &held.stream
            && wants.states
        {
            states = network.split(&stream.state());
        }
        if step.end
            && let Some(stream) = held.stream.take()
        {
            self.lock().remove(&key);
            stream.close().await?;
        }
        *lock(&sequence.last_used) = Instant::now();
        Ok(Answer {
            outputs: network.outputs(request, 1, count, answers.y, states),
            rows: 1,
            queueing: Duration::ZERO,
            computing: begun.elapsed(),
        })
    }

    /// Adds the steps of a request and takes all their answers.
    async fn steps(
        &self,
        key: &SequenceKey,
        held: &mut Held,
        steps: impl Iterator<Item = &[f32]>,
        call: &Call,
        answers: &mut Answers,
    ) -> Result<(), InferError> {
        let options = StepOptions {
            priority: call.priority,
            deadline: call.deadline,
        };
        for x in steps {
            if answers.waiting.len() == Stream::AHEAD {
                held.is_partial = true;
                answers.take_one().await?;
            }
            let ended = || self.end_error(key);
            let stream = held.stream.as_mut().ok_or_else(ended)?;
            answers.waiting.push_back(stream.push_with(x, options)?);
            answers.added += 1;
        }
        held.is_partial = false;
        while !answers.waiting.is_empty() {
            answers.take_one().await?;
        }
        Ok(())
    }

    /// Ends a sequence that cannot go on.
    fn end(&self, key: &SequenceKey, held: &mut Held, why: &str) {
        held.stream = None;
        held.is_partial = false;
        let mut table = self.lock();
        if table.remove(key).is_some() {
            table.ended(key.clone(), why.to_owned());
        }
    }

    /// Opens a sequence.
    fn open(
        &self,
        key: &SequenceKey,
        call: &Call,
        stream: impl FnOnce() -> Result<Stream, InferError>,
    ) -> Result<(Arc<Sequence>, Held), InferError> {
        let mut table = self.lock();
        if table.open.contains_key(key) {
            let id = &key.id;
            return Err(InferError::new(
                ErrorKind::Exists,
                format!("sequence {id} is open; end it with sequence_end, or take another id"),
            ));
        }
        let most = self.limits.per_client;
        let count = table.by_client.get(&call.client).copied().unwrap_or(0);
        if count >= most {
            return Err(InferError::new(
                ErrorKind::Overloaded,
                format!("overloaded: {count} sequences of {most} of this client are open"),
            ));
        }
        let open = Open {
            stream: Some(stream()?),
            is_partial: false,
        };
        let sequence = Arc::new(Sequence {
            client: call.client,
            last_used: Mutex::new(Instant::now()),
            stream: Arc::new(tokio::sync::Mutex::new(open)),
        });
        // Nobody else has it yet.
        let held = Arc::clone(&sequence.stream).try_lock_owned();
        let held = held.map_err(|why| InferError::new(ErrorKind::Internal, why))?;
        *table.by_client.entry(call.client).or_default() += 1;
        if let Some(ended) = table.ended.get_mut(&key.tenant) {
            ended.reasons.remove(&key.id);
        }
        table.open.insert(key.clone(), Arc::clone(&sequence));
        Ok((sequence, held))
    }

    /// Waits for the requests before.
    async fn hold(
        &self,
        sequence: &Sequence,
        request: &InferRequest,
        call: &Call,
    ) -> Result<Held, InferError> {
        let stream = Arc::clone(&sequence.stream);
        if let Ok(held) = Arc::clone(&stream).try_lock_owned() {
            return Ok(held);
        }
        let needs = Needs {
            client: call.client,
            // Those of a sequence have room.
            nodes: 0,
            bytes: request.bytes(),
        };
        // Also a large request may pass later: one that does not wait needs no bytes here.
        let overloaded = |why: Refused| {
            let reason = why.reason();
            let message = format!(
                "overloaded: too many {reason} wait for requests of their sequences; send it again \
                 after the answer to the request before"
            );
            InferError::new(ErrorKind::Overloaded, message)
        };
        let _admitted = self.limits.waiting.admit(needs).map_err(overloaded)?;
        call.in_time(async { Ok(stream.lock_owned().await) }).await
    }

    fn find(&self, key: &SequenceKey) -> Result<Arc<Sequence>, InferError> {
        let found = self.lock().open.get(key).cloned();
        found.ok_or_else(|| self.end_error(key))
    }

    /// Why a sequence is not open.
    fn end_error(&self, key: &SequenceKey) -> InferError {
        let id = &key.id;
        match self.lock().reason(key) {
            Some(why) => InferError::not_found(format!(
                "sequence {id} has ended: {why}; begin again with sequence_start"
            )),
            None => InferError::not_found(format!(
                "sequence {id} is not open: its first request must specify the START flag \
                 (sequence_start)"
            )),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.all)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answers of a request's steps, in order.
struct Answers {
    waiting: VecDeque<Step>,
    /// Steps that the stream has.
    added: usize,
    /// Those of them whose answers have come.
    taken: usize,
    keeps: bool,
    y: Vec<f32>,
}

impl Answers {
    fn new(keeps: bool) -> Answers {
        Answers {
            waiting: VecDeque::new(),
            added: 0,
            taken: 0,
            keeps,
            y: Vec::new(),
        }
    }

    async fn take_one(&mut self) -> Result<(), InferError> {
        if let Some(step) = self.waiting.pop_front() {
            let y = step.await?;
            self.taken += 1;
            if self.keeps {
                self.y.extend_from_slice(&y);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use gatestream_serve::engine::EngineOptions;
    use gatestream_serve::scheduler::{LimitOf, Limits};

    use crate::in_process::repository;
    use crate::listener::Client;
    use crate::models::Models;
    use crate::networks::{Admission, Network};
    use crate::repository::Repository;
    use crate::wire::{Data, Tensor};

    #[test]
    fn a_request_that_waits_has_a_deadline_and_limits() {
        let folder = repository();
        let repository = Repository::open(folder.path()).expect("a repository");
        let models = Models::new(repository, EngineOptions::default());
        models.load("speech").expect("loaded");
        let model = models.find("speech", "", None).expect("a model");
        let Network::Stack(network) = &model.network else {
            panic!("a stack");
        };
        let engine = model.model.as_ref().expect("cells");
        let request = InferRequest {
            inputs: vec![Tensor {
                name: "input".into(),
                shape: vec![1, 1, 2],
                data: Data::F32(vec![0.5; 2]),
            }],
            ..InferRequest::default()
        };
        let one = Limits {
            requests: 1,
            ..Limits::NONE
        };
        // Less than those of the request, which may pass later all the same.
        let few_bytes = Limits {
            bytes: 4,
            ..Limits::NONE
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        for (limits, of_first) in [(one, ErrorKind::Late), (few_bytes, ErrorKind::Overloaded)] {
            let of_all = Admission::new(Limits::NONE, LimitOf::Engine);
            let sequences = Sequences::new(SequenceLimits {
                idle: Duration::from_secs(60),
                per_client: 1,
                waiting: Admissions::new(limits, &of_all),
            });
            let id = SequenceId::Number(1);
            let send = |start, deadline| {
                let call = Call {
                    deadline,
                    ..Call::of_client(&Client::server())
                };
                let (id, end) = (id.clone(), false);
                let step = SequenceStep { id, start, end };
                let (sequences, request) = (&sequences, &request);
                async move {
                    let ran = sequences.run(network, engine, request, &step, &call);
                    ran.await.map(drop).map_err(|error| error.kind)
                }
            };
            runtime.block_on(async {
                assert_eq!(send(true, None).await, Ok(()));
                let sequence = sequences.lock().open.values().next().cloned();
                let stream = Arc::clone(&sequence.expect("open").stream);
                let held = stream.lock_owned().await;
                let soon = Instant::now() + Duration::from_millis(200);
                let long = tokio::time::timeout(Duration::from_secs(60), send(false, Some(soon)));
                // Both are polled at once; the second has no room.
                let (first, refused) = tokio::join!(long, send(false, None));
                assert_eq!(first.expect("it ends"), Err(of_first));
                assert_eq!(refused, Err(ErrorKind::Overloaded));
                drop(held);
                assert_eq!(send(false, None).await, Ok(()));
            });
        }
    }
}
