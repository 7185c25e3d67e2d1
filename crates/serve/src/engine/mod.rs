//! The engine: takes requests, and answers each exactly once.
//!
//! An [`Engine`] owns its workers' threads. Requests are submitted from any thread and come back
//! through a [`Ticket`] (to wait for or to `.await`) or a callback; no async runtime is needed, and
//! any will do.

mod calibrate;
mod error;
#[cfg(all(test, loom))]
mod loom_tests;
mod options;
mod shared;
mod stats;
mod stream;
mod ticket;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

pub use calibrate::{Calibration, calibrate};
pub use error::{EngineError, SubmitError};
pub use options::{EngineOptions, Workers};
pub use stats::{CellStats, Stats};
pub use stream::{Step, Stream, StreamError};
pub use ticket::{ResponseFuture, Ticket};

use super::cell_graph::{
    BatchSizes, Cell, CellCost, CellId, Cells, DynamicGraph, Graph, WorkerEnv,
};
use super::error::RequestError;
use super::scheduler::{Counts, Policy, RequestKey, Requirements, Scheduler, Timing, WorkerId};
use super::worker::Worker;
use cellstream::execute::team::{Cores, SharedTeam, Team, TeamWarning, without_pin};
use shared::Shared;
use stats::Recorder;

/// A graph to be computed, and how.
pub struct Request {
    graph: Graph,
    grow: Option<Box<dyn DynamicGraph>>,
    requirements: Requirements,
}

impl Request {
    /// Of priority 0, with no deadline.
    pub fn new(graph: Graph) -> Request {
        Request {
            graph,
            grow: None,
            requirements: Requirements::default(),
        }
    }

    /// What goes on at the end of the graph's watched nodes.
    pub fn grow(mut self, grow: impl DynamicGraph + 'static) -> Request {
        self.grow = Some(Box::new(grow));
        self
    }

    /// The greater, the sooner: where more nodes of a cell are ready than a batch has rows, those
    /// of requests of higher priority go first. Which cell is next is not decided by priority
    /// ([`Cells`]).
    pub fn priority(mut self, priority: u8) -> Request {
        self.requirements.priority = priority;
        self
    }

    /// That it takes at least so many bytes: of a graph that will grow.
    fn of_bytes(mut self, bytes: usize) -> Request {
        self.requirements.bytes = bytes;
        self
    }

    /// Goes on with a request that was accepted, and is accepted while the engine drains, too.
    fn continues(mut self) -> Request {
        self.requirements.continues = true;
        self
    }

    /// More nodes may come from outside.
    fn open(mut self) -> Request {
        self.requirements.open = true;
        self
    }

    /// When the answer is of no use any more: from then on no batch with it is begun, and it ends
    /// with [`RequestError::Late`]; one whose last batch was under way may still be answered.
    pub fn deadline(mut self, deadline: Instant) -> Request {
        self.requirements.deadline = Some(deadline);
        self
    }
}

/// What a request asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// What was added to the graph's answer, in that order.
    pub values: Vec<f32>,
    /// How long it took.
    pub timing: Timing,
}

/// Whom to tell.
pub(super) enum Reply {
    Ticket(oneshot::Sender<Result<Response, RequestError>>),
    Call(Box<dyn FnOnce(Result<Response, RequestError>) + Send>),
}

impl Reply {
    fn send(self, answer: Result<Response, RequestError>) {
        match self {
            // Nobody waits any more: the ticket was dropped.
            Reply::Ticket(sender) => drop(sender.send(answer)),
            // What a user starts there is not to run on this worker's core alone.
            Reply::Call(call) => without_pin(|| call(answer)),
        }
    }
}

/// See the [module](self). Dropping it ends all requests with [`RequestError::ShutDown`].
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    warnings: Vec<TeamWarning>,
}

impl Engine {
    /// Starts the workers, each of which packs the weights of all cells on its cores.
    ///
    /// # Errors
    /// [`EngineError`]; no thread is left.
    pub fn start(cells: Cells, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::with_policy(cells, options, |costs, workers| {
            options.policy.build(costs, workers, options.groups)
        })
    }

    /// As [`Engine::start`], with a policy of the user's own instead of [`EngineOptions::policy`]:
    /// `policy` makes it from the costs of the cells, in their order, and the number of workers.
    /// Their [`rows`](CellCost::rows) are those of [`EngineOptions::sizes`] if these are set.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn with_policy(
        cells: Cells,
        options: &EngineOptions,
        policy: impl FnOnce(&[CellCost], usize) -> Box<dyn Policy>,
    ) -> Result<Engine, EngineError> {
        let costs = check(&cells, options)?;
        let cores = options.workers.take();
        let cores = cores.map_err(|why| EngineError::Team { worker: 0, why })?;
        let workers = cores.len();
        if cores.is_empty() || cores.iter().any(|cores| cores.list().is_empty()) {
            return Err(EngineError::NoWorker);
        }
        let policy = policy(&costs, workers);
        let scheduler = Scheduler::new(policy, workers, options.tasks_at_once, options.limits);
        let max_batches: Vec<MaxBatch> = { cells.iter().zip(&costs) }
            .map(|((_, cell), cost)| MaxBatch {
                rows: cost.rows.max,
                steps: max_steps(&**cell, options),
            })
            .collect();
        let steps = max_batches.iter().map(|batch| batch.steps).collect();
        let scheduler = scheduler.with_steps_at_once(steps);
        let recorder = Recorder::new(cells.len());
        let shared = Arc::new(Shared::new(cells, scheduler, recorder));
        let mut engine = Engine {
            shared,
            threads: Vec::new(),
            warnings: Vec::new(),
        };
        let (ready, readies) = mpsc::channel();
        for (index, cores) in cores.into_iter().enumerate() {
            let (shared, ready) = (Arc::clone(&engine.shared), ready.clone());
            let max_batches = max_batches.clone();
            let thread = std::thread::Builder::new()
                .name(format!("cellstream-worker-{index}"))
                .spawn(
                    move || match prepare(index, &shared.cells, cores, &max_batches) {
                        Ok((worker, warnings)) => {
                            let _ = ready.send((index, Ok(warnings)));
                            drop(ready);
                            let serve = || shared.serve(WorkerId(index), worker);
                            // Cells and users' functions are caught where they are called: this is
                            // a mistake of ours. Nobody shall wait for it for ever.
                            if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                                shared.stop();
                            }
                        }
                        Err(why) => drop(ready.send((index, Err(why)))),
                    },
                )
                // Dropping the engine sends those already started home.
                .map_err(|why| EngineError::Spawn { worker: index, why })?;
            engine.threads.push(thread);
        }
        drop(ready);
        let mut started = vec![false; workers];
        for _ in 0..workers {
            match readies.recv() {
                Ok((index, ready)) => {
                    engine.warnings.extend(ready?);
                    started[index] = true;
                }
                // All senders are gone: some worker went without a word.
                Err(_) => {
                    let worker = started.iter().position(|&one| !one).unwrap_or(0);
                    return Err(EngineError::Panicked { worker });
                }
            }
        }
        Ok(engine)
    }

    /// What was found at the start to make workers slower than they could be.
    pub fn warnings(&self) -> &[TeamWarning] {
        &self.warnings
    }

    /// Accepts a request, or refuses it at once.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has been kept of the request.
    pub fn submit(&self, request: Request) -> Result<Ticket, SubmitError> {
        let (sender, receiver) = oneshot::channel();
        let key = self.shared.accept(request, Reply::Ticket(sender))?;
        Ok(Ticket::new(receiver, key, Arc::downgrade(&self.shared)))
    }

    /// As [`Engine::submit`]; `done` is called once, with the answer or why there is none, by
    /// whoever notices the end: mostly one of the engine's threads, which does nothing else
    /// meanwhile, but also a thread that cancels a request or drops a ticket or the engine. So it
    /// should be quick, hold no lock that is held around such calls, and not wait for the engine.
    /// Threads that it starts run wherever the process may, not on the worker's core alone.
    ///
    /// # Errors
    /// As [`Engine::submit`]; `done` is not called then.
    pub fn submit_with(
        &self,
        request: Request,
        done: impl FnOnce(Result<Response, RequestError>) + Send + 'static,
    ) -> Result<RequestKey, SubmitError> {
        self.shared.accept(request, Reply::Call(Box::new(done)))
    }

    /// Opens a stream: a chain of calls of `cell` whose inputs come one after the other, from zero
    /// states or those given (all of them, one after the other). Each [`Step`] is told the cell's
    /// outputs; states stay within. Room is taken with the first step. Streams have no priority
    /// and no deadline.
    ///
    /// ```
    /// # use cellstream::model::Lstm;
    /// # use cellstream_serve::Engine;
    /// # use cellstream_serve::cell_graph::Cells;
    /// # use cellstream_serve::engine::EngineOptions;
    /// # use cellstream_serve::networks::{Chain, ChainCell};
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
    /// [`StreamError`] for a cell that there is not, that has no state, or states of another size.
    pub fn stream(&self, cell: CellId, states: Option<&[f32]>) -> Result<Stream, StreamError> {
        Stream::open(&self.shared, cell, states)
    }

    /// Ends a request with [`RequestError::Cancelled`]; does nothing if it has ended, nor in a
    /// child of the process that submitted it.
    pub fn cancel(&self, request: RequestKey) {
        self.shared.cancel(request);
    }

    /// Accepts no more requests, and waits until those that are here have ended and been told;
    /// streams that are open are waited for, too. Not to be called by a request's `done`, which it
    /// would wait for. Returns at once in a child of the process that started the engine.
    pub fn drain(&self) {
        if self.shared.made_in.is_forked() {
            return;
        }
        self.shared.with(|state, _| state.scheduler.handle_drain());
        self.shared.wait_until_idle();
    }

    /// What has been done so far: nothing in a child of the process that started the engine.
    pub fn stats(&self) -> Stats {
        if self.shared.made_in.is_forked() {
            return Recorder::new(self.shared.cells.len()).stats(Counts::default());
        }
        let state = self.shared.lock();
        state.recorder.stats(state.scheduler.counts())
    }

    /// Its cells.
    pub fn cells(&self) -> &Cells {
        &self.shared.cells
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.shared.made_in.is_forked() {
            // The threads are the parent's; even detaching one would be undefined here.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.stop();
        let own = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // What a request's `done` or `DynamicGraph` owned may have been the last of it: then
            // this is a worker, which stops by itself.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}

/// The largest batch of a cell, for which buffers are allocated.
#[derive(Clone, Copy)]
struct MaxBatch {
    rows: usize,
    steps: usize,
}

/// Maximum number of steps of a cell's batches: no more than ever run together.
fn max_steps(cell: &dyn Cell, options: &EngineOptions) -> usize {
    match cell.takes_steps() && !cell.ports().states().is_empty() {
        true => options.steps_at_once.min(Scheduler::STEP_ROWS),
        false => 1,
    }
}

/// The costs of all cells, with the batch sizes of the options.
fn check(cells: &Cells, options: &EngineOptions) -> Result<Vec<CellCost>, EngineError> {
    if cells.is_empty() {
        return Err(EngineError::NoCell);
    }
    if options.tasks_at_once == 0 {
        return Err(EngineError::NoTasks);
    }
    if options.steps_at_once == 0 {
        return Err(EngineError::NoSteps);
    }
    let mut costs: Vec<CellCost> = cells.iter().map(|(_, cell)| cell.cost()).collect();
    if !options.sizes.is_empty() {
        if options.sizes.len() != cells.len() {
            return Err(EngineError::SizesCount {
                expected: cells.len(),
                found: options.sizes.len(),
            });
        }
        for (cost, &sizes) in costs.iter_mut().zip(&options.sizes) {
            cost.rows = sizes;
        }
    }
    for (cost, (_, cell)) in costs.iter().zip(cells.iter()) {
        let BatchSizes { min, max } = cost.rows;
        if min == 0 || min > max {
            return Err(EngineError::Sizes {
                cell: cell.name().into(),
                min,
                max,
            });
        }
        if max > EngineOptions::MAX_ROWS {
            return Err(EngineError::TooManyRows {
                cell: cell.name().into(),
                rows: max,
                most: EngineOptions::MAX_ROWS,
            });
        }
    }
    Ok(costs)
}

/// A worker on the calling thread, which it pins. Cells are prepared without the pin, so that
/// threads that they start may run anywhere.
fn prepare(
    index: usize,
    cells: &Cells,
    cores: Cores,
    max_batches: &[MaxBatch],
) -> Result<(Worker<Reply>, Vec<TeamWarning>), EngineError> {
    let team = Team::on(cores).map_err(|why| EngineError::Team { worker: index, why })?;
    team.pin_caller();
    let warnings = team.warnings();
    let team = SharedTeam::new(team);
    let env = |batch: &MaxBatch| WorkerEnv {
        team: team.clone(),
        rows: batch.rows,
        steps: batch.steps,
    };
    let envs = max_batches.iter().map(env);
    let worker = without_pin(|| Worker::new(cells, envs.collect()));
    let worker = worker.map_err(|(cell, why)| EngineError::Cell {
        worker: index,
        cell: cells.get(cell).map_or("", |c| c.name()).to_owned(),
        why,
    })?;
    Ok((worker, warnings))
}
