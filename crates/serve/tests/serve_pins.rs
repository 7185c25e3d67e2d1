//! Threads that users start in calls of an engine do not inherit the pin of a worker, and engines
//! of one process use different cores.
#![cfg(target_os = "linux")]

use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use gatestream::execute::team::TeamWarning;
use gatestream::machine::allowed_cpus;
use gatestream::model::Lstm;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, Graph, Ports, PreparedCell, Source, WorkerEnv,
};
use gatestream_serve::engine::{EngineOptions, Request, Workers, calibrate};
use gatestream_serve::networks::{Chain, ChainCell};

/// Held by each test, as their engines use cores.
static ONE_TEST: Mutex<()> = Mutex::new(());

fn one_test() -> MutexGuard<'static, ()> {
    ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The CPUs that a thread started here may run on.
fn inherited() -> String {
    let status = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let status = std::thread::spawn(status).join().unwrap();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap().trim().to_owned()
}

/// Its preparation reports the CPUs that a new thread inherits; a batch with a negative value
/// panics.
struct Telling {
    ports: Ports,
    prepared: Mutex<mpsc::Sender<String>>,
}

impl Cell for Telling {
    fn name(&self) -> &str {
        "telling"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready;
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let ([x], [], [y]) = batch.split();
                assert!(x.iter().all(|&x| x >= 0.0), "a negative value");
                y.copy_from_slice(x);
                Ok(())
            }
        }
        self.prepared.lock().unwrap().send(inherited()).unwrap();
        Ok(Box::new(Ready))
    }
}

fn telling() -> (Cells, CellId, mpsc::Receiver<String>) {
    let (prepared, told) = mpsc::channel();
    let mut cells = Cells::new();
    let cell = cells.add(Telling {
        ports: Ports::new().input("x", 1).output("y", 1),
        prepared: Mutex::new(prepared),
    });
    (cells, cell, told)
}

fn request(cell: CellId, x: f32) -> Request {
    let mut graph = Graph::new();
    let x: Source = graph.give(&[x]);
    let y = graph.node(cell, &[x]).output(0);
    graph.answer(y);
    Request::new(graph)
}

/// A cell is prepared again after a panic, by its pinned worker.
#[test]
fn threads_started_by_repeated_preparations_run_anywhere() {
    let _alone = one_test();
    let everywhere = inherited();
    let (cells, cell, told) = telling();
    let options = EngineOptions {
        workers: Workers::OneOver(1),
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    assert_eq!(told.recv().unwrap(), everywhere);
    let run = |x| engine.submit(request(cell, x)).unwrap().wait();
    assert!(run(-1.0).is_err());
    assert!(run(1.0).is_ok());
    assert_eq!(told.recv().unwrap(), everywhere);
}

#[test]
fn threads_started_by_a_calibrated_cell_run_anywhere() {
    let _alone = one_test();
    let everywhere = inherited();
    let (cells, _, told) = telling();
    let core = allowed_cpus()[0];
    // In a thread of its own, which stays pinned.
    std::thread::spawn(move || calibrate(&cells, &[core], &[1]).unwrap())
        .join()
        .unwrap();
    assert_eq!(told.recv().unwrap(), everywhere);
}

#[test]
fn threads_started_by_callbacks_and_cells_run_anywhere() {
    let _alone = one_test();
    let everywhere = inherited();
    let (cells, cell, told) = telling();
    let options = EngineOptions {
        workers: Workers::OnePerCore,
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    for _ in allowed_cpus() {
        assert_eq!(told.recv().unwrap(), everywhere);
    }
    let (callback, told) = mpsc::channel();
    for _ in 0..20 {
        let callback = callback.clone();
        let done =
            move |answer: Result<_, _>| callback.send((answer.is_ok(), inherited())).unwrap();
        engine.submit_with(request(cell, 1.0), done).unwrap();
        assert_eq!(told.recv().unwrap(), (true, everywhere.clone()));
    }
}

fn engine(workers: Workers) -> Engine {
    let mut cells = Cells::new();
    let model = Lstm::new(2, 8).random(1).unwrap();
    Chain::add(&mut cells, ChainCell::new(model).unwrap());
    let options = EngineOptions {
        workers,
        ..EngineOptions::default()
    };
    Engine::start(cells, &options).unwrap()
}

#[test]
fn engines_of_one_process_take_different_cores() {
    let _alone = one_test();
    let one = || engine(Workers::OneOver(1));
    let engines: Vec<Engine> = allowed_cpus().iter().map(|_| one()).collect();
    let mut cores = Vec::new();
    for engine in &engines {
        assert_eq!(engine.warnings(), []);
        let [worker] = &engine.stats().workers[..] else {
            panic!("one worker")
        };
        assert!(worker.pinned);
        cores.extend_from_slice(&worker.cores);
    }
    cores.sort();
    assert_eq!(cores, allowed_cpus());
    let is_shared = |w: &TeamWarning| matches!(w, TeamWarning::SharedCore { .. });
    let more = one();
    assert!(more.warnings().iter().any(is_shared));
    // Those of engines that are gone are free again.
    drop((engines, more));
    assert_eq!(one().warnings(), []);
}

#[test]
fn an_engine_tells_that_it_could_not_be_pinned() {
    let workers = Workers::Cores(vec![vec![1000, 1001]]);
    let (worker, core) = (1, 1001);
    let engine = engine(workers);
    assert_eq!(engine.warnings(), [TeamWarning::NotPinned { worker, core }]);
    let worker = &engine.stats().workers[0];
    assert_eq!(
        (worker.pinned, &worker.cores[..]),
        (false, &[1000, 1001][..])
    );
}
