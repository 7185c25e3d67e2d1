//! The MM-DAG against the cells' formulas, followed symbol by symbol, and its drawing against a
//! parser of its own.

use std::collections::{BTreeMap, BTreeSet};

use gatestream::Model;
use gatestream::graph::{Graph, GraphCounts, GraphError, Node, Product};
use gatestream::model::{Cell, CellKind, Gru, Layer, Lstm, Merge, ResetForm, Rnn};

/// One layer, all sizes 1 outside (a projected LSTM has 2 units), so that any can be stacked.
fn layer(cell: &str, directions: &str) -> Layer {
    let gru = |form| Gru::new(1, 1).reset(form).random(1);
    let model = match cell {
        "rnn" => Rnn::new(1, 1).random(1),
        "gru after" => gru(ResetForm::After),
        "gru before" => gru(ResetForm::Before),
        "lstm" => Lstm::new(1, 1).random(1),
        "projected" => Lstm::new(1, 2).projection(1).random(1),
        _ => panic!("{cell}"),
    };
    let one = model.expect("a model").layers()[0].directions()[0].clone();
    match directions {
        "forward" => Layer::single(one),
        "reverse" => Layer::single(one.reversed()),
        "both" => Layer::bidirectional(one.clone(), one, Merge::Sum).expect("equal directions"),
        _ => panic!("{directions}"),
    }
}

const CELLS: [&str; 5] = ["rnn", "gru after", "gru before", "lstm", "projected"];

/// Every layer by itself, and stacks of two and three with every pair of cells and directions.
fn models() -> Vec<Model> {
    let mut stacks = Vec::new();
    let ways = ["forward", "reverse", "both"];
    let layers: Vec<Layer> = { CELLS.iter() }
        .flat_map(|cell| ways.map(|way| layer(cell, way)))
        .collect();
    for first in &layers {
        stacks.push(vec![first.clone()]);
        for second in &layers {
            stacks.push(vec![first.clone(), second.clone()]);
        }
        let third = layer("gru before", "reverse");
        stacks.push(vec![first.clone(), third, layer("lstm", "forward")]);
        stacks.push(vec![first.clone(), first.clone(), first.clone()]);
    }
    let models = stacks
        .into_iter()
        .map(|layers| Model::new(layers).expect("layers that fit"));
    models.collect()
}

type Place = (usize, usize, usize, Product);
type Made = BTreeSet<Place>;

fn place(node: &Node) -> Place {
    (node.layer, node.direction, node.step, node.product)
}

/// What each product is made of, by running the cells' formulas on sets of products.
fn made_of(model: &Model, steps: usize) -> BTreeMap<Place, Made> {
    let mut all = BTreeMap::new();
    let mut inputs = vec![Made::new(); steps];
    for (layer, directions) in model.layers().iter().enumerate() {
        let mut outputs = vec![Made::new(); steps];
        for (number, direction) in directions.directions().iter().enumerate() {
            let (mut h, mut c) = (Made::new(), Made::new());
            for taken in 0..steps {
                let step = if direction.is_reverse() {
                    steps - 1 - taken
                } else {
                    taken
                };
                // The value of a product, which is made of itself and of its operand.
                let mut value = |product, operand: &Made| -> Made {
                    let place = (layer, number, step, product);
                    all.insert(place, operand.clone());
                    operand | &Made::from([place])
                };
                let x = &inputs[step];
                let mut sum = |gate, state: &Made| {
                    &value(Product::Input(gate), x) | &value(Product::Recurrent(gate), state)
                };
                h = match (direction.cell().kind(), direction.cell()) {
                    (CellKind::Rnn, _) => sum(0, &h),
                    (CellKind::Lstm, _) => {
                        let [i, f, g, o] = [0, 1, 2, 3].map(|gate| sum(gate, &h));
                        c = &(&f | &c) | &(&i | &g);
                        let m = &o | &c;
                        match direction.weights().projection {
                            Some(_) => value(Product::Projection, &m),
                            None => m,
                        }
                    }
                    (_, Cell::Gru { reset, .. }) => {
                        let [r, z] = [0, 1].map(|gate| sum(gate, &h));
                        let n = match reset {
                            ResetForm::Before => sum(2, &(&r | &h)),
                            ResetForm::After => &sum(2, &h) | &r,
                        };
                        &(&z | &n) | &h
                    }
                    _ => unreachable!(),
                };
                outputs[step].extend(h.iter().copied());
            }
        }
        inputs = outputs;
    }
    all
}

#[test]
fn edges_say_what_the_formulas_say_and_no_more() {
    for model in models() {
        let steps = 3;
        let graph = Graph::new(&model, steps).expect("a small graph");
        let expected = made_of(&model, steps);
        // A node's predecessors may come later in the order of nodes, so ask until nothing changes.
        let mut found: BTreeMap<Place, Made> = BTreeMap::new();
        fn ancestors(graph: &Graph, node: &Node, found: &mut BTreeMap<Place, Made>) -> Made {
            if let Some(known) = found.get(&place(node)) {
                return known.clone();
            }
            let mut made = Made::new();
            for needed in graph.predecessors(node) {
                made.insert(place(&needed));
                made.append(&mut ancestors(graph, &needed, found));
            }
            found.insert(place(node), made.clone());
            made
        }
        for node in graph.nodes() {
            ancestors(&graph, &node, &mut found);
        }
        assert_eq!(found, expected);
        for node in graph.nodes() {
            let needed: Vec<Place> = graph.predecessors(&node).map(|node| place(&node)).collect();
            for one in &needed {
                let implied = needed.iter().any(|other| expected[other].contains(one));
                assert!(!implied, "{one:?} before {node:?}");
            }
        }
    }
}

#[test]
fn counts_are_those_of_the_nodes_and_edges() {
    for model in models() {
        for steps in [0, 1, 2, 5] {
            let graph = Graph::new(&model, steps).expect("a small graph");
            let nodes: Vec<Node> = graph.nodes().collect();
            let of = |kind: fn(&Product) -> bool| {
                nodes.iter().filter(|node| kind(&node.product)).count() as u128
            };
            // Longest paths by asking again until nothing grows.
            let mut longest = vec![1; nodes.len()];
            loop {
                let before = longest.clone();
                for (index, node) in nodes.iter().enumerate() {
                    assert_eq!(graph.index(node), Some(index));
                    for needed in graph.predecessors(node) {
                        let needed = graph.index(&needed).expect("a node of the graph");
                        longest[index] = longest[index].max(longest[needed] + 1);
                    }
                }
                if longest == before {
                    break;
                }
            }
            let edges = nodes
                .iter()
                .map(|node| graph.predecessors(node).count() as u128);
            let expected = GraphCounts {
                nodes: nodes.len() as u128,
                input: of(|product| matches!(product, Product::Input(_))),
                recurrent: of(|product| matches!(product, Product::Recurrent(_))),
                projections: of(|product| matches!(product, Product::Projection)),
                edges: edges.sum(),
                critical_path: longest.into_iter().max().unwrap_or(0),
            };
            assert_eq!(*graph.counts(), expected);
            assert_eq!(GraphCounts::of(&model, steps), expected);
        }
    }
}

#[test]
fn too_many_products_are_refused_but_counted() {
    let model = Lstm::new(1, 1).random(1).expect("a model");
    assert!(Graph::new(&model, 1_250_000).is_ok());
    let refused = Graph::new(&model, 1_250_001);
    let (nodes, steps) = (10_000_008, 1_250_001);
    assert_eq!(refused, Err(GraphError::TooLarge { nodes, steps }));
    let most = GraphCounts::of(&model, usize::MAX);
    assert_eq!(most.nodes, 8 * usize::MAX as u128);
}

#[test]
fn strange_nodes_have_no_place() {
    let graph = Graph::new(
        &Model::new(vec![layer("gru before", "reverse")]).expect("a model"),
        2,
    );
    let graph = graph.expect("a small graph");
    let node = graph.nodes().next().expect("a node");
    let strange = [
        Node { layer: 1, ..node },
        Node {
            direction: 1,
            ..node
        },
        Node { taken: 1, ..node },
        Node { step: 7, ..node },
        Node {
            product: Product::Recurrent(3),
            ..node
        },
        Node {
            product: Product::Projection,
            ..node
        },
    ];
    for node in strange {
        assert!(!graph.contains(&node));
        assert_eq!(graph.index(&node), None);
        assert_eq!(graph.predecessors(&node).count(), 0);
        assert_eq!(graph.label(&node), "?");
    }
}

/// What a drawing says: nodes with the labels of the boxes around them, and edges between these.
#[derive(Default)]
struct Drawing {
    nodes: BTreeMap<String, String>,
    edges: Vec<(String, String)>,
}

/// Reads the part of DOT that a drawing needs, character by character.
fn parse(text: &str) -> Drawing {
    // Words, quoted strings and signs.
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(first) = chars.next() {
        if first.is_whitespace() {
            continue;
        }
        let mut token = String::from(first);
        if first == '"' {
            token.extend(chars.by_ref().take_while(|next| *next != '"'));
        } else if first == '-' {
            token.extend(chars.next());
            assert_eq!(token, "->");
        } else if first.is_alphanumeric() || first == '_' {
            while let Some(next) = chars.next_if(|next| next.is_alphanumeric() || *next == '_') {
                token.push(next);
            }
        } else {
            assert!("{}[]=,;".contains(first), "{first}");
        }
        tokens.push(token);
    }
    let mut drawing = Drawing::default();
    let mut boxes: Vec<String> = Vec::new();
    let mut names = BTreeSet::new();
    let mut rest = tokens.iter().map(String::as_str).peekable();
    while let Some(token) = rest.next() {
        match (token, rest.peek().copied()) {
            ("digraph" | "subgraph", Some(name)) => {
                assert!(names.insert(name.to_owned()), "two boxes {name}");
                assert_eq!(rest.nth(1), Some("{"));
                boxes.push(String::new());
            }
            ("}", _) => assert!(boxes.pop().is_some(), "a box is closed that is not open"),
            ("label", Some("=")) => {
                let label = rest.nth(1).expect("a label");
                *boxes.last_mut().expect("a box") = label[1..].to_owned();
                assert_eq!(rest.next(), Some(";"));
            }
            (_, Some("=")) => assert_eq!(rest.nth(2), Some(";")),
            (name, Some("[")) => {
                let attributes: Vec<_> = rest.by_ref().take_while(|token| *token != ";").collect();
                assert_eq!(attributes.last(), Some(&"]"));
                let label = attributes.iter().position(|token| *token == "label");
                if let Some(label) = label {
                    let path = [&boxes[1..].join("/"), &attributes[label + 2][1..]].join("/");
                    let before = drawing.nodes.insert(name.to_owned(), path);
                    assert_eq!(before, None, "two nodes {name}");
                } else {
                    assert_eq!(name, "node");
                }
            }
            (from, Some("->")) => {
                let to = rest.nth(1).expect("an end");
                assert_eq!(rest.next(), Some(";"));
                let edge = [from, to].map(|name| drawing.nodes[name].clone());
                drawing.edges.push(edge.into());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(boxes.is_empty(), "a box is open");
    drawing
}

fn drawn(model: &Model, steps: usize) -> Drawing {
    let mut text = Vec::new();
    let graph = Graph::new(model, steps).expect("a small graph");
    graph.dot(&mut text).expect("room in memory");
    parse(std::str::from_utf8(&text).expect("text"))
}

#[test]
fn a_small_drawing_letter_by_letter() {
    let model = Model::new(vec![layer("gru before", "reverse")]).expect("a model");
    let drawing = drawn(&model, 2);
    let in_step = |step: usize, label: &str| format!("layer 0/reverse gru/step {step}/{label}");
    // The reverse direction takes step 1 first.
    let one = [
        "W_r·x_1",
        "W_z·x_1",
        "W_n·x_1",
        "U_r·h_init",
        "U_z·h_init",
        "U_n·(r_1∘h_init)",
    ];
    let zero = [
        "W_r·x_0",
        "W_z·x_0",
        "W_n·x_0",
        "U_r·h_1",
        "U_z·h_1",
        "U_n·(r_0∘h_1)",
    ];
    let nodes: BTreeSet<_> = { one.iter().map(|label| in_step(1, label)) }
        .chain(zero.iter().map(|label| in_step(0, label)))
        .collect();
    assert_eq!(drawing.nodes.len(), 12);
    assert_eq!(drawing.nodes.into_values().collect::<BTreeSet<_>>(), nodes);
    let mut edges = BTreeSet::new();
    for (step, label) in [(1, one), (0, zero)] {
        for gate in [0, 3] {
            edges.insert((in_step(step, label[gate]), in_step(step, label[5])));
        }
    }
    for from in [1, 2, 4, 5] {
        for to in [3, 4] {
            edges.insert((in_step(1, one[from]), in_step(0, zero[to])));
        }
    }
    assert_eq!(drawing.edges.len(), edges.len());
    assert_eq!(drawing.edges.into_iter().collect::<BTreeSet<_>>(), edges);
}

#[test]
fn drawings_have_exactly_the_nodes_and_edges() {
    for model in models().into_iter().step_by(7) {
        let drawing = drawn(&model, 3);
        let graph = Graph::new(&model, 3).expect("a small graph");
        let path = |node: &Node| {
            let direction = &model.layers()[node.layer].directions()[node.direction];
            let way = if direction.is_reverse() {
                "reverse"
            } else {
                "forward"
            };
            let (kind, step, label) = (direction.cell().kind(), node.step, graph.label(node));
            format!("layer {}/{way} {kind}/step {step}/{label}", node.layer)
        };
        let nodes: BTreeSet<_> = graph.nodes().map(|node| path(&node)).collect();
        assert_eq!(drawing.nodes.len(), nodes.len());
        assert_eq!(drawing.nodes.into_values().collect::<BTreeSet<_>>(), nodes);
        let to = |node: Node| {
            let needed: Vec<_> = graph
                .predecessors(&node)
                .map(|needed| path(&needed))
                .collect();
            let end = path(&node);
            needed.into_iter().map(move |start| (start, end.clone()))
        };
        let mut edges: Vec<_> = graph.nodes().flat_map(to).collect();
        let mut drawn = drawing.edges;
        edges.sort();
        drawn.sort();
        assert_eq!(drawn, edges);
    }
}
