//! The scheduler: a state machine without clock, threads and values.
//!
//! Events and times are arguments (`handle_…`), and actions are results (`poll_…`), so tests drive
//! it by a simulated clock. It keeps the requests and their dependences ([`Table`]). A [`Policy`]
//! chooses which ready nodes form a batch.
//!
//! ```text
//! handle_submit ─► table ─► ready nodes ─► policy ─► poll_tasks ─► worker
//!                    ▲                                               │
//!                    └───────── handle_grow, handle_done ◄───────────┘
//! ```
//!
//! A request ends exactly once: [`Scheduler::poll_ended`] returns it once, also if other events
//! would end it at the same time. [`Scheduler::audit`] checks that none is lost.

mod account;
mod admission;
mod ends;
mod keys;
mod models;
mod policy;
mod record;
mod room;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use slotmap::SecondaryMap;

pub use account::Usage;
pub use admission::{LimitOf, Limits, Reason, Refused, RefusedAt, Requirements, StreamRoom};
pub use ends::{Counts, End, Ended, Timing};
pub use keys::{ClientId, ModelKey, RequestKey, Row, SubgraphKey, WorkerId};
pub use models::{ModelError, ModelShare};
pub use policy::{Completion, Demand, NewModel, NewTask, Policy};
pub use record::Prepared;
pub use table::{Spent, SubgraphView, Table};

use super::cell_graph::{CellId, RequestGraph};
use account::{Account, Admission};
use models::Models;

/// A batch for a worker: one step of each row, which it may compute together with further steps of
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The worker that runs it.
    pub worker: WorkerId,
    /// The cell that its rows call.
    pub cell: CellId,
    /// The nodes of its rows; no node occurs twice.
    pub rows: Vec<Row>,
    /// Number of rows that are computed and belong to no request.
    pub padding: usize,
    /// Its rows are the next steps of the task before it, for one batch with that.
    pub continues: bool,
}

impl Task {
    /// Number of rows that are computed.
    pub fn batch(&self) -> usize {
        self.rows.len() + self.padding
    }
}

/// See the [module](self).
pub struct Scheduler {
    table: Table,
    policy: Box<dyn Policy>,
    /// Maximum number of tasks that a worker gets at once, further steps not counted:
    /// MaxTasksToSubmit.
    tasks_at_once: usize,
    workers: usize,
    /// Of all models together.
    account: Account,
    models: Models,
    /// Deadlines of requests that have not ended.
    deadlines: BTreeSet<(Instant, RequestKey)>,
    ended: VecDeque<Ended>,
    /// Growths that arrived before their predecessors.
    early: SecondaryMap<RequestKey, Vec<RequestGraph>>,
    /// Buffers of tasks that are done.
    spare: Vec<Vec<Row>>,
}

impl Scheduler {
    /// A scheduler without models ([`Scheduler::add_model`]) for `workers` workers, each of which
    /// gets up to `tasks_at_once` tasks at a time. The limits are of all models together.
    ///
    /// # Panics
    /// With no worker, or no task at once.
    pub fn new(
        policy: Box<dyn Policy>,
        workers: usize,
        tasks_at_once: usize,
        limits: Limits,
    ) -> Scheduler {
        assert!(workers > 0 && tasks_at_once > 0, "at least one of each");
        Scheduler {
            table: Table::default(),
            policy,
            tasks_at_once,
            workers,
            account: Account::new(LimitOf::Engine, limits),
            models: Models::default(),
            deadlines: BTreeSet::new(),
            ended: VecDeque::new(),
            early: SecondaryMap::new(),
            spare: Vec::new(),
        }
    }

    /// Maximum rows of a task and its further steps together, unless the policy
    /// [decides](Policy::steps).
    ///
    /// With so many the arithmetic binds, and reading the weights less often gains little: requests
    /// that arrive meanwhile should not wait for more. (LSTM 1024, 2 cores of an AMD EPYC: of 8
    /// rows two steps at once take 0.65 of two tasks' time, of 16 rows 0.93.) Deep stacks, whose
    /// weights no cache holds, are another case: see [`EBatching`](crate::policy::EBatching).
    pub const STEP_ROWS: usize = 16;

    /// A request arrives: [`Scheduler::handle_prepared`] of a record that is made now, in a time in
    /// proportion to the request.
    ///
    /// # Errors
    /// [`Refused`]; nothing of the request is kept.
    pub fn handle_submit(
        &mut self,
        now: Instant,
        unfolded: &RequestGraph,
        requirements: Requirements,
    ) -> Result<RequestKey, Refused> {
        self.handle_prepared(now, Prepared::new(unfolded, requirements))
    }

    /// A request arrives, in a time that does not grow with it.
    ///
    /// # Errors
    /// [`Refused`]; a large record is kept until [`Scheduler::take_spent`].
    pub fn handle_prepared(
        &mut self,
        now: Instant,
        prepared: Prepared,
    ) -> Result<RequestKey, Refused> {
        let requirements = *prepared.requirements();
        let room = self.room_or_refused(&requirements, prepared.nodes());
        let usage = match room {
            Ok(usage) => usage,
            Err(refused) => {
                self.table.refuse(prepared);
                return Err(refused);
            }
        };
        let model = self.models.get_mut(requirements.model);
        let model = model.ok_or(Refused::NoModel)?;
        model.account.submitted(usage, requirements.client);
        self.account.submitted(usage, requirements.client);
        let key = self.table.insert(prepared, model.first_cell(), now);
        if let Some(deadline) = requirements.deadline {
            self.deadlines.insert((deadline, key));
        }
        self.announce();
        Ok(key)
    }

    /// A request's graph has grown by `unfolded`; ignored if the request has ended. If two workers
    /// report at the same time, the later growth may arrive first; it waits for the earlier one.
    ///
    /// # Errors
    /// [`Refused::RequestNodes`] or [`Refused::Overloaded`] if a limit of nodes would be exceeded;
    /// nothing is added.
    pub fn handle_grow(&mut self, key: RequestKey, unfolded: RequestGraph) -> Result<(), Refused> {
        if !self.table.is_live(key) {
            return Ok(());
        }
        self.room_for_nodes(key, unfolded.nodes())?;
        self.grow(key, unfolded);
        Ok(())
    }

    fn grow(&mut self, key: RequestKey, unfolded: RequestGraph) {
        debug_assert!(!self.table.is_segment(key), "segments do not grow");
        self.account.usage.nodes += unfolded.nodes();
        if let Some(model) = self.models.get_mut(self.table.model(key)) {
            model.account.usage.nodes += unfolded.nodes();
        }
        if unfolded.first != self.table.nodes(key) {
            let early = self.early.entry(key).map(|entry| entry.or_default());
            if let Some(early) = early {
                early.push(unfolded);
            }
            return;
        }
        let mut next = Some(unfolded);
        while let Some(unfolded) = next {
            self.table.grow(key, &unfolded);
            // After each growth: a policy queues a subgraph when it had no ready node before.
            self.announce();
            let nodes = self.table.nodes(key);
            next = self.early.get_mut(key).and_then(|early| {
                let at = early.iter().position(|growth| growth.first == nodes)?;
                Some(early.swap_remove(at))
            });
        }
    }

    /// No more nodes will come for a request that was submitted as open.
    pub fn handle_close(&mut self, now: Instant, key: RequestKey) {
        if self.table.close(key) {
            self.completed(now, key);
        }
    }

    /// Cancels a request; does nothing if it has ended.
    pub fn handle_cancel(&mut self, now: Instant, key: RequestKey) {
        self.end(now, key, End::Cancelled);
        self.release(now);
    }

    /// A request has failed: one of its cells did, or the function that grows it.
    pub fn handle_failed(&mut self, now: Instant, key: RequestKey) {
        self.end(now, key, End::Failed);
        self.release(now);
    }

    /// A task has been run, or has failed and [`Scheduler::handle_failed`] was called for its
    /// requests. `took` is the time of its worker, `None` if nothing was computed. The policy may
    /// choose batches by it; no result depends on it.
    pub fn handle_done(&mut self, now: Instant, mut task: Task, took: Option<Duration>) {
        self.policy.done(&self.table, &task, took);
        if let Some(model) = self.models.of_cell(task.cell) {
            model.tasks -= 1;
        }
        for &row in &task.rows {
            if self.table.done(row) {
                self.completed(now, row.request);
            }
        }
        self.announce();
        if self.workers == 1 {
            // The only worker keeps the states.
            self.table.idle.clear();
        }
        task.rows.clear();
        self.spare.push(task.rows);
        self.release(now);
    }

    /// Ends requests whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(deadline, key)) = self.deadlines.first()
            && deadline <= now
        {
            self.end(now, key, End::Late);
        }
        self.release(now);
    }

    /// The next deadline, for [`Scheduler::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// From now on accepts only requests that [continue](Requirements::continues) others.
    pub fn handle_drain(&mut self) {
        let admission = &mut self.account.admission;
        *admission = Admission::Continuing.min(*admission);
    }

    /// Whether [`Scheduler::handle_drain`] or [`Scheduler::handle_shutdown`] was called.
    pub fn is_draining(&self) -> bool {
        self.account.admission < Admission::All
    }

    /// Accepts no more requests, and ends all requests.
    pub fn handle_shutdown(&mut self, now: Instant) {
        self.account.admission = Admission::Nothing;
        for key in self.table.keys().collect::<Vec<_>>() {
            self.end(now, key, End::ShutDown);
        }
        debug_assert_eq!(self.account.counts.live(), 0, "all have ended");
    }

    /// Forms the next tasks of a worker, each followed by further steps of its rows. The worker
    /// must run them in order. First ends requests whose deadline has passed by `now`.
    pub fn poll_tasks(&mut self, now: Instant, worker: WorkerId, tasks: &mut Vec<Task>) {
        self.handle_timeout(now);
        let before = tasks.len();
        loop {
            self.table.arrive();
            self.announce();
            self.form_tasks(now, worker, tasks);
            if tasks.len() > before || self.table.arriving.is_empty() {
                return;
            }
        }
    }

    fn form_tasks(&mut self, now: Instant, worker: WorkerId, tasks: &mut Vec<Task>) {
        for formed in 0..self.tasks_at_once {
            let mut rows = self.spare.pop().unwrap_or_default();
            let demand = Demand::Any { worker, formed };
            let batch = self.policy.next_task(&mut self.table, demand, &mut rows);
            let Some(mut task) = self.begin(now, worker, batch, rows) else {
                break;
            };
            let max_steps = self.models.steps_at_once(task.cell);
            let (steps, max_rows) = match self.policy.max_steps() {
                Some(_) if max_steps > 1 => {
                    let steps = self.policy.steps(now, &self.table, &task);
                    (steps.min(max_steps), usize::MAX)
                }
                _ => (max_steps, Scheduler::STEP_ROWS),
            };
            let mut all_rows = task.batch();
            for _ in 1..steps {
                all_rows += task.batch();
                // Steps that cannot run in one batch are not formed ahead.
                let together =
                    |task: &Task| task.rows.iter().all(|&row| self.table.next_joins(row));
                if all_rows > max_rows || !together(&task) {
                    break;
                }
                let mut rows = self.spare.pop().unwrap_or_default();
                let demand = Demand::NextStep(&task);
                let batch = self.policy.next_task(&mut self.table, demand, &mut rows);
                let Some(mut next) = self.begin(now, worker, batch, rows) else {
                    break;
                };
                next.continues = true;
                tasks.push(std::mem::replace(&mut task, next));
            }
            tasks.push(task);
        }
    }

    /// Submits the task that a policy has formed, if any.
    fn begin(
        &mut self,
        now: Instant,
        worker: WorkerId,
        batch: Option<NewTask>,
        rows: Vec<Row>,
    ) -> Option<Task> {
        let Some(NewTask { cell, padding }) = batch else {
            self.spare.push(rows);
            return None;
        };
        debug_assert!(rows.len() + padding > 0, "a task has a row");
        self.table.submit(&rows, worker, now);
        self.announce();
        if let Some(model) = self.models.of_cell(cell) {
            model.tasks += 1;
            model.account.ready -= rows.len();
        }
        Some(Task {
            worker,
            cell,
            rows,
            padding,
            continues: false,
        })
    }

    /// Subgraphs of `worker` without a task in flight, after [`Scheduler::poll_tasks`]. The worker
    /// must store their states with their requests and then call [`Scheduler::handle_evicted`].
    /// None with a single worker.
    pub fn poll_evictions(&mut self, worker: WorkerId, evict: &mut Vec<SubgraphKey>) {
        let table = &mut self.table;
        let mut idle = std::mem::take(&mut table.idle);
        idle.retain(|&key| {
            if !table.is_live(key.request) {
                return false;
            }
            let pinned = table.pinned(key);
            if pinned == Some(worker) && !table.is_in_flight(key) {
                evict.push(key);
            }
            pinned.is_some_and(|other| other != worker)
        });
        table.idle = idle;
    }

    /// A worker has stored a subgraph's states with its request. Must be called before that worker
    /// polls again, because the subgraph may continue on any worker after that.
    pub fn handle_evicted(&mut self, key: SubgraphKey) {
        if self.table.is_live(key.request)
            && let Some(worker) = self.table.pinned(key)
            && self.table.unpin(key)
        {
            self.policy.unpinned(&self.table, key, worker);
        }
    }

    /// Returns each ended request once.
    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Takes the large records of requests that have ended. They are kept until then: to be called
    /// after [`Scheduler::poll_ended`], and what it returns to be dropped without a lock.
    pub fn take_spent(&mut self) -> Vec<Spent> {
        std::mem::take(&mut self.table.spent)
    }

    /// The limits of all models together.
    pub fn limits(&self) -> Limits {
        self.account.limits
    }

    /// Number of requests so far, by how they ended.
    pub fn counts(&self) -> Counts {
        self.account.counts
    }

    /// The part of the limits that is used.
    pub fn usage(&self) -> Usage {
        self.account.usage
    }

    /// Number of entries of the policy's queues and of requests that have not arrived whole; with
    /// 0, no worker would get a task.
    pub fn queued(&self) -> usize {
        self.policy.queued() + self.table.arriving.len()
    }

    /// The requests.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Checks that every accepted request is either present or has ended once, that no record is
    /// kept of one that has ended and has no rows in flight, and that the usage of the limits is
    /// exact.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn audit(&self) -> Result<(), String> {
        let here = |key: &RequestKey| self.table.is_live(*key) || self.table.is_held(*key);
        let all: Vec<_> = (self.table.keys().filter(here))
            .map(|key| {
                (
                    self.table.model(key),
                    self.usage_of(key),
                    self.table.client(key),
                )
            })
            .collect();
        let of = |model: Option<ModelKey>| {
            let here = all
                .iter()
                .filter(move |one| model.is_none_or(|model| one.0 == model));
            here.map(|&(_, usage, client)| (usage, client))
        };
        self.account.audit(of(None))?;
        let over = self.table.keys().filter(|&key| self.table.is_over(key));
        let over = over.count();
        if over > 0 {
            return Err(format!("{over} records of requests that are over"));
        }
        self.models.iter().try_for_each(|model| {
            model.account.audit(of(Some(model.key)))?;
            let live = self.table.keys().filter(|&key| self.table.is_live(key));
            let of_model = live.filter(|&key| self.table.model(key) == model.key);
            let ready: usize = of_model.map(|key| self.table.ready_rows(key)).sum();
            let counted = model.account.ready;
            if counted != ready {
                return Err(format!("{ready} rows are ready, {counted} counted"));
            }
            Ok(())
        })
    }

    /// The usage of a request.
    fn usage_of(&self, key: RequestKey) -> Usage {
        let early = self.early.get(key).into_iter().flatten();
        let nodes = self.table.nodes(key) + early.map(RequestGraph::nodes).sum::<usize>();
        Usage::of(self.table.is_segment(key), nodes, self.table.bytes(key))
    }

    /// All nodes of a live request are done.
    fn completed(&mut self, now: Instant, key: RequestKey) {
        match self.policy.completed(&self.table, key) {
            Completion::Return => self.end(now, key, End::Completed),
            Completion::Hold => self.table.hold(key),
        }
    }

    /// Ends requests that the policy held and releases.
    fn release(&mut self, now: Instant) {
        while let Some(key) = self.policy.released() {
            if self.table.is_held(key) {
                self.end(now, key, End::Completed);
            }
        }
    }

    fn end(&mut self, now: Instant, key: RequestKey, end: End) {
        let live = self.table.is_live(key);
        if live {
            self.policy.ended(&self.table, key);
            if let Some(model) = self.models.get_mut(self.table.model(key)) {
                model.account.ready -= self.table.ready_rows(key);
            }
        }
        let Some(timing) = self.table.end(key, now) else {
            return;
        };
        let (usage, client) = (self.usage_of(key), self.table.client(key));
        self.early.remove(key);
        let model = self.table.model(key);
        if let Some(model) = self.models.get_mut(model) {
            model.account.ended(usage, client, end);
        }
        self.account.ended(usage, client, end);
        if let Some(deadline) = self.table.deadline(key) {
            self.deadlines.remove(&(deadline, key));
        }
        self.ended.push_back(Ended {
            request: key,
            model,
            end,
            timing,
        });
        self.table.forget(key);
    }

    /// Notifies the policy of new ready nodes.
    fn announce(&mut self) {
        let mut announced = std::mem::take(&mut self.table.announced);
        for &(subgraph, ready) in &announced {
            if self.table.is_live(subgraph.request) {
                if let Some(model) = self.models.get_mut(self.table.model(subgraph.request)) {
                    model.account.ready += ready;
                }
                self.policy.ready(&self.table, subgraph, ready);
            }
        }
        announced.clear();
        self.table.announced = announced;
    }
}
