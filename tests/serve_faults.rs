//! Faults beside others: whatever is slow, panics, grows out of turn or finds no room, everybody else is answered as if
//! alone. Who runs when is held by gates, not by the clock.

#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use cellstream::serve::Engine;
use cellstream::serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, Gave, Graph, Grow, Growth, NodeId, Place, Ports,
    PreparedCell, Source,
};
use cellstream::serve::engine::{
    EngineOptions, Request, RequestError, StreamError, SubmitError, Ticket, Workers,
};
use cellstream::serve::networks::run_alone;
use cellstream::serve::policy::BatchSizes;
use cellstream::serve::scheduler::{End, Limits, Refused};
use simple_cells::{Ids, POISON, bits, cells, chain, outputs, random_request};

/// Nothing waits longer for what must happen, so that a fault fails a test and does not hang it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Holds those up that come to it until the test lets them go, in the order in which they came.
#[derive(Default)]
struct Gate {
    /// Who came, and who may go.
    passed: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Gate {
    /// `false` if nobody let it go.
    fn pass(&self) -> bool {
        let mut passed = self.passed.lock().unwrap();
        passed.0 += 1;
        let ticket = passed.0;
        self.changed.notify_all();
        let wait = self
            .changed
            .wait_timeout_while(passed, PATIENCE, |passed| passed.1 < ticket);
        !wait.unwrap().1.timed_out()
    }

    fn wait_for(&self, count: usize) {
        let passed = self.passed.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(passed, PATIENCE, |passed| passed.0 < count);
        assert!(!wait.unwrap().1.timed_out(), "{count} did not come");
    }

    fn let_go(&self, count: usize) {
        self.passed.lock().unwrap().1 = count;
        self.changed.notify_all();
    }
}

/// Adds one to its input, each batch behind the gate; panics at [`POISON`].
struct Gated {
    ports: Ports,
    gate: Arc<Gate>,
    prepared: Arc<AtomicUsize>,
}

impl Cell for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    fn prepare(&self, _: &Place) -> Result<Box<dyn PreparedCell>, CellError> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        struct Ready(Arc<Gate>);
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let ([x], [], [y]) = batch.split();
                if !self.0.pass() {
                    return Err(CellError::new("nobody let it go"));
                }
                if x.contains(&POISON) {
                    std::panic::resume_unwind(Box::new("poisoned"));
                }
                for (x, y) in x.iter().zip(y) {
                    *y = x + 1.0;
                }
                Ok(())
            }
        }
        Ok(Box::new(Ready(Arc::clone(&self.gate))))
    }
}

struct Scene {
    engine: Engine,
    cells: Cells,
    ids: Ids,
    gated: CellId,
    gate: Arc<Gate>,
    prepared: Arc<AtomicUsize>,
}

/// An engine of so many workers, whose cells have batches of at most `rows` and the gated one of `gated` rows.
fn scene(workers: usize, rows: usize, gated: usize, limits: Limits) -> Scene {
    let (mut cells, ids) = cells();
    let (gate, prepared) = (Arc::default(), Arc::default());
    let sizes = [rows, rows, rows, gated].map(|max| BatchSizes { min: 1, max });
    let gated = cells.add(Gated {
        ports: Ports::new().input("x", 1).output("y", 1),
        gate: Arc::clone(&gate),
        prepared: Arc::clone(&prepared),
    });
    let options = EngineOptions {
        workers: Workers::Cores((0..workers).map(|core| vec![core]).collect()),
        sizes: sizes.to_vec(),
        limits,
        ..EngineOptions::default()
    };
    Scene {
        engine: Engine::start(cells.clone(), &options).unwrap(),
        cells,
        ids,
        gated,
        gate,
        prepared,
    }
}

impl Scene {
    fn gated(&self, x: f32) -> Request {
        self.gated_steps(x, 1)
    }

    /// One after the other.
    fn gated_steps(&self, x: f32, steps: usize) -> Request {
        let mut graph = Graph::new();
        let mut x = graph.give(&[x]);
        for _ in 0..steps {
            x = graph.node(self.gated, &[x]).gives(0);
        }
        graph.answer(x);
        Request::new(graph)
    }

    fn submit(&self, request: Request) -> Ticket {
        self.engine.submit(request).unwrap()
    }

    /// All have ended, those that are told among them, and each once.
    fn drained(&self, ends: &[(End, u64)]) {
        self.engine.drain();
        let counts = self.engine.stats().counts;
        for end in End::ALL {
            let expected = ends.iter().find(|(e, _)| *e == end);
            assert_eq!(
                counts.of(end),
                expected.map_or(0, |e| e.1),
                "{end:?}: {counts:?}"
            );
        }
        assert_eq!(counts.live(), 0);
    }
}

fn ended(mut ticket: Ticket) -> Result<Vec<f32>, RequestError> {
    let ended = ticket.wait_timeout(PATIENCE).expect("an end in a minute");
    ended.map(|answer| answer.values)
}

#[test]
fn a_worker_in_a_slow_cell_holds_up_no_other_nor_the_lateness_of_its_own_rows() {
    let scene = scene(2, 4, 1, Limits::default());
    let slow = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    let mut rng = fastrand::Rng::with_seed(1);
    let others: Vec<_> = (0..40)
        .map(|_| {
            let (request, expected) = random_request(&scene.ids, &mut rng);
            (scene.submit(request), expected)
        })
        .collect();
    for (ticket, expected) in others {
        assert_eq!(bits(&ended(ticket).unwrap()), bits(&expected));
    }
    scene.gate.let_go(1);
    assert_eq!(ended(slow), Ok(vec![2.0]));

    // Nobody lets it go, but its end is told: by the other worker, which slept already when it came, as both did.
    std::thread::sleep(Duration::from_millis(50));
    let deadline = Instant::now() + Duration::from_millis(200);
    let late = scene.submit(scene.gated(2.0).deadline(deadline));
    assert_eq!(ended(late), Err(RequestError::Late));
    scene.gate.let_go(3);
    assert_eq!(ended(scene.submit(scene.gated(5.0))), Ok(vec![6.0]));
    scene.drained(&[(End::Completed, 42), (End::Late, 1)]);
}

#[test]
fn what_is_late_after_a_slow_cell_ends_and_its_mates_are_answered() {
    let scene = scene(1, 32, 2, Limits::default());
    let first = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    // A batch of two comes next, and full ones come first.
    let deadline = Instant::now() + Duration::from_millis(300);
    let mate = scene.submit(scene.gated(2.0));
    let late = scene.submit(scene.gated_steps(3.0, 2).deadline(deadline));
    let mut rng = fastrand::Rng::with_seed(2);
    let others: Vec<_> = (0..16)
        .map(|index| {
            let xs: Vec<f32> = (0..5).map(|_| rng.f32()).collect();
            let (request, expected) = chain(&scene.ids, &xs);
            match index % 2 {
                0 => (scene.submit(request), Ok(expected)),
                _ => (
                    scene.submit(request.deadline(deadline)),
                    Err(RequestError::Late),
                ),
            }
        })
        .collect();
    scene.gate.let_go(1);
    scene.gate.wait_for(2);
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    scene.gate.let_go(2);
    assert_eq!(ended(first), Ok(vec![2.0]));
    assert_eq!(ended(mate), Ok(vec![3.0]));
    assert_eq!(ended(late), Err(RequestError::Late));
    for (ticket, expected) in others {
        assert_eq!(ended(ticket), expected);
    }
    // Nothing was computed of what was late before its first cell.
    let stats = scene.engine.stats();
    assert_eq!(stats.cells[scene.ids.chain.index()].rows, 8 * 5);
    scene.drained(&[(End::Completed, 10), (End::Late, 9)]);
}

#[test]
fn a_panic_on_one_worker_leaves_the_others_cell_and_both_go_on() {
    let scene = scene(2, 4, 1, Limits::default());
    let rounds = 20;
    for round in 0..rounds {
        let poisoned = scene.submit(scene.gated(POISON));
        let fine = scene.submit(scene.gated(round as f32));
        // Both are in their cells, so on both workers.
        scene.gate.wait_for(2 * round + 2);
        scene.gate.let_go(2 * round + 2);
        let panicked = RequestError::CellPanicked {
            cell: "gated".into(),
            message: "poisoned".into(),
        };
        assert_eq!(ended(poisoned), Err(panicked));
        assert_eq!(ended(fine), Ok(vec![round as f32 + 1.0]));
    }
    // At the start by each worker, and by whoever panicked when it is asked again.
    let before = scene.prepared.load(Ordering::Relaxed);
    assert!(
        (rounds + 1..=rounds + 2).contains(&before),
        "{before} times"
    );
    scene.drained(&[
        (End::Completed, rounds as u64),
        (End::Failed, rounds as u64),
    ]);
}

#[test]
fn who_shares_no_batch_with_a_panic_is_answered_as_if_alone() {
    // Alone in their batches, nobody else may end; else at most three mates of each.
    for (rows, mates) in [(1, 0), (4, 3)] {
        let scene = scene(2, rows, 1, Limits::default());
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut poisoned, mut failed) = (0, 0);
        let tickets: Vec<_> = (0..200)
            .map(|index| {
                if index % 10 > 0 {
                    let (request, expected) = random_request(&scene.ids, &mut rng);
                    return (scene.submit(request), Some(expected));
                }
                poisoned += 1;
                let mut xs = [0.5; 6];
                xs[rng.usize(..6)] = POISON;
                (scene.submit(chain(&scene.ids, &xs).0), None)
            })
            .collect();
        for (ticket, expected) in tickets {
            match (ended(ticket), expected) {
                (Ok(answer), Some(expected)) => assert_eq!(bits(&answer), bits(&expected)),
                (Ok(_), None) => panic!("the poisoned are not answered"),
                (Err(RequestError::CellPanicked { .. }), _) => failed += 1,
                (Err(other), _) => panic!("{other}"),
            }
        }
        assert!(
            (poisoned..=poisoned * (1 + mates)).contains(&failed),
            "{failed} of {poisoned}"
        );
        let ends = [(End::Completed, 200 - failed), (End::Failed, failed)];
        scene.drained(&ends);
    }
}

/// Two branches that grow by what they themselves gave, a node at a time, and now and then one more that nobody
/// takes; once both are over, a pair of what they came to. The answer is that, and all that each gave:
/// whichever grew first.
struct Branches {
    pair: CellId,
    cells: [CellId; 2],
    /// Whose cell has an input.
    inputs: [bool; 2],
    left: [usize; 2],
    traces: [Vec<f32>; 2],
    over: usize,
    branch_of: HashMap<NodeId, usize>,
    /// Branches, in the order in which they grew.
    order: Arc<Mutex<Vec<usize>>>,
}

/// Branches of these cells, which grow so often.
fn branches(ids: &Ids, cells: [CellId; 2], left: [usize; 2], start: f32) -> (Graph, Branches) {
    let inputs = cells.map(|cell| cell == ids.chain);
    let mut graph = Graph::new();
    let mut branch_of = HashMap::new();
    for (branch, cell) in cells.into_iter().enumerate() {
        let x = graph.give(&[start + branch as f32]);
        let node = match inputs[branch] {
            true => graph.node(cell, &[x, Source::Zeros]),
            false => graph.node(cell, &[x]),
        };
        graph.watch(node);
        branch_of.insert(node, branch);
    }
    let grow = Branches {
        pair: ids.pair,
        cells,
        inputs,
        left,
        traces: [Vec::new(), Vec::new()],
        over: 0,
        branch_of,
        order: Arc::default(),
    };
    (graph, grow)
}

impl Grow for Branches {
    fn grow(&mut self, node: NodeId, gave: Gave<'_>, more: &mut Growth<'_>) {
        let branch = self.branch_of[&node];
        self.order.lock().unwrap().push(branch);
        let y = gave.port(gave.ports() - 1)[0];
        self.traces[branch].push(y);
        if self.left[branch] > 0 {
            self.left[branch] -= 1;
            let x = more.give(&[0.5 * y]);
            if self.left[branch] % 3 == branch {
                more.node(self.pair, &[x, x]);
            }
            let next = match self.inputs[branch] {
                true => more.node(self.cells[branch], &[x, node.gives(0)]),
                false => more.node(self.cells[branch], &[node.gives(0)]),
            };
            more.watch(next);
            self.branch_of.insert(next, branch);
            return;
        }
        self.over += 1;
        if self.over == 2 {
            let [a, b] = &self.traces;
            let last = [a, b].map(|trace| more.give(&trace[trace.len() - 1..]));
            let pair = more.node(self.pair, &last);
            more.answer(pair.gives(0));
            for trace in [a, b] {
                let trace = more.give(trace);
                more.answer(trace);
            }
        }
    }
}

#[test]
fn of_two_nodes_that_grow_on_two_workers_the_later_is_told_first() {
    let scene = scene(2, 2, 1, Limits::default());
    let ids = &scene.ids;
    let request = || branches(ids, [ids.count, ids.chain], [4, 6], 9.0);
    let (graph, grow) = request();
    let expected = run_alone(&scene.cells, graph, Some(Box::new(grow))).unwrap();

    let holds = [1.0, 2.0].map(|x| scene.submit(scene.gated(x)));
    scene.gate.wait_for(2);
    let (graph, grow) = request();
    let order = Arc::clone(&grow.order);
    let growing = scene.submit(Request::new(graph).grow(grow));
    // The mate of the counting branch, whose growth keeps the worker from telling what that branch grew by.
    struct Held(Arc<Gate>);
    impl Grow for Held {
        fn grow(&mut self, _: NodeId, _: Gave<'_>, _: &mut Growth<'_>) {
            self.0.pass();
        }
    }
    let held = Arc::new(Gate::default());
    let mut graph = Graph::new();
    let x = graph.give(&[1.0]);
    let node = graph.node(ids.count, &[x]);
    graph.watch(node);
    graph.answer(node.gives(0));
    let mate = scene.submit(Request::new(graph).grow(Held(Arc::clone(&held))));
    // Counting cells are a full batch now.
    scene.gate.let_go(1);
    held.wait_for(1);
    scene.gate.let_go(2);
    // It is in the other branch's batch, or in one after it: that branch has grown and was told.
    let (after, outputs) = chain(ids, &[3.0]);
    assert_eq!(ended(scene.submit(after)), Ok(outputs));
    assert_eq!(*order.lock().unwrap(), [0, 1]);
    held.let_go(1);
    assert_eq!(bits(&ended(growing).unwrap()), bits(&expected));
    assert_eq!(ended(mate), Ok(vec![0.0]));
    assert_eq!(holds.map(ended), [Ok(vec![2.0]), Ok(vec![3.0])]);
    scene.drained(&[(End::Completed, 5)]);
}

#[test]
fn requests_that_grow_on_two_workers_are_answered_as_if_alone() {
    let mut rng = fastrand::Rng::with_seed(4);
    for rows in [1, 2, 8] {
        let scene = scene(2, rows, 1, Limits::default());
        let ids = &scene.ids;
        for _ in 0..40 {
            let tickets: Vec<_> = (0..rng.usize(1..=6))
                .map(|_| {
                    let cells = [[ids.count, ids.chain], [ids.chain, ids.chain]][rng.usize(..2)];
                    let left = [rng.usize(..12), rng.usize(..12)];
                    let start = rng.f32();
                    let (graph, grow) = branches(ids, cells, left, start);
                    let alone = run_alone(&scene.cells, graph.clone(), Some(Box::new(grow)));
                    let (_, grow) = branches(ids, cells, left, start);
                    let request = Request::new(graph).grow(grow);
                    (scene.submit(request), alone.unwrap())
                })
                .collect();
            for (ticket, expected) in tickets {
                assert_eq!(bits(&ended(ticket).unwrap()), bits(&expected));
            }
        }
        let submitted = scene.engine.stats().counts.submitted;
        scene.drained(&[(End::Completed, submitted)]);
    }
}

#[test]
fn growth_that_finds_no_room_ends_its_request_and_no_other() {
    struct Many(CellId);
    impl Grow for Many {
        fn grow(&mut self, node: NodeId, gave: Gave<'_>, more: &mut Growth<'_>) {
            for _ in 0..20 {
                let x = more.give(gave.port(0));
                more.node(self.0, &[x]);
            }
            more.answer(node.gives(0));
        }
    }
    let limits = Limits {
        nodes: 20,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    let mut graph = Graph::new();
    let x = graph.give(&[1.0]);
    let node = graph.node(scene.ids.count, &[x]);
    graph.watch(node);
    let grows = scene.submit(Request::new(graph).grow(Many(scene.ids.count)));
    let (other, expected) = chain(&scene.ids, &[0.5; 10]);
    let other = scene.submit(other);
    match ended(grows) {
        Err(RequestError::Refused(Refused::Overloaded {
            what, needs, most, ..
        })) => {
            assert_eq!(("nodes", 20, 20), (what, needs, most));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(ended(other), Ok(expected));
    // All of the room is there again.
    let (all, expected) = chain(&scene.ids, &[0.5; 20]);
    assert_eq!(ended(scene.submit(all)), Ok(expected));
    scene.drained(&[(End::Completed, 2), (End::Failed, 1)]);
}

/// What a request takes of the limit, as its refusal says.
fn bytes_of(request: impl Fn(&Scene) -> Request) -> usize {
    let limits = Limits {
        bytes: 0,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    let refused = scene.engine.submit(request(&scene)).err().unwrap();
    let SubmitError::Refused(Refused::Overloaded {
        what: "bytes",
        have: 0,
        needs,
        most: 0,
    }) = refused
    else {
        panic!("{refused}")
    };
    needs
}

#[test]
fn more_bytes_than_the_limit_are_refused_until_others_end() {
    let long = |scene: &Scene| chain(&scene.ids, &[0.5; 30]).0;
    let gated = |scene: &Scene| scene.gated(1.0);
    let (long_bytes, gated_bytes) = (bytes_of(long), bytes_of(gated));
    // At least what came with it and its answer.
    assert!(long_bytes >= 2 * 30 * size_of::<f32>(), "{long_bytes}");
    assert!(long_bytes > gated_bytes);

    let limits = Limits {
        bytes: long_bytes + gated_bytes,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    let overloaded = |have, needs| {
        SubmitError::Refused(Refused::Overloaded {
            what: "bytes",
            have,
            needs,
            most: limits.bytes,
        })
    };
    let refused = |request| scene.engine.submit(request).err().unwrap();
    let holds = scene.submit(scene.gated(1.0));
    scene.gate.wait_for(1);
    for round in 0..10 {
        let waiting = scene.submit(long(&scene));
        let have = limits.bytes;
        assert_eq!(refused(gated(&scene)), overloaded(have, gated_bytes));
        assert_eq!(refused(long(&scene)), overloaded(have, long_bytes));
        let counts = scene.engine.stats().counts;
        assert_eq!((counts.live(), counts.refused), (2, 2 * (round + 1)));
        // Cancelled, it gives its room back at once.
        drop(waiting);
    }
    let waiting = scene.submit(long(&scene));
    scene.gate.let_go(1);
    assert_eq!(ended(holds), Ok(vec![2.0]));
    assert!(ended(waiting).is_ok());
    // Answered, too: all of the room is there again.
    let again = [gated(&scene), long(&scene)].map(|request| scene.submit(request));
    scene.gate.let_go(2);
    assert!(again.into_iter().all(|ticket| ended(ticket).is_ok()));
    scene.drained(&[(End::Completed, 4), (End::Cancelled, 10)]);
}

#[test]
fn a_stream_takes_the_bytes_of_a_segment_and_gives_them_back() {
    let limits = Limits {
        bytes: 0,
        ..Limits::default()
    };
    let none = scene(1, 4, 1, limits);
    let mut stream = none.engine.stream(none.ids.chain, None).unwrap();
    let refused = stream.push(&[1.0]).err().unwrap();
    let StreamError::Submit(SubmitError::Refused(Refused::Overloaded {
        what: "bytes",
        needs: segment,
        ..
    })) = refused
    else {
        panic!("{refused}")
    };
    // More than a request of one step, since more steps will come.
    assert!(segment > 10 * bytes_of(|scene| chain(&scene.ids, &[1.0]).0));

    let limits = Limits {
        bytes: segment,
        ..Limits::default()
    };
    let scene = scene(1, 4, 1, limits);
    let xs: Vec<f32> = (0..700).map(|x| (x % 7) as f32).collect();
    let expected = outputs(&xs);
    for round in 0..3 {
        let mut stream = scene.engine.stream(scene.ids.chain, None).unwrap();
        let mut other = scene.engine.stream(scene.ids.chain, None).unwrap();
        // Longer than two segments, of which there is room for one.
        for (x, y) in xs.iter().zip(&expected) {
            assert_eq!(stream.push(&[*x]).unwrap().wait(), Ok(vec![*y]));
        }
        let refused = other.push(&[1.0]).err().unwrap();
        let StreamError::Submit(SubmitError::Refused(Refused::Overloaded { what, needs, .. })) =
            refused
        else {
            panic!("{refused}")
        };
        assert_eq!((what, needs), ("bytes", segment));
        // The one stays as it was, the other ends; so there is room.
        match round {
            0 => drop(stream),
            _ => stream.close(),
        }
        let begin = Instant::now();
        while scene.engine.stats().counts.live() > 0 {
            assert!(begin.elapsed() < PATIENCE, "the stream has not ended");
            std::thread::yield_now();
        }
        assert_eq!(other.push(&[2.0]).unwrap().wait(), Ok(vec![2.0]));
    }
    let counts = scene.engine.stats().counts;
    assert_eq!(counts.refused, 3);
    assert_eq!(counts.live(), 0);
}
