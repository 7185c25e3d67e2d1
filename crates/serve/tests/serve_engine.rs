//! The engine, on cells so simple that the answer of each request is known in advance, with any
//! batches, workers, batch sizes, cancellations and failures around it.

#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, DynamicGraph, Graph, GraphError, Growth, NodeId,
    NodeOutputs, Ports, PreparedCell, WorkerEnv,
};
use gatestream_serve::engine::{Engine, EngineOptions, Request, SubmitError, Workers};
use gatestream_serve::policy::{BatchSteps, PolicyKind};
use gatestream_serve::scheduler::{End, LimitOf, Limits, Reason, Refused};
use simple_cells::{
    POISON, REFUSED, SLOW, bits, cells, chain, count_down, random_options, random_request,
};

#[test]
fn every_request_answers_as_if_alone_whatever_its_mates_workers_and_batches() {
    let mut rng = fastrand::Rng::with_seed(1);
    for case in 0..60 {
        let (cells, ids) = cells();
        let options = random_options(&mut rng);
        let engine = Engine::start(cells, &options).unwrap();
        let mut open = Vec::new();
        for _ in 0..rng.usize(1..60) {
            let (request, expected) = random_request(&ids, &mut rng);
            let request = request.priority(rng.u8(0..3));
            open.push((engine.submit(request).unwrap(), expected));
            if rng.usize(0..8) == 0 {
                // Dropped: its rows go to others.
                let dropped = rng.usize(0..open.len());
                drop(open.swap_remove(dropped));
            }
            if rng.usize(0..10) == 0 {
                std::thread::sleep(Duration::from_micros(rng.u64(0..200)));
            }
        }
        for (ticket, expected) in open {
            let answer = ticket.wait().unwrap();
            assert_eq!(
                bits(&answer.values),
                bits(&expected),
                "case {case}, {options:?}"
            );
        }
        engine.drain();
        let counts = engine.stats().counts;
        assert_eq!(counts.live(), 0, "case {case}");
        assert_eq!(
            counts.of(End::Completed) + counts.of(End::Cancelled),
            counts.submitted
        );
    }
}

#[test]
fn a_cell_that_panics_or_fails_ends_its_batch_and_nothing_else() {
    for poison in [POISON, REFUSED] {
        let (cells, ids) = cells();
        let options = EngineOptions {
            sizes: vec![BatchSizes { min: 1, max: 4 }; 3],
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells, &options).unwrap();
        let mut failed = 0;
        for round in 0..20 {
            let tickets: Vec<_> = (0..12)
                .map(|index| {
                    let mut xs = vec![0.5; 6 + index % 3];
                    if index == round % 12 {
                        xs[3] = poison;
                    }
                    let (request, expected) = chain(&ids, &xs);
                    (
                        engine.submit(request).unwrap(),
                        expected,
                        xs.contains(&poison),
                    )
                })
                .collect();
            for (ticket, expected, poisoned) in tickets {
                match ticket.wait() {
                    Ok(answer) => {
                        assert!(!poisoned);
                        assert_eq!(answer.values, expected);
                    }
                    Err(RequestError::CellPanicked { cell, message }) => {
                        assert_eq!((&*cell, &*message, poison), ("chain", "poisoned", POISON));
                        failed += 1;
                    }
                    Err(RequestError::Cell { cell, why }) => {
                        assert_eq!((&*cell, poison), ("chain", REFUSED));
                        assert_eq!(why.to_string(), "refused");
                        failed += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
        // At least the poisoned, at most their mates of one batch.
        assert!((20..=80).contains(&failed), "{failed}");
        assert_eq!(engine.stats().counts.of(End::Failed), failed);
    }
}

/// Whose batches hold all requests.
fn one_worker() -> EngineOptions {
    EngineOptions {
        workers: Workers::OneOverAll,
        ..EngineOptions::default()
    }
}

#[test]
fn a_growing_function_that_panics_or_adds_nonsense_ends_its_request_alone() {
    struct Nonsense(CellId);
    impl DynamicGraph for Nonsense {
        fn grow(&mut self, _: NodeId, _: NodeOutputs<'_>, more: &mut Growth<'_>) {
            more.node(self.0, &[]);
        }
    }
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &one_worker()).unwrap();
    let (good, expected) = count_down(&ids, 9, -1.0);
    let (panics, _) = count_down(&ids, 9, 4.0);
    let mut graph = Graph::new();
    let first = graph.give(&[3.0]);
    let first = graph.node(ids.count, &[first]);
    graph.watch(first);
    let nonsense = Request::new(graph).grow(Nonsense(ids.count));
    let tickets = [good, panics, nonsense].map(|r| engine.submit(r).unwrap());
    let [good, panics, nonsense] = tickets.map(|t| t.wait());
    assert_eq!(good.unwrap().values, expected);
    let told = RequestError::GrowPanicked {
        message: "told to".into(),
    };
    assert_eq!(panics, Err(told));
    assert!(matches!(
        nonsense,
        Err(RequestError::Graph(GraphError::Sources { node: 1, .. }))
    ));
}

#[test]
fn a_growing_function_may_end_its_request_and_no_other() {
    struct Fails;
    impl DynamicGraph for Fails {
        fn grow(&mut self, _: NodeId, _: NodeOutputs<'_>, more: &mut Growth<'_>) {
            more.fail("nothing to say");
        }
    }
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &one_worker()).unwrap();
    let mut graph = Graph::new();
    let first = graph.give(&[3.0]);
    let first = graph.node(ids.count, &[first]);
    graph.watch(first);
    let fails = engine.submit(Request::new(graph).grow(Fails)).unwrap();
    let (good, expected) = count_down(&ids, 9, -1.0);
    let good = engine.submit(good).unwrap();
    let error = fails.wait().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the function that grows the request's graph failed: nothing to say"
    );
    assert_eq!(good.wait().unwrap().values, expected);
}

#[test]
fn a_late_request_ends_with_an_error_and_a_waiting_one_without_a_batch() {
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let (past, _) = chain(&ids, &[1.0]);
    let past = engine.submit(past.deadline(Instant::now() - Duration::from_secs(1)));
    assert_eq!(past.unwrap().wait(), Err(RequestError::Late));
    // Each of its steps takes 2 ms.
    let (slow, _) = chain(&ids, &[SLOW; 1000]);
    let slow = engine.submit(slow.deadline(Instant::now() + Duration::from_millis(20)));
    assert_eq!(slow.unwrap().wait(), Err(RequestError::Late));
    let (fine, expected) = chain(&ids, &[1.0]);
    let fine = engine.submit(fine.deadline(Instant::now() + Duration::from_secs(3600)));
    assert_eq!(fine.unwrap().wait().unwrap().values, expected);
    let stats = engine.stats();
    assert_eq!(
        (stats.counts.of(End::Late), stats.counts.of(End::Completed)),
        (2, 1)
    );
    assert!(
        stats.models[0].cells[ids.chain.index()].rows < 500,
        "{:?}",
        stats.models[0].cells
    );
}

#[test]
fn more_than_the_limits_is_refused_at_once_and_leaves_nothing() {
    let (cells, ids) = cells();
    let options = EngineOptions {
        limits: Limits {
            requests: 2,
            nodes: 1500,
            bytes: 1 << 20,
            ..Limits::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let submit = |xs: &[f32]| engine.submit(chain(&ids, xs).0);
    let too_long = submit(&[1.0; 1501]).err().unwrap();
    assert!(
        matches!(
            too_long,
            SubmitError::Refused(Refused::Overloaded {
                what: Reason::Nodes,
                ..
            })
        ),
        "{too_long}"
    );
    let first = submit(&[SLOW; 700]).unwrap();
    let second = submit(&[SLOW; 700]).unwrap();
    let third = submit(&[1.0]).err().unwrap();
    assert_eq!(
        third.to_string(),
        "overloaded: 2 requests of 2 are taken and the request needs 1; try again later, or raise \
         the limit"
    );
    drop(first);
    assert!(submit(&[1.0]).unwrap().wait().is_ok());
    second.cancel();
    assert_eq!(second.wait(), Err(RequestError::Cancelled));
    engine.drain();
    let closed = submit(&[1.0]).err().unwrap();
    assert_eq!(closed, SubmitError::Refused(Refused::ShuttingDown));
    let counts = engine.stats().counts;
    assert_eq!(
        (counts.submitted, counts.refused(), counts.live()),
        (3, 3, 0)
    );
}

#[test]
fn dropping_the_engine_ends_every_request() {
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let tickets: Vec<_> = (0..50)
        .map(|_| engine.submit(chain(&ids, &[SLOW; 1000]).0).unwrap())
        .collect();
    let called = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&called);
    let by_call = engine.submit_with(chain(&ids, &[SLOW; 1000]).0, move |answer| {
        assert_eq!(answer, Err(RequestError::ShutDown));
        count.fetch_add(1, Ordering::Relaxed);
    });
    by_call.unwrap();
    drop(engine);
    for ticket in tickets {
        assert_eq!(ticket.wait(), Err(RequestError::ShutDown));
    }
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[test]
fn a_ticket_is_a_future() {
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let (request, expected) = chain(&ids, &[1.0, 2.0]);
    let mut answering = Box::pin(engine.submit(request).unwrap().into_future());
    let thread = std::thread::current();
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread)).into();
    let mut context = std::task::Context::from_waker(&waker);
    let answer = loop {
        match answering.as_mut().poll(&mut context) {
            std::task::Poll::Ready(answer) => break answer,
            std::task::Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(answer.unwrap().values, expected);
}

#[test]
fn an_overloaded_engine_refuses_before_it_checks_the_graph() {
    let (cells, ids) = cells();
    let limits = Limits {
        nodes: 3,
        ..Limits::default()
    };
    let options = EngineOptions {
        limits,
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    // Of the wrong width, every node.
    let wrong = |nodes: usize| {
        let mut graph = Graph::new();
        for _ in 0..nodes {
            let x = graph.give(&[1.0, 2.0]);
            graph.node(ids.pair, &[x, x]);
        }
        engine.submit(Request::new(graph)).err().unwrap()
    };
    assert!(matches!(wrong(3), SubmitError::Graph(_)));
    let overloaded = Refused::Overloaded {
        of: LimitOf::Engine,
        what: Reason::Nodes,
        have: 0,
        needs: 4,
        most: 3,
    };
    assert_eq!(wrong(4), SubmitError::Refused(overloaded));
    let counts = engine.stats().counts;
    assert_eq!((counts.submitted, counts.refused()), (0, 1));
}

#[test]
fn the_last_owner_of_an_engine_may_be_one_of_its_own_threads() {
    let (cells, ids) = cells();
    let options = EngineOptions {
        workers: Workers::Cores(vec![vec![0], vec![0]]),
        ..EngineOptions::default()
    };
    let engine = Arc::new(Engine::start(cells, &options).unwrap());
    let (told, answers) = std::sync::mpsc::channel();
    let own = Arc::clone(&engine);
    let (request, expected) = chain(&ids, &[0.5; 3]);
    let (begin, may_begin) = std::sync::mpsc::channel::<()>();
    let done = move |answer: Result<gatestream_serve::engine::Response, RequestError>| {
        // By now it is the only one.
        may_begin.recv().unwrap();
        drop(own);
        told.send(answer.map(|answer| answer.values)).unwrap();
    };
    engine.submit_with(request, done).unwrap();
    drop(engine);
    begin.send(()).unwrap();
    let answer = answers.recv_timeout(Duration::from_secs(60));
    assert_eq!(answer, Ok(Ok(expected)), "it waited for itself");
}

/// A refused request's callback may own what takes the engine's lock when it is dropped.
#[test]
fn what_a_refused_request_owns_is_dropped_with_nothing_locked() {
    let (cells, ids) = cells();
    let limits = Limits {
        requests: 0,
        ..Limits::default()
    };
    let options = EngineOptions {
        limits,
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let (dropped, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut stream = engine.stream(ids.chain, None).unwrap();
        let step = stream.push(&[0.5]).unwrap();
        let own = move |_| drop(stream);
        let refused = engine.submit_with(chain(&ids, &[0.5]).0, own);
        assert!(matches!(
            refused,
            Err(SubmitError::Refused(Refused::Overloaded { .. }))
        ));
        drop(step);
        engine.drain();
        dropped.send(()).unwrap();
    });
    let waited = told.recv_timeout(Duration::from_secs(60));
    assert_eq!(waited, Ok(()), "the stream was dropped under the lock");
}

/// Adds one to its state; counts how often it was called.
struct Calls {
    ports: Ports,
    supports_multiple_steps: bool,
    calls: Arc<AtomicUsize>,
}

impl Cell for Calls {
    fn name(&self) -> &str {
        "calls"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn supports_multiple_steps(&self) -> bool {
        self.supports_multiple_steps
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready(Arc<AtomicUsize>);
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                self.0.fetch_add(1, Ordering::Relaxed);
                let lengths = batch.lengths();
                let ([], [state], []) = batch.split();
                for (row, state) in state.iter_mut().enumerate() {
                    *state += lengths.map_or(1, |lengths| lengths[row]) as f32;
                }
                Ok(())
            }
        }
        Ok(Box::new(Ready(Arc::clone(&self.calls))))
    }
}

/// As many as the policy says, also of many rows; by load first one, to time it.
#[test]
fn ebatch_runs_its_steps_in_one_call() {
    for (batch_steps, rows, expected) in [
        (BatchSteps::Fixed(3), 1, 3),
        (BatchSteps::Fixed(9), 40, 1),
        (BatchSteps::Fixed(100), 40, 1),
        (BatchSteps::ByLoad(1), 40, 9),
    ] {
        let calls = Arc::new(AtomicUsize::new(0));
        let mut cells = Cells::new();
        let cell = cells.add(Calls {
            ports: Ports::new().state("state", 1),
            supports_multiple_steps: true,
            calls: Arc::clone(&calls),
        });
        let options = EngineOptions {
            policy: PolicyKind::EBatch,
            batch_steps,
            sizes: vec![BatchSizes { min: 1, max: 64 }],
            workers: Workers::OneOver(1),
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells, &options).unwrap();
        let mut graph = Graph::new();
        for row in 0..rows {
            let mut state = graph.give(&[row as f32]);
            for _ in 0..9 {
                state = graph.node(cell, &[state]).output(0);
            }
            graph.answer(state);
        }
        let answer = engine.submit(Request::new(graph)).unwrap().wait().unwrap();
        let values: Vec<f32> = (0..rows).map(|row| row as f32 + 9.0).collect();
        assert_eq!(answer.values, values);
        assert_eq!(calls.load(Ordering::Relaxed), expected, "{batch_steps:?}");
    }
}

/// The other policy of each case would have another number of steps.
#[test]
fn steps_are_those_of_the_given_policy_and_not_of_the_options() {
    let fixed = BatchSteps::Fixed(9);
    let [cellular, ebatch] = [PolicyKind::Cellular, PolicyKind::EBatch];
    for (given, in_options, expected) in [(ebatch, cellular, 1), (cellular, ebatch, 3)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let mut cells = Cells::new();
        let cell = cells.add(Calls {
            ports: Ports::new().state("state", 1),
            supports_multiple_steps: true,
            calls: Arc::clone(&calls),
        });
        let options = EngineOptions {
            policy: in_options,
            steps_at_once: 4,
            batch_steps: fixed,
            workers: Workers::OneOver(1),
            ..EngineOptions::default()
        };
        let build = |workers| given.build(workers, fixed);
        let engine = Engine::with_policy(cells, &options, build).unwrap();
        let mut graph = Graph::new();
        let mut state = graph.give(&[5.0]);
        for _ in 0..9 {
            state = graph.node(cell, &[state]).output(0);
        }
        graph.answer(state);
        let answer = engine.submit(Request::new(graph)).unwrap().wait().unwrap();
        assert_eq!(answer.values, [14.0]);
        assert_eq!(calls.load(Ordering::Relaxed), expected, "{given}");
    }
}

#[test]
fn steps_of_few_rows_are_one_call_of_cells_that_take_several() {
    for policy in [PolicyKind::Cellular, PolicyKind::Shortest] {
        // MaxBatch is taken for no more than 16, however many are asked for.
        for (supports_multiple_steps, steps_at_once, expected) in [
            (true, 4, 3),
            (true, 1, 9),
            (true, 3, 3),
            (true, usize::MAX, 1),
            (false, 4, 9),
        ] {
            let calls = Arc::new(AtomicUsize::new(0));
            let mut cells = Cells::new();
            let cell = cells.add(Calls {
                ports: Ports::new().state("state", 1),
                supports_multiple_steps,
                calls: Arc::clone(&calls),
            });
            let options = EngineOptions {
                policy,
                steps_at_once,
                ..EngineOptions::default()
            };
            let engine = Engine::start(cells, &options).unwrap();
            let mut graph = Graph::new();
            let mut state = graph.give(&[5.0]);
            for _ in 0..9 {
                state = graph.node(cell, &[state]).output(0);
            }
            graph.answer(state);
            let answer = engine.submit(Request::new(graph)).unwrap().wait().unwrap();
            assert_eq!(answer.values, [14.0]);
            let stats = engine.stats();
            // One step a task, however many ran together.
            assert_eq!(stats.models[0].cells[0].batches[1..], [9]);
            assert_eq!(stats.models[0].cells[0].steps.len(), 9);
            let case = format!("{policy}, {supports_multiple_steps}, {steps_at_once}");
            assert_eq!(calls.load(Ordering::Relaxed), expected, "{case}");
        }
    }
}
