//! Every order in which submitters and workers may step.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p cellstream --lib engine::loom_tests`
//!
//! A lost wake-up shows as a deadlock, a reply that is sent twice or never in the counts.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use loom::thread;

use super::answer::answer_slot;
use super::prepare::ModelSetup;
use super::shared::Shared;
use super::waiting::Submission;
use super::*;
use crate::cell_graph::{Batch, BatchSizes, Cell, CellError, Growth, NodeId, NodeOutputs, Ports};
use crate::cell_graph::{PreparedCell, WorkerEnv};
use crate::policy::{Cellular, Order};
use crate::scheduler::{End, Limits, Refused, RequestKey};
use crate::sync::Mutex;
use crate::worker::ModelCells;
use cellstream::execute::team::{SharedTeam, Team};

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
        state = graph.node(CellId(0), &[state]).output(0);
    }
    graph.answer(state);
    Request::new(graph)
}

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
        Stream::open(&self.shared, &self.model, CellId(0), None).unwrap()
    }
}

/// A model that counts, with batches of so many rows and steps.
fn counting(rows: usize, steps: usize) -> ModelSetup {
    let mut cells = Cells::new();
    cells.add(Count(Ports::new().state("state", 1).output("count", 1)));
    ModelSetup {
        cells,
        costs: vec![BatchSizes { min: 1, max: rows }.into()],
        steps: vec![steps],
    }
}

fn submit(shared: &Scene, start: f32, steps: usize, replies: &Replies) -> RequestKey {
    shared.accept(chain(start, steps), to(replies)).unwrap()
}

/// Counts on from each of `starts`, a node at a time, until it has been counted twice; the answer
/// is where that led, whichever came first.
fn growing(starts: &[f32]) -> Request {
    struct CountOn {
        ends: Vec<f32>,
        reached: Vec<f32>,
    }
    impl DynamicGraph for CountOn {
        fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
            let count = outputs.port(0)[0];
            more.part(&[count]);
            if !self.ends.contains(&count) {
                let next = more.node(CellId(0), &[node.output(0)]);
                return more.watch(next);
            }
            self.reached.push(count);
            if self.reached.len() == self.ends.len() {
                self.reached.sort_by(f32::total_cmp);
                let reached = more.give(&self.reached);
                more.answer(reached);
            }
        }
    }
    let mut graph = Graph::new();
    for start in starts {
        let start = graph.give(&[*start]);
        let first = graph.node(CellId(0), &[start]);
        graph.watch(first);
    }
    Request::new(graph).grow(CountOn {
        ends: starts.iter().map(|start| start + 2.0).collect(),
        reached: Vec::new(),
    })
}

/// What a step of a stream was told, which it must have been by now.
fn told(step: Step) -> Result<Vec<f32>, RequestError> {
    match pin!(step.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(told) => told,
        Poll::Pending => panic!("a step has not been told"),
    }
}

/// Runs `model` beside so many workers, then stops these; in every order, or those with at most so
/// many preemptions.
fn beside_workers(
    workers: usize,
    preemptions: Option<usize>,
    model: impl Fn(&Scene, &Replies) + Sync + Send + 'static,
) {
    beside_workers_of(2, workers, preemptions, model);
}

/// As [`beside_workers`], with batches of at most so many rows, and as many tasks at once.
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

#[test]
fn a_request_wakes_the_worker_and_is_answered_once() {
    beside_workers(1, None, |shared, replies| {
        submit(shared, 1.0, 2, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([3.0])"]);
    });
}

#[test]
fn one_of_two_is_cancelled_and_both_end_once() {
    beside_workers(1, Some(3), |shared, replies| {
        let first = submit(shared, 1.0, 2, replies);
        submit(shared, 10.0, 1, replies);
        shared.cancel(first);
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([3.0])"]);
    });
}

/// The model has no clock: its deadline has passed before anybody looks.
#[test]
fn one_of_two_is_late_and_both_end_once() {
    beside_workers(1, Some(3), |shared, replies| {
        let late = chain(1.0, 2).deadline(Instant::now());
        shared.accept(late, to(replies)).unwrap();
        submit(shared, 10.0, 1, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Err(Late)", "Ok([11.0])"]);
    });
}

#[test]
fn a_failure_and_a_stop_reach_everybody_once() {
    beside_workers(1, Some(4), |shared, replies| {
        submit(shared, 99.0, 1, replies);
        submit(shared, 1.0, 1, replies);
        shared.stop();
        shared.wait_until_idle(None);
        assert_eq!(replies.lock().unwrap().len(), 2);
    });
}

#[test]
fn two_workers_share_two_requests() {
    beside_workers(2, Some(2), |shared, replies| {
        submit(shared, 1.0, 2, replies);
        submit(shared, 10.0, 1, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([11.0])", "Ok([3.0])"]);
    });
}

#[test]
fn a_request_grows_beside_its_cancellation_and_ends_once() {
    beside_workers(1, None, |shared, replies| {
        let growing = shared.accept(growing(&[1.0]), to(replies)).unwrap();
        shared.cancel(growing);
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)"] || all == ["Ok([3.0])"], "{all:?}");
    });
}

/// The worker delivers parts while the end is added, which either of both threads delivers.
#[test]
fn parts_come_in_order_and_before_the_end() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, replies| {
        let told = Arc::clone(replies);
        let part = move |part: &[f32]| told.lock().unwrap().push(Ok(part.to_vec()));
        let done = Arc::new(Mutex::new(None));
        let end = Arc::clone(&done);
        let end = move |answer: Result<Response, RequestError>| {
            *end.lock().unwrap() = Some(answer.map(|answer| answer.values));
        };
        let request = growing(&[1.0]).on_part(part);
        let key = shared.accept(request, Reply::Call(Box::new(end))).unwrap();
        shared.cancel(key);
        let (end, before) = loop {
            if let Some(end) = done.lock().unwrap().take() {
                break (end, replies.lock().unwrap().clone());
            }
            thread::yield_now();
        };
        shared.wait_until_idle(None);
        assert_eq!(*replies.lock().unwrap(), before, "no part after the end");
        let parts = [Ok(vec![2.0]), Ok(vec![3.0])];
        assert_eq!(before, parts[..before.len()]);
        match &end {
            Ok(answer) => assert_eq!((&answer[..], before.len()), (&[3.0][..], 2)),
            Err(error) => assert_eq!(*error, RequestError::Cancelled),
        }
        seen[usize::from(end.is_ok())].fetch_add(1, Ordering::Relaxed);
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

#[test]
fn a_request_grows_beside_the_end_of_all_and_ends_once() {
    beside_workers(1, None, |shared, replies| {
        shared.accept(growing(&[1.0]), to(replies)).unwrap();
        shared.stop();
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(ShutDown)"] || all == ["Ok([3.0])"], "{all:?}");
    });
}

/// A row a batch and a task at once, so that each worker takes one: the later growth may be told
/// first.
#[test]
fn two_nodes_of_a_request_grow_on_two_workers() {
    beside_workers_of(1, 2, Some(3), |shared, replies| {
        shared.accept(growing(&[1.0, 10.0]), to(replies)).unwrap();
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([3.0, 12.0])"]);
    });
}

/// The third step is of the second segment, which whoever ends the first one begins.
#[test]
fn a_stream_is_pushed_beside_its_worker_and_closed() {
    beside_workers(1, Some(4), |shared, _| {
        let mut stream = shared.stream();
        let steps = [(); 3].map(|()| stream.push(&[]).unwrap());
        stream.close();
        shared.wait_until_idle(None);
        let told = steps.map(|step| told(step).unwrap());
        assert_eq!(told, [[1.0], [2.0], [3.0]]);
    });
}

/// Between two steps whoever computed the first puts its state where the other worker finds it,
/// unless the second comes first.
#[test]
fn steps_of_a_stream_are_computed_by_either_of_two_workers() {
    beside_workers_of(1, 2, Some(2), |shared, _| {
        let mut stream = shared.stream();
        let steps = [(); 2].map(|()| stream.push(&[]).unwrap());
        stream.close();
        shared.wait_until_idle(None);
        let told = steps.map(|step| told(step).unwrap());
        assert_eq!(told, [[1.0], [2.0]]);
    });
}

#[test]
fn a_stream_is_dropped_in_mid_air() {
    beside_workers(1, Some(4), |shared, _| {
        let mut stream = shared.stream();
        let steps = [(); 3].map(|()| stream.push(&[]).unwrap());
        drop(stream);
        shared.wait_until_idle(None);
        let told = steps.map(told);
        let computed = told.iter().take_while(|told| told.is_ok()).count();
        for (at, told) in told.into_iter().enumerate() {
            match at < computed {
                true => assert_eq!(told, Ok(vec![at as f32 + 1.0])),
                false => assert_eq!(told, Err(RequestError::Cancelled)),
            }
        }
    });
}

#[test]
fn a_stream_is_pushed_while_all_ends() {
    beside_workers(1, Some(3), |shared, _| {
        let mut stream = shared.stream();
        let stopping = {
            let shared = shared.clone();
            thread::spawn(move || shared.stop())
        };
        let pushed = [(); 2].map(|()| stream.push(&[]));
        stopping.join().unwrap();
        shared.wait_until_idle(None);
        for (at, pushed) in pushed.into_iter().enumerate() {
            match pushed.map(told) {
                Ok(Ok(count)) => assert_eq!(count, [at as f32 + 1.0]),
                Ok(Err(error)) => assert_eq!(error, RequestError::ShutDown),
                Err(StreamError::Ended(error)) => assert_eq!(error, RequestError::ShutDown),
                Err(StreamError::Submit(error)) => {
                    assert_eq!(error, SubmitError::Refused(Refused::ShuttingDown));
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
}

/// Whoever waits for the end of all waits for that, too: the first is replied to until its `done`
/// returns.
#[test]
fn one_that_is_told_submits_another() {
    beside_workers(1, Some(4), |shared, replies| {
        let (again, second) = (shared.clone(), to(replies));
        let first = callback(replies);
        let done = move |answer| {
            first(answer);
            again.accept(chain(10.0, 1), second).unwrap();
        };
        let first = shared.accept(chain(1.0, 1), Reply::Call(Box::new(done)));
        shared.cancel(first.unwrap());
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([2.0])"]);
    });
}

#[test]
fn one_that_is_told_panics_and_the_others_are_told() {
    beside_workers(1, Some(4), |shared, replies| {
        let told = callback(replies);
        let done = move |answer| {
            told(answer);
            // As a panic, without a line on standard error for each order.
            std::panic::resume_unwind(Box::new("told"));
        };
        let first = shared.accept(chain(1.0, 1), Reply::Call(Box::new(done)));
        submit(shared, 10.0, 1, replies);
        shared.cancel(first.unwrap());
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([2.0])"]);
    });
}

#[test]
fn a_ticket_is_dropped_while_its_answer_is_on_its_way() {
    // In some orders it comes first, in others it is too late.
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(4), move |shared, replies| {
        let (sender, receiver) = answer_slot();
        let key = shared.accept(chain(1.0, 2), Reply::Ticket(sender)).unwrap();
        submit(shared, 10.0, 1, replies);
        let id = RequestId::new(shared, key);
        drop(Ticket::new(receiver, id, Arc::downgrade(&shared.shared)));
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([11.0])"]);
        let counts = shared.lock().scheduler.counts();
        let (completed, cancelled) = (counts.of(End::Completed), counts.of(End::Cancelled));
        assert_eq!(completed + cancelled, 2);
        seen[cancelled as usize].fetch_add(1, Ordering::Relaxed);
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// Who was accepted before is answered when draining ends; who comes later is refused.
#[test]
fn a_request_comes_while_the_engine_drains() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let draining = {
            let (shared, replies) = (shared.clone(), Arc::clone(replies));
            thread::spawn(move || {
                shared.with(|state, _| state.scheduler.handle_drain());
                shared.wait_until_idle(None);
                replies.lock().unwrap().len()
            })
        };
        let second = shared.accept(chain(10.0, 1), to(replies));
        let answered = draining.join().unwrap();
        let is_accepted = second.is_ok();
        if let Err(error) = second {
            assert_eq!(error, SubmitError::Refused(Refused::ShuttingDown));
        }
        assert_eq!(answered, 1 + usize::from(is_accepted));
        seen[usize::from(is_accepted)].fetch_add(1, Ordering::Relaxed);
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// As [`beside_workers`] with one worker, and a reply thread.
fn beside_replies(
    preemptions: Option<usize>,
    model: impl Fn(&Scene, &Replies) + Sync + Send + 'static,
) {
    beside_workers(1, preemptions, move |shared, replies| {
        shared.begin_replies();
        let own = shared.clone();
        let thread = thread::spawn(move || own.deliver());
        model(shared, replies);
        shared.end_replies();
        thread.join().unwrap();
    });
}

/// The drain ends after both callbacks, whose batches may be handed over at the same time.
#[test]
fn callbacks_of_the_reply_thread_are_called_before_a_drain_ends() {
    beside_replies(Some(3), |shared, replies| {
        let first = submit(shared, 1.0, 1, replies);
        submit(shared, 10.0, 1, replies);
        shared.cancel(first);
        assert_eq!(shared.wait_until_idle(None), 0);
        let all = sorted(replies);
        assert!(all == ["Err(Cancelled)", "Ok([11.0])"] || all == ["Ok([11.0])", "Ok([2.0])"]);
    });
}

/// A callback that has no thread left runs where its request ended.
#[test]
fn the_reply_thread_ends_beside_a_callback() {
    beside_replies(Some(3), |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let ending = {
            let shared = shared.clone();
            thread::spawn(move || shared.end_replies())
        };
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([2.0])"]);
        ending.join().unwrap();
    });
}

/// A thread waits for the answer before it is there, or after.
#[test]
fn a_thread_waits_for_an_answer_that_is_sent_or_lost() {
    loom::model(|| {
        for is_sent in [true, false] {
            let (sender, receiver) = answer_slot::<u8>();
            let sending = thread::spawn(move || match is_sent {
                true => assert!(sender.send(Ok(7)).is_none()),
                false => drop(sender),
            });
            match is_sent {
                true => assert_eq!(receiver.wait(), Ok(7)),
                false => assert_eq!(receiver.wait(), Err(RequestError::ShutDown)),
            }
            sending.join().unwrap();
        }
    });
}

/// A model is removed beside a submission: the request is answered, or refused and not kept. The
/// second model goes on.
#[test]
fn a_request_comes_while_its_model_is_removed() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, replies| {
        let removing = {
            let scene = shared.clone();
            thread::spawn(move || scene.remove_model(scene.model.key))
        };
        let accepted = shared.accept(chain(1.0, 1), to(replies));
        removing.join().unwrap();
        // Its requests have been answered, and its cells are gone.
        match accepted.is_ok() {
            true => assert_eq!(sorted(replies), ["Ok([2.0])"]),
            false => assert!(sorted(replies).is_empty()),
        }
        seen[usize::from(accepted.is_ok())].fetch_add(1, Ordering::Relaxed);
        let again = shared.accept(chain(1.0, 1), to(replies));
        assert_eq!(again, Err(SubmitError::Refused(Refused::NoModel)));
        assert!(shared.lock().models.is_empty());
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// A worker takes the cells before the first task of their model.
#[test]
fn a_model_is_added_beside_a_request_of_another() {
    beside_workers(1, Some(3), |shared, replies| {
        submit(shared, 1.0, 2, replies);
        let team = SharedTeam::new(Team::new(&[0]).unwrap());
        let new = counting(1, 1);
        let runners = vec![new.on(0, &team).unwrap()];
        let model = shared.add_model(&"new".into(), &new, ModelShare::default(), runners);
        let added = Scene {
            model: model.unwrap(),
            shared: Arc::clone(&shared.shared),
        };
        submit(&added, 10.0, 1, replies);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([11.0])", "Ok([3.0])"]);
    });
}

/// Whoever adds or removes a model does not wait for workers that have stopped.
#[test]
fn models_are_added_and_removed_while_all_ends() {
    beside_workers(1, Some(3), |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let stopping = {
            let scene = shared.clone();
            thread::spawn(move || scene.stop())
        };
        let team = SharedTeam::new(Team::new(&[0]).unwrap());
        let new = counting(1, 1);
        let runners = vec![new.on(0, &team).unwrap()];
        let added = shared.add_model(&"new".into(), &new, ModelShare::default(), runners);
        match added {
            Ok(model) => shared.remove_model(model.key),
            Err(error) => assert!(matches!(error, EngineError::Stopped)),
        }
        shared.remove_model(shared.model.key);
        stopping.join().unwrap();
        shared.wait_until_idle(None);
        let all = sorted(replies);
        assert!(all == ["Err(ShutDown)"] || all == ["Ok([2.0])"], "{all:?}");
    });
}

/// A stream is found idle beside a step: the step is answered, or refused because the stream has
/// ended.
#[test]
fn a_stream_is_pushed_while_it_is_found_idle() {
    let ends = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&ends);
    beside_workers(1, Some(3), move |shared, _| {
        let mut stream = shared.stream();
        let inner = stream.inner();
        let ending = thread::spawn(move || {
            let now = Instant::now() + Duration::from_secs(2);
            inner.end_if_idle(now, Duration::from_secs(1));
        });
        let pushed = stream.push(&[]);
        ending.join().unwrap();
        shared.wait_until_idle(None);
        seen[usize::from(pushed.is_ok())].fetch_add(1, Ordering::Relaxed);
        match pushed {
            Ok(step) => assert_eq!(told(step), Ok(vec![1.0])),
            Err(error) => assert_eq!(error, StreamError::Ended(RequestError::Idle)),
        }
    });
    let ends = [&ends[0], &ends[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// There is room for one request, and the worker makes it: each of the submissions that wait gets
/// it, also if another one is withdrawn.
#[test]
fn submissions_wait_for_room_beside_the_worker_that_makes_it() {
    let limits = Limits {
        requests: 1,
        ..Limits::default()
    };
    beside_workers_within(limits, 1, 1, Some(3), |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let other = {
            let scene = shared.clone();
            thread::spawn(move || {
                let waits = Submission::new(Arc::clone(&scene.shared), &scene.model, chain(2.0, 1));
                waits.unwrap().wait(None).unwrap().wait().unwrap().values
            })
        };
        let waits = Submission::new(Arc::clone(&shared.shared), &shared.model, chain(3.0, 1));
        let mut withdrawn = Submitting(waits);
        let polled = pin!(&mut withdrawn).poll(&mut Context::from_waker(Waker::noop()));
        drop(polled);
        drop(withdrawn);
        assert_eq!(other.join().unwrap(), [3.0]);
        shared.wait_until_idle(None);
        assert_eq!(sorted(replies), ["Ok([2.0])"]);
    });
}

#[test]
fn a_submission_that_waits_ends_with_the_engine() {
    let limits = Limits {
        requests: 1,
        ..Limits::default()
    };
    beside_workers_within(limits, 1, 1, Some(3), |shared, replies| {
        submit(shared, 1.0, 1, replies);
        let stopping = {
            let shared = shared.clone();
            thread::spawn(move || shared.stop())
        };
        let waits = Submission::new(Arc::clone(&shared.shared), &shared.model, chain(2.0, 1));
        match waits.unwrap().wait(None) {
            Ok(ticket) => assert!(matches!(ticket.wait(), Ok(_) | Err(RequestError::ShutDown))),
            Err(error) => assert_eq!(error, Refused::ShuttingDown.into()),
        }
        stopping.join().unwrap();
        shared.wait_until_idle(None);
    });
}
