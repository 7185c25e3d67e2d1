//! Division into subgraphs against what it must be, by brute force; every error with its message.

use super::test_graphs::{
    Named, complete_tree, plain_cells, plain_chain, plain_node, random_graph, takes_of,
};
use super::*;
use gatestream::kernels::{RowsMut, RowsRef};

/// Whether all nodes of a circle-free relation can be put in an order.
fn has_no_circle(nodes: usize, edges: &[(usize, usize)]) -> bool {
    let mut left: Vec<usize> = (0..nodes).collect();
    loop {
        let before = left.len();
        let waits = |n: usize| {
            let mut into = edges.iter().filter(|edge| edge.1 == n);
            into.any(|edge| left.contains(&edge.0))
        };
        let still: Vec<usize> = left.iter().copied().filter(|&n| waits(n)).collect();
        left = still;
        if left.len() == before {
            return left.is_empty();
        }
    }
}

#[test]
fn subgraphs_are_of_one_cell_and_connected_and_do_not_wait_for_each_other() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut parted, mut joined) = (0, 0);
    for _ in 0..600 {
        let kinds = rng.usize(1..=4);
        let graph = random_graph(&mut rng, kinds, 24);
        let unfolded = graph.unfold(&plain_cells(kinds)).expect("a valid graph");
        let nodes = graph.len();
        let subgraph = |n: usize| unfolded.subgraph(NodeId::new(n));
        assert_eq!(unfolded.nodes(), nodes);
        let edges: Vec<(usize, usize)> = (0..nodes)
            .flat_map(|to| takes_of(&graph, to).into_iter().map(move |from| (from, to)))
            .collect();
        for index in 0..unfolded.subgraphs() {
            let members: Vec<usize> = (0..nodes).filter(|&n| subgraph(n) == index).collect();
            let cell = graph.cell(NodeId::new(members[0]));
            assert!(members.iter().all(|&n| graph.cell(NodeId::new(n)) == cell));
            // Everything is reached from the first by edges within.
            let mut reached = vec![members[0]];
            let mut next = 0;
            while let Some(&at) = reached.get(next) {
                for &(a, b) in &edges {
                    for (here, there) in [(a, b), (b, a)] {
                        if here == at && members.contains(&there) && !reached.contains(&there) {
                            reached.push(there);
                        }
                    }
                }
                next += 1;
            }
            assert_eq!(reached.len(), members.len(), "connected");
        }
        let between: Vec<(usize, usize)> = edges
            .iter()
            .map(|&(from, to)| (subgraph(from), subgraph(to)))
            .filter(|(from, to)| from != to)
            .collect();
        assert!(has_no_circle(unfolded.subgraphs(), &between));
        let same_cell =
            |a: usize, b: usize| graph.cell(NodeId::new(a)) == graph.cell(NodeId::new(b));
        for &(from, to) in edges.iter().filter(|e| same_cell(e.0, e.1)) {
            if subgraph(from) == subgraph(to) {
                joined += 1
            } else {
                parted += 1
            }
        }
    }
    assert!(
        joined > 1000 && parted > 100,
        "{joined} joined, {parted} parted"
    );
}

#[test]
fn one_cell_alone_is_divided_only_where_it_is_not_connected() {
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..200 {
        let graph = random_graph(&mut rng, 1, 20);
        let unfolded = graph.unfold(&plain_cells(1)).expect("a valid graph");
        for node in 0..graph.len() {
            for from in takes_of(&graph, node) {
                let of = |n| unfolded.subgraph(NodeId::new(n));
                assert_eq!(of(node), of(from));
            }
        }
    }
}

#[test]
fn a_complete_tree_of_16_leaves_has_17_subgraphs() {
    let unfolded = complete_tree(16).unfold(&plain_cells(2)).expect("a tree");
    assert_eq!((unfolded.nodes(), unfolded.subgraphs()), (31, 17));
    let inner: Vec<_> = (16..31)
        .map(|n| unfolded.subgraph(NodeId::new(n)))
        .collect();
    assert!(inner.iter().all(|&s| s == inner[0]), "{inner:?}");
}

#[test]
fn a_chain_after_a_chain_has_two_subgraphs() {
    let graph = plain_chain(&[5, 4]);
    let unfolded = graph.unfold(&plain_cells(2)).expect("two chains");
    assert_eq!(unfolded.subgraphs(), 2);
}

#[test]
fn a_way_out_and_back_divides_what_is_connected() {
    // a → b → a', and a → a'.
    let mut graph = Graph::new();
    plain_node(&mut graph, 0, &[]);
    plain_node(&mut graph, 1, &[0]);
    plain_node(&mut graph, 0, &[1, 0]);
    let unfolded = graph.unfold(&plain_cells(2)).expect("no circle of nodes");
    assert_eq!(unfolded.subgraphs(), 3);
}

/// Cell 0, `sum`: input `x` of 2, state `s` of 3; gives the state, and `y` of 1.
fn sum() -> (Cells, CellId) {
    let mut cells = Cells::new();
    let ports = Ports::new().input("x", 2).state("s", 3).output("y", 1);
    let sum = cells.add(Named::new("sum", ports));
    (cells, sum)
}

/// What is said of a graph that `fill` makes.
fn refused(fill: impl FnOnce(&mut Graph, CellId)) -> (GraphError, String) {
    let (cells, sum) = sum();
    let mut graph = Graph::new();
    fill(&mut graph, sum);
    let error = graph.unfold(&cells).expect_err("refused");
    (error.clone(), error.to_string())
}

const ZEROS: [Source; 2] = [Source::Zeros; 2];

#[test]
fn a_graph_without_nodes_is_refused() {
    let (error, text) = refused(|_, _| {});
    assert_eq!(error, GraphError::Empty);
    assert_eq!(
        text,
        "the graph has no node; a request computes at least one cell"
    );
}

#[test]
fn too_many_nodes_are_refused() {
    let mut cells = Cells::new();
    let bare = cells.add(Named::new("bare", Ports::new()));
    let mut graph = Graph::new();
    for _ in 0..=MAX_NODES {
        graph.node(bare, &[]);
    }
    let error = graph.unfold(&cells).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "the graph has 16777217 nodes; the maximum is 16777216"
    );
}

#[test]
fn cells_that_are_not_there_are_refused() {
    let (error, text) = refused(|graph, _| {
        graph.node(CellId(7), &ZEROS);
    });
    let (node, cell, cells) = (0, 7, 1);
    assert_eq!(error, GraphError::UnknownCell { node, cell, cells });
    assert_eq!(
        text,
        "node 0 calls cell 7, but there are 1 cells, numbered from 0"
    );
}

#[test]
fn too_few_sources_are_refused() {
    let (error, text) = refused(|graph, sum| {
        graph.node(sum, &ZEROS);
        graph.node(sum, &ZEROS[..1]);
    });
    assert!(matches!(
        error,
        GraphError::Sources {
            node: 1,
            expected: 2,
            found: 1,
            ..
        }
    ));
    assert_eq!(
        text,
        "node 1 has 1 sources; its cell `sum` reads 2: `x`, `s`"
    );
}

#[test]
fn values_of_another_width_are_refused() {
    let (error, text) = refused(|graph, sum| {
        let first = graph.node(sum, &ZEROS);
        graph.node(sum, &[Source::Zeros, first.output(1)]);
    });
    assert!(matches!(
        error,
        GraphError::Width {
            node: 1,
            expected: 3,
            found: 1,
            ..
        }
    ));
    assert_eq!(
        text,
        "node 1 has 1 values for `s` of cell `sum`, which reads 3"
    );
    let (_, text) = refused(|graph, sum| {
        let x = graph.give(&[1.0; 5]);
        graph.node(sum, &[x, Source::Zeros]);
    });
    assert_eq!(
        text,
        "node 0 has 5 values for `x` of cell `sum`, which reads 2"
    );
}

#[test]
fn nodes_that_are_not_there_are_refused() {
    let (error, text) = refused(|graph, sum| {
        graph.node(sum, &[Source::Zeros, NodeId::new(4).output(0)]);
    });
    let reader = Reader::Node(NodeId::new(0));
    assert_eq!(
        error,
        GraphError::UnknownNode {
            reader,
            node: 4,
            nodes: 1
        }
    );
    assert_eq!(
        text,
        "node 0 reads node 4; the graph has nodes 0 to 1 (exclusive)"
    );
    let (_, text) = refused(|graph, sum| {
        graph.node(sum, &ZEROS);
        graph.answer(NodeId::new(1).output(0));
    });
    assert_eq!(
        text,
        "the response reads node 1; the graph has nodes 0 to 1 (exclusive)"
    );
}

#[test]
fn ports_that_are_not_there_are_refused() {
    let (error, text) = refused(|graph, sum| {
        let node = graph.node(sum, &ZEROS);
        graph.answer(node.output(2));
    });
    assert!(matches!(
        error,
        GraphError::UnknownPort {
            reader: Reader::Response,
            node: 0,
            port: 2,
            ports: 2,
            ..
        }
    ));
    assert_eq!(
        text,
        "the response reads port 2 of node 0; its cell `sum` has 2 output ports, numbered from 0"
    );
}

#[test]
fn values_that_were_not_given_are_refused() {
    let (error, text) = refused(|graph, sum| {
        graph.give(&[1.0]);
        graph.node(sum, &[Source::Given { first: 0, width: 2 }, Source::Zeros]);
    });
    let reader = Reader::Node(NodeId::new(0));
    assert_eq!(
        error,
        GraphError::UnknownGiven {
            reader,
            first: 0,
            end: 2,
            given: 1
        }
    );
    assert_eq!(
        text,
        "node 0 reads values 0..2 of the request, which has 1 values"
    );
    let (error, _) = refused(|graph, sum| {
        graph.node(
            sum,
            &[
                Source::Given {
                    first: usize::MAX,
                    width: 2,
                },
                Source::Zeros,
            ],
        );
    });
    assert!(matches!(error, GraphError::UnknownGiven { .. }));
}

#[test]
fn zeros_are_no_answer() {
    let (error, text) = refused(|graph, sum| {
        graph.node(sum, &ZEROS);
        graph.answer(Source::Zeros);
    });
    assert_eq!(error, GraphError::AnswerZeros);
    assert_eq!(
        text,
        "the response contains `Source::Zeros`, which has no width; use values of a node or of \
         the request"
    );
}

#[test]
fn circles_are_refused_and_one_of_their_nodes_is_named() {
    // 0 waits for the circle 1 → 2 → 3 → 1, and is not in it; 4 follows it.
    let (error, text) = refused(|graph, sum| {
        let after = |n: usize| [Source::Zeros, NodeId::new(n).output(0)];
        graph.node(sum, &after(1));
        graph.node(sum, &after(3));
        graph.node(sum, &after(1));
        graph.node(sum, &after(2));
        graph.node(sum, &after(3));
    });
    let GraphError::Cycle { node } = error else {
        panic!("{text}");
    };
    assert!((1..=3).contains(&node), "{text}");
    assert_eq!(
        text,
        format!("node {node} depends on its own result: its sources form a cycle")
    );
    let (error, _) = refused(|graph, sum| {
        graph.node(sum, &[Source::Zeros, NodeId::new(0).output(0)]);
    });
    assert_eq!(error, GraphError::Cycle { node: 0 });
}

/// Would take minutes if each step back looked at all edges.
#[test]
fn a_circle_as_large_as_the_graph_is_found() {
    let (waiting, all) = (100_000, 300_000);
    let cells = plain_cells(1);
    let mut graph = Graph::new();
    for node in 0..all {
        // The first ones wait one for the next, and the last of them for the circle of all others.
        let next = if node + 1 < all { node + 1 } else { waiting };
        plain_node(&mut graph, 0, &[next]);
    }
    let Err(GraphError::Cycle { node }) = graph.unfold(&cells) else {
        panic!("a circle");
    };
    assert!((waiting..all).contains(&node), "{node}");
}

/// What is added later is numbered on from what was there, and a circle of it by those numbers.
#[test]
fn a_circle_of_what_was_added_is_found() {
    let cells = plain_cells(1);
    let mut graph = plain_chain(&[5]);
    let before = graph.mark();
    // 5 waits for 4, which was there, and for the circle 6 → 7 → 6.
    for from in [[4, 6], [4, 7], [0, 6]] {
        plain_node(&mut graph, 0, &from);
    }
    let Err(GraphError::Cycle { node }) = graph.unfold_from(&cells, before) else {
        panic!("a circle");
    };
    assert!((6..=7).contains(&node), "{node}");
}

#[test]
fn circles_of_random_graphs_are_found() {
    let mut rng = fastrand::Rng::with_seed(3);
    let cells = plain_cells(2);
    let mut circles = 0;
    for _ in 0..500 {
        let nodes = rng.usize(1..9);
        let mut graph = Graph::new();
        for _ in 0..nodes {
            let from: Vec<usize> = (0..rng.usize(0..2)).map(|_| rng.usize(0..nodes)).collect();
            plain_node(&mut graph, rng.usize(0..2), &from);
        }
        let takes: Vec<Vec<usize>> = (0..nodes).map(|n| takes_of(&graph, n)).collect();
        let leads_back = |start: usize| {
            let mut reached = takes[start].clone();
            let mut next = 0;
            while let Some(&at) = reached.get(next) {
                let more: Vec<usize> = takes[at]
                    .iter()
                    .copied()
                    .filter(|n| !reached.contains(n))
                    .collect();
                reached.extend(more);
                next += 1;
            }
            reached.contains(&start)
        };
        match graph.unfold(&cells) {
            Ok(_) => assert!(!(0..nodes).any(leads_back)),
            Err(GraphError::Cycle { node }) => {
                assert!(leads_back(node));
                circles += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!((100..400).contains(&circles), "{circles}");
}

#[test]
fn watched_nodes_must_be_there() {
    let (error, text) = refused(|graph, sum| {
        graph.node(sum, &ZEROS);
        graph.watch(NodeId::new(1));
    });
    assert_eq!(error, GraphError::UnknownWatched { node: 1, nodes: 1 });
    assert_eq!(
        text,
        "node 1 is watched; the graph has nodes 0 to 1 (exclusive)"
    );
}

#[test]
fn an_error_of_values_not_retained_names_the_reader() {
    let reader = Reader::Node(NodeId::new(8));
    assert_eq!(
        GraphError::NotRetained { reader, node: 3 }.to_string(),
        "node 8 was added later and reads node 3, whose values are not retained; added nodes may \
         read the watched node that they were added for, or continue once from all states of \
         another watched node"
    );
}

#[test]
fn steps_join_where_only_their_states_are_handed_on() {
    let mut cells = Cells::new();
    let word = cells.add(Named::new(
        "word",
        Ports::new().input("x", 1).output("y", 1),
    ));
    let ports = Ports::new().input("x", 1).state("s", 1).output("y", 1);
    let step = cells.add(Named::new("step", ports));
    // Words first, all of them, and then three steps over them and one that takes the output of the
    // last.
    let mut graph = Graph::new();
    let words = [(); 3].map(|()| graph.node(word, &[Source::Zeros]).output(0));
    let mut last = graph.node(step, &[words[0], Source::Zeros]);
    for word in &words[1..] {
        last = graph.node(step, &[*word, last.output(0)]);
    }
    graph.node(step, &[last.output(1), last.output(0)]);
    let joins = graph.unfold(&cells).unwrap().joins;
    assert_eq!(joins, [false, false, false, false, true, true, false]);
}

#[test]
fn gathered_rows_are_not_taken_as_slices() {
    let ports = Ports::new().input("x", 2).output("y", 1);
    let (row, mut y) = ([1.0, 2.0], [0.0]);
    let rows = [&row[..]];
    let mut refused = |read: fn(&mut Batch<'_>)| {
        let inputs = vec![RowsRef::gathered(&rows)];
        let written = vec![RowsMut::contiguous(&mut y, 1)];
        let mut batch = Batch::of_rows(&ports, 1, None, inputs, written);
        assert_eq!(batch.input(0).row(0, 2), row);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(&mut batch))).is_err()
    };
    assert!(refused(|batch| {
        let ([_], [], [_]) = batch.split();
    }));
    assert!(!refused(|batch| {
        let [_] = batch.written_rows();
    }));
}

#[test]
fn lengths_of_sequences_are_taken_back_and_count_as_bytes() {
    let mut graph = Graph::new();
    let x = graph.give(&[1.0]);
    let node = graph.node_of_lengths(CellId(0), &[x], &[3, 4]);
    let (before, mark) = (graph.clone(), graph.mark());
    graph.node(CellId(0), &[x]);
    let last = graph.node_of_lengths(CellId(0), &[x], &[5]);
    assert_eq!(
        [node, last].map(|node| graph.lengths(node)),
        [&[3, 4][..], &[5]]
    );
    graph.back_to(mark);
    assert_eq!(graph, before);
    let bytes = |lengths: &[usize]| {
        let mut graph = Graph::new();
        graph.node_of_lengths(CellId(0), &[], lengths);
        graph.bytes()
    };
    assert!(bytes(&[1; 100]) >= bytes(&[]) + 100 * size_of::<usize>());
}
