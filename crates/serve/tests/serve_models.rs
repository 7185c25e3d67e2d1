//! Models added, replaced and removed while an engine runs. Gates hold the workers, not the clock.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gated::{ended, scene};
use gatestream::model::{Gru, Lstm};
use gatestream_serve::cell_graph::{Batch, BatchSizes, Cell, CellError, Cells, Graph, Ports};
use gatestream_serve::cell_graph::{PreparedCell, WorkerEnv};
use gatestream_serve::engine::{EngineError, EngineOptions, Model, ModelOptions, Request};
use gatestream_serve::engine::{StreamError, SubmitError, Ticket, Workers};
use gatestream_serve::networks::{Chain, ChainCell, Outputs, run_unbatched};
use gatestream_serve::scheduler::{Limits, Refused};
use gatestream_serve::{Engine, RequestError};
use simple_cells::{bits, cells, cells_in, chain, outputs, random_options, random_request};

const GONE: SubmitError = SubmitError::Refused(Refused::NoModel);

fn workers(count: usize) -> EngineOptions {
    EngineOptions {
        workers: Workers::Cores((0..count).map(|core| vec![core]).collect()),
        ..EngineOptions::default()
    }
}

/// Requests of models whose cells have other ids in the engine than in their graphs, with growing
/// graphs and streams among them, while models come and go.
#[test]
fn all_requests_of_models_that_come_and_go_get_their_responses() {
    let mut rng = fastrand::Rng::with_seed(7);
    for case in 0..8 {
        let engine = Engine::start(cells().0, &random_options(&mut rng)).unwrap();
        let mut models = vec![(engine.model().clone(), cells().1)];
        let mut tickets: Vec<(Ticket, Vec<f32>)> = Vec::new();
        for _ in 0..60 {
            match rng.usize(0..3) {
                0 if models.len() < 5 => {
                    let mut order = [0, 1, 2];
                    rng.shuffle(&mut order);
                    let (cells, ids) = cells_in(order);
                    let max = rng.usize(1..9);
                    let sizes = vec![BatchSizes { min: 1, max }; 3];
                    let options = ModelOptions {
                        sizes,
                        ..ModelOptions::default()
                    };
                    models.push((engine.add_model(cells, &options).unwrap(), ids));
                }
                1 if models.len() > 1 => {
                    let (model, ids) = models.swap_remove(rng.usize(0..models.len()));
                    let stream = model.stream(ids.chain, None).unwrap();
                    model.remove();
                    let (request, _) = random_request(&ids, &mut rng);
                    assert_eq!(model.submit(request).err(), Some(GONE));
                    drop(stream);
                }
                _ => {}
            }
            for _ in 0..rng.usize(0..12) {
                let (model, ids) = &models[rng.usize(0..models.len())];
                let (request, expected) = random_request(ids, &mut rng);
                tickets.push((model.submit(request).unwrap(), expected));
            }
            let (model, ids) = &models[rng.usize(0..models.len())];
            let mut stream = model.stream(ids.chain, None).unwrap();
            assert_eq!(
                stream.push(&[0.5]).unwrap().wait().unwrap(),
                outputs(&[0.5])
            );
        }
        for (ticket, expected) in tickets {
            assert_eq!(ticket.wait().unwrap().values, expected, "case {case}");
        }
        engine.drain();
        assert_eq!(engine.stats().counts.live(), 0);
    }
}

/// Three recurrent models on the same workers give the bits of each alone.
#[test]
fn recurrent_models_of_an_engine_give_their_own_bits() {
    let add = |cells: &mut Cells, which: u64| match which % 2 {
        0 => Chain::add(
            cells,
            ChainCell::new(Lstm::new(3, 8).random(which).unwrap()).unwrap(),
        ),
        _ => Chain::add(
            cells,
            ChainCell::new(Gru::new(3, 8).random(which).unwrap()).unwrap(),
        ),
    };
    let mut first = Cells::new();
    let chain = add(&mut first, 0);
    let engine = Engine::start(first, &workers(2)).unwrap();
    let mut models = vec![(engine.model().clone(), chain)];
    for which in 1..3 {
        let mut cells = Cells::new();
        let chain = add(&mut cells, which);
        let model = engine.add_model(cells, &ModelOptions::default()).unwrap();
        models.push((model, chain));
    }
    let mut rng = fastrand::Rng::with_seed(3);
    let requests: Vec<_> = (0..120)
        .map(|at| {
            let (model, chain) = &models[at % 3];
            let xs: Vec<f32> = (0..3 * rng.usize(1..12)).map(|_| rng.f32() - 0.5).collect();
            let graph = chain.unfold(&xs, None, Outputs::Last).unwrap();
            let alone = run_unbatched(model.cells(), graph.clone(), None).unwrap();
            (model.submit(Request::new(graph)).unwrap(), alone)
        })
        .collect();
    for (ticket, alone) in requests {
        assert_eq!(bits(&ticket.wait().unwrap().values), bits(&alone));
    }
}

#[test]
fn a_removed_model_answers_what_it_accepted_and_refuses_the_rest() {
    let scene = scene(1, 4, 1, Limits::default());
    let first = scene.engine.model().clone();
    let (cells, ids) = cells_in([2, 0, 1]);
    let second = scene
        .engine
        .add_model(cells, &ModelOptions::default())
        .unwrap();
    let accepted = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    let (request, expected) = chain(&ids, &[0.5, 1.5]);
    let other = second.submit(request).unwrap();
    let mut stream = second.stream(ids.chain, None).unwrap();
    let step = stream.push(&[2.0]).unwrap();
    assert_eq!(second.drain_for(Duration::ZERO), 2, "the worker is held");
    let refused = StreamError::Submit(SubmitError::Refused(Refused::ModelDrains));
    assert_eq!(stream.push(&[2.0]).err(), Some(refused));
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| second.remove());
        let removing_first = scope.spawn(|| first.remove());
        let (request, _) = chain(&ids, &[0.5]);
        let refused = second.submit(request).err().unwrap();
        assert!([GONE, SubmitError::Refused(Refused::ModelDrains)].contains(&refused));
        assert!(!removing.is_finished() && !removing_first.is_finished());
        scene.gate.let_all_go();
    });
    assert_eq!(ended(accepted), Ok(vec![2.0]));
    assert_eq!(ended(other), Ok(expected));
    assert_eq!(step.wait(), Ok(outputs(&[2.0])));
    assert_eq!(stream.state(), [2.0, 1.0], "states outlive the model");
    let gone = StreamError::Submit(GONE);
    assert_eq!(stream.push(&[2.0]).err(), Some(gone.clone()));
    assert_eq!(second.stream(ids.chain, None).err(), Some(gone));
    assert_eq!(second.submit(chain(&ids, &[0.5]).0).err(), Some(GONE));
    assert_eq!(scene.engine.submit(scene.gated(1.0)).err(), Some(GONE));
    assert_eq!(second.drain(), 0);
    second.remove();
}

#[test]
fn all_requests_of_a_model_are_cancelled_and_no_others() {
    let scene = scene(1, 4, 1, Limits::default());
    let (cells, ids) = cells_in([1, 2, 0]);
    let second = scene
        .engine
        .add_model(cells, &ModelOptions::default())
        .unwrap();
    let first = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    let cancelled = [0.5, 1.5].map(|x| second.submit(chain(&ids, &[x]).0).unwrap());
    second.cancel_all();
    assert_eq!(second.drain_for(gate::PATIENCE), 0);
    for ticket in cancelled {
        assert_eq!(ended(ticket), Err(RequestError::Cancelled));
    }
    scene.gate.let_all_go();
    assert_eq!(ended(first), Ok(vec![2.0]));
}

/// A cell that counts its prepared copies.
struct Counted {
    ports: Ports,
    here: Arc<AtomicUsize>,
    fails: bool,
}

struct Copy(Arc<AtomicUsize>);

impl Drop for Copy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PreparedCell for Copy {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let ([x], [], [y]) = batch.split();
        y.copy_from_slice(x);
        Ok(())
    }
}

impl Cell for Counted {
    fn name(&self) -> &str {
        "counted"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        if self.fails {
            return Err(CellError::new("no memory for it"));
        }
        self.here.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Copy(Arc::clone(&self.here))))
    }
}

fn counted(here: &Arc<AtomicUsize>, fails: &[bool]) -> Cells {
    let mut cells = Cells::new();
    for &fails in fails {
        cells.add(Counted {
            ports: Ports::new().input("x", 1).output("y", 1),
            here: Arc::clone(here),
            fails,
        });
    }
    cells
}

fn copy(model: &Model, x: f32) -> Ticket {
    let (cell, _) = model.cells().iter().last().unwrap();
    let mut graph = Graph::new();
    let x = graph.give(&[x]);
    let node = graph.node(cell, &[x]);
    graph.answer(node.output(0));
    model.submit(Request::new(graph)).unwrap()
}

/// After `remove` no worker has the cells of the model; its ids are used again.
#[test]
fn a_removed_model_leaves_nothing() {
    let engine = Engine::start(cells().0, &workers(2)).unwrap();
    let here = Arc::new(AtomicUsize::new(0));
    for round in 0..50 {
        let cells = counted(&here, &vec![false; 1 + round % 3]);
        let model = engine.add_model(cells, &ModelOptions::default()).unwrap();
        assert_eq!(here.load(Ordering::Relaxed), 2 * (1 + round % 3));
        let ticket = copy(&model, round as f32);
        match round % 2 {
            0 => assert_eq!(ticket.wait().unwrap().values, [round as f32]),
            _ => drop(ticket),
        }
        model.remove();
        assert_eq!(here.load(Ordering::Relaxed), 0);
    }
    assert_eq!(engine.stats().models.len(), 1);
}

#[test]
fn a_model_that_cannot_be_prepared_leaves_nothing() {
    let engine = Engine::start(cells().0, &workers(2)).unwrap();
    let here = Arc::new(AtomicUsize::new(0));
    let failed = engine.add_model(counted(&here, &[false, true]), &ModelOptions::default());
    assert!(matches!(failed.err(), Some(EngineError::Cell { cell, .. }) if cell == "counted"),);
    assert_eq!(here.load(Ordering::Relaxed), 0);
    let none = engine.add_model(Cells::new(), &ModelOptions::default());
    assert!(matches!(none.err(), Some(EngineError::NoCell)));
    let cells = counted(&here, &[false]);
    let model = engine.add_model(cells, &ModelOptions::default()).unwrap();
    assert_eq!(copy(&model, 3.0).wait().unwrap().values, [3.0]);
    drop(engine);
    assert_eq!(here.load(Ordering::Relaxed), 0);
    // A handle does not keep the engine.
    let graph = Graph::new();
    let stopped = Err(SubmitError::Refused(Refused::ShuttingDown));
    assert_eq!(model.submit(Request::new(graph)).map(drop), stopped);
    model.drain();
    model.remove();
}

/// A stream is moved to a model with the same weights: its bits are those of one stream.
#[test]
fn a_stream_moves_to_the_model_that_replaces_its_own() {
    let weights = Arc::new(Lstm::new(2, 8).layers(2).random(5).unwrap());
    let cells = || {
        let mut cells = Cells::new();
        let cell = ChainCell::new(Arc::clone(&weights)).unwrap();
        let chain = Chain::add(&mut cells, cell);
        (cells, chain)
    };
    let (first, chain) = cells();
    let engine = Engine::start(first, &workers(1)).unwrap();
    let old = engine.model();
    let inputs: Vec<[f32; 2]> = (0..20).map(|at| [at as f32 / 10.0, 0.5]).collect();
    let graph = chain
        .unfold(inputs.as_flattened(), None, Outputs::Each)
        .unwrap();
    let uninterrupted = run_unbatched(old.cells(), graph, None).unwrap();

    let mut stream = old.stream(chain.cell(), None).unwrap();
    let mut answered = Vec::new();
    for x in &inputs[..9] {
        answered.extend(stream.push(x).unwrap().wait().unwrap());
    }
    let (second, chain) = cells();
    let new = engine.add_model(second, &ModelOptions::default()).unwrap();
    old.drain();
    let mut moved = new.stream(chain.cell(), Some(&stream.state())).unwrap();
    old.remove();
    for x in &inputs[9..] {
        answered.extend(moved.push(x).unwrap().wait().unwrap());
    }
    assert_eq!(bits(&answered), bits(&uninterrupted));
}
