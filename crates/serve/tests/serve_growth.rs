//! Graphs that grow while they are computed: by whatever worker, out of turn, and beyond what there
//! is room for. What may be added is a matter of the graph alone, and not of what others' batches
//! have let be computed by then.

#[path = "common/gate.rs"]
mod gate;
#[path = "common/gated.rs"]
mod gated;
#[path = "common/simple_cells.rs"]
mod simple_cells;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gate::Gate;
use gated::{ended, scene};
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::{
    CellId, DynamicGraph, Graph, GraphError, Growth, NodeId, NodeOutputs, Reader, Source,
};
use gatestream_serve::engine::{Request, SubmitError};
use gatestream_serve::networks::{UnbatchedError, run_unbatched};
use gatestream_serve::scheduler::{End, Limits, Reason, Refused};
use simple_cells::{Ids, bits, chain};

/// Two branches that grow by what they themselves gave, a node at a time, and now and then one more
/// that nobody takes; once both are over, a pair of what they came to. The answer is that, and all
/// that each gave: whichever grew first.
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
        let node = if inputs[branch] {
            graph.node(cell, &[x, Source::Zeros])
        } else {
            graph.node(cell, &[x])
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

impl DynamicGraph for Branches {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let branch = self.branch_of[&node];
        self.order.lock().unwrap().push(branch);
        let y = outputs.port(outputs.ports() - 1)[0];
        self.traces[branch].push(y);
        if self.left[branch] > 0 {
            self.left[branch] -= 1;
            let x = more.give(&[0.5 * y]);
            if self.left[branch] % 3 == branch {
                more.node(self.pair, &[x, x]);
            }
            let next = if self.inputs[branch] {
                more.node(self.cells[branch], &[x, node.output(0)])
            } else {
                more.node(self.cells[branch], &[node.output(0)])
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
            more.answer(pair.output(0));
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
    let expected = run_unbatched(&scene.cells, graph, Some(Box::new(grow))).unwrap();

    let holds = [1.0, 2.0].map(|x| scene.submit(scene.gated(x)));
    scene.gate.wait_for(2);
    let (graph, grow) = request();
    let order = Arc::clone(&grow.order);
    let growing = scene.submit(Request::new(graph).grow(grow));
    // The mate of the counting branch, whose growth keeps the worker from telling what that branch
    // grew by.
    struct Held(Arc<Gate>);
    impl DynamicGraph for Held {
        fn grow(&mut self, _: NodeId, _: NodeOutputs<'_>, more: &mut Growth<'_>) {
            if let Err(error) = self.0.pass(&[]) {
                more.fail(error);
            }
        }
    }
    let held = Arc::new(Gate::default());
    let mut graph = Graph::new();
    let x = graph.give(&[1.0]);
    let node = graph.node(ids.count, &[x]);
    graph.watch(node);
    graph.answer(node.output(0));
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
                    let alone = run_unbatched(&scene.cells, graph.clone(), Some(Box::new(grow)));
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
    impl DynamicGraph for Many {
        fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
            for _ in 0..20 {
                let x = more.give(outputs.port(0));
                more.node(self.0, &[x]);
            }
            more.answer(node.output(0));
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
            assert_eq!((Reason::Nodes, 20, 20), (what, needs, most));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(ended(other), Ok(expected));
    // All of the room is there again.
    let (all, expected) = chain(&scene.ids, &[0.5; 20]);
    assert_eq!(ended(scene.submit(all)), Ok(expected));
    scene.drained(&[(End::Completed, 2), (End::Failed, 1)]);
}

/// Calls a function with each watched node.
struct Calls<F>(F);

impl<F: FnMut(NodeId, &mut Growth<'_>) + Send> DynamicGraph for Calls<F> {
    fn grow(&mut self, node: NodeId, _: NodeOutputs<'_>, more: &mut Growth<'_>) {
        (self.0)(node, more);
    }
}

/// What a watched node's growth adds.
type Adds = fn(&Ids, &mut Growth<'_>);

/// A chain of two nodes, of which the last is watched, another watched one and two that are not,
/// all of the cell `chain`.
fn three_chains(ids: &Ids) -> Graph {
    let mut graph = Graph::new();
    let mut node = |x: f32, before: Source| {
        let x = graph.give(&[x]);
        graph.node(ids.chain, &[x, before])
    };
    let first = node(1.0, Source::Zeros);
    let [second, other, unwatched] = [
        node(2.0, first.output(0)),
        node(3.0, Source::Zeros),
        node(4.0, Source::Zeros),
    ];
    graph.answer(unwatched.output(1));
    graph.watch(second);
    graph.watch(other);
    graph
}

#[test]
fn what_may_be_added_depends_on_the_graph_and_not_on_what_has_been_computed() {
    const FIRST: usize = 0;
    const SECOND: usize = 1;
    const OTHER: usize = 2;
    const UNWATCHED: usize = 3;
    fn writes(node: usize, port: usize) -> Source {
        NodeId::new(node).output(port)
    }
    fn go_on(ids: &Ids, more: &mut Growth<'_>, from: usize) {
        let x = more.give(&[5.0]);
        let node = more.node(ids.chain, &[x, writes(from, 0)]);
        more.answer(node.output(1));
    }
    let answer = |node: usize| {
        let reader = Reader::Response;
        Err(GraphError::NotRetained { reader, node })
    };
    let node = |node: usize| {
        let reader = Reader::Node(NodeId::new(4));
        Err(GraphError::NotRetained { reader, node })
    };
    // What the second node's growth adds.
    let cases: [(Adds, Result<(), GraphError>); 12] = [
        (|_, more| more.answer(writes(SECOND, 0)), Ok(())),
        (|_, more| more.answer(writes(SECOND, 1)), Ok(())),
        (|ids, more| go_on(ids, more, SECOND), Ok(())),
        (|ids, more| go_on(ids, more, OTHER), Ok(())),
        (|_, more| more.answer(writes(FIRST, 1)), answer(FIRST)),
        (|_, more| more.answer(writes(OTHER, 1)), answer(OTHER)),
        (
            |_, more| more.answer(writes(UNWATCHED, 1)),
            answer(UNWATCHED),
        ),
        (|ids, more| go_on(ids, more, FIRST), node(FIRST)),
        (|ids, more| go_on(ids, more, UNWATCHED), node(UNWATCHED)),
        (
            // From the other's state, with what its own gives as an input.
            |ids, more| _ = more.node(ids.chain, &[writes(SECOND, 1), writes(OTHER, 0)]),
            node(OTHER),
        ),
        (
            |ids, more| {
                go_on(ids, more, OTHER);
                go_on(ids, more, OTHER);
            },
            Err(GraphError::NotRetained {
                reader: Reader::Node(NodeId::new(5)),
                node: OTHER,
            }),
        ),
        (
            |_, more| more.watch(NodeId::new(UNWATCHED)),
            Err(GraphError::WatchedTooLate { node: UNWATCHED }),
        ),
    ];
    for (at, (adds, expected)) in cases.into_iter().enumerate() {
        let growing = |ids: &Ids| {
            let graph = three_chains(ids);
            let ids = *ids;
            let function = move |node: NodeId, more: &mut Growth<'_>| {
                if node.index() == SECOND {
                    adds(&ids, more);
                }
            };
            (graph, Calls(function))
        };
        let mut answers = Vec::new();
        // In batches of one row what was added first is computed first; of four, all but the second
        // node at once.
        for (rows, workers) in [(1, 1), (4, 1), (1, 2), (4, 2)] {
            let scene = scene(workers, rows, 1, Limits::default());
            let (graph, grow) = growing(&scene.ids);
            let alone = run_unbatched(&scene.cells, graph.clone(), Some(Box::new(grow)));
            let (_, grow) = growing(&scene.ids);
            let answer = ended(scene.submit(Request::new(graph).grow(grow)));
            match &expected {
                Ok(()) => {
                    answers.push(bits(&alone.unwrap()));
                    answers.push(bits(&answer.unwrap()));
                }
                Err(error) => {
                    assert_eq!(
                        alone,
                        Err(UnbatchedError::Graph(error.clone())),
                        "case {at}"
                    );
                    assert_eq!(answer, Err(RequestError::Graph(error.clone())), "case {at}");
                }
            }
        }
        assert!(answers.windows(2).all(|two| two[0] == two[1]), "case {at}");
    }
}

#[test]
fn two_that_go_on_from_one_node_are_refused_whichever_is_told_of_first() {
    // The second and the third are watched, and go on from the third. In batches of one row the
    // second is told of first.
    for (rows, workers) in [(1, 1), (4, 1), (1, 2), (4, 2)] {
        let scene = scene(workers, rows, 1, Limits::default());
        let grow = || {
            let chain = scene.ids.chain;
            Calls(move |_, more: &mut Growth<'_>| {
                let x = more.give(&[5.0]);
                more.node(chain, &[x, NodeId::new(2).output(0)]);
            })
        };
        let graph = three_chains(&scene.ids);
        let not_kept =
            |error: &GraphError| matches!(error, GraphError::NotRetained { node: 2, .. });
        let alone = run_unbatched(&scene.cells, graph.clone(), Some(Box::new(grow())));
        assert!(matches!(alone, Err(UnbatchedError::Graph(error)) if not_kept(&error)));
        let served = ended(scene.submit(Request::new(graph).grow(grow())));
        assert!(matches!(served, Err(RequestError::Graph(error)) if not_kept(&error)));
    }
}

#[test]
fn what_goes_on_from_a_resting_node_takes_nothing_of_another_cell() {
    let scene = scene(1, 4, 1, Limits::default());
    // The second's growth: from the third's states, with what a new node of another cell gives.
    let grow = || {
        let ids = scene.ids;
        Calls(move |node: NodeId, more: &mut Growth<'_>| {
            if node.index() == 1 {
                let x = more.give(&[5.0]);
                let pair = more.node(ids.pair, &[x, x]);
                more.node(ids.chain, &[pair.output(0), NodeId::new(2).output(0)]);
            }
        })
    };
    let reader = Reader::Node(NodeId::new(5));
    let error = GraphError::NotRetained { reader, node: 2 };
    let graph = three_chains(&scene.ids);
    let alone = run_unbatched(&scene.cells, graph.clone(), Some(Box::new(grow())));
    assert_eq!(alone, Err(UnbatchedError::Graph(error.clone())));
    let served = ended(scene.submit(Request::new(graph).grow(grow())));
    assert_eq!(served, Err(RequestError::Graph(error)));
}

#[test]
fn what_nothing_grows_may_watch_no_node() {
    let scene = scene(1, 4, 1, Limits::default());
    let error = GraphError::NoDynamicGraph { node: 1 };
    let graph = three_chains(&scene.ids);
    let refused = scene.engine.submit(Request::new(graph.clone())).err();
    assert_eq!(refused, Some(SubmitError::Graph(error.clone())));
    let alone = run_unbatched(&scene.cells, graph, None);
    assert_eq!(alone, Err(UnbatchedError::Graph(error)));
    scene.drained(&[]);
}

#[test]
fn a_function_that_has_ended_its_request_is_called_no_more() {
    let scene = scene(1, 4, 1, Limits::default());
    let endings: [fn(&mut Growth<'_>); 3] = [
        |more| more.fail("enough"),
        |more| more.answer(Source::Zeros),
        |_| panic!("told to"),
    ];
    for ends in endings {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let grow = Calls(move |_, more: &mut Growth<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            ends(more);
        });
        // All four are rows of one batch.
        let mut graph = Graph::new();
        for x in 1..5 {
            let x = graph.give(&[x as f32]);
            let node = graph.node(scene.ids.count, &[x]);
            graph.watch(node);
        }
        assert!(ended(scene.submit(Request::new(graph).grow(grow))).is_err());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
    scene.drained(&[(End::Failed, 3)]);
}
