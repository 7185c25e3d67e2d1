//! Policies of the user's own: what they get from the engine, and that a wrong one ends only its
//! own requests.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gate::{Gate, Gated};
use gated::{add_one, ended};
use gatestream_serve::cell_graph::{
    BatchSizes, BatchTime, Cell, CellCost, CellError, CellId, Cells, Graph, Ports, PreparedCell,
    Source, WorkerEnv,
};
use gatestream_serve::engine::{EngineOptions, Request, SubmitError, Workers};
use gatestream_serve::policy::{Cellular, Order};
use gatestream_serve::scheduler::{
    Completion, Demand, End, Limits, ModelShare, NewModel, NewTask, Policy, Refused, RequestKey,
    Requirements, Row, Scheduler, SubgraphKey, Table, Task, Usage, WorkerId,
};
use gatestream_serve::{Engine, RequestError};
use simple_cells::{SLOW, bits, cells, chain, outputs};

fn one_worker() -> EngineOptions {
    one_worker_of(3)
}

/// For a model of so many cells.
fn one_worker_of(cells: usize) -> EngineOptions {
    EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes { min: 1, max: 2 }; cells],
        ..EngineOptions::default()
    }
}

/// A cell that adds one to its input, each batch behind the gate.
fn gated(gate: &Arc<Gate>, prepared: &Arc<AtomicUsize>) -> Gated {
    Gated {
        ports: Ports::new().input("x", 1).output("y", 1),
        gate: Arc::clone(gate),
        supports_multiple_steps: false,
        run: add_one,
        prepared: Arc::clone(prepared),
    }
}

/// A request of so many nodes of `cell`, of two inputs each, all ready at the same time: one batch
/// for sure.
fn pairs(cell: CellId, nodes: usize) -> Request {
    let mut graph = Graph::new();
    for _ in 0..nodes {
        let (a, b) = (graph.give(&[4.0]), graph.give(&[2.0]));
        let node = graph.node(cell, &[a, b]);
        graph.answer(node.output(0));
    }
    Request::new(graph)
}

/// The cell, the rows and the time of each task.
type Done = Vec<(CellId, usize, Option<Duration>)>;

/// Takes all rows of the cell that was ready first, and records the tasks that are done.
#[derive(Default)]
struct FirstCome {
    ready: VecDeque<SubgraphKey>,
    done: Arc<Mutex<Done>>,
    costs: Arc<Mutex<Vec<CellCost>>>,
}

impl Policy for FirstCome {
    fn queued(&self) -> usize {
        self.ready.len()
    }

    fn add_model(&mut self, model: NewModel<'_>) {
        assert_eq!((model.index, model.first_cell.index()), (0, 0));
        *self.costs.lock().unwrap() = model.costs.to_vec();
    }

    fn ready(&mut self, _: &Table, subgraph: SubgraphKey, _: usize) {
        self.ready.push_back(subgraph);
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        if let Demand::NextStep(_) = demand {
            return None;
        }
        let cell = table.cell(*self.ready.front()?);
        for subgraph in std::mem::take(&mut self.ready) {
            if table.cell(subgraph) == cell {
                table.take(subgraph, usize::MAX, rows);
            } else {
                self.ready.push_back(subgraph);
            }
        }
        Some(NewTask { cell, padding: 0 })
    }

    fn done(&mut self, _: &Table, task: &Task, took: Option<Duration>) {
        let mut done = self.done.lock().unwrap();
        done.push((task.cell, task.batch(), took));
    }

    fn ended(&mut self, _: &Table, request: RequestKey) {
        self.ready.retain(|ready| ready.request != request);
    }
}

/// As another cell, with a cost of its own.
struct Costly(Arc<dyn Cell>, CellCost);

impl Cell for Costly {
    fn name(&self) -> &str {
        "costly"
    }

    fn ports(&self) -> &Ports {
        self.0.ports()
    }

    fn cost(&self) -> CellCost {
        self.1.clone()
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        self.0.prepare(env)
    }
}

#[test]
fn a_policy_gets_the_costs_of_the_cells() {
    let (mut cells, ids) = cells();
    let mut cost = CellCost::default();
    cost.rows.max = 7;
    cost.weight_bytes = 1000;
    cost.times = vec![BatchTime {
        rows: 7,
        steps: 2,
        time: Duration::from_micros(30),
    }];
    let pair = Arc::clone(cells.get(ids.pair).unwrap());
    cells.add(Costly(pair, cost.clone()));
    let seen = |sizes: Vec<BatchSizes>| {
        let options = EngineOptions {
            sizes,
            ..one_worker()
        };
        let policy = FirstCome::default();
        let seen = Arc::clone(&policy.costs);
        let started = Engine::with_policy(cells.clone(), &options, |workers| {
            assert_eq!(workers, 1);
            Box::new(policy)
        });
        drop(started.unwrap());
        std::mem::take(&mut *seen.lock().unwrap())
    };
    let own = seen(Vec::new());
    assert_eq!(own[3], cost);
    assert_eq!(own[..3], vec![CellCost::default(); 3]);
    // Sizes in the options replace those of the cells.
    let sizes = BatchSizes { min: 2, max: 5 };
    cost.rows = sizes;
    assert_eq!(seen(vec![sizes; 4])[3], cost);
}

#[test]
fn a_policy_gets_the_times_of_its_tasks() {
    let (cells, ids) = cells();
    let policy = FirstCome::default();
    let done = Arc::clone(&policy.done);
    let engine = Engine::with_policy(cells, &one_worker(), |_| Box::new(policy)).unwrap();
    let (slow, _) = chain(&ids, &[SLOW; 3]);
    let answer = ended(engine.submit(slow).unwrap()).unwrap();
    assert_eq!(bits(&answer), bits(&outputs(&[SLOW; 3])));
    assert_eq!(
        ended(engine.submit(pairs(ids.pair, 2)).unwrap()),
        Ok(vec![3.0; 2])
    );
    // Refused, so nothing is computed.
    ended(engine.submit(pairs(ids.pair, 3)).unwrap()).unwrap_err();
    gate::drained(&engine, &[(End::Completed, 2), (End::Failed, 1)]);

    let done = std::mem::take(&mut *done.lock().unwrap());
    let tasks: Vec<_> = done.iter().map(|&(cell, rows, _)| (cell, rows)).collect();
    let step = (ids.chain, 1);
    assert_eq!(tasks, [step, step, step, (ids.pair, 2), (ids.pair, 3)]);
    // At least the time that a slow row sleeps.
    let slow = Some(Duration::from_millis(2));
    assert!(done[..3].iter().all(|&(_, _, took)| took >= slow));
    assert!(done[3].2 > Some(Duration::ZERO));
    assert_eq!(done[4].2, None);
}

#[test]
fn a_policy_that_forms_too_large_a_batch_ends_its_requests_and_no_others() {
    let (cells, ids) = cells();
    let policy = Box::new(FirstCome::default());
    let engine = Engine::with_policy(cells, &one_worker(), |_| policy).unwrap();
    let too_many = RequestError::TooManyRows {
        cell: "pair".into(),
        rows: 4,
        max: 2,
    };
    assert_eq!(
        ended(engine.submit(pairs(ids.pair, 4)).unwrap()),
        Err(too_many)
    );
    let stats = engine.stats();
    assert_eq!(stats.models[0].cells[1].batches, [0; 0], "it was not run");
    assert_eq!(
        ended(engine.submit(pairs(ids.pair, 1)).unwrap()),
        Ok(vec![3.0])
    );
    gate::drained(&engine, &[(End::Completed, 1), (End::Failed, 1)]);
}

/// A policy without rows, whose batches have this maximum number of steps.
struct Steps(usize);

impl Policy for Steps {
    fn queued(&self) -> usize {
        0
    }

    fn ready(&mut self, _: &Table, _: SubgraphKey, _: usize) {}

    fn next_task(&mut self, _: &mut Table, _: Demand<'_>, _: &mut Vec<Row>) -> Option<NewTask> {
        None
    }

    fn max_steps(&self) -> Option<usize> {
        Some(self.0)
    }

    fn ended(&mut self, _: &Table, _: RequestKey) {}
}

#[test]
fn a_policy_with_steps_out_of_range_is_refused_before_cells_are_prepared() {
    let start = |steps: usize, gated: Gated| {
        let mut cells = Cells::new();
        cells.add(gated);
        Engine::with_policy(cells, &one_worker_of(1), |_| Box::new(Steps(steps)))
    };
    for (steps, line) in [
        (0, "a batch has at least 1 step"),
        (1025, "is 1025; at most 1024 are"),
        (usize::MAX, "at most 1024 are"),
    ] {
        let prepared = Arc::default();
        let refused = start(steps, gated(&Arc::default(), &prepared))
            .err()
            .unwrap();
        assert!(refused.to_string().contains(line), "{refused}");
        assert_eq!(prepared.load(Ordering::Relaxed), 0);
    }
    for steps in [1, 1024] {
        let prepared = Arc::default();
        drop(start(steps, gated(&Arc::default(), &prepared)).unwrap());
        assert_eq!(prepared.load(Ordering::Relaxed), 1);
    }
}

/// Cellular batching that returns the requests of a round together: completed ones are held until
/// none is left to run.
struct Together {
    cellular: Cellular,
    running: BTreeSet<RequestKey>,
    held: Vec<RequestKey>,
    /// How many were held so far.
    holds: Arc<AtomicUsize>,
}

impl Together {
    fn new(workers: usize, holds: &Arc<AtomicUsize>) -> Box<Together> {
        Box::new(Together {
            cellular: Cellular::new(workers, Order::Arrival),
            running: BTreeSet::new(),
            held: Vec::new(),
            holds: Arc::clone(holds),
        })
    }
}

impl Policy for Together {
    fn queued(&self) -> usize {
        self.cellular.queued()
    }

    fn add_model(&mut self, model: NewModel<'_>) {
        self.cellular.add_model(model);
    }

    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize) {
        self.running.insert(subgraph.request);
        self.cellular.ready(table, subgraph, count);
    }

    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        self.cellular.unpinned(table, subgraph, worker);
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        self.cellular.next_task(table, demand, rows)
    }

    fn done(&mut self, table: &Table, task: &Task, took: Option<Duration>) {
        self.cellular.done(table, task, took);
    }

    fn completed(&mut self, _: &Table, request: RequestKey) -> Completion {
        assert!(self.running.remove(&request));
        self.held.push(request);
        self.holds.fetch_add(1, Ordering::Relaxed);
        Completion::Hold
    }

    fn released(&mut self) -> Option<RequestKey> {
        let may_end = self.running.is_empty();
        if may_end { self.held.pop() } else { None }
    }

    fn ended(&mut self, table: &Table, request: RequestKey) {
        assert!(self.running.remove(&request), "not of one that is held");
        self.cellular.ended(table, request);
    }
}

/// A scheduler under [`Together`] with two requests, of one step and of two, after the first step
/// of both: the first request is held, the other one runs.
struct Held {
    scheduler: Scheduler,
    start: Instant,
    held: RequestKey,
    other: RequestKey,
}

impl Held {
    /// The request that is held has this deadline.
    fn new(deadline: Option<Duration>) -> Held {
        let (cells, ids) = cells();
        let policy = Together::new(1, &Arc::default());
        let mut scheduler = Scheduler::new(policy, 1, 1, Limits::default());
        let costs = vec![CellCost::default(); cells.len()];
        scheduler.add_model(&costs, ModelShare::default()).unwrap();
        let start = Instant::now();
        let mut submit = |steps: usize, deadline: Option<Duration>| {
            let mut graph = Graph::new();
            let x = graph.give(&[1.0]);
            let mut state = Source::Zeros;
            for _ in 0..steps {
                state = graph.node(ids.chain, &[x, state]).output(0);
            }
            let requirements = Requirements {
                deadline: deadline.map(|after| start + after),
                ..Requirements::default()
            };
            let unfolded = graph.unfold(&cells).unwrap();
            scheduler
                .handle_submit(start, &unfolded, requirements)
                .unwrap()
        };
        let (held, other) = (submit(1, deadline), submit(2, None));
        let mut this = Held {
            scheduler,
            start,
            held,
            other,
        };
        this.step();
        assert_eq!(this.ends(), []);
        assert_eq!(this.scheduler.counts().live(), 2);
        this
    }

    /// Runs the next task.
    fn step(&mut self) {
        let mut tasks = Vec::new();
        self.scheduler
            .poll_tasks(self.start, WorkerId(0), &mut tasks);
        for task in tasks {
            self.scheduler.handle_done(self.start, task, None);
        }
    }

    /// What has ended since the last call.
    fn ends(&mut self) -> Vec<(RequestKey, End)> {
        self.scheduler.audit().unwrap();
        std::iter::from_fn(|| self.scheduler.poll_ended())
            .map(|ended| (ended.request, ended.end))
            .collect()
    }

    /// Runs what is left; nothing is kept.
    fn rest(&mut self) -> Vec<(RequestKey, End)> {
        self.step();
        let ends = self.ends();
        assert_eq!(self.scheduler.counts().live(), 0);
        assert_eq!(self.scheduler.table().records(), 0);
        assert_eq!(self.scheduler.usage(), Usage::default());
        ends
    }
}

#[test]
fn a_request_that_is_held_ends_when_the_policy_releases_it() {
    let mut scene = Held::new(None);
    let mut ends = scene.rest();
    ends.sort_unstable_by_key(|&(request, _)| request);
    let [held, other] = [scene.held, scene.other].map(|request| (request, End::Completed));
    assert_eq!(ends, [held, other]);
}

#[test]
fn a_request_that_is_held_may_end_otherwise_and_is_not_released_again() {
    type Act = fn(&mut Held);
    let cases: [(Act, End); 3] = [
        (
            |scene| scene.scheduler.handle_cancel(scene.start, scene.held),
            End::Cancelled,
        ),
        (
            |scene| {
                scene
                    .scheduler
                    .handle_timeout(scene.start + Duration::from_secs(5))
            },
            End::Late,
        ),
        (
            |scene| scene.scheduler.handle_failed(scene.start, scene.held),
            End::Failed,
        ),
    ];
    for (act, end) in cases {
        let mut scene = Held::new(Some(Duration::from_secs(5)));
        act(&mut scene);
        assert_eq!(scene.ends(), [(scene.held, end)]);
        assert_eq!(scene.rest(), [(scene.other, End::Completed)]);
    }
}

#[test]
fn a_request_that_is_held_is_released_by_the_end_of_another() {
    type Act = fn(&mut Held);
    let cases: [(Act, End); 2] = [
        (
            |scene| scene.scheduler.handle_cancel(scene.start, scene.other),
            End::Cancelled,
        ),
        (
            |scene| scene.scheduler.handle_failed(scene.start, scene.other),
            End::Failed,
        ),
    ];
    for (act, end) in cases {
        let mut scene = Held::new(None);
        act(&mut scene);
        let expected = [(scene.other, end), (scene.held, End::Completed)];
        assert_eq!(scene.ends(), expected);
        assert_eq!(scene.rest(), []);
    }
}

#[test]
fn a_request_that_is_held_outlives_a_drain_and_not_a_shut_down() {
    let mut scene = Held::new(None);
    scene.scheduler.handle_drain();
    assert_eq!(scene.ends(), []);
    let ends = scene.rest();
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|&(_, end)| end == End::Completed));

    let mut scene = Held::new(None);
    scene.scheduler.handle_shutdown(scene.start);
    let mut ends = scene.rest();
    ends.sort_unstable_by_key(|&(request, _)| request);
    let [held, other] = [scene.held, scene.other].map(|request| (request, End::ShutDown));
    assert_eq!(ends, [held, other]);
}

/// The same in an engine: the policy holds a request while another is in a cell.
#[test]
fn an_engine_waits_for_requests_that_are_held() {
    for is_cancelled in [false, true] {
        let holds = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Gate::default());
        let (mut cells, ids) = cells();
        let gated = cells.add(gated(&gate, &Arc::default()));
        let options = EngineOptions {
            workers: Workers::Cores(vec![vec![0], vec![0]]),
            ..one_worker_of(cells.len())
        };
        let build = |workers| Together::new(workers, &holds) as Box<dyn Policy>;
        let engine = Engine::with_policy(cells, &options, build).unwrap();
        let mut graph = Graph::new();
        let x = graph.give(&[7.0]);
        let node = graph.node(gated, &[x]);
        graph.answer(node.output(0));
        let other = engine.submit(Request::new(graph)).unwrap();
        gate.wait_for(1);
        let mut held = engine.submit(pairs(ids.pair, 1)).unwrap();
        while holds.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        assert!(held.wait_timeout(Duration::ZERO).is_none());
        assert_eq!(engine.drain_for(Duration::ZERO), 2);
        let mut ends = vec![(End::Completed, 2)];
        if is_cancelled {
            held.cancel();
            assert_eq!(engine.drain_for(Duration::ZERO), 1);
            ends = vec![(End::Completed, 1), (End::Cancelled, 1)];
        }
        gate.let_all_go();
        assert_eq!(ended(other), Ok(vec![8.0]));
        let expected = if is_cancelled {
            Err(RequestError::Cancelled)
        } else {
            Ok(vec![3.0])
        };
        assert_eq!(ended(held), expected);
        gate::drained(&engine, &ends);
    }
}

/// A policy that panics when there is something to form a task of.
struct Hasty {
    something: bool,
}

impl Policy for Hasty {
    fn queued(&self) -> usize {
        0
    }

    fn ready(&mut self, _: &Table, _: SubgraphKey, _: usize) {
        self.something = true;
    }

    fn next_task(&mut self, _: &mut Table, _: Demand<'_>, _: &mut Vec<Row>) -> Option<NewTask> {
        if self.something {
            std::panic::resume_unwind(Box::new("asked"));
        }
        None
    }

    fn ended(&mut self, _: &Table, _: RequestKey) {}
}

#[test]
fn a_policy_that_panics_ends_all_and_nobody_waits_for_ever() {
    let (cells, ids) = cells();
    let policy = Hasty { something: false };
    let engine = Engine::with_policy(cells, &one_worker(), |_| Box::new(policy)).unwrap();
    assert_eq!(
        ended(engine.submit(pairs(ids.pair, 1)).unwrap()),
        Err(RequestError::ShutDown)
    );
    engine.drain();
    let refused = engine.submit(pairs(ids.pair, 1)).err();
    assert_eq!(refused, Some(SubmitError::Refused(Refused::ShuttingDown)));
    gate::drained(&engine, &[(End::ShutDown, 1)]);
    // The worker ends its requests first.
    while engine.health().workers[0].is_alive {
        std::thread::yield_now();
    }
    let health = engine.health();
    assert!(health.draining);
    assert!(health.stuck(std::time::Duration::MAX).eq([0]));
}
