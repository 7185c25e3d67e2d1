//! The scheduler driven by a simulated clock, and checked at every event by what is known of the
//! graphs from their sources alone. It uses the public interface only: the load generator's tests
//! of its policies include this file.

use super::test_graphs::takes_of;
use super::*;

/// Costs of cells of which only the batch sizes are known.
pub(super) fn costs(sizes: &[BatchSizes]) -> Vec<CellCost> {
    sizes.iter().copied().map(CellCost::from).collect()
}

/// A scheduler of one model, whose cells have batches of these sizes.
pub(super) fn scheduler_of(
    policy: Box<dyn Policy>,
    sizes: &[BatchSizes],
    workers: usize,
    tasks_at_once: usize,
    limits: Limits,
) -> Scheduler {
    let mut scheduler = Scheduler::new(policy, workers, tasks_at_once, limits);
    let added = scheduler.add_model(&costs(sizes), ModelShare::default());
    assert_eq!(added, Ok(ModelKey::default()));
    scheduler
}

/// Batches of so many cells, of up to `rows` rows.
pub(super) fn random_sizes(rng: &mut fastrand::Rng, cells: usize, rows: usize) -> Vec<BatchSizes> {
    let mut size = || {
        let max = rng.usize(1..=rows);
        BatchSizes {
            min: rng.usize(1..=max),
            max,
        }
    };
    (0..cells).map(|_| size()).collect()
}

/// How far a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Waiting,
    Submitted(WorkerId),
    Done,
}

/// What the checks know of a request.
pub(super) struct Known {
    pub(super) graph: Graph,
    pub(super) model: ModelKey,
    pub(super) takes: Vec<Vec<usize>>,
    pub(super) at: Vec<At>,
    pub(super) deadline: Option<u64>,
    pub(super) priority: u8,
    pub(super) end: Option<(u64, End)>,
}

impl Known {
    pub(super) fn look(&mut self) {
        for node in self.at.len()..self.graph.len() {
            self.takes.push(takes_of(&self.graph, node));
            self.at.push(At::Waiting);
        }
    }
}

/// A task that has been given to a worker.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) time: u64,
    pub(super) task: Task,
}

/// Scheduler and workers in a time of whole units.
pub(super) struct Simulated {
    pub(super) scheduler: Scheduler,
    /// Of the first model; other models have cells of the same kind.
    pub(super) cells: Cells,
    /// By id among the cells of all models.
    pub(super) sizes: Vec<BatchSizes>,
    pub(super) start: Instant,
    pub(super) now: u64,
    pub(super) known: HashMap<RequestKey, Known>,
    /// Not done, by worker, in order.
    pub(super) queues: Vec<VecDeque<Task>>,
    pub(super) in_flight: BTreeMap<SubgraphKey, (WorkerId, usize)>,
    /// Where a subgraph's states are, unless its worker has put them where all find them.
    pub(super) states: BTreeMap<SubgraphKey, WorkerId>,
    /// What each worker was asked to put away, and has not told of.
    pub(super) evicted: Vec<Vec<SubgraphKey>>,
    pub(super) given: Vec<Given>,
}

impl Simulated {
    pub(super) fn new(
        policy: Box<dyn Policy>,
        cells: Cells,
        sizes: &[BatchSizes],
        workers: usize,
        tasks_at_once: usize,
    ) -> Simulated {
        let limits = Limits::default();
        Simulated {
            scheduler: scheduler_of(policy, sizes, workers, tasks_at_once, limits),
            cells,
            sizes: sizes.to_vec(),
            start: Instant::now(),
            now: 0,
            known: HashMap::new(),
            queues: vec![VecDeque::new(); workers],
            in_flight: BTreeMap::new(),
            states: BTreeMap::new(),
            evicted: vec![Vec::new(); workers],
            given: Vec::new(),
        }
    }

    pub(super) fn instant(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    pub(super) fn submit(
        &mut self,
        graph: Graph,
        priority: u8,
        deadline: Option<u64>,
        open: bool,
    ) -> RequestKey {
        self.submit_to(ModelKey::default(), graph, priority, deadline, open)
    }

    pub(super) fn submit_to(
        &mut self,
        model: ModelKey,
        graph: Graph,
        priority: u8,
        deadline: Option<u64>,
        open: bool,
    ) -> RequestKey {
        let unfolded = graph.unfold(&self.cells).expect("a valid graph");
        let requirements = Requirements {
            model,
            priority,
            deadline: deadline.map(|at| self.start + Duration::from_millis(at)),
            open,
            bytes: graph.bytes(),
            ..Requirements::default()
        };
        let key = self
            .scheduler
            .handle_submit(self.instant(), &unfolded, requirements)
            .expect("room for it");
        let mut known = Known {
            graph,
            model,
            takes: Vec::new(),
            at: Vec::new(),
            deadline,
            priority,
            end: None,
        };
        known.look();
        assert!(self.known.insert(key, known).is_none(), "a key of its own");
        self.check();
        key
    }

    pub(super) fn is_live(&self, key: RequestKey) -> bool {
        self.known[&key].end.is_none()
    }

    /// Adds to a request's graph.
    pub(super) fn grow(&mut self, key: RequestKey, more: impl FnOnce(&mut Graph)) {
        let known = self.known.get_mut(&key).expect("submitted");
        let before = known.graph.mark();
        more(&mut known.graph);
        known.look();
        let unfolded = known.graph.unfold_from(&self.cells, before);
        let unfolded = unfolded.expect("a valid growth");
        self.scheduler.handle_grow(key, unfolded).expect("room");
        self.check();
    }

    pub(super) fn close(&mut self, key: RequestKey) {
        self.scheduler.handle_close(self.instant(), key);
        self.check();
    }

    pub(super) fn cancel(&mut self, key: RequestKey) {
        self.scheduler.handle_cancel(self.instant(), key);
        self.check();
    }

    /// A worker asks; what it gets is checked.
    pub(super) fn poll(&mut self, worker: WorkerId) -> Vec<Task> {
        self.evict_from(worker);
        let mut tasks = Vec::new();
        self.scheduler
            .poll_tasks(self.instant(), worker, &mut tasks);
        for task in &tasks {
            self.check_task(worker, task);
            self.queues[worker.0].push_back(task.clone());
            self.given.push(Given {
                time: self.now,
                task: task.clone(),
            });
        }
        let evicted = &mut self.evicted[worker.0];
        self.scheduler.poll_evictions(worker, evicted);
        for key in evicted.iter() {
            assert_eq!(self.states.get(key), Some(&worker), "its own");
            assert!(!self.in_flight.contains_key(key), "at rest");
        }
        self.check();
        tasks
    }

    pub(super) fn check_task(&mut self, worker: WorkerId, task: &Task) {
        assert_eq!(task.worker, worker);
        assert!(task.rows.len() + task.padding > 0);
        assert!(task.rows.len() + task.padding <= self.sizes[task.cell.index()].max);
        for row in &task.rows {
            let known = &self.known[&row.request];
            assert_eq!(known.end, None, "of a request that has not ended");
            assert!(known.deadline.is_none_or(|at| at > self.now), "in time");
            let first = self
                .scheduler
                .first_cell(known.model)
                .expect("added")
                .index();
            let cell = first + known.graph.cell(row.node).index();
            assert_eq!(cell, task.cell.index(), "one cell");
            assert_eq!(known.at[row.node.index()], At::Waiting, "once");
            let subgraph = self.scheduler.table().node_subgraph(*row);
            for &from in &known.takes[row.node.index()] {
                let node = NodeId::new(from);
                let before = Row { node, ..*row };
                let same = self.scheduler.table().node_subgraph(before) == subgraph;
                let fine = match known.at[from] {
                    At::Waiting => false,
                    At::Submitted(other) => other == worker && same,
                    At::Done => true,
                };
                assert!(fine, "{row:?} takes of {from}, {:?}", known.at[from]);
            }
            let holder = self.in_flight.entry(subgraph).or_insert((worker, 0));
            assert_eq!(holder.0, worker, "{subgraph:?} on one worker");
            holder.1 += 1;
            let place = self.states.entry(subgraph).or_insert(worker);
            assert_eq!(*place, worker, "where the states of {subgraph:?} are");
        }
        // Only now: rows of one task do not take of each other.
        for row in &task.rows {
            let known = self.known.get_mut(&row.request).expect("submitted");
            let at = &mut known.at[row.node.index()];
            assert_eq!(*at, At::Waiting, "once in a task");
            *at = At::Submitted(worker);
        }
    }

    /// A worker has run its first task; `grow` is asked for each row of a request that has not
    /// ended.
    pub(super) fn done(
        &mut self,
        worker: WorkerId,
        fails: bool,
        grow: impl FnMut(&mut Simulated, Row),
    ) {
        self.done_after(worker, None, fails, grow);
    }

    /// As [`Simulated::done`], after a measured time.
    pub(super) fn done_after(
        &mut self,
        worker: WorkerId,
        took: Option<Duration>,
        fails: bool,
        mut grow: impl FnMut(&mut Simulated, Row),
    ) {
        let task = self.queues[worker.0].pop_front().expect("a task");
        for &row in &task.rows {
            let known = self.known.get_mut(&row.request).expect("submitted");
            known.at[row.node.index()] = At::Done;
            let subgraph = self.scheduler.table().node_subgraph(row);
            let holder = self.in_flight.get_mut(&subgraph).expect("submitted");
            holder.1 -= 1;
            if holder.1 == 0 {
                self.in_flight.remove(&subgraph);
            }
        }
        for row in &task.rows {
            if fails {
                self.scheduler.handle_failed(self.instant(), row.request);
                self.check();
            } else if self.is_live(row.request) {
                grow(self, *row);
            }
        }
        self.scheduler.handle_done(self.instant(), task, took);
        self.check();
    }

    /// All workers put away what they were asked to.
    pub(super) fn evict(&mut self) {
        for worker in 0..self.evicted.len() {
            self.evict_from(WorkerId(worker));
        }
    }

    pub(super) fn evict_from(&mut self, worker: WorkerId) {
        for key in std::mem::take(&mut self.evicted[worker.0]) {
            self.states.remove(&key);
            self.scheduler.handle_evicted(key);
            self.check();
        }
    }

    /// After every event: nothing is lost, and each end is told once.
    pub(super) fn check(&mut self) {
        self.scheduler.audit().expect("conserved");
        while let Some(ended) = self.scheduler.poll_ended() {
            let known = self.known.get_mut(&ended.request).expect("submitted");
            assert_eq!(known.end, None, "ends once");
            if ended.end == End::Completed {
                assert!(known.at.iter().all(|at| *at == At::Done), "all computed");
            }
            known.end = Some((self.now, ended.end));
        }
        drop(self.scheduler.take_spent());
        let live = self.known.values().filter(|k| k.end.is_none()).count();
        assert_eq!(self.scheduler.counts().live(), live as u64);
    }

    /// Runs everything, `took` units for each task, with `arrive` called at each whole unit before
    /// the workers ask. Ends when nothing is left and `arrive` says that nothing will come.
    pub(super) fn run(&mut self, took: u64, mut arrive: impl FnMut(&mut Simulated, u64) -> bool) {
        let mut until = vec![0; self.queues.len()];
        loop {
            for (index, until) in until.iter_mut().enumerate() {
                if *until == self.now && !self.queues[index].is_empty() {
                    self.done(WorkerId(index), false, |_, _| ());
                    *until += took;
                }
            }
            let more = arrive(self, self.now);
            for (index, until) in until.iter_mut().enumerate() {
                if self.queues[index].is_empty() && !self.poll(WorkerId(index)).is_empty() {
                    *until = self.now + took;
                }
            }
            self.evict();
            if !more && self.scheduler.counts().live() == 0 {
                return;
            }
            self.now += 1;
            assert!(self.now < 1_000_000, "nothing starves");
        }
    }
}
