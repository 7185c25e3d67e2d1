//! The engine, on cells so simple that what each request must answer can be said in a line: whatever its
//! batch-mates, workers, batch sizes, cancellations and failures around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cellstream::serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, Gave, Graph, GraphError, Grow, Growth, NodeId, Place,
    Ports, PreparedCell, Source,
};
use cellstream::serve::engine::{
    Engine, EngineError, EngineOptions, Request, RequestError, StreamError, SubmitError, Workers,
};
use cellstream::serve::policy::{BatchSizes, Choice};
use cellstream::serve::scheduler::{End, Limits, Refused};

/// Of one row: inputs, states, outputs.
type RowFunction = fn(&[f32], &mut [f32], &mut [f32]) -> Result<(), CellError>;

/// A cell made of a function of one row.
struct Simple {
    name: &'static str,
    ports: Ports,
    row: RowFunction,
}

struct Prepared {
    ports: Ports,
    row: RowFunction,
}

impl Cell for Simple {
    fn name(&self) -> &str {
        self.name
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn prepare(&self, _: &Place) -> Result<Box<dyn PreparedCell>, CellError> {
        Ok(Box::new(Prepared {
            ports: self.ports.clone(),
            row: self.row,
        }))
    }
}

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let counts = (
            self.ports.inputs().len(),
            self.ports.states().len(),
            self.ports.outputs().len(),
        );
        let rows = batch.rows();
        match counts {
            (1, 1, 1) => {
                let ([x], [state], [y]) = batch.split();
                for row in 0..rows {
                    (self.row)(
                        &x[row..=row],
                        &mut state[2 * row..2 * row + 2],
                        &mut y[row..=row],
                    )?;
                }
            }
            (2, 0, 1) => {
                let ([a, b], [], [y]) = batch.split();
                for row in 0..rows {
                    (self.row)(&[a[row], b[row]], &mut [], &mut y[row..=row])?;
                }
            }
            (0, 1, 0) => {
                let ([], [state], []) = batch.split();
                for state in state.chunks_exact_mut(1) {
                    (self.row)(&[], state, &mut [])?;
                }
            }
            other => panic!("no test cell has {other:?} ports"),
        }
        Ok(())
    }
}

/// The state before: `(sum, count)`.
fn chain_row(x: &[f32], state: &mut [f32], y: &mut [f32]) -> Result<(), CellError> {
    if x[0] == POISON {
        panic!("poisoned");
    }
    if x[0] == REFUSED {
        return Err(CellError::new("refused"));
    }
    if x[0] == SLOW {
        std::thread::sleep(Duration::from_millis(2));
    }
    state[0] = state[0] * 0.75 + x[0];
    state[1] += 1.0;
    y[0] = state[0] * state[1];
    Ok(())
}

const POISON: f32 = -1e30;
const REFUSED: f32 = -2e30;
const SLOW: f32 = -3e30;

fn pair_row(x: &[f32], _: &mut [f32], y: &mut [f32]) -> Result<(), CellError> {
    y[0] = x[0] - 0.5 * x[1];
    Ok(())
}

fn count_row(_: &[f32], state: &mut [f32], _: &mut [f32]) -> Result<(), CellError> {
    state[0] -= 1.0;
    Ok(())
}

struct Ids {
    chain: CellId,
    pair: CellId,
    count: CellId,
}

fn cells() -> (Cells, Ids) {
    let mut cells = Cells::new();
    let chain = cells.add(Simple {
        name: "chain",
        ports: Ports::new().input("x", 1).state("state", 2).output("y", 1),
        row: chain_row,
    });
    let pair = cells.add(Simple {
        name: "pair",
        ports: Ports::new().input("a", 1).input("b", 1).output("y", 1),
        row: pair_row,
    });
    let count = cells.add(Simple {
        name: "count",
        ports: Ports::new().state("left", 1),
        row: count_row,
    });
    (cells, Ids { chain, pair, count })
}

/// A chain over `xs` from zero; its outputs.
fn chain(ids: &Ids, xs: &[f32]) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let mut before = Source::Zeros;
    let (mut sum, mut count, mut expected) = (0.0f32, 0.0f32, Vec::new());
    for &x in xs {
        let given = graph.give(&[x]);
        let node = graph.node(ids.chain, &[given, before]);
        graph.answer(node.gives(1));
        before = node.gives(0);
        sum = sum * 0.75 + x;
        count += 1.0;
        expected.push(sum * count);
    }
    (Request::new(graph), expected)
}

/// A random expression of pairs over `leaves`; added from the root down where `reversed`.
fn tree(ids: &Ids, leaves: &[f32], rng: &mut fastrand::Rng) -> (Request, Vec<f32>) {
    fn build(
        graph: &mut Graph,
        ids: &Ids,
        leaves: &[f32],
        rng: &mut fastrand::Rng,
    ) -> (Source, f32) {
        if let [leaf] = leaves {
            return (graph.give(&[*leaf]), *leaf);
        }
        let (left, right) = leaves.split_at(rng.usize(1..leaves.len()));
        let (left, a) = build(graph, ids, left, rng);
        let (right, b) = build(graph, ids, right, rng);
        (graph.node(ids.pair, &[left, right]).gives(0), a - 0.5 * b)
    }
    let mut graph = Graph::new();
    let (root, value) = build(&mut graph, ids, leaves, rng);
    graph.answer(root);
    (Request::new(graph), vec![value])
}

/// Counts down, one node at a time, and answers every count.
struct CountDown {
    count: CellId,
    panic_at: f32,
}

impl Grow for CountDown {
    fn grow(&mut self, node: NodeId, gave: Gave<'_>, more: &mut Growth<'_>) {
        let left = gave.port(0)[0];
        assert!(left != self.panic_at, "told to");
        more.answer(node.gives(0));
        if left > 0.0 {
            let next = more.node(self.count, &[node.gives(0)]);
            more.watch(next);
        }
    }
}

fn count_down(ids: &Ids, from: usize, panic_at: f32) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let first = graph.give(&[from as f32]);
    let first = graph.node(ids.count, &[first]);
    graph.watch(first);
    let grow = CountDown {
        count: ids.count,
        panic_at,
    };
    let expected = (0..from).rev().map(|left| left as f32).collect();
    (Request::new(graph).grow(grow), expected)
}

/// Like chains, but with their sums combined by pairs at the end: two cells in one graph, states that two
/// nodes take.
fn mixed(ids: &Ids, xs: &[f32], ys: &[f32]) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let mut run = |values: &[f32], start: Source| {
        let mut before = start;
        let mut outputs = Vec::new();
        for &x in values {
            let given = graph.give(&[x]);
            let node = graph.node(ids.chain, &[given, before]);
            before = node.gives(0);
            outputs.push(node.gives(1));
        }
        (before, outputs)
    };
    // Two branches go on from the same state: only one of them can do so in place.
    let (fork, first) = run(xs, Source::Zeros);
    let (_, second) = run(ys, fork);
    let (_, third) = run(xs, fork);
    let all: Vec<Source> = first.into_iter().chain(second).chain(third).collect();
    let mut total = all[0];
    for &next in &all[1..] {
        total = graph.node(ids.pair, &[total, next]).gives(0);
    }
    graph.answer(total);

    let step = |(sum, count): (f32, f32), x: f32| (sum * 0.75 + x, count + 1.0);
    let walk = |start: (f32, f32), values: &[f32]| {
        let mut state = start;
        let mut outputs = Vec::new();
        for &x in values {
            state = step(state, x);
            outputs.push(state.0 * state.1);
        }
        (state, outputs)
    };
    let (fork, first) = walk((0.0, 0.0), xs);
    let (_, second) = walk(fork, ys);
    let (_, third) = walk(fork, xs);
    let all: Vec<f32> = first.into_iter().chain(second).chain(third).collect();
    let total = all[1..]
        .iter()
        .fold(all[0], |total, next| total - 0.5 * next);
    (Request::new(graph), vec![total])
}

/// A chain that goes on with its own states after another cell has seen its output: connected, but in two
/// subgraphs, which two workers may run.
fn interrupted(ids: &Ids, xs: &[f32]) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let (mut state, mut input) = (Source::Zeros, graph.give(&[xs[0]]));
    let (mut sum, mut count, mut x) = (0.0f32, 0.0f32, xs[0]);
    let mut expected = Vec::new();
    for &other in xs {
        let node = graph.node(ids.chain, &[input, state]);
        state = node.gives(0);
        let other_given = graph.give(&[other]);
        let pair = graph.node(ids.pair, &[node.gives(1), other_given]);
        input = pair.gives(0);
        graph.answer(input);
        sum = sum * 0.75 + x;
        count += 1.0;
        x = sum * count - 0.5 * other;
        expected.push(x);
    }
    (Request::new(graph), expected)
}

fn values(rng: &mut fastrand::Rng, most: usize) -> Vec<f32> {
    (0..rng.usize(1..=most)).map(|_| rng.f32() - 0.5).collect()
}

fn random_request(ids: &Ids, rng: &mut fastrand::Rng) -> (Request, Vec<f32>) {
    match rng.usize(0..5) {
        4 => interrupted(ids, &values(rng, 6)),
        0 => chain(ids, &values(rng, 20)),
        1 => {
            let mut leaves = values(rng, 12);
            leaves.push(0.25);
            tree(ids, &leaves, rng)
        }
        2 => count_down(ids, rng.usize(1..10), -1.0),
        _ => {
            let (xs, ys) = (values(rng, 6), values(rng, 6));
            mixed(ids, &xs, &ys)
        }
    }
}

fn random_options(rng: &mut fastrand::Rng) -> EngineOptions {
    let sizes: Vec<_> = (0..3)
        .map(|_| {
            let max = rng.usize(1..=9);
            BatchSizes {
                min: rng.usize(1..=max),
                max,
            }
        })
        .collect();
    let batch = rng.usize(1..=9);
    EngineOptions {
        policy: match rng.usize(0..8) {
            0 => Choice::Padding { batch },
            1 => Choice::Bucketing { batch, width: 3 },
            2 => Choice::Merge { batch },
            3 => Choice::Ideal { batch },
            _ => Choice::Cellular,
        },
        workers: match rng.usize(0..4) {
            0 => Workers::OneOverAll,
            1 => Workers::OneOver(1),
            2 => Workers::OnePerCore,
            _ => Workers::Cores(vec![vec![0], vec![1], vec![0]]),
        },
        sizes,
        tasks_at_once: rng.usize(1..=5),
        limits: Limits::default(),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

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

#[test]
fn a_growing_function_that_panics_or_adds_nonsense_ends_its_request_alone() {
    struct Nonsense(CellId);
    impl Grow for Nonsense {
        fn grow(&mut self, _: NodeId, _: Gave<'_>, more: &mut Growth<'_>) {
            more.node(self.0, &[]);
        }
    }
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
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
    impl Grow for Fails {
        fn grow(&mut self, _: NodeId, _: Gave<'_>, more: &mut Growth<'_>) {
            more.fail("nothing to say");
        }
    }
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
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
        "the request cannot go on: nothing to say"
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
        stats.cells[ids.chain.index()].rows < 500,
        "{:?}",
        stats.cells
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
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let submit = |xs: &[f32]| engine.submit(chain(&ids, xs).0);
    let too_long = submit(&[1.0; 1501]).err().unwrap();
    assert!(
        matches!(
            too_long,
            SubmitError::Refused(Refused::Overloaded { what: "nodes", .. })
        ),
        "{too_long}"
    );
    let first = submit(&[SLOW; 700]).unwrap();
    let second = submit(&[SLOW; 700]).unwrap();
    let third = submit(&[1.0]).err().unwrap();
    assert_eq!(
        third.to_string(),
        "overloaded: 2 requests of 2 are taken and the request needs 1; try again later"
    );
    drop(first);
    assert!(submit(&[1.0]).unwrap().wait().is_ok());
    second.cancel();
    assert_eq!(second.wait(), Err(RequestError::Cancelled));
    engine.drain();
    let closed = submit(&[1.0]).err().unwrap();
    assert_eq!(closed, SubmitError::Refused(Refused::ShuttingDown));
    let counts = engine.stats().counts;
    assert_eq!((counts.submitted, counts.refused, counts.live()), (3, 3, 0));
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
fn a_stream_that_is_refused_a_step_goes_on_when_there_is_room() {
    let (cells, ids) = cells();
    let options = EngineOptions {
        limits: Limits {
            nodes: 12,
            ..Limits::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let mut stream = engine.stream(ids.chain, None).unwrap();
    let xs: Vec<f32> = (0..6).map(|x| x as f32).collect();
    let expected = outputs(&xs);
    for (x, y) in xs[..4].iter().zip(&expected) {
        assert_eq!(stream.push(&[*x]).unwrap().wait().unwrap(), [*y]);
    }
    let slow = engine.submit(chain(&ids, &[SLOW; 8]).0).unwrap();
    let refused = stream.push(&[xs[4]]).err().unwrap();
    assert!(
        matches!(refused, StreamError::Submit(SubmitError::Refused(_))),
        "{refused}"
    );
    slow.wait().unwrap();
    for (x, y) in xs[4..].iter().zip(&expected[4..]) {
        assert_eq!(stream.push(&[*x]).unwrap().wait().unwrap(), [*y]);
    }
}

#[test]
fn streams_that_are_dropped_at_any_moment_leave_nothing() {
    let mut rng = fastrand::Rng::with_seed(5);
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    for _ in 0..60 {
        let mut stream = engine.stream(ids.chain, None).unwrap();
        for _ in 0..rng.usize(0..700) {
            // More than a segment may not wait for the next.
            let _ = stream.push(&[1.0]);
        }
        drop(stream);
    }
    engine.drain();
    assert_eq!(engine.stats().counts.live(), 0);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let start = |options: &EngineOptions| Engine::start(cells().0, options).err().unwrap();
    assert!(matches!(
        Engine::start(Cells::new(), &EngineOptions::default()),
        Err(EngineError::NoCell)
    ));
    let none = EngineOptions {
        workers: Workers::Cores(vec![]),
        ..EngineOptions::default()
    };
    assert!(matches!(start(&none), EngineError::NoWorker));
    let sizes = EngineOptions {
        sizes: vec![BatchSizes { min: 2, max: 1 }; 3],
        ..EngineOptions::default()
    };
    assert!(matches!(
        start(&sizes),
        EngineError::Sizes { min: 2, max: 1, .. }
    ));
    let count = EngineOptions {
        sizes: vec![BatchSizes { min: 1, max: 1 }],
        ..EngineOptions::default()
    };
    assert!(matches!(
        start(&count),
        EngineError::SizesCount {
            expected: 3,
            found: 1
        }
    ));
}

/// What a chain from zero gives at each step.
fn outputs(xs: &[f32]) -> Vec<f32> {
    let (mut sum, mut count) = (0.0f32, 0.0f32);
    xs.iter()
        .map(|x| {
            sum = sum * 0.75 + x;
            count += 1.0;
            sum * count
        })
        .collect()
}

#[test]
fn streams_give_the_outputs_of_their_chains_whatever_else_runs() {
    let mut rng = fastrand::Rng::with_seed(2);
    for case in 0..12 {
        let (cells, ids) = cells();
        let engine = Engine::start(cells, &random_options(&mut rng)).unwrap();
        let mut streams: Vec<_> = (0..5)
            .map(|_| {
                (
                    engine.stream(ids.chain, None).unwrap(),
                    Vec::new(),
                    Vec::new(),
                )
            })
            .collect();
        let mut others = Vec::new();
        // Some are longer than two segments.
        for _ in 0..rng.usize(1..3500) {
            let (stream, xs, steps) = &mut streams[rng.usize(0..5)];
            let x = rng.f32() - 0.5;
            let step = loop {
                match stream.push(&[x]) {
                    Ok(step) => break step,
                    // As many wait for the next segment as may.
                    Err(StreamError::Submit(_)) => std::thread::yield_now(),
                    Err(other) => panic!("{other}"),
                }
            };
            xs.push(x);
            match rng.usize(0..3) {
                0 => assert_eq!(step.wait().unwrap(), [outputs(xs)[xs.len() - 1]]),
                _ => steps.push((xs.len() - 1, step)),
            }
            if rng.usize(0..20) == 0 {
                let (request, expected) = random_request(&ids, &mut rng);
                others.push((engine.submit(request).unwrap(), expected));
            }
        }
        for (stream, xs, steps) in streams {
            stream.close();
            let expected = outputs(&xs);
            for (at, step) in steps {
                assert_eq!(
                    step.wait().unwrap(),
                    [expected[at]],
                    "case {case}, step {at}"
                );
            }
        }
        for (ticket, expected) in others {
            assert_eq!(ticket.wait().unwrap().values, expected);
        }
        engine.drain();
        assert_eq!(engine.stats().counts.live(), 0);
    }
}

#[test]
fn a_stream_goes_on_from_states_and_ends_with_its_cell() {
    let (cells, ids) = cells();
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let mut stream = engine.stream(ids.chain, Some(&[4.0, 2.0])).unwrap();
    assert_eq!(stream.push(&[1.0]).unwrap().wait().unwrap(), [4.0 * 3.0]);
    let wrong = stream.push(&[1.0, 2.0]).err().unwrap();
    assert_eq!(
        wrong.to_string(),
        "inputs of cell `chain` are 1 values, not 2"
    );
    assert_eq!(stream.push(&[1.0]).unwrap().wait().unwrap(), [4.0 * 4.0]);
    let poisoned = stream.push(&[POISON]).unwrap().wait();
    assert!(matches!(poisoned, Err(RequestError::CellPanicked { .. })));
    let ended = loop {
        match stream.push(&[1.0]) {
            Err(ended) => break ended,
            Ok(step) => assert!(step.wait().is_err()),
        }
    };
    assert!(matches!(ended, StreamError::Ended(_)), "{ended}");

    let no_state = engine.stream(ids.pair, None).err().unwrap();
    assert!(matches!(no_state, StreamError::NoState { .. }));
    let states = engine.stream(ids.chain, Some(&[1.0])).err().unwrap();
    assert!(matches!(
        states,
        StreamError::Values {
            what: "states",
            expected: 2,
            found: 1,
            ..
        }
    ));

    // One that is dropped frees its rows; one whose engine goes is told.
    let mut dropped = engine.stream(ids.chain, None).unwrap();
    let step = dropped.push(&[SLOW]).unwrap();
    drop(dropped);
    let _ = step.wait();
    let mut stream = engine.stream(ids.chain, None).unwrap();
    drop(engine);
    assert!(matches!(
        stream.push(&[1.0]),
        Err(StreamError::Ended(RequestError::ShutDown))
    ));
}
