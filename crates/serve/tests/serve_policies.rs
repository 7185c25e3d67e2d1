//! Policies of a user's own on the engine: what they are told, and that a wrong one harms nobody else.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cellstream_serve::Engine;
use cellstream_serve::cell_graph::{Cell, CellError, CellId, Graph, Place, Ports, PreparedCell};
use cellstream_serve::engine::{EngineOptions, Request, RequestError, SubmitError, Workers};
use cellstream_serve::policy::{BatchSizes, Cellular, Formed, Order, Policy};
use cellstream_serve::scheduler::{End, Refused, RequestKey, Row, SubgraphKey, Table, WorkerId};
use gated::ended;
use simple_cells::{SLOW, bits, cells, chain, outputs};

fn one_worker() -> EngineOptions {
    EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes { min: 1, max: 2 }; 3],
        ..EngineOptions::default()
    }
}

/// A request of so many nodes of `cell`, of two inputs each, all ready at the same time: one batch for sure.
fn pairs(cell: CellId, nodes: usize) -> Request {
    let mut graph = Graph::new();
    for _ in 0..nodes {
        let (a, b) = (graph.give(&[4.0]), graph.give(&[2.0]));
        let node = graph.node(cell, &[a, b]);
        graph.answer(node.gives(0));
    }
    Request::new(graph)
}

/// What a policy was told.
#[derive(Default)]
struct Told {
    passes: Vec<Option<usize>>,
    measured: Vec<(CellId, usize, Duration)>,
}

/// Takes all of the cell that was ready first, and writes down what it is told.
struct FirstCome {
    ready: VecDeque<SubgraphKey>,
    told: Arc<Mutex<Told>>,
}

impl Policy for FirstCome {
    fn name(&self) -> &'static str {
        "first come"
    }

    fn passes(&mut self, rows: &[Option<usize>]) {
        self.told.lock().unwrap().passes = rows.to_vec();
    }

    fn queued(&self) -> usize {
        self.ready.len()
    }

    fn ready(&mut self, _: &Table, subgraph: SubgraphKey, _: usize) {
        self.ready.push_back(subgraph);
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        _: WorkerId,
        _: usize,
        rows: &mut Vec<Row>,
    ) -> Option<Formed> {
        let cell = table.cell(*self.ready.front()?);
        for subgraph in std::mem::take(&mut self.ready) {
            match table.cell(subgraph) == cell {
                true => drop(table.take(subgraph, usize::MAX, rows)),
                false => self.ready.push_back(subgraph),
            }
        }
        Some(Formed { cell, padding: 0 })
    }

    fn measured(&mut self, cell: CellId, rows: usize, took: Duration) {
        self.told.lock().unwrap().measured.push((cell, rows, took));
    }

    fn ended(&mut self, _: &Table, request: RequestKey) {
        self.ready.retain(|ready| ready.request != request);
    }
}

/// As `cell`, and computes ten rows in a pass for each thread.
struct InPasses(Arc<dyn Cell>);

impl Cell for InPasses {
    fn name(&self) -> &str {
        "in passes"
    }

    fn ports(&self) -> &Ports {
        self.0.ports()
    }

    fn rows_of_a_pass(&self, threads: usize) -> Option<usize> {
        Some(10 * threads)
    }

    fn prepare(&self, place: &Place) -> Result<Box<dyn PreparedCell>, CellError> {
        self.0.prepare(place)
    }
}

#[test]
fn a_policy_is_told_how_many_rows_a_pass_of_each_cell_holds() {
    let (mut cells, ids) = cells();
    let pair = Arc::clone(cells.get(ids.pair).unwrap());
    cells.add(InPasses(pair));
    let told = Arc::<Mutex<Told>>::default();
    for (workers, rows) in [
        (Workers::OneOver(2), 20),
        (Workers::Cores(vec![vec![0], vec![0]]), 10),
    ] {
        let policy = FirstCome {
            ready: VecDeque::new(),
            told: Arc::clone(&told),
        };
        let options = EngineOptions {
            workers,
            sizes: vec![BatchSizes { min: 1, max: 2 }; 4],
            ..EngineOptions::default()
        };
        Engine::with_policy(cells.clone(), &options, |_, _| Box::new(policy)).unwrap();
        let passes = std::mem::take(&mut told.lock().unwrap().passes);
        assert_eq!(passes, [None, None, None, Some(rows)]);
    }
}

#[test]
fn a_policy_is_told_how_many_rows_its_batches_had_and_how_long_they_took() {
    let (cells, ids) = cells();
    let told = Arc::<Mutex<Told>>::default();
    let policy = FirstCome {
        ready: VecDeque::new(),
        told: Arc::clone(&told),
    };
    let engine = Engine::with_policy(cells, &one_worker(), |_, _| Box::new(policy)).unwrap();
    let (slow, _) = chain(&ids, &[SLOW; 3]);
    let answer = ended(engine.submit(slow).unwrap()).unwrap();
    assert_eq!(bits(&answer), bits(&outputs(&[SLOW; 3])));
    assert_eq!(
        ended(engine.submit(pairs(ids.pair, 2)).unwrap()),
        Ok(vec![3.0; 2])
    );
    // Not run, so not told of.
    ended(engine.submit(pairs(ids.pair, 3)).unwrap()).unwrap_err();
    gate::drained(&engine, &[(End::Completed, 2), (End::Failed, 1)]);

    let told = std::mem::take(&mut told.lock().unwrap().measured);
    let batches: Vec<_> = told.iter().map(|&(cell, rows, _)| (cell, rows)).collect();
    let step = (ids.chain, 1);
    assert_eq!(batches, [step, step, step, (ids.pair, 2)]);
    // What a slow row sleeps for.
    let (_, steps) = told.split_last().unwrap();
    assert!(steps.iter().all(|(_, _, took)| took.as_millis() >= 2));
    assert!(told.iter().all(|(_, _, took)| !took.is_zero()));
}

#[test]
fn a_policy_that_forms_too_large_a_batch_ends_its_requests_and_no_others() {
    let (cells, ids) = cells();
    let engine = Engine::with_policy(cells, &one_worker(), |sizes, workers| {
        let larger = sizes.iter().map(|size| BatchSizes { max: 4, ..*size });
        let sizes: Vec<_> = larger.collect();
        Box::new(Cellular::new(&sizes, workers, Order::Arrival))
    });
    let engine = engine.unwrap();
    let too_many = RequestError::TooManyRows {
        cell: "pair".into(),
        rows: 4,
        most: 2,
    };
    assert_eq!(
        ended(engine.submit(pairs(ids.pair, 4)).unwrap()),
        Err(too_many)
    );
    let stats = engine.stats();
    assert_eq!(stats.cells[1].batches, [0; 0], "it was not run");
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
    fn name(&self) -> &'static str {
        "panics"
    }

    fn queued(&self) -> usize {
        0
    }

    fn ready(&mut self, _: &Table, _: SubgraphKey, _: usize) {
        self.something = true;
    }

    fn next_task(
        &mut self,
        _: &mut Table,
        _: WorkerId,
        _: usize,
        _: &mut Vec<Row>,
    ) -> Option<Formed> {
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
    let engine = Engine::with_policy(cells, &one_worker(), |_, _| Box::new(policy)).unwrap();
    assert_eq!(
        ended(engine.submit(pairs(ids.pair, 1)).unwrap()),
        Err(RequestError::ShutDown)
    );
    engine.drain();
    let refused = engine.submit(pairs(ids.pair, 1)).err();
    assert_eq!(refused, Some(SubmitError::Refused(Refused::ShuttingDown)));
    gate::drained(&engine, &[(End::ShutDown, 1)]);
}
