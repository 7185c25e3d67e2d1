//! Runs the tasks of one worker on its team, and moves values from node to node.
//!
//! A worker has a [`Runner`] for each cell of all models. It uses the clock only for the times that
//! it reports, no threads but those of its team, and no shared locks but those of the requests'
//! values. [`super::engine`] calls it.

mod buffer_pool;
mod copies;
#[cfg(all(test, not(loom)))]
mod copies_tests;
#[cfg(all(test, not(loom)))]
mod gathered_tests;
mod model_cells;
#[cfg(all(test, not(loom)))]
mod passed_tests;
mod phase;
mod release;
mod resident;
mod retained_outputs;
mod rows;
mod runner;
#[cfg(all(test, not(loom)))]
mod sequence_tests;
mod task_row;
#[cfg(all(test, not(loom)))]
mod tests;
mod values;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub(super) use model_cells::ModelCells;
pub(super) use phase::{Phase, PhaseCell};
pub(super) use release::release;
pub(super) use runner::{Runner, prepare};
pub(super) use task_row::TaskRow;
pub(super) use values::{RequestValues, Values};

use super::cell_graph::{CellId, Growth, NodeOutputs, RequestGraph};
use super::error::RequestError;
use super::scheduler::{RequestKey, Scheduler, Task};
use buffer_pool::BufferPool;
use copies::ParallelCopy;
use gatestream::execute::team::catch_panic;
use gatestream_scheduler::engine::{Deferred, EngineGrowth};
use resident::ResidentRunner;
use rows::BatchRows;
use runner::CellRunner;

/// One worker; `R` is the receiver of responses.
pub(super) struct Worker<R> {
    /// By cell of the engine; `None` where no model has one.
    runners: Vec<Option<Runner<R>>>,
    /// The cells of tasks that devices have not finished, oldest first.
    in_flight: VecDeque<CellId>,
    /// One for each member of the team.
    pools: Vec<BufferPool>,
    pub phase: PhaseCell,
}

/// A task with the values of the requests of its rows.
pub(super) struct WorkerTask<R> {
    pub task: Task,
    /// The rows of the task, except those of ended requests. Empty after the run.
    pub work: Vec<TaskRow<R>>,
    /// Number of rows when it was run.
    pub rows_run: usize,
}

impl<R> WorkerTask<R> {
    pub fn new(task: Task, work: Vec<TaskRow<R>>) -> WorkerTask<R> {
        WorkerTask {
            task,
            work,
            rows_run: 0,
        }
    }

    /// Number of computed rows.
    pub fn batch(&self) -> usize {
        self.work.len() + self.task.padding
    }
}

/// The outcome of tasks that ran together.
#[derive(Default)]
pub(super) struct Outcome {
    /// Requests whose graphs have grown.
    pub grown: Vec<(RequestKey, RequestGraph)>,
    /// Requests that failed.
    pub failed: Vec<(RequestKey, RequestError)>,
    /// Calls of users' code by growing graphs, to be run with nothing locked.
    pub deferred: Vec<Deferred>,
    /// The batch was too large and was not run.
    pub is_refused: bool,
    pub spent: Spent,
}

/// The times of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// Copying values into the batch.
    pub gather: Duration,
    /// The cell.
    pub run: Duration,
    /// Copying values out of the batch.
    pub scatter: Duration,
}

impl Spent {
    /// The sum.
    pub fn total(self) -> Duration {
        self.gather + self.run + self.scatter
    }

    /// The share of one of `tasks` tasks that ran together.
    pub fn divided(self, tasks: usize) -> Spent {
        let of = |whole: Duration| whole / u32::try_from(tasks).unwrap_or(u32::MAX).max(1);
        Spent {
            gather: of(self.gather),
            run: of(self.run),
            scatter: of(self.scatter),
        }
    }
}

impl<R: Send> Worker<R> {
    /// A worker without cells, with a team of this number of threads.
    pub fn new(threads: usize) -> Worker<R> {
        Worker {
            runners: Vec::new(),
            in_flight: VecDeque::new(),
            pools: (0..threads.max(1)).map(|_| BufferPool::new()).collect(),
            phase: PhaseCell::default(),
        }
    }

    /// A worker with the cells of a model, each with its environment.
    #[cfg(all(test, not(loom)))]
    pub fn of(
        model: &ModelCells,
        envs: impl IntoIterator<Item = crate::cell_graph::WorkerEnv>,
    ) -> Worker<R> {
        let envs: Vec<_> = envs.into_iter().collect();
        let cells = model.cells.iter().zip(&envs);
        let runners = cells.map(|((_, cell), env)| Runner::new(cell.clone(), env.clone()).unwrap());
        let runners: Vec<_> = runners.collect();
        let mut worker = Worker::new(envs[0].team.threads());
        worker.insert(model.first, runners);
        worker
    }

    /// Adds the cells of a model, of which the first has the id `first`.
    pub fn insert(&mut self, first: CellId, runners: Vec<Runner<R>>) {
        let on_host = || runners.iter().filter_map(Runner::on_host);
        let rows = on_host().map(|runner| runner.rows.max_rows()).max();
        let (rows, members) = (rows.unwrap_or(0), self.pools.len());
        for (member, pool) in self.pools.iter_mut().enumerate() {
            // The first member copies small batches alone.
            let rows = match member {
                0 => rows,
                _ => rows.div_ceil(members),
            };
            pool.expect_rows(rows, on_host().flat_map(|runner| runner.rows.widths()));
        }
        let end = first.index() + runners.len();
        if self.runners.len() < end {
            self.runners.resize_with(end, || None);
        }
        for (place, runner) in self.runners[first.index()..].iter_mut().zip(runners) {
            *place = Some(runner);
        }
    }

    /// Removes the `count` cells from `first` on, to be dropped without a lock.
    pub fn remove(&mut self, first: CellId, count: usize) -> Vec<Runner<R>> {
        let removed = self.runners.iter_mut().skip(first.index()).take(count);
        removed.filter_map(Option::take).collect()
    }

    /// The runner of a cell in the host's memory.
    pub fn runner(&self, cell: CellId) -> Option<&CellRunner<R>> {
        self.runners.get(cell.index())?.as_ref()?.on_host()
    }

    /// The runner of a cell on a device, and memory for its copies.
    fn resident(&mut self, cell: CellId) -> Option<(&mut ResidentRunner<R>, &mut BufferPool)> {
        match self.runners.get_mut(cell.index())?.as_mut()? {
            Runner::Resident(runner) => Some((runner, &mut self.pools[0])),
            Runner::Host(_) => None,
        }
    }

    /// Number of tasks that devices have not finished.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The cell of the task that was started first, of those that devices have not finished.
    pub fn oldest_in_flight(&self) -> Option<CellId> {
        self.in_flight.front().copied()
    }

    /// Whether more tasks should be formed when all formed ones are started: a device always has
    /// another step to begin with.
    pub fn needs_tasks(&self) -> bool {
        self.in_flight.len() <= 1
    }

    /// Takes the next step forward: runs the first of `tasks`, and those that are further steps of
    /// its rows; or starts all that devices have room for; or waits for the task that was started
    /// first. Tasks that ended are in `ran`.
    pub fn advance(
        &mut self,
        tasks: &mut VecDeque<WorkerTask<R>>,
        ran: &mut Vec<WorkerTask<R>>,
    ) -> Outcome {
        self.phase.set(Phase::Cell);
        let mut has_started = false;
        while let Some(first) = tasks.front() {
            let (cell, is_empty) = (first.task.cell, first.batch() == 0);
            let Some((runner, pool)) = self.resident(cell).filter(|_| !is_empty) else {
                let together = self.together(tasks);
                ran.extend(tasks.drain(..together));
                // A batch of padding alone is computed, too: it is part of the cost of padding.
                return if is_empty {
                    Outcome::default()
                } else {
                    self.run(ran)
                };
            };
            if !runner.can_start(first) {
                break;
            }
            let Some(first) = tasks.pop_front() else {
                break;
            };
            if let Some((ended, outcome)) = runner.start(first, pool) {
                ran.push(ended);
                return outcome;
            }
            self.in_flight.push_back(cell);
            has_started = true;
        }
        self.end_oldest(!tasks.is_empty() || !has_started, ran)
    }

    /// Ends the task that was started first, if it is finished; `waits` for it if not.
    fn end_oldest(&mut self, waits: bool, ran: &mut Vec<WorkerTask<R>>) -> Outcome {
        let phase = self.phase.clone();
        let oldest = self.oldest_in_flight();
        let Some((runner, pool)) = oldest.and_then(|oldest| self.resident(oldest)) else {
            return Outcome::default();
        };
        if !waits && !runner.is_finished() {
            return Outcome::default();
        }
        let ended = runner.finish(pool, &phase);
        self.in_flight.pop_front();
        let Some((ended, outcome)) = ended else {
            return Outcome::default();
        };
        ran.push(ended);
        outcome
    }

    /// Number of tasks, from the first on, that run as one batch: further steps of the rows of the
    /// first, formed for it or with at most [`Scheduler::STEP_ROWS`] rows together.
    pub fn together(&self, tasks: &VecDeque<WorkerTask<R>>) -> usize {
        let Some(first) = tasks.front() else {
            return 0;
        };
        let Some(CellRunner { rows, .. }) = self.runner(first.task.cell) else {
            return 1;
        };
        let mut computed = first.batch();
        let mut count = 1;
        for (before, next) in tasks.iter().zip(tasks.iter().skip(1)) {
            computed += next.batch();
            let is_small = computed <= Scheduler::STEP_ROWS;
            let may_join = count < rows.max_steps()
                && (next.task.continues || is_small)
                && next.task.cell == first.task.cell;
            if !may_join || !rows.joins(before, next) {
                break;
            }
            count += 1;
        }
        count
    }

    /// Runs one task, or several that run [together](Worker::together).
    pub fn run(&mut self, tasks: &mut [WorkerTask<R>]) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(WorkerTask { task, work, .. }) = tasks.first() else {
            return outcome;
        };
        let (cell, padding) = (task.cell, task.padding);
        let begin = Instant::now();
        self.phase.set(Phase::Cell);
        let Some(Some(Runner::Host(runner))) = self.runners.get_mut(cell.index()) else {
            debug_assert!(work.is_empty(), "a removed model has no requests");
            return outcome;
        };
        let team = runner.team();
        let (rows, batch) = (&mut runner.rows, tasks[0].batch());
        if batch > rows.max_rows() {
            let error = runner.too_many(batch);
            fail_all(tasks, &error, &mut outcome);
            outcome.is_refused = true;
            return outcome;
        }
        // The copies of several steps are made by one thread: mostly they have few rows.
        let team = (tasks.len() == 1).then_some(&team);
        let scatter_copy = team.and_then(|team| rows.scatter_copy(work.len(), team));
        let pools = &mut self.pools;
        let mut missing = rows.place(work, padding, team, pools);
        for pair in tasks.windows(2) {
            missing.extend(rows.extend_steps(&pair[0].work, &pair[1].work, &mut pools[0]));
        }
        for row in missing {
            let node = row.node.index();
            let lost = RequestError::Lost { node };
            outcome.failed.push((row.request, lost));
        }
        rows.make_sequences(&tasks[0].work);
        let placed = Instant::now();
        let ran = runner.run(tasks);
        let rows = &mut runner.rows;
        let done = Instant::now();
        for todo in &mut *tasks {
            todo.rows_run = todo.work.len();
        }
        match ran {
            Ok(()) => {
                // Before the scatter: added nodes may read the results of their node, which are
                // then retained for them.
                grow_all(rows, tasks, &self.phase, &mut outcome);
                scatter(rows, tasks, scatter_copy, pools);
            }
            Err(error) => {
                rows.release_all(&mut pools[0]);
                fail_all(tasks, &error, &mut outcome);
            }
        }
        rows.free_sequences();
        outcome.spent = Spent {
            gather: placed - begin,
            run: done - placed,
            scatter: done.elapsed(),
        };
        outcome
    }

    /// Stores the states of a request with it, for other workers.
    pub fn evict(&mut self, request: RequestKey) {
        for runner in self.runners.iter_mut().flatten() {
            match runner {
                Runner::Host(runner) => runner.rows.evict_request(request, &mut self.pools[0]),
                Runner::Resident(runner) => runner.evict_request(request, &mut self.pools[0]),
            }
        }
    }

    /// Whether there is memory to [release](Worker::release_memory).
    pub fn holds_memory(&self) -> bool {
        let holds_ended = |runner: &Runner<R>| match runner {
            Runner::Host(runner) => runner.rows.holds_ended(),
            Runner::Resident(runner) => runner.holds_ended(),
        };
        let mut runners = self.runners.iter().flatten();
        !self.pools.iter().all(BufferPool::is_empty) || runners.any(holds_ended)
    }

    /// Releases free buffers, and slots with states of ended requests.
    pub fn release_memory(&mut self) {
        self.pools.iter_mut().for_each(BufferPool::clear);
        for runner in self.runners.iter_mut().flatten() {
            match runner {
                Runner::Host(runner) => runner.rows.forget_ended(),
                Runner::Resident(runner) => runner.forget_ended(),
            }
        }
    }

    /// Rows of states of a cell that were moved, loaded or stored.
    #[cfg(all(test, not(loom)))]
    pub fn moved(&self, cell: CellId) -> u64 {
        self.runner(cell).map_or(0, |runner| runner.rows.moved)
    }
}

/// Ends all requests in tasks that run together; their work is empty after that.
fn fail_all<R>(tasks: &mut [WorkerTask<R>], error: &RequestError, outcome: &mut Outcome) {
    // The rows of the first task include those of later steps.
    let all = tasks.first().into_iter().flat_map(|first| &first.work);
    let failed = all.map(|work| (work.row.request, error.clone()));
    outcome.failed.extend(failed);
    tasks.iter_mut().for_each(|todo| todo.work.clear());
}

/// Calls the `DynamicGraph`s of the watched nodes of a batch.
fn grow_all<R: Send>(
    rows: &BatchRows<R>,
    tasks: &[WorkerTask<R>],
    phase: &PhaseCell,
    outcome: &mut Outcome,
) {
    for (step, todo) in tasks.iter().enumerate() {
        let growing = todo.work.iter().enumerate();
        for (index, work) in growing.filter(|(_, work)| work.values.grows()) {
            let row = rows.row(step, index);
            let mut values = work.values.lock();
            if values.is_watched(work.row.node) && !work.values.has_ended() {
                debug_assert!(rows.is_last(row, step), "nothing joins a watched node");
                let outputs = rows.outputs(row, step);
                phase.set(Phase::Growth);
                grow(&outputs, work, &mut values, outcome);
                phase.set(Phase::Cell);
            }
        }
    }
}

/// Scatters the results of a batch to their readers; the work is empty after that.
fn scatter<R: Send>(
    rows: &mut BatchRows<R>,
    tasks: &mut [WorkerTask<R>],
    scatter_copy: Option<ParallelCopy<'_>>,
    pools: &mut [BufferPool],
) {
    if let Some(scatter_copy) = scatter_copy {
        rows.scatter_all(&tasks[0].work, scatter_copy, pools);
    }
    for (step, todo) in tasks.iter_mut().enumerate() {
        for (index, work) in todo.work.drain(..).enumerate() {
            let row = rows.row(step, index);
            if let Some(resident) = rows.scattered(row) {
                if resident {
                    rows.set_resident(work, row);
                }
                continue;
            }
            rows.release(row, step, &mut pools[0]);
            let mut values = work.values.lock();
            // Checked under the lock: the thread that replies marks the request as ended before
            // it takes the response under the lock.
            if work.values.has_ended() {
                continue;
            }
            let resident = rows.scatter(&work, &mut values, (row, step), &mut pools[0]);
            drop(values);
            if resident {
                rows.set_resident(work, row);
            }
        }
    }
}

/// Calls the `DynamicGraph` of a request for a watched node.
fn grow<R>(outputs: &[&[f32]], work: &TaskRow<R>, values: &mut Values<R>, outcome: &mut Outcome) {
    let (request, node) = (work.row.request, work.row.node);
    let Some(mut function) = values.take_grow() else {
        return;
    };
    let deferred = &mut outcome.deferred;
    // A panic leaves only this request incomplete, and it ends.
    let grown = catch_panic(|| {
        let watched = (Some(node), work.values.given());
        values.grow_by(&work.values.model().cells, watched, |graph| {
            let mut more = Growth::new(graph);
            function.grow(node, NodeOutputs::new(outputs), &mut more);
            deferred.append(&mut more.take_deferred());
            more.failure().cloned()
        })
    });
    let continues = matches!(grown, Ok(Ok((None, _))));
    match grown {
        Ok(Ok((Some(why), _))) => {
            outcome
                .failed
                .push((request, RequestError::GrowFailed { why }));
        }
        Ok(Ok((None, unfolded))) => outcome.grown.extend(unfolded.map(|u| (request, u))),
        Ok(Err(why)) => outcome.failed.push((request, RequestError::Graph(why))),
        Err(panicked) => {
            let message = panicked.message();
            outcome
                .failed
                .push((request, RequestError::GrowPanicked { message }));
            // Its drop may end the request, which locks the values.
            outcome.deferred.push(Box::new(move || drop(panicked)));
        }
    }
    values.put_grow(function, continues);
}
