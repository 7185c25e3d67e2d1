//! Policies of the user's own: what they get from the engine, and that a wrong one ends only its
//! own requests.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gated::ended;
use gatestream_serve::cell_graph::{
    BatchSizes, BatchTime, Cell, CellCost, CellError, CellId, Graph, Ports, PreparedCell, WorkerEnv,
};
use gatestream_serve::engine::{EngineOptions, Request, SubmitError, Workers};
use gatestream_serve::scheduler::{
    Demand, End, NewModel, NewTask, Policy, Refused, RequestKey, Row, SubgraphKey, Table, Task,
};
use gatestream_serve::{Engine, RequestError};
use simple_cells::{SLOW, bits, cells, chain, outputs};

fn one_worker() -> EngineOptions {
    EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes { min: 1, max: 2 }; 3],
        ..EngineOptions::default()
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
            match table.cell(subgraph) == cell {
                true => drop(table.take(subgraph, usize::MAX, rows)),
                false => self.ready.push_back(subgraph),
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
        match self.something {
            true => std::panic::resume_unwind(Box::new("asked")),
            false => None,
        }
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
