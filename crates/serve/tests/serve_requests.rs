//! What a request is promised for itself: its place in the order of priorities, its end where it is
//! dropped or late, even in tasks that were formed before, its answer before its batch-mates', its
//! times, and that a wrong graph takes nothing. Each batch is held by a gate until the test lets it
//! go, and the gate keeps who was in it: what was computed is known, not timed.

#[path = "common/gate.rs"]
mod gate;

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use gate::{Gate, Gated, PATIENCE, drained, ended};
use gatestream_serve::Engine;
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::{
    Batch, CellError, CellId, Cells, DynamicGraph, Graph, GraphError, Growth, NodeId, NodeOutputs,
    Ports, Reader, Source,
};
use gatestream_serve::engine::{EngineOptions, Request, Response, SubmitError, Ticket, Workers};
use gatestream_serve::policy::{BatchSteps, PolicyKind};
use gatestream_serve::scheduler::{End, Limits, Refused};

/// Adds its input to its state, each batch behind the gate.
fn add_to_state(gate: &Gate, batch: &mut Batch<'_>) -> Result<(), CellError> {
    assert_eq!(batch.steps(), 1);
    let ([x], [sum], [y]) = batch.split();
    gate.pass(x)?;
    for ((x, sum), y) in x.iter().zip(sum).zip(y) {
        *sum += x;
        *y = *sum;
    }
    Ok(())
}

struct Scene {
    engine: Engine,
    gated: CellId,
    gate: Arc<Gate>,
}

/// An engine of one worker, whose batches have a step of at most `rows`.
fn scene(rows: usize, options: EngineOptions) -> Scene {
    let mut cells = Cells::new();
    let gate = Arc::default();
    let gated = cells.add(Gated {
        ports: Ports::new().input("x", 1).state("sum", 1).output("y", 1),
        gate: Arc::clone(&gate),
        // So that an engine that is to give it one step does as it was told.
        supports_multiple_steps: true,
        run: add_to_state,
        prepared: Arc::default(),
    });
    let options = EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes { min: 1, max: rows }],
        steps_at_once: 1,
        batch_steps: BatchSteps::Fixed(1),
        ..options
    };
    Scene {
        engine: Engine::start(cells, &options).unwrap(),
        gated,
        gate,
    }
}

impl Scene {
    /// A chain of so many steps over `x`, which answers their sum.
    fn graph(&self, x: usize, steps: usize) -> (Graph, NodeId) {
        let mut graph = Graph::new();
        let x = graph.give(&[x as f32]);
        let mut last = graph.node(self.gated, &[x, Source::Zeros]);
        for _ in 1..steps {
            last = graph.node(self.gated, &[x, last.output(0)]);
        }
        graph.answer(last.output(1));
        (graph, last)
    }

    fn request(&self, x: usize, steps: usize) -> Request {
        Request::new(self.graph(x, steps).0)
    }

    fn submit(&self, request: Request) -> Ticket {
        self.engine.submit(request).unwrap()
    }

    /// All have ended, so, and no other batches were computed than these.
    fn drained(&self, ends: &[(End, u64)], batches: &[&[f32]]) {
        self.gate.let_all_go();
        drained(&self.engine, ends);
        assert_eq!(self.gate.came(), batches);
    }
}

impl Drop for Scene {
    /// Nobody is held while a test that failed ends its engine.
    fn drop(&mut self) {
        self.gate.let_all_go();
    }
}

fn values(ticket: Ticket) -> Result<Vec<f32>, RequestError> {
    ended(ticket).map(|answer| answer.values)
}

#[test]
fn requests_of_higher_priority_go_first_and_those_of_the_same_as_they_came() {
    for policy in [PolicyKind::Cellular, PolicyKind::Shortest] {
        let options = EngineOptions {
            policy,
            ..EngineOptions::default()
        };
        let scene = scene(1, options);
        // What it has left to do is of the lowest priority, too, but came before all others.
        let holds = scene.submit(scene.request(10, 2));
        scene.gate.wait_for(1);
        let (tell, told) = mpsc::channel();
        for (x, priority, steps) in [
            (1, None, 1),
            (2, Some(2), 1),
            (3, Some(9), 2),
            (4, Some(2), 1),
            (5, Some(u8::MAX), 1),
            (6, Some(0), 1),
        ] {
            let request = scene.request(x, steps);
            let request = match priority {
                Some(priority) => request.priority(priority),
                None => request,
            };
            let tell = tell.clone();
            let done = move |answer: Result<Response, _>| {
                assert_eq!(answer.unwrap().values, [(x * steps) as f32]);
                tell.send(x).unwrap();
            };
            scene.engine.submit_with(request, done).unwrap();
        }
        scene.gate.let_all_go();
        let order: Vec<usize> = (0..6)
            .map(|_| told.recv_timeout(PATIENCE).unwrap())
            .collect();
        assert_eq!(order, [5, 3, 2, 4, 1, 6], "{policy}");
        assert_eq!(values(holds), Ok(vec![20.0]));
        let batches = [10.0, 5.0, 3.0, 3.0, 2.0, 4.0, 10.0, 1.0, 6.0].map(|x| [x]);
        let batches = batches.each_ref().map(|x| &x[..]);
        scene.drained(&[(End::Completed, 7)], &batches);
    }
}

#[test]
fn dropping_the_future_of_a_ticket_cancels_what_is_left_of_its_request() {
    let scene = scene(1, EngineOptions::default());
    let ticket = scene.submit(scene.request(1, 3));
    scene.gate.wait_for(1);
    let next = scene.submit(scene.request(2, 1));
    {
        let mut answering = pin!(ticket.into_future());
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(answering.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(scene.engine.stats().counts.of(End::Cancelled), 0);
    }
    // Told at once: its only cell so far is still held.
    assert_eq!(scene.engine.stats().counts.of(End::Cancelled), 1);
    scene.gate.let_all_go();
    assert_eq!(values(next), Ok(vec![2.0]));
    let ends = [(End::Cancelled, 1), (End::Completed, 1)];
    scene.drained(&ends, &[&[1.0], &[2.0]]);
}

/// Of [`five_tasks`], those that end before their tasks are run: 3 between its two steps, 5 of a
/// task whose mate stays, and both of a task.
const LEAVING: [usize; 4] = [3, 5, 7, 8];

/// An engine whose worker gets five tasks at once, and is held in the first: requests 2 to 9 are
/// `[2, 3] [3, 4] [5, 6] [7, 8] [9]`. Those that leave are changed before.
fn five_tasks(leaving: impl Fn(Request) -> Request) -> (Scene, Vec<(usize, Ticket)>) {
    let options = EngineOptions {
        tasks_at_once: 5,
        ..EngineOptions::default()
    };
    let scene = scene(2, options);
    let mut tickets = vec![(1, scene.submit(scene.request(1, 1)))];
    scene.gate.wait_for(1);
    for x in 2..=9 {
        let request = match x {
            3 => scene.request(x, 2),
            _ => scene.request(x, 1),
        };
        let request = if LEAVING.contains(&x) {
            leaving(request)
        } else {
            request
        };
        tickets.push((x, scene.submit(request)));
    }
    scene.gate.let_go(1);
    scene.gate.wait_for(2);
    (scene, tickets)
}

/// Those that have left so were computed no further, though their tasks had been formed.
fn others_were_computed(scene: &Scene, tickets: Vec<(usize, Ticket)>, end: End) {
    scene.gate.let_all_go();
    for (x, ticket) in tickets {
        let expected = match (LEAVING.contains(&x), end) {
            (false, _) => Ok(vec![x as f32]),
            (true, End::Late) => Err(RequestError::Late),
            (true, _) => Err(RequestError::Cancelled),
        };
        assert_eq!(values(ticket), expected, "{x}");
    }
    let batches: [&[f32]; 5] = [&[1.0], &[2.0, 3.0], &[4.0], &[6.0], &[9.0]];
    scene.drained(&[(End::Completed, 5), (end, 4)], &batches);
    let cell = &scene.engine.stats().models[0].cells[0];
    // Six tasks with their rows, as they were formed; one of them had nobody left and was not run.
    assert_eq!(cell.batches, [0, 2, 4]);
    assert_eq!((cell.rows, cell.padding, cell.steps.len()), (6, 4, 5));
}

#[test]
fn what_is_cancelled_is_not_computed_in_tasks_that_were_formed_before() {
    let (scene, tickets) = five_tasks(|request| request);
    for (x, ticket) in &tickets {
        if LEAVING.contains(x) {
            ticket.cancel();
        }
    }
    others_were_computed(&scene, tickets, End::Cancelled);
}

#[test]
fn what_is_late_is_not_computed_in_tasks_that_were_formed_before() {
    // On a machine that is held up itself, a deadline may pass before the tasks are formed; then
    // another try.
    for lead in [200, 2_000, 20_000].map(Duration::from_millis) {
        let deadline = Instant::now() + lead;
        let (scene, tickets) = five_tasks(|request| request.deadline(deadline));
        if Instant::now() >= deadline {
            continue;
        }
        while Instant::now() < deadline {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        return others_were_computed(&scene, tickets, End::Late);
    }
    panic!("no five tasks in twenty seconds");
}

/// Passes the gate as a cell does, but when a graph may grow.
struct Held(Arc<Gate>);

impl DynamicGraph for Held {
    fn grow(&mut self, _: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        if let Err(error) = self.0.pass(outputs.port(1)) {
            more.fail(error);
        }
    }
}

/// Lets time pass, so that a bound from below says something; how much, the clock says.
fn held_since(begin: Instant) -> Duration {
    std::thread::sleep(Duration::from_millis(25));
    begin.elapsed()
}

#[test]
fn times_are_at_least_those_that_a_request_was_held_for() {
    let scene = scene(1, EngineOptions::default());
    let first = scene.submit(scene.request(1, 1));
    scene.gate.wait_for(1);

    let before = Instant::now();
    let (mut graph, node) = scene.graph(2, 1);
    graph.watch(node);
    let waiting = Request::new(graph).grow(Held(Arc::clone(&scene.gate)));
    let waiting = scene.submit(waiting);
    let submitted = Instant::now();
    // In no histogram: it is not answered.
    drop(scene.submit(scene.request(3, 1)));
    let queued = held_since(submitted);
    scene.gate.let_go(1);
    scene.gate.wait_for(2);
    let entered = Instant::now();
    let computed = held_since(entered);
    scene.gate.let_go(2);
    scene.gate.wait_for(3);
    let handed_on = held_since(Instant::now());
    scene.gate.let_go(3);

    let waiting = ended(waiting).unwrap().timing;
    let whole = before.elapsed();
    assert!(waiting.queueing >= queued, "{waiting:?}, {queued:?}");
    assert!(waiting.queueing <= entered - before, "{waiting:?}");
    assert!(
        waiting.computing >= computed + handed_on,
        "{waiting:?}, {computed:?}, {handed_on:?}"
    );
    assert!(waiting.queueing + waiting.computing <= whole, "{whole:?}");
    let first = ended(first).unwrap().timing;
    assert!(first.computing >= queued, "{first:?}, {queued:?}");

    let ends = [(End::Completed, 2), (End::Cancelled, 1)];
    scene.drained(&ends, &[&[1.0], &[2.0], &[2.0]]);
    let stats = scene.engine.stats();
    let kinds = [
        (
            &stats.times.queueing,
            [first.queueing, waiting.queueing],
            queued,
        ),
        (
            &stats.times.computing,
            [first.computing, waiting.computing],
            queued.max(computed + handed_on),
        ),
    ];
    for (histogram, answered, most) in kinds {
        assert_eq!(histogram.len(), 2);
        assert!(u128::from(histogram.max()) >= most.as_micros(), "{most:?}");
        for time in answered {
            let micros = u64::try_from(time.as_micros()).unwrap();
            assert!(histogram.count_at(micros) > 0, "{time:?}");
        }
    }
    let cell = &stats.models[0].cells[0];
    assert!(cell.run >= queued + computed, "{cell:?}");
    assert!(cell.scatter >= handed_on, "{cell:?}");
    assert!(cell.gather > Duration::ZERO);
    assert!(stats.scheduling > Duration::ZERO);
    assert_eq!(cell.steps.len(), 2);
    let longest = queued.max(computed).as_nanos();
    assert!(u128::from(cell.steps.max()) >= longest, "{longest}");
}

#[test]
fn a_wrong_graph_is_refused_with_what_is_wrong_and_nothing_of_it_is_counted() {
    let limits = Limits {
        requests: 1,
        nodes: 2,
        ..Limits::default()
    };
    let options = EngineOptions {
        limits,
        ..EngineOptions::default()
    };
    let scene = scene(1, options);
    scene.gate.let_all_go();
    let gated = scene.gated;
    let wrong = |build: fn(&mut Graph, CellId)| {
        let mut graph = Graph::new();
        build(&mut graph, gated);
        graph
    };
    let cases = [
        (Graph::new(), GraphError::Empty),
        (
            wrong(|graph, gated| {
                let x = graph.give(&[1.0, 2.0]);
                graph.node(gated, &[x, Source::Zeros]);
            }),
            GraphError::Width {
                node: 0,
                cell: "gated".into(),
                port: "x".into(),
                expected: 1,
                found: 2,
            },
        ),
        (
            wrong(|graph, gated| {
                graph.node(gated, &[Source::Zeros]);
            }),
            GraphError::Sources {
                node: 0,
                cell: "gated".into(),
                expected: 2,
                found: 1,
                ports: "`x`, `sum`".into(),
            },
        ),
        (
            wrong(|graph, gated| {
                graph.node(gated, &[Source::Zeros, NodeId::new(7).output(0)]);
            }),
            GraphError::UnknownNode {
                reader: Reader::Node(NodeId::new(0)),
                node: 7,
                nodes: 1,
            },
        ),
        (
            wrong(|graph, gated| {
                graph.node(gated, &[Source::Zeros, NodeId::new(1).output(0)]);
                graph.node(gated, &[Source::Zeros, NodeId::new(0).output(0)]);
            }),
            GraphError::Cycle { node: 0 },
        ),
        // The first node could be computed; nothing of it is.
        (
            wrong(|graph, gated| {
                let first = graph.node(gated, &[Source::Zeros; 2]);
                graph.node(gated, &[first.output(1), NodeId::new(1).output(0)]);
            }),
            GraphError::Cycle { node: 1 },
        ),
    ];
    let rounds = cases.len();
    for (round, (graph, error)) in cases.into_iter().enumerate() {
        let before = scene.engine.stats().counts;
        let error = SubmitError::Graph(error);
        let refused = scene.engine.submit(Request::new(graph.clone())).err();
        assert_eq!(refused, Some(error.clone()));
        let done = |_| unreachable!("the request was not accepted");
        let refused = scene.engine.submit_with(Request::new(graph), done).err();
        assert_eq!(refused, Some(error));
        assert_eq!(scene.engine.stats().counts, before);
        // There is room for it alone.
        let next = scene.submit(scene.request(round, 2));
        assert_eq!(values(next), Ok(vec![2.0 * round as f32]));
    }
    let batches: Vec<[f32; 1]> = (0..2 * rounds).map(|step| [(step / 2) as f32]).collect();
    let batches: Vec<&[f32]> = batches.iter().map(|x| &x[..]).collect();
    scene.drained(&[(End::Completed, rounds as u64)], &batches);
}

#[test]
fn an_answer_leaves_while_its_batch_mates_go_on() {
    let scene = scene(2, EngineOptions::default());
    let holds = scene.submit(scene.request(1, 1));
    scene.gate.wait_for(1);
    let short = scene.submit(scene.request(2, 1));
    let mut long = scene.submit(scene.request(3, 3));
    scene.gate.let_go(1);
    // Both are in it, and held.
    scene.gate.wait_for(2);
    assert_eq!(scene.gate.came()[1], [2.0, 3.0]);
    scene.gate.let_go(2);
    // Nobody lets the next step go before it has been told.
    assert_eq!(values(short), Ok(vec![2.0]));
    assert_eq!(long.wait_timeout(Duration::ZERO), None);
    assert_eq!(scene.engine.stats().counts.live(), 1);
    scene.gate.let_all_go();
    assert_eq!(values(long), Ok(vec![9.0]));
    assert_eq!(values(holds), Ok(vec![1.0]));
    let batches: [&[f32]; 4] = [&[1.0], &[2.0, 3.0], &[3.0], &[3.0]];
    scene.drained(&[(End::Completed, 3)], &batches);
}

#[test]
fn a_callback_of_a_batch_finds_the_tickets_of_the_batch_answered() {
    let scene = scene(3, EngineOptions::default());
    let holds = scene.submit(scene.request(1, 1));
    scene.gate.wait_for(1);
    let (give, given) = mpsc::channel::<Ticket>();
    let (tell, told) = mpsc::channel();
    let done = move |answer: Result<Response, _>| {
        assert_eq!(answer.unwrap().values, [2.0]);
        given.iter().for_each(|mut ticket| {
            let answer = ticket.wait_timeout(Duration::ZERO).unwrap();
            tell.send(answer.unwrap().values[0]).unwrap();
        });
    };
    scene.engine.submit_with(scene.request(2, 1), done).unwrap();
    for x in [3, 4] {
        give.send(scene.submit(scene.request(x, 1))).unwrap();
    }
    drop(give);
    scene.gate.let_all_go();
    assert_eq!(values(holds), Ok(vec![1.0]));
    let told = [(); 2].map(|()| told.recv_timeout(PATIENCE).unwrap());
    assert_eq!(told, [3.0, 4.0]);
    scene.drained(&[(End::Completed, 4)], &[&[1.0], &[2.0, 3.0, 4.0]]);
}

#[test]
fn who_is_here_is_answered_while_the_engine_drains_and_nobody_else_gets_in() {
    let scene = scene(1, EngineOptions::default());
    let here = [2, 3].map(|x| scene.submit(scene.request(x, 2)));
    scene.gate.wait_for(1);
    let drained = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            scene.engine.drain();
            drained.store(true, Ordering::Relaxed);
        });
        let begin = Instant::now();
        // Who came before the drain did is cancelled at once.
        while let Ok(early) = scene.engine.submit(scene.request(9, 1)) {
            drop(early);
            assert!(begin.elapsed() < PATIENCE, "nobody is refused");
        }
        let refused = scene.engine.submit(scene.request(9, 1)).err();
        assert_eq!(refused, Some(SubmitError::Refused(Refused::ShuttingDown)));
        assert!(!drained.load(Ordering::Relaxed), "two are here");
        scene.gate.let_all_go();
        let sums = here.map(values);
        assert_eq!(sums, [Ok(vec![4.0]), Ok(vec![6.0])]);
    });
    assert!(drained.load(Ordering::Relaxed));
    assert_eq!(scene.engine.stats().counts.live(), 0);
    assert_eq!(
        scene.gate.came().len(),
        4,
        "of nobody else anything was computed"
    );
}

#[test]
fn an_id_cancels_only_a_request_of_its_engine() {
    let scenes = [(); 2].map(|()| scene(1, EngineOptions::default()));
    let tickets = [0, 1].map(|at: usize| scenes[at].submit(scenes[at].request(1, 2)));
    let ids = [0, 1].map(|at: usize| tickets[at].id());
    assert_ne!(ids[0], ids[1]);
    // The first request of each: equal keys of equal schedulers.
    assert!(!scenes[0].engine.cancel(ids[1]));
    assert!(!scenes[1].engine.cancel(ids[0]));
    assert!(scenes[0].engine.cancel(ids[0]));
    assert!(!scenes[0].engine.cancel(ids[0]), "it has ended");
    scenes.iter().for_each(|scene| scene.gate.let_all_go());
    let answers = tickets.map(values);
    assert_eq!(answers, [Err(RequestError::Cancelled), Ok(vec![2.0])]);
}

#[test]
fn a_response_is_returned_once() {
    let scene = scene(1, EngineOptions::default());
    scene.gate.let_all_go();
    let mut ticket = scene.submit(scene.request(1, 1));
    let first = ticket.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(first.map(|response| response.values), Ok(vec![1.0]));
    let again = ticket.wait_timeout(PATIENCE);
    assert_eq!(again, Some(Err(RequestError::Returned)));
    let mut future = pin!(ticket.into_future());
    let mut context = Context::from_waker(Waker::noop());
    let polled = future.as_mut().poll(&mut context);
    assert_eq!(polled, Poll::Ready(Err(RequestError::Returned)));

    let mut future = pin!(scene.submit(scene.request(2, 1)).into_future());
    let ended = loop {
        if let Poll::Ready(ended) = future.as_mut().poll(&mut context) {
            break ended;
        }
        std::thread::yield_now();
    };
    assert_eq!(ended.map(|response| response.values), Ok(vec![2.0]));
    let polled = future.as_mut().poll(&mut context);
    assert_eq!(polled, Poll::Ready(Err(RequestError::Returned)));
    let ticket = scene.submit(scene.request(3, 1));
    assert_eq!(ticket.wait().map(|r| r.values), Ok(vec![3.0]));
}
