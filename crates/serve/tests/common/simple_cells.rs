//! Cells so simple that what each request must answer can be said in a line, and random requests of
//! them.
#![allow(dead_code)] // each test binary uses a part

use std::time::Duration;

use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, DynamicGraph, Graph, Growth, NodeId, NodeOutputs, Ports,
    PreparedCell, Source, WorkerEnv,
};
use gatestream_serve::engine::{EngineOptions, Request, Workers};
use gatestream_serve::policy::{BatchSteps, PolicyKind};
use gatestream_serve::scheduler::Limits;

/// Of one row: inputs, states, outputs.
pub type RowFunction = fn(&[f32], &mut [f32], &mut [f32]) -> Result<(), CellError>;

/// A cell made of a function of one row.
pub struct Simple {
    name: &'static str,
    ports: Ports,
    row: RowFunction,
}

pub struct Prepared {
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

    fn supports_multiple_steps(&self) -> bool {
        self.name == "chain"
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
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
        let (rows, steps, lengths) = (batch.rows(), batch.steps(), batch.lengths());
        match counts {
            (1, 1, 1) => {
                let ([x], [state], [y]) = batch.split();
                for row in 0..rows {
                    for step in 0..lengths.map_or(steps, |lengths| lengths[row]) {
                        let at = step * rows + row;
                        let state = &mut state[2 * row..2 * row + 2];
                        (self.row)(&x[at..=at], state, &mut y[at..=at])?;
                    }
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
pub fn chain_row(x: &[f32], state: &mut [f32], y: &mut [f32]) -> Result<(), CellError> {
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

pub const POISON: f32 = -1e30;
pub const REFUSED: f32 = -2e30;
pub const SLOW: f32 = -3e30;

pub fn pair_row(x: &[f32], _: &mut [f32], y: &mut [f32]) -> Result<(), CellError> {
    y[0] = x[0] - 0.5 * x[1];
    Ok(())
}

pub fn count_row(_: &[f32], state: &mut [f32], _: &mut [f32]) -> Result<(), CellError> {
    state[0] -= 1.0;
    Ok(())
}

#[derive(Clone, Copy)]
pub struct Ids {
    pub chain: CellId,
    pub pair: CellId,
    pub count: CellId,
}

pub fn cells() -> (Cells, Ids) {
    cells_in([0, 1, 2])
}

/// The cells in this order: those of several models of an engine differ.
pub fn cells_in(order: [usize; 3]) -> (Cells, Ids) {
    let simple = |which| match which {
        0 => Simple {
            name: "chain",
            ports: Ports::new().input("x", 1).state("state", 2).output("y", 1),
            row: chain_row,
        },
        1 => Simple {
            name: "pair",
            ports: Ports::new().input("a", 1).input("b", 1).output("y", 1),
            row: pair_row,
        },
        _ => Simple {
            name: "count",
            ports: Ports::new().state("left", 1),
            row: count_row,
        },
    };
    let mut cells = Cells::new();
    let mut ids = [None; 3];
    for which in order {
        ids[which] = Some(cells.add(simple(which)));
    }
    let [chain, pair, count] = ids.map(Option::unwrap);
    (cells, Ids { chain, pair, count })
}

/// A chain over `xs` from zero; its outputs.
pub fn chain(ids: &Ids, xs: &[f32]) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let mut before = Source::Zeros;
    let (mut sum, mut count, mut expected) = (0.0f32, 0.0f32, Vec::new());
    for &x in xs {
        let given = graph.give(&[x]);
        let node = graph.node(ids.chain, &[given, before]);
        graph.answer(node.output(1));
        before = node.output(0);
        sum = sum * 0.75 + x;
        count += 1.0;
        expected.push(sum * count);
    }
    (Request::new(graph), expected)
}

/// A random expression of pairs over `leaves`; added from the root down where `reversed`.
pub fn tree(ids: &Ids, leaves: &[f32], rng: &mut fastrand::Rng) -> (Request, Vec<f32>) {
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
        (graph.node(ids.pair, &[left, right]).output(0), a - 0.5 * b)
    }
    let mut graph = Graph::new();
    let (root, value) = build(&mut graph, ids, leaves, rng);
    graph.answer(root);
    (Request::new(graph), vec![value])
}

/// Counts down, one node at a time, and answers every count.
pub struct CountDown {
    count: CellId,
    panic_at: f32,
}

impl DynamicGraph for CountDown {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let left = outputs.port(0)[0];
        assert!(left != self.panic_at, "told to");
        more.answer(node.output(0));
        if left > 0.0 {
            let next = more.node(self.count, &[node.output(0)]);
            more.watch(next);
        }
    }
}

pub fn count_down(ids: &Ids, from: usize, panic_at: f32) -> (Request, Vec<f32>) {
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

/// Like chains, but with their sums combined by pairs at the end: two cells in one graph, states
/// that two nodes take.
pub fn mixed(ids: &Ids, xs: &[f32], ys: &[f32]) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let mut run = |values: &[f32], start: Source| {
        let mut before = start;
        let mut outputs = Vec::new();
        for &x in values {
            let given = graph.give(&[x]);
            let node = graph.node(ids.chain, &[given, before]);
            before = node.output(0);
            outputs.push(node.output(1));
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
        total = graph.node(ids.pair, &[total, next]).output(0);
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

/// A chain that goes on with its own states after another cell has seen its output: connected, but
/// in two subgraphs, which two workers may run.
pub fn interrupted(ids: &Ids, xs: &[f32]) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let (mut state, mut input) = (Source::Zeros, graph.give(&[xs[0]]));
    let (mut sum, mut count, mut x) = (0.0f32, 0.0f32, xs[0]);
    let mut expected = Vec::new();
    for &other in xs {
        let node = graph.node(ids.chain, &[input, state]);
        state = node.output(0);
        let other_given = graph.give(&[other]);
        let pair = graph.node(ids.pair, &[node.output(1), other_given]);
        input = pair.output(0);
        graph.answer(input);
        sum = sum * 0.75 + x;
        count += 1.0;
        x = sum * count - 0.5 * other;
        expected.push(x);
    }
    (Request::new(graph), expected)
}

/// A chain some of whose inputs are outputs of nodes before, and some of whose states and outputs
/// are answered: what can be computed at once, and what cannot.
pub fn tangled(ids: &Ids, rng: &mut fastrand::Rng) -> (Request, Vec<f32>) {
    let mut graph = Graph::new();
    let mut before = Source::Zeros;
    let (mut sum, mut count) = (0.0f32, 0.0f32);
    let (mut outputs, mut expected): (Vec<(Source, f32)>, Vec<f32>) = Default::default();
    for step in 0..rng.usize(2..16) {
        let (source, x) = match rng.usize(0..4) {
            0 if step > 0 => outputs[rng.usize(0..step)],
            _ => {
                let x = rng.f32() - 0.5;
                (graph.give(&[x]), x)
            }
        };
        let node = graph.node(ids.chain, &[source, before]);
        before = node.output(0);
        (sum, count) = (sum * 0.75 + x, count + 1.0);
        outputs.push((node.output(1), sum * count));
        if rng.usize(0..6) == 0 {
            graph.answer(node.output(0));
            expected.extend([sum, count]);
        }
    }
    let (last, y) = outputs[outputs.len() - 1];
    graph.answer(last);
    expected.push(y);
    (Request::new(graph), expected)
}

pub fn values(rng: &mut fastrand::Rng, most: usize) -> Vec<f32> {
    (0..rng.usize(1..=most)).map(|_| rng.f32() - 0.5).collect()
}

pub fn random_request(ids: &Ids, rng: &mut fastrand::Rng) -> (Request, Vec<f32>) {
    match rng.usize(0..6) {
        5 => tangled(ids, rng),
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

pub fn random_options(rng: &mut fastrand::Rng) -> EngineOptions {
    let sizes: Vec<_> = (0..3)
        .map(|_| {
            let max = rng.usize(1..=9);
            BatchSizes {
                min: rng.usize(1..=max),
                max,
            }
        })
        .collect();
    EngineOptions {
        policy: *rng.choice(&PolicyKind::ALL).expect("some"),
        workers: match rng.usize(0..4) {
            0 => Workers::OneOverAll,
            1 => Workers::OneOver(1),
            2 => Workers::OnePerCore,
            _ => Workers::Cores(vec![vec![0], vec![1], vec![0]]),
        },
        sizes,
        tasks_at_once: rng.usize(1..=5),
        steps_at_once: rng.usize(1..=5),
        batch_steps: if rng.bool() {
            BatchSteps::ByLoad(rng.usize(1..=9))
        } else {
            BatchSteps::Fixed(rng.usize(1..=9))
        },
        reply_thread: rng.bool(),
        idle_streams: rng.bool().then_some(Duration::from_secs(600)),
        limits: Limits::default(),
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// What a chain from zero gives at each step.
pub fn outputs(xs: &[f32]) -> Vec<f32> {
    let (mut sum, mut count) = (0.0f32, 0.0f32);
    xs.iter()
        .map(|x| {
            sum = sum * 0.75 + x;
            count += 1.0;
            sum * count
        })
        .collect()
}
