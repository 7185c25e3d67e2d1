//! The engine: accepts requests and ends each exactly once.
//!
//! An [`Engine`] owns the threads of its workers. Any thread may submit a request; the response
//! comes through a [`Ticket`] (wait for it or `.await` it) or a callback. No async runtime is
//! needed, and any works.

mod admission;
mod answer;
mod calibrate;
mod error;
mod health;
#[cfg(all(test, loom))]
mod loom_tests;
mod model;
mod models;
mod options;
mod parts;
mod prepare;
mod replies;
mod shared;
mod stats;
mod stream;
mod ticket;
mod waiting;
mod waiting_line;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use calibrate::{Calibration, calibrate};
pub use error::{EngineError, SubmitAllError, SubmitError};
pub use health::{Activity, Health, WorkerHealth};
pub use model::{Model, ModelOptions};
pub use options::{EngineOptions, Workers};
pub use stats::{CellStats, ModelStats, Stats, Times, WorkerStats};
pub use stream::{Step, StepOptions, Stream, StreamError};
pub use ticket::{RequestId, ResponseFuture, Ticket};
pub use waiting::Submitting;

use super::cell_graph::{CellId, Cells, DynamicGraph, Graph};
use super::error::RequestError;
use super::scheduler::{ClientId, Policy, Requirements, Scheduler, Timing, WorkerId};
use super::worker::Worker;
use answer::AnswerSender;
use gatestream::execute::team::{Cores, SharedTeam, Team, TeamWarning, without_pin};
use parts::{PartCallback, Parts};
use prepare::{ModelSetup, TaskLimits, prepare_all};
use replies::{Callback, Job};
use shared::Shared;

/// A graph to compute, with its priority and its deadline.
pub struct Request {
    graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
    on_part: Option<PartCallback>,
    requirements: Requirements,
}

impl Request {
    /// A request with priority 0 and no deadline.
    pub fn new(graph: Graph) -> Request {
        Request {
            graph,
            grow: None,
            on_part: None,
            requirements: Requirements::default(),
        }
    }

    /// Sets the [`DynamicGraph`], called when a watched node of the graph has been computed.
    pub fn grow(mut self, grow: impl DynamicGraph + 'static) -> Request {
        self.grow = Some(Box::new(grow));
        self
    }

    /// Calls `part` with each of the parts that the request's [`DynamicGraph`] sends
    /// ([`Growth::part`](crate::cell_graph::Growth::part)), in order, as soon as they are computed:
    /// the symbols of a decoder one by one. The calls run where callbacks do
    /// ([`Model::submit_with`]). The answer or the error comes after the last one has returned,
    /// also that of a ticket. After a panic it is not called again; the answer is not lost.
    ///
    /// Parts that are not delivered are kept, and count for no limit.
    ///
    /// ```
    /// # use gatestream_serve::cell_graph::{DynamicGraph, Graph};
    /// # use gatestream_serve::engine::Request;
    /// # fn request(graph: Graph, decoding: impl DynamicGraph + 'static) -> Request {
    /// // `Seq2Seq::unfold` returns both.
    /// let request = Request::new(graph).grow(decoding);
    /// request.on_part(|symbol| print!("{} ", symbol[0]))
    /// # }
    /// ```
    pub fn on_part(mut self, part: impl FnMut(&[f32]) + Send + 'static) -> Request {
        self.on_part = Some(Box::new(part));
        self
    }

    /// Sets the priority: if more nodes of a cell are ready than a batch has rows, those of
    /// requests with a higher priority run first. The priority has no influence on the choice of
    /// the cell ([`Cells`]).
    pub fn priority(mut self, priority: u8) -> Request {
        self.requirements.priority = priority;
        self
    }

    /// Sets the deadline. After it, no batch with the request starts, and the request ends with
    /// [`RequestError::Late`]; if its last batch is running, it may still complete.
    pub fn deadline(mut self, deadline: Instant) -> Request {
        self.requirements.deadline = Some(deadline);
        self
    }

    /// Sets the client that the request counts for, a number of the user's choice. The requests of
    /// each are bounded by
    /// [`Limits::client_requests`](crate::scheduler::Limits::client_requests).
    pub fn client(mut self, client: ClientId) -> Request {
        self.requirements.client = Some(client);
        self
    }
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The values that were added to the graph's answer, in that order.
    pub values: Vec<f32>,
    /// Times of queueing and of computing.
    pub timing: Timing,
}

/// The receiver of a response.
pub(super) enum Reply {
    Ticket(AnswerSender<Response>),
    Call(Callback),
    /// The stream, and the number of its segment.
    Segment(Arc<stream::Inner>, u64),
    /// After the parts.
    AfterParts(Arc<Parts>, Box<Reply>),
}

impl Reply {
    /// Sends the response, except for calls of users' code, which are added to `jobs`.
    fn send(self, answer: Result<Response, RequestError>, jobs: &mut Vec<Job>) {
        match self {
            Reply::Ticket(sender) => jobs.extend(sender.send(answer).map(Job::Wake)),
            Reply::Call(call) => jobs.push(Job::Call(call, answer)),
            Reply::Segment(stream, number) => stream.segment_ended(number, answer, jobs),
            Reply::AfterParts(parts, reply) => jobs.push(parts.end(*reply, answer)),
        }
    }
}

/// See the [module](self). Dropping it ends all requests with [`RequestError::ShutDown`].
pub struct Engine {
    shared: Arc<Shared>,
    /// The first model.
    model: Model,
    step_limits: TaskLimits,
    /// By worker.
    teams: Vec<SharedTeam>,
    threads: Vec<JoinHandle<()>>,
    /// The reply thread.
    replies: Option<JoinHandle<()>>,
    warnings: Vec<TeamWarning>,
}

/// The model of [`Engine::start`].
fn first_model(options: &EngineOptions) -> ModelOptions {
    ModelOptions {
        sizes: options.sizes.clone(),
        ..ModelOptions::default()
    }
}

impl Engine {
    /// Starts the workers, and adds a model of these cells, of weight 1. Each worker packs the
    /// weights of all cells on its cores.
    ///
    /// # Errors
    /// [`EngineError`]; all threads that were started have ended.
    pub fn start(cells: Cells, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::start_with(cells, options, &first_model(options))
    }

    /// As [`Engine::start`], with these options of the first model, its batch sizes included.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with(
        cells: Cells,
        options: &EngineOptions,
        model: &ModelOptions,
    ) -> Result<Engine, EngineError> {
        Engine::new(cells, options, model, |workers| {
            options.policy.build(workers, options.batch_steps)
        })
    }

    /// As [`Engine::start`], with a policy of the user instead of [`EngineOptions::policy`].
    /// `policy` builds it for the number of workers. It gets the costs of the cells by
    /// [`Policy::add_model`]; [`CellCost::rows`](crate::cell_graph::CellCost::rows) are
    /// [`EngineOptions::sizes`] if these are set. A batch has at most [`Policy::max_steps`] steps,
    /// or [`EngineOptions::steps_at_once`] if the policy has none.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn with_policy(
        cells: Cells,
        options: &EngineOptions,
        policy: impl FnOnce(usize) -> Box<dyn Policy>,
    ) -> Result<Engine, EngineError> {
        Engine::new(cells, options, &first_model(options), policy)
    }

    fn new(
        cells: Cells,
        options: &EngineOptions,
        model: &ModelOptions,
        policy: impl FnOnce(usize) -> Box<dyn Policy>,
    ) -> Result<Engine, EngineError> {
        options.check()?;
        let cores = options.workers.take();
        let cores = cores.map_err(|why| EngineError::Team { worker: 0, why })?;
        let workers = cores.len();
        if cores.is_empty() || cores.iter().any(|cores| cores.list().is_empty()) {
            return Err(EngineError::NoWorker);
        }
        let policy = policy(workers);
        let step_limits = TaskLimits::new(&*policy, options)?;
        let prepared = ModelSetup::new(cells, &model.sizes, step_limits)?;
        let tasks = options.tasks_at_once;
        let scheduler = Scheduler::new(policy, workers, tasks, options.limits);
        let mut shared = Shared::new(scheduler, workers);
        // A time of 0 would keep the reply thread busy beside a step.
        let at_least = |idle: Duration| idle.max(Duration::from_millis(1));
        shared.idle_streams = options.idle_streams.map(at_least);
        let shared = Arc::new(shared);
        let name: Arc<str> = model.name.as_str().into();
        let first = (shared.lock()).add_model(&name, &prepared, model.share())?;
        let mut engine = Engine {
            model: Model::new(&shared, Arc::clone(&first), &name),
            shared,
            step_limits,
            teams: Vec::new(),
            threads: Vec::new(),
            replies: None,
            warnings: Vec::new(),
        };
        if options.reply_thread || options.idle_streams.is_some() {
            engine.start_replies(options.reply_thread)?;
        }
        let (ready, readies) = mpsc::channel();
        let prepared = Arc::new(prepared);
        for (index, cores) in cores.into_iter().enumerate() {
            let (shared, ready) = (Arc::clone(&engine.shared), ready.clone());
            let (prepared, first) = (Arc::clone(&prepared), first.first);
            let thread = std::thread::Builder::new()
                .name(format!("gatestream-worker-{index}"))
                .spawn(move || match team(index, cores) {
                    Ok((team, stats, warnings)) => {
                        shared.lock().workers[index].stats = stats;
                        let mut worker = Worker::new(team.threads());
                        match prepared.on(index, &team) {
                            Ok(runners) => worker.insert(first, runners),
                            Err(why) => return drop(ready.send((index, Err(why)))),
                        }
                        let _ = ready.send((index, Ok((team, warnings))));
                        drop((ready, prepared));
                        let serve = || shared.serve(WorkerId(index), worker);
                        // Panics of cells and of users' functions are caught at the call: this
                        // one is a bug of this crate. Requests must not wait for ever.
                        if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                            shared.stop();
                        }
                        shared.lock().workers[index].is_alive = false;
                    }
                    Err(why) => drop(ready.send((index, Err(why)))),
                })
                // Dropping the engine stops the workers that have started.
                .map_err(|why| EngineError::Spawn { worker: index, why })?;
            engine.threads.push(thread);
        }
        drop(ready);
        let mut teams: Vec<Option<SharedTeam>> = vec![None; workers];
        for _ in 0..workers {
            match readies.recv() {
                Ok((index, ready)) => {
                    let (team, warnings) = ready?;
                    engine.warnings.extend(warnings);
                    teams[index] = Some(team);
                }
                // All senders are gone: a worker panicked.
                Err(_) => {
                    let worker = teams.iter().position(Option::is_none).unwrap_or(0);
                    return Err(EngineError::Panicked { worker });
                }
            }
        }
        engine.teams = teams.into_iter().flatten().collect();
        Ok(engine)
    }

    fn start_replies(&mut self, runs_jobs: bool) -> Result<(), EngineError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("gatestream-replies".into());
        // The caller may be pinned by a team.
        let thread = without_pin(|| thread.spawn(move || shared.deliver()));
        self.replies = Some(thread.map_err(|why| EngineError::SpawnReplies { why })?);
        if runs_jobs {
            self.shared.begin_replies();
        }
        Ok(())
    }

    /// Adds a model while the engine runs. Its weights are packed on a thread for each worker;
    /// requests of other models go on meanwhile, except that a batch waits while a cell is packed
    /// on the team of its worker. The model is there for all workers when this returns.
    ///
    /// A model is replaced without a lost request: add the new one, submit to it, and remove the
    /// old one, which answers all that it has accepted.
    ///
    /// ```
    /// # use gatestream::model::Lstm;
    /// # use gatestream_serve::Engine;
    /// # use gatestream_serve::cell_graph::Cells;
    /// # use gatestream_serve::engine::{EngineOptions, ModelOptions, Request};
    /// # use gatestream_serve::networks::{Chain, ChainCell, Outputs};
    /// let chain = |seed| {
    ///     let mut cells = Cells::new();
    ///     let chain = Chain::add(&mut cells, ChainCell::new(Lstm::new(2, 8).random(seed)?)?);
    ///     Ok::<_, Box<dyn std::error::Error>>((cells, chain))
    /// };
    /// let (cells, first) = chain(1)?;
    /// let engine = Engine::start(cells, &EngineOptions::default())?;
    /// let request = |chain: &Chain| {
    ///     let graph = chain.unfold(&[0.1, 0.2, 0.3, 0.4], None, Outputs::Last)?;
    ///     Ok::<_, Box<dyn std::error::Error>>(Request::new(graph))
    /// };
    /// let old = engine.model();
    /// let accepted = old.submit(request(&first)?)?;
    ///
    /// let (cells, second) = chain(2)?;
    /// let new = engine.add_model(cells, &ModelOptions::default())?;
    /// old.remove();
    /// assert_ne!(accepted.wait()?.values, new.submit(request(&second)?)?.wait()?.values);
    /// assert!(old.submit(request(&first)?).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`EngineError`]; the engine is as it was before.
    pub fn add_model(&self, cells: Cells, options: &ModelOptions) -> Result<Model, EngineError> {
        if self.shared.made_in.is_forked() {
            return Err(EngineError::Stopped);
        }
        let prepared = ModelSetup::new(cells, &options.sizes, self.step_limits)?;
        let runners = prepare_all(&prepared, &self.teams)?;
        let name: Arc<str> = options.name.as_str().into();
        let added = (self.shared).add_model(&name, &prepared, options.share(), runners)?;
        Ok(Model::new(&self.shared, added, &name))
    }

    /// The first model, that of [`Engine::start`]; [`Engine::submit`], [`Engine::stream`] and
    /// [`Engine::cells`] use it.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Conditions found at the start that slow workers down.
    pub fn warnings(&self) -> &[TeamWarning] {
        &self.warnings
    }

    /// [`Model::submit`] of the first model.
    ///
    /// # Errors
    /// As [`Model::submit`].
    pub fn submit(&self, request: Request) -> Result<Ticket, SubmitError> {
        self.model.submit(request)
    }

    /// [`Model::submit_wait`] of the first model.
    ///
    /// # Errors
    /// As [`Model::submit_wait`].
    pub fn submit_wait(&self, request: Request, timeout: Duration) -> Result<Ticket, SubmitError> {
        self.model.submit_wait(request, timeout)
    }

    /// [`Model::submit_async`] of the first model.
    pub fn submit_async(&self, request: Request) -> Submitting {
        self.model.submit_async(request)
    }

    /// [`Model::submit_all`] of the first model.
    ///
    /// # Errors
    /// As [`Model::submit_all`].
    pub fn submit_all(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Vec<Ticket>, SubmitAllError> {
        self.model.submit_all(requests)
    }

    /// [`Model::submit_with`] of the first model.
    ///
    /// # Errors
    /// As [`Model::submit_with`].
    pub fn submit_with(
        &self,
        request: Request,
        done: impl FnOnce(Result<Response, RequestError>) + Send + 'static,
    ) -> Result<RequestId, SubmitError> {
        self.model.submit_with(request, done)
    }

    /// Opens a stream: a chain of calls of `cell` whose inputs arrive one after the other. It
    /// starts from zeros or from `states`, the values of all states one after the other. Each
    /// [`Step`] returns the outputs of the cell, not the states.
    ///
    /// The stream reserves its room now, for [`Stream::AHEAD`] unanswered steps, and keeps its
    /// position in the order of arrivals: later requests neither take its room nor run before its
    /// steps, except by a higher priority.
    ///
    /// ```
    /// # use gatestream::model::Lstm;
    /// # use gatestream_serve::Engine;
    /// # use gatestream_serve::cell_graph::Cells;
    /// # use gatestream_serve::engine::EngineOptions;
    /// # use gatestream_serve::networks::{Chain, ChainCell};
    /// let mut cells = Cells::new();
    /// let chain = Chain::add(&mut cells, ChainCell::new(Lstm::new(2, 8).random(1)?)?);
    /// let engine = Engine::start(cells, &EngineOptions::default())?;
    /// let mut stream = engine.stream(chain.cell(), None)?;
    /// for frame in [[0.1, 0.2], [0.3, 0.4]] {
    ///     let y = stream.push(&frame)?.wait()?; // or .await
    ///     assert_eq!(y.len(), 8);
    /// }
    /// stream.close();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StreamError`] if the cell does not exist or has no state, if `states` has another size, or
    /// if there is no room ([`Limits`](crate::scheduler::Limits)).
    pub fn stream(&self, cell: CellId, states: Option<&[f32]>) -> Result<Stream, StreamError> {
        self.model.stream(cell, states)
    }

    /// Ends a request with [`RequestError::Cancelled`]. Does nothing and returns `false` if the
    /// request has ended or belongs to another engine, or in a child of the process that submitted
    /// it.
    pub fn cancel(&self, request: RequestId) -> bool {
        request.engine == self.shared.engine && self.shared.cancel(request.key)
    }

    /// Rejects new requests, streams and steps, and waits until all accepted requests and steps
    /// have ended and their replies are delivered, callbacks included. It does not wait for open
    /// streams without unanswered steps. Returns the number of requests and calls of users' code
    /// that remain: 0, except in such a call, where it does not wait, because it would wait for
    /// itself. Returns at once in a child of the process that started the engine.
    pub fn drain(&self) -> usize {
        self.drain_until(None)
    }

    /// As [`Engine::drain`], but waits for at most `timeout`. The requests that remain go on.
    pub fn drain_for(&self, timeout: Duration) -> usize {
        // A time that cannot be represented does not come.
        self.drain_until(Instant::now().checked_add(timeout))
    }

    fn drain_until(&self, deadline: Option<Instant>) -> usize {
        if self.shared.made_in.is_forked() {
            return 0;
        }
        self.shared.with(|state, _| {
            state.scheduler.handle_drain();
            state.waiting.retry_all();
        });
        self.shared.wake_waiting();
        if self.shared.is_replying() {
            self.shared.lock().remaining()
        } else {
            self.shared.wait_until_idle(deadline)
        }
    }

    /// Whether [`Engine::drain`] or [`Engine::drain_for`] was called.
    pub fn is_draining(&self) -> bool {
        !self.shared.made_in.is_forked() && self.shared.lock().scheduler.is_draining()
    }

    /// Statistics since the start; empty in a child of the process that started the engine. The
    /// engine's lock is held for one model at a time.
    pub fn stats(&self) -> Stats {
        if self.shared.made_in.is_forked() {
            return Stats::of_none();
        }
        self.shared.stats()
    }

    /// The present activity of each worker, to find one that is stuck in a cell or in users' code;
    /// no worker in a child of the process that started the engine.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn watch(engine: &gatestream_serve::Engine) {
    /// let health = engine.health();
    /// for worker in health.stuck(Duration::from_secs(10)) {
    ///     println!("worker {worker}: {:?}", health.workers[worker].activity);
    /// }
    /// # }
    /// ```
    pub fn health(&self) -> Health {
        if self.shared.made_in.is_forked() {
            return Health {
                draining: true,
                workers: Vec::new(),
            };
        }
        self.shared.lock().health(Instant::now())
    }

    /// The cells of the first model.
    pub fn cells(&self) -> &Cells {
        self.model.cells()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.shared.made_in.is_forked() {
            // The threads belong to the parent; even detaching one would be undefined here.
            let threads = self.threads.drain(..).chain(self.replies.take());
            threads.for_each(std::mem::forget);
            return;
        }
        self.shared.stop();
        // A request's callback or `DynamicGraph` may have owned the engine: then this thread is one
        // of its own, which stops by itself.
        let own = std::thread::current().id();
        let join = |thread: JoinHandle<()>| {
            if thread.thread().id() != own {
                drop(thread.join());
            }
        };
        self.threads.drain(..).for_each(join);
        self.shared.end_replies();
        self.replies.take().into_iter().for_each(join);
    }
}

/// The team of a worker on the calling thread, which is pinned.
fn team(
    index: usize,
    cores: Cores,
) -> Result<(SharedTeam, WorkerStats, Vec<TeamWarning>), EngineError> {
    let mut stats = WorkerStats {
        cores: cores.list().to_vec(),
        ..WorkerStats::default()
    };
    let team = Team::on(cores).map_err(|why| EngineError::Team { worker: index, why })?;
    stats.pinned = team.pin_caller() && team.pinned();
    let warnings = team.warnings();
    Ok((SharedTeam::new(team), stats, warnings))
}
