//! Models of every order in which submitters, workers and the reply thread may step. `.ci/loom`
//! runs them.
//!
//! A lost wake-up shows as a deadlock, a reply that is sent twice or never in the counts.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use loom::thread;

use super::EngineOptions;
use super::answer::answer_slot;
use super::prepare::{ModelSetup, TaskLimits};
use super::shared::Shared;
use super::waiting::Submission;
use super::*;
use crate::cell_graph::{Batch, BatchSizes, Cell, CellError, Growth, NodeId, NodeOutputs, Ports};
use crate::cell_graph::{PreparedCell, WorkerEnv};
use crate::policy::{Cellular, Order};
use crate::scheduler::{End, Limits, ModelShare, Refused, RequestKey};
use crate::sync::Mutex;
use crate::worker::ModelCells;
use gatestream::execute::team::{SharedTeam, Team};

/// Adds one to its state, and gives it; fails where that makes 100.
struct Count(Ports);

impl Cell for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        Ok(Box::new(Counting))
    }
}

struct Counting;

impl PreparedCell for Counting {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let (rows, lengths) = (batch.rows(), batch.lengths());
        let ([], [state], [count]) = batch.split();
        for (at, count) in count.iter_mut().enumerate() {
            let (step, row) = (at / rows, at % rows);
            if lengths.is_some_and(|lengths| step >= lengths[row]) {
                continue;
            }
            state[row] += 1.0;
            *count = state[row];
            if state[row] == 100.0 {
                return Err(CellError::new("a hundred"));
            }
        }
        Ok(())
    }
}

type Replies = Arc<Mutex<Vec<Result<Vec<f32>, RequestError>>>>;

/// Puts the answer among `replies`.
fn callback(replies: &Replies) -> Callback {
    let replies = Arc::clone(replies);
    Box::new(move |answer| replies.lock().unwrap().push(answer.map(|a| a.values)))
}

fn to(replies: &Replies) -> Reply {
    Reply::Call(callback(replies))
}

/// A chain of `steps` from `start`; its end is the answer.
fn chain(start: f32, steps: usize) -> Request {
    let mut graph = Graph::new();
    let mut state = graph.give(&[start]);
    for _ in 0..steps {
        state = graph.node(CellId::new(0), &[state]).output(0);
    }
    graph.answer(state);
    Request::new(graph)
}

mod growth;
mod models;
mod replies;
mod requests;
mod streams;
mod waiting;

/// The engine of a model.
#[derive(Clone)]
struct Scene {
    shared: Arc<Shared>,
    model: Arc<ModelCells>,
}

impl Deref for Scene {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Scene {
    fn accept(&self, request: Request, reply: Reply) -> Result<RequestKey, SubmitError> {
        self.shared.accept(&self.model, request, reply)
    }

    fn stream(&self) -> Stream {
        Stream::open(&self.shared, &self.model, CellId::new(0), None).unwrap()
    }
}

/// A model that counts, with batches of at most `rows` rows and `steps` steps.
fn counting(rows: usize, steps: usize) -> ModelSetup {
    let mut cells = Cells::new();
    cells.add(Count(Ports::new().state("state", 1).output("count", 1)));
    let options = EngineOptions::default();
    let policy = options.policy.build(1, options.batch_steps);
    ModelSetup {
        cells,
        costs: vec![BatchSizes { min: 1, max: rows }.into()],
        steps: vec![steps],
        limits: TaskLimits::new(&*policy, &options).expect("limits"),
    }
}

fn submit(shared: &Scene, start: f32, steps: usize, replies: &Replies) -> RequestKey {
    shared.accept(chain(start, steps), to(replies)).unwrap()
}

/// Runs `model` beside workers, then stops these; in every order, or in those with at most
/// `preemptions` preemptions.
fn beside_workers(
    workers: usize,
    preemptions: Option<usize>,
    model: impl Fn(&Scene, &Replies) + Sync + Send + 'static,
) {
    beside_workers_of(2, workers, preemptions, model);
}

/// As [`beside_workers`], with batches of at most `rows` rows, and as many tasks at once.
fn beside_workers_of(
    rows: usize,
    workers: usize,
    preemptions: Option<usize>,
    model: impl Fn(&Scene, &Replies) + Sync + Send + 'static,
) {
    beside_workers_within(Limits::default(), rows, workers, preemptions, model);
}

/// As [`beside_workers_of`], with these limits.
fn beside_workers_within(
    limits: Limits,
    rows: usize,
    workers: usize,
    preemptions: Option<usize>,
    model: impl Fn(&Scene, &Replies) + Sync + Send + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let explored = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&explored);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let policy = Box::new(Cellular::new(workers, Order::Arrival));
        let scheduler = Scheduler::new(policy, workers, rows, limits);
        let shared = Arc::new(Shared::new(scheduler, workers));
        let added =
            (shared.lock()).add_model(&"count".into(), &counting(rows, 1), ModelShare::default());
        let scene = Scene {
            model: added.unwrap(),
            shared,
        };
        let replies: Replies = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..workers)
            .map(|index| {
                let scene = scene.clone();
                thread::spawn(move || {
                    let team = SharedTeam::new(Team::new(&[0]).unwrap());
                    let mut worker = Worker::new(1);
                    let runners = counting(rows, rows).on(index, &team).unwrap();
                    worker.insert(scene.model.first, runners);
                    scene.serve(WorkerId(index), worker);
                })
            })
            .collect();
        model(&scene, &replies);
        scene.stop();
        for thread in threads {
            thread.join().unwrap();
        }
        let state = scene.lock();
        state.scheduler.audit().unwrap();
        assert_eq!(state.scheduler.counts().live(), 0);
    });
    let explored = explored.load(Ordering::Relaxed);
    println!("{explored} orders explored");
    assert!(explored > 20, "{explored}");
}

fn sorted(replies: &Replies) -> Vec<String> {
    let replies = replies.lock().unwrap();
    let mut all: Vec<_> = replies.iter().map(|r| format!("{r:?}")).collect();
    all.sort();
    all
}
