//! Every order in which submitters and workers may step.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib engine::loom_tests`
//!
//! A lost wake-up shows as a deadlock, a reply that is sent twice or never in the counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::shared::Shared;
use super::stats::Recorder;
use super::*;
use crate::execute::team::{SharedTeam, Team};
use crate::serve::cell_graph::{Batch, Cell, CellError, Ports, PreparedCell};
use crate::serve::policy::Cellular;
use crate::serve::scheduler::Limits;
use crate::serve::sync::Mutex;

/// Adds one to its state; panics where that makes 100.
struct Count(Ports);

impl Cell for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn prepare(&self, _: &Place) -> Result<Box<dyn PreparedCell>, CellError> {
        Ok(Box::new(Counting))
    }
}

struct Counting;

impl PreparedCell for Counting {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let ([], [state], []) = batch.split();
        for state in state {
            *state += 1.0;
            if *state == 100.0 {
                return Err(CellError::new("a hundred"));
            }
        }
        Ok(())
    }
}

type Replies = Arc<Mutex<Vec<Result<Vec<f32>, RequestError>>>>;

/// A chain of `steps` from `start`, whose end is put among `replies`.
fn submit(shared: &Shared, start: f32, steps: usize, replies: &Replies) -> RequestKey {
    let mut graph = Graph::new();
    let mut state = graph.give(&[start]);
    for _ in 0..steps {
        state = graph.node(CellId(0), &[state]).gives(0);
    }
    graph.answer(state);
    let replies = Arc::clone(replies);
    let reply = Reply::Call(Box::new(move |answer| {
        let answer: Result<Answer, RequestError> = answer;
        replies.lock().unwrap().push(answer.map(|a| a.values));
    }));
    shared.accept(Request::new(graph), reply).unwrap()
}

/// Runs `model` beside so many workers, then stops these; in every order, or those with at most so many
/// preemptions.
fn beside_workers(
    workers: usize,
    preemptions: Option<usize>,
    model: impl Fn(&Arc<Shared>, &Replies) + Sync + Send + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let explored = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&explored);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let mut cells = Cells::new();
        cells.add(Count(Ports::new().state("count", 1)));
        let sizes = [BatchSizes { min: 1, max: 2 }];
        let policy = Box::new(Cellular::new(&sizes, workers));
        let scheduler = Scheduler::new(policy, workers, 2, Limits::default());
        let shared = Arc::new(Shared::new(cells, scheduler, Recorder::new(1)));
        let replies: Replies = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..workers)
            .map(|index| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let team = SharedTeam::new(Team::new(&[0]).unwrap());
                    let place = Place { team, rows: 2 };
                    let worker = Worker::new(&shared.cells, vec![place]);
                    shared.serve(WorkerId(index), worker.map_err(|(_, why)| why).unwrap());
                })
            })
            .collect();
        model(&shared, &replies);
        shared.stop();
        for thread in threads {
            thread.join().unwrap();
        }
        let state = shared.lock();
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

#[test]
fn a_request_wakes_the_worker_and_is_answered_once() {
    beside_workers(1, None, |shared, replies| {
        submit(shared, 1.0, 2, replies);
        shared.wait_until_idle();
        assert_eq!(sorted(replies), ["Ok([3.0])"]);
    });
}

#[test]
fn one_of_two_is_cancelled_and_both_end_once() {
    beside_workers(1, Some(3), |shared, replies| {
        let first = submit(shared, 1.0, 2, replies);
        submit(shared, 10.0, 1, replies);
        shared.cancel(first);
        shared.wait_until_idle();
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([3.0])"]);
    });
}

#[test]
fn a_failure_and_a_stop_reach_everybody_once() {
    beside_workers(1, None, |shared, replies| {
        submit(shared, 99.0, 1, replies);
        submit(shared, 1.0, 1, replies);
        shared.stop();
        shared.wait_until_idle();
        assert_eq!(replies.lock().unwrap().len(), 2);
    });
}

#[test]
fn two_workers_share_two_requests() {
    beside_workers(2, Some(2), |shared, replies| {
        submit(shared, 1.0, 2, replies);
        submit(shared, 10.0, 1, replies);
        shared.wait_until_idle();
        assert_eq!(sorted(replies), ["Ok([11.0])", "Ok([3.0])"]);
    });
}
