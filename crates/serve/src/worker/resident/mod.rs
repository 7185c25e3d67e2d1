//! One cell at one worker whose states stay on a device: BatchMaker's worker for GPUs (sections 4.2
//! and 5).
//!
//! ```text
//! start(task), before the device has finished the tasks before it:
//!   rows that continue from states in a slot keep the slot       nothing moves
//!   new rows, and rows from elsewhere, get a free slot           zeros, or states are loaded
//!   without a free slot, that not used for longest is emptied    stored with its request
//! finish, when the device has signalled: results of each row go to their readers
//! ```
//!
//! The device runs steps in the order of their start, so a step may be started when the one before
//! it, whose states it reads, has not run. A slot that is free is used again at once: the device
//! has read it before.
//!
//! **A slot is recorded for states that are not computed yet.** Only a later step on the same
//! device reads it, or a [store](ResidentModel::store), which waits. If the device fails, the
//! requests with states on it end with the error.

mod results;
mod slots;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::buffer_pool::BufferPool;
use super::runner::attempt;
use super::task_row::TaskRow;
use super::values::Values;
use super::{Outcome, PhaseCell, Spent, WorkerTask, fail_all};
use crate::RequestError;
use crate::cell_graph::{Cell, CellError, Source, WorkerEnv};
use crate::scheduler::{RequestKey, Row};
use gatestream::execute::team::catch_panic;
use gatestream::execute::{ResidentModel, ResidentRoom, ResidentStep};
use gatestream::kernels::RowsRef;
use results::Results;
use slots::Slots;

/// Slots for each row of the largest batch: states of requests that are not in the present one
/// stay, too.
const SLOTS_PER_ROW: usize = 4;

/// See the [module](self).
pub(crate) struct ResidentRunner<R> {
    cell: Arc<dyn Cell>,
    env: WorkerEnv,
    room: ResidentRoom,
    /// `None` after a failure, until all started tasks are ended and the cell is prepared again.
    model: Option<Box<dyn ResidentModel>>,
    /// The failure, for the tasks that were started before it.
    failure: Option<RequestError>,
    /// Requests that failed since the last outcome.
    failed: Vec<(RequestKey, RequestError)>,
    /// The device has some more, for padding.
    slots: Slots<R>,
    started: VecDeque<StartedTask<R>>,
    /// Number of tasks so far.
    tasks: u64,
    /// The end of the last task.
    last: Option<Instant>,
    lists: Lists,
}

/// A task that the device has not finished.
struct StartedTask<R> {
    task: WorkerTask<R>,
    results: Results,
    begin: Instant,
    placed: Instant,
}

/// Memory for lists, empty between calls.
#[derive(Default)]
struct Lists {
    x: Vec<f32>,
    states: Vec<f32>,
    slots: Vec<usize>,
    values: Vec<f32>,
    /// Memory of results of ended tasks.
    results: Vec<Results>,
}

/// A task that has ended, and its outcome.
pub(super) type Ended<R> = (WorkerTask<R>, Outcome);

impl<R: Send> ResidentRunner<R> {
    /// `None` if the cell has no such device.
    pub fn new(
        cell: &Arc<dyn Cell>,
        env: &WorkerEnv,
    ) -> Result<Option<ResidentRunner<R>>, CellError> {
        let states = SLOTS_PER_ROW.saturating_mul(env.rows);
        let room = ResidentRoom {
            rows: env.rows,
            slots: states.saturating_add(env.rows),
            in_flight: env.tasks_at_once + 1,
        };
        let Some(model) = cell.prepare_resident(env, room)? else {
            return Ok(None);
        };
        Ok(Some(ResidentRunner {
            cell: Arc::clone(cell),
            env: env.clone(),
            room,
            model: Some(model),
            failure: None,
            failed: Vec::new(),
            slots: Slots::new(states),
            started: VecDeque::new(),
            tasks: 0,
            last: None,
            lists: Lists::default(),
        }))
    }

    /// Whether a task can be started now: there is room, no failure to report first, and what its
    /// rows read of tasks in flight is in slots.
    pub fn can_start(&self, task: &WorkerTask<R>) -> bool {
        if self.started.is_empty() {
            return true;
        }
        let inputs = self.cell.ports().inputs().len();
        let is_here =
            |work: &TaskRow<R>| work.values.lock().sources_are_here(work.row.node, inputs);
        self.failure.is_none()
            && self.started.len() < self.room.in_flight
            && task.work.iter().all(is_here)
    }

    /// Starts a task. Returns it if it ended by that, with its outcome.
    pub(super) fn start(
        &mut self,
        mut task: WorkerTask<R>,
        pool: &mut BufferPool,
    ) -> Option<Ended<R>> {
        let begin = Instant::now();
        let mut outcome = Outcome::default();
        let batch = task.batch();
        if batch > self.room.rows {
            let error = RequestError::TooManyRows {
                cell: self.cell.name().to_owned(),
                rows: batch,
                max: self.room.rows,
            };
            fail_all(std::slice::from_mut(&mut task), &error, &mut outcome);
            outcome.is_refused = true;
            return Some((task, outcome));
        }
        self.tasks += 1;
        let mut results = self.lists.results.pop().unwrap_or_default();
        let started = self.prepare_again().and_then(|()| {
            self.place(&mut task, pool)?;
            self.list_results(&task, &mut results);
            let placed = Instant::now();
            if task.batch() > 0 {
                self.start_step(&results)?;
            }
            Ok(placed)
        });
        let placed = match started {
            Ok(placed) if task.batch() > 0 => placed,
            ended => {
                if let Err(error) = ended {
                    self.fail(&error);
                    fail_all(std::slice::from_mut(&mut task), &error, &mut outcome);
                }
                outcome.failed.append(&mut self.failed);
                return Some((task, outcome));
            }
        };
        task.rows_run = task.work.len();
        self.started.push_back(StartedTask {
            task,
            results,
            begin,
            placed,
        });
        None
    }

    /// Whether the oldest task in flight is finished.
    pub fn is_finished(&mut self) -> bool {
        let Some(model) = &mut self.model else {
            return true;
        };
        let finished = attempt(&*self.cell, || model.is_finished().map_err(CellError::new));
        // An error is reported by `finish`.
        finished.unwrap_or(true)
    }

    /// Ends the oldest task in flight; waits for it.
    pub(super) fn finish(&mut self, pool: &mut BufferPool, phase: &PhaseCell) -> Option<Ended<R>> {
        let mut outcome = Outcome::default();
        let StartedTask {
            mut task,
            results,
            begin,
            placed,
        } = self.started.pop_front()?;
        let mut values = std::mem::take(&mut self.lists.values);
        let finished = match (&self.failure, &mut self.model) {
            (None, Some(model)) => attempt(&*self.cell, || {
                model.finish(&mut values).map_err(CellError::new)
            }),
            (failure, _) => Err(failure.clone().unwrap_or_else(|| self.gone())),
        };
        let done = Instant::now();
        match finished {
            Ok(()) => {
                let late = results.scatter(&values, &task, (pool, phase), &mut outcome);
                for row in late {
                    let is_copied = |port| results.has(row, port);
                    if let Err(error) = self.scatter_late(&task.work[row], is_copied, pool) {
                        self.failed
                            .push((task.work[row].row.request, error.clone()));
                        self.fail(&error);
                    }
                }
                task.work.clear();
            }
            Err(error) => {
                self.fail(&error);
                fail_all(std::slice::from_mut(&mut task), &error, &mut outcome);
            }
        }
        outcome.failed.append(&mut self.failed);
        if self.started.is_empty() {
            self.failure = None;
        }
        self.lists.results.push(results);
        self.lists.values = values;
        // The device has begun with it when the task before it was done.
        let ran_from = self.last.map_or(placed, |last| last.max(placed));
        self.last = Some(done);
        outcome.spent = Spent {
            gather: placed - begin,
            run: done.saturating_duration_since(ran_from),
            scatter: done.elapsed(),
        };
        Some((task, outcome))
    }

    /// Prepares the cell again after a failure.
    fn prepare_again(&mut self) -> Result<(), RequestError> {
        if self.model.is_none() {
            let (cell, env, room) = (&*self.cell, &self.env, self.room);
            let prepared = attempt(cell, || cell.prepare_resident(env, room))?;
            self.model = Some(prepared.ok_or_else(|| self.gone())?);
        }
        Ok(())
    }

    fn gone(&self) -> RequestError {
        RequestError::Cell {
            cell: self.cell.name().to_owned(),
            why: CellError::new("its device is gone"),
        }
    }

    /// Gives each row a slot with its states, and copies the inputs. Rows with missing values are
    /// taken out of the task.
    fn place(
        &mut self,
        task: &mut WorkerTask<R>,
        pool: &mut BufferPool,
    ) -> Result<(), RequestError> {
        self.lists.slots.clear();
        self.lists.x.clear();
        let width = self.input_width();
        let mut failure = None;
        task.work.retain(|work| {
            if failure.is_some() {
                return true;
            }
            match self.place_row(work, pool) {
                Ok(Some(slot)) => {
                    self.lists.slots.push(slot);
                    true
                }
                Ok(None) => {
                    let (request, node) = (work.row.request, work.row.node.index());
                    self.failed.push((request, RequestError::Lost { node }));
                    false
                }
                Err(error) => {
                    failure = Some(error);
                    true
                }
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let first = self.slots.len();
        for slot in first..first + task.task.padding {
            self.load(slot, None)?;
            self.lists.slots.push(slot);
        }
        let rows = task.batch();
        self.lists.x.resize(rows * width, 0.0);
        Ok(())
    }

    /// Values of an input row; none of a decoder, whose symbol is a state.
    fn input_width(&self) -> usize {
        let input = self.cell.ports().inputs().first();
        input.map_or(0, |port| port.width())
    }

    /// Copies the input of a row, whose `values` are locked; `false` if it is missing.
    fn copy_input(
        &mut self,
        work: &TaskRow<R>,
        values: &mut Values<R>,
        pool: &mut BufferPool,
    ) -> bool {
        if self.cell.ports().inputs().is_empty() {
            return true;
        }
        let first = self.lists.x.len();
        self.lists.x.resize(first + self.input_width(), 0.0);
        let x = &mut self.lists.x[first..];
        let source = values.graph().sources(work.row.node)[0];
        let is_here = values.take((source, work.values.given()), x, false, pool);
        if !is_here {
            self.lists.x.truncate(first);
        }
        is_here
    }

    /// The slot of a row, with its states; its input is copied. `None` if a value is missing, which
    /// would be a bug of this crate.
    fn place_row(
        &mut self,
        work: &TaskRow<R>,
        pool: &mut BufferPool,
    ) -> Result<Option<usize>, RequestError> {
        let Row { request, node } = work.row;
        let states = self.cell.ports().states().len();
        let before = {
            let mut values = work.values.lock();
            let before = values.predecessor(node);
            let slot = before.and_then(|node| self.slots.find(Row { request, node }, &values));
            if let (Some(before), Some(slot)) = (before, slot) {
                values.continued_in_place(before, states, pool);
                self.slots.set(slot, work, self.tasks);
                return Ok(self.copy_input(work, &mut values, pool).then_some(slot));
            }
            before
        };
        // Another request is locked here.
        let Some(slot) = self.empty_slot(pool)? else {
            return Ok(None);
        };
        let mut given = std::mem::take(&mut self.lists.states);
        given.clear();
        let mut is_here = true;
        let mut is_zero = true;
        {
            let mut values = work.values.lock();
            let inputs = self.cell.ports().inputs().len();
            for (port, declared) in self.cell.ports().states().iter().enumerate() {
                let source = values.graph().sources(node)[inputs + port];
                is_zero &= matches!(source, Source::Zeros);
                let first = given.len();
                given.resize(first + declared.width(), 0.0);
                let of = (source, work.values.given());
                is_here &= values.take(of, &mut given[first..], before.is_some(), pool);
            }
            is_here = is_here && self.copy_input(work, &mut values, pool);
        }
        let loaded = self.load(slot, (!is_zero).then_some(&given[..]));
        self.lists.states = given;
        loaded?;
        self.slots.set(slot, work, self.tasks);
        Ok(is_here.then_some(slot))
    }

    /// A slot without states. Stores those that were not used for longest, if there is none. There
    /// are more slots than a task has rows.
    fn empty_slot(&mut self, pool: &mut BufferPool) -> Result<Option<usize>, RequestError> {
        let mut found = self.slots.take_free(self.tasks);
        if let (None, Some(oldest)) = (found, self.slots.oldest()) {
            self.evict(oldest, pool)?;
            found = self.slots.take_free(self.tasks);
        }
        Ok(found)
    }

    /// Sets the states of a slot, given one after the other.
    fn load(&mut self, slot: usize, states: Option<&[f32]>) -> Result<(), RequestError> {
        let ports = self.cell.ports().states();
        let mut rest = states.unwrap_or_default();
        let mut rows: Vec<&[f32]> = Vec::with_capacity(ports.len());
        if states.is_some() {
            for port in ports {
                let (row, after) = rest.split_at(port.width());
                rows.push(row);
                rest = after;
            }
        }
        let rows = states.map(|_| &rows[..]);
        match &mut self.model {
            Some(model) => attempt(&*self.cell, || {
                model.load(slot, rows).map_err(CellError::new)
            }),
            None => Ok(()),
        }
    }

    fn start_step(&mut self, results: &Results) -> Result<(), RequestError> {
        let step = ResidentStep {
            x: RowsRef::contiguous(&self.lists.x, self.input_width()),
            slots: &self.lists.slots,
            results: &results.rows,
        };
        match &mut self.model {
            Some(model) => attempt(&*self.cell, || model.start(&step).map_err(CellError::new)),
            None => Ok(()),
        }
    }

    /// Lists the values that the host reads. States that a later node may continue from stay in
    /// their slots; the other slots are free for tasks that are started after this one.
    fn list_results(&mut self, task: &WorkerTask<R>, results: &mut Results) {
        results.begin(self.cell.ports());
        for (work, slot) in task.work.iter().zip(&self.lists.slots) {
            let (node, mut values) = (work.row.node, work.values.lock());
            results.add(&values, node);
            if values.stays_resident(node) {
                values.set_slot(node, *slot);
            } else {
                self.slots.release(*slot);
            }
        }
        results.end();
    }

    /// Copies values of a row that has none copied, for readers that were added when the task had
    /// ended. No later step has been started from its states, so they are in its slot.
    fn scatter_late(
        &mut self,
        work: &TaskRow<R>,
        is_copied: impl Fn(usize) -> bool,
        pool: &mut BufferPool,
    ) -> Result<(), RequestError> {
        let slot = self.slots.find(work.row, &work.values.lock());
        let node = work.row.node;
        let Some(slot) = slot else {
            let (request, node) = (work.row.request, node.index());
            self.failed.push((request, RequestError::Lost { node }));
            return Ok(());
        };
        let states = self.read_slot(slot, pool)?;
        let mut values = work.values.lock();
        for (port, state) in states.into_iter().enumerate() {
            if !is_copied(port) && values.is_taken(node, port) {
                values.store(node, port, &state, pool);
            }
            pool.put(state);
        }
        Ok(())
    }

    /// The states in a slot, after all steps that were started.
    fn read_slot(
        &mut self,
        slot: usize,
        pool: &mut BufferPool,
    ) -> Result<Vec<Box<[f32]>>, RequestError> {
        let ports = self.cell.ports().states().iter();
        let mut rows: Vec<Box<[f32]>> = ports.map(|port| pool.buffer(port.width())).collect();
        let mut slices: Vec<&mut [f32]> = rows.iter_mut().map(|row| &mut row[..]).collect();
        if let Some(model) = &mut self.model {
            attempt(&*self.cell, || {
                model.store(slot, &mut slices).map_err(CellError::new)
            })?;
        }
        Ok(rows)
    }

    /// The device has failed: its states are lost.
    fn fail(&mut self, error: &RequestError) {
        let Some(model) = self.model.take() else {
            return;
        };
        // The drop may panic.
        let _ = catch_panic(|| drop(model));
        let lost = self.slots.clear().into_iter();
        self.failed
            .extend(lost.map(|request| (request, error.clone())));
        if !self.started.is_empty() {
            self.failure = Some(error.clone());
        }
    }

    /// Stores the states of a slot with their request, unless it has ended.
    fn evict(&mut self, slot: usize, pool: &mut BufferPool) -> Result<(), RequestError> {
        let Some(of) = self.slots.release(slot) else {
            return Ok(());
        };
        if of.values.has_ended() {
            return Ok(());
        }
        let states = self.read_slot(slot, pool).inspect_err(|error| {
            self.failed.push((of.row.request, error.clone()));
        })?;
        let mut values = of.values.lock();
        for (port, state) in states.into_iter().enumerate() {
            values.retain_state(of.row.node, port, || state);
        }
        Ok(())
    }

    /// Stores all states of a request. If the device fails, the next outcome reports it.
    pub(super) fn evict_request(&mut self, request: RequestKey, pool: &mut BufferPool) {
        for slot in self.slots.of_request(request) {
            if let Err(error) = self.evict(slot, pool) {
                self.fail(&error);
            }
        }
    }

    /// Whether a slot has states of an ended request.
    pub fn holds_ended(&self) -> bool {
        self.slots.holds_ended()
    }

    /// Frees the slots of ended requests.
    pub fn forget_ended(&mut self) {
        self.slots.forget_ended(|_| true);
    }
}
