//! Cells with sequences: whole requests in one node, of a model or of a user's own code.

#[path = "common/gate.rs"]
mod gate;

use std::sync::Arc;
use std::time::Instant;

use gate::{Gate, Gated, drained, ended};
use gatestream::execute::Session;
use gatestream::model::{Gru, Input, Lstm, Merge, Model, Output, Precision};
use gatestream::plan::Plan;
use gatestream::reference;
use gatestream_serve::cell_graph::{
    Batch, BatchSizes, Cell, CellError, CellId, Cells, DynamicGraph, Graph, GraphError, Growth,
    NodeId, NodeOutputs, Ports, PreparedCell, Source, WorkerEnv,
};
use gatestream_serve::engine::{
    EngineOptions, ModelOptions, Request, StreamError, SubmitError, Workers,
};
use gatestream_serve::networks::{
    Chain, ChainCell, NetworkError, Outputs, UnbatchedRunner, Whole, WholeCell, run_unbatched,
};
use gatestream_serve::policy::PolicyKind;
use gatestream_serve::scheduler::{End, Limits, Reason, Refused};
use gatestream_serve::{Engine, RequestError};

const FEATURES: usize = 3;
const MAX_STEPS: usize = 20;

fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| 4.0 * rng.f32() - 2.0).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn models(precision: Precision) -> [Arc<Model>; 4] {
    let lstm = || Lstm::new(FEATURES, 13).layers(2);
    let models = [
        lstm().bidirectional(Merge::Concat).random(1),
        lstm().projection(5).bidirectional(Merge::Sum).random(2),
        Gru::new(FEATURES, 17)
            .bidirectional(Merge::Concat)
            .random(3),
        Gru::new(FEATURES, 18).layers(3).random(4),
    ];
    models.map(|model| Arc::new(model.unwrap().into_precision(precision).unwrap()))
}

/// A sequence with initial states or without.
struct Sequence {
    xs: Vec<f32>,
    states: Option<[Vec<f32>; 2]>,
}

impl Sequence {
    fn random(rng: &mut fastrand::Rng, model: &Model) -> Sequence {
        let steps = rng.usize(1..=MAX_STEPS);
        let signature = model.signature();
        let sizes = [signature.hidden_state, signature.cell_state];
        Sequence {
            xs: random(rng, steps * FEATURES),
            states: rng.bool().then(|| sizes.map(|size| random(rng, size))),
        }
    }

    /// The request, and the response with all outputs and final states: `y`, `last`, `hn`, `cn`.
    fn graph(&self, whole: &Whole) -> Graph {
        let states = self.states.as_ref();
        let initial = states.map(|[h, c]| match whole.cn() {
            Some(_) => vec![&h[..], c],
            None => vec![&h[..]],
        });
        let mut graph = whole
            .unfold(&self.xs, initial.as_deref(), Outputs::Each)
            .unwrap();
        let states = [Some(whole.last()), Some(whole.hn()), whole.cn()];
        for port in states.into_iter().flatten() {
            graph.answer(NodeId::new(0).output(port));
        }
        graph
    }

    /// That response, by `run`.
    fn expected(&self, model: &Model, run: impl FnOnce(&Input<'_>, &mut Output<'_>)) -> Vec<f32> {
        let signature = model.signature();
        let steps = self.xs.len() / FEATURES;
        let mut input = Input::new(&self.xs, steps, 1);
        if let Some([h, c]) = &self.states {
            input.h0 = Some(h);
            input.c0 = (!c.is_empty()).then_some(&c[..]);
        }
        let mut y = vec![0.0; steps * signature.output];
        let (mut hn, mut cn) = (
            vec![0.0; signature.hidden_state],
            vec![0.0; signature.cell_state],
        );
        let mut output = Output::new(&mut y).hn(&mut hn);
        if !cn.is_empty() {
            output = output.cn(&mut cn);
        }
        run(&input, &mut output);
        let last = y[y.len() - signature.output..].to_vec();
        [y, last, hn, cn].concat()
    }
}

#[test]
fn whole_sequences_are_answered_with_the_bits_of_a_session() {
    let mut rng = fastrand::Rng::with_seed(1);
    for precision in Precision::ALL {
        let models = models(precision);
        for (model, policy) in models.iter().flat_map(|m| PolicyKind::ALL.map(|p| (m, p))) {
            let mut cells = Cells::new();
            let whole = Whole::add(&mut cells, WholeCell::new(Arc::clone(model), MAX_STEPS));
            let mut alone = UnbatchedRunner::new(&cells).unwrap();
            let options = EngineOptions {
                policy,
                sizes: vec![BatchSizes { min: 1, max: 7 }],
                ..EngineOptions::default()
            };
            let engine = Engine::start(cells, &options).unwrap();
            let plan = Plan::estimate(model, 1, MAX_STEPS, 1);
            let mut session = Session::new(model, &plan).unwrap();
            let sequences = (0..40).map(|_| Sequence::random(&mut rng, model));
            let sequences: Vec<_> = sequences.collect();
            let submit = |of: &Sequence| engine.submit(Request::new(of.graph(&whole))).unwrap();
            let tickets: Vec<_> = sequences.iter().map(submit).collect();
            for (sequence, ticket) in sequences.iter().zip(tickets) {
                let found = ticket.wait().unwrap().values;
                let expected =
                    sequence.expected(model, |input, output| session.run(input, output).unwrap());
                assert_eq!(bits(&found), bits(&expected), "{precision}, {policy}");
                let unbatched = alone.run(sequence.graph(&whole), None).unwrap();
                assert_eq!(bits(&unbatched), bits(&expected), "{precision}, alone");
                if precision == Precision::F32 {
                    let loops = sequence.expected(model, |input, output| {
                        reference::run(model, input, output).unwrap();
                    });
                    assert_eq!(bits(&found), bits(&loops));
                }
            }
            let batches = &engine.stats().models[0].cells[0].batches;
            assert!(batches.iter().skip(2).sum::<u64>() > 0, "{batches:?}");
        }
    }
}

#[test]
fn the_response_is_the_last_output_or_each() {
    let model = Lstm::new(FEATURES, 4).bidirectional(Merge::Concat);
    let mut cells = Cells::new();
    let whole = Whole::add(
        &mut cells,
        WholeCell::new(model.random(1).unwrap(), MAX_STEPS),
    );
    let answer = |outputs| {
        let graph = whole.unfold(&[0.5; 5 * FEATURES], None, outputs).unwrap();
        run_unbatched(&cells, graph, None).unwrap()
    };
    let each = answer(Outputs::Each);
    assert_eq!(
        (each.len(), &each[4 * 8..]),
        (5 * 8, &answer(Outputs::Last)[..])
    );
    let refused = |xs: &[f32], initial| whole.unfold(xs, initial, Outputs::Last).unwrap_err();
    let rows = |found| NetworkError::Rows {
        name: "xs",
        width: FEATURES,
        found,
    };
    assert_eq!(refused(&[0.5; 7], None), rows(7));
    assert_eq!(refused(&[], None), NetworkError::Empty { what: "step" });
    let values = |name, expected, found| NetworkError::Values {
        name,
        expected,
        found,
    };
    let initial: [&[f32]; 2] = [&[0.0; 8], &[0.0; 7]];
    let xs = [0.5; FEATURES];
    assert_eq!(
        refused(&xs, Some(&initial[..1])),
        values("initial states", 2, 1)
    );
    assert_eq!(refused(&xs, Some(&initial)), values("initial state", 8, 7));
}

/// Two copies of each element of a sequence, in reverse order, and their number; `offset` is added
/// to all. Fails if an element is negative.
struct Mirror(Ports);

impl Mirror {
    fn add(cells: &mut Cells) -> CellId {
        let ports = Ports::new().input("offset", 1).input_sequence("x", 2);
        cells.add(Mirror(ports.output_sequence("y", 2).output("count", 1)))
    }

    fn node(mirror: CellId, graph: &mut Graph, offset: Source, x: Source, steps: usize) -> NodeId {
        graph.node_of_lengths(mirror, &[offset, x], &[2 * steps])
    }

    /// Plain loops.
    fn expected(offset: f32, x: &[f32]) -> (Vec<f32>, f32) {
        let reversed = x.chunks_exact(2).rev().flat_map(|pair| [pair, pair]);
        let values = reversed.flatten().map(|value| value + offset);
        (values.collect(), (x.len() / 2) as f32)
    }
}

impl Cell for Mirror {
    fn name(&self) -> &str {
        "mirror"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn check_lengths(&self, inputs: &[usize], outputs: &[usize]) -> Result<(), CellError> {
        if outputs[0] != 2 * inputs[0] {
            return Err(CellError::new("y is twice as long as x"));
        }
        Ok(())
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready;
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let (rows, offsets, xs) = (batch.rows(), batch.input(0), batch.input(1));
                let [mut y, mut count] = batch.written_rows();
                for row in 0..rows {
                    let x = xs.row(row, xs.row_len(row));
                    if x.iter().any(|value| *value < 0.0) {
                        return Err(CellError::new("negative"));
                    }
                    let len = y.row_len(row);
                    let pairs = y.row(row, len).chunks_exact_mut(4);
                    for (x, y) in x.chunks_exact(2).rev().zip(pairs) {
                        y[..2].copy_from_slice(x);
                        y[2..].copy_from_slice(x);
                        y.iter_mut().for_each(|y| *y += offsets.row(row, 1)[0]);
                    }
                    count.row(row, 1)[0] = (x.len() / 2) as f32;
                }
                Ok(())
            }
        }
        Ok(Box::new(Ready))
    }
}

/// Adds a node for the results of the first, which three read, and one for new values.
struct Grow {
    mirror: CellId,
    more: Vec<f32>,
}

impl DynamicGraph for Grow {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let (y, mirror) = (outputs.port(0), self.mirror);
        let count = node.output(1);
        let steps = y.len() / 2;
        for _ in 0..2 {
            let of = more.node_of_lengths(mirror, &[count, node.output(0)], &[2 * steps]);
            more.answer(of.output(0));
        }
        let x = more.give(&self.more);
        let of = more.node_of_lengths(mirror, &[count, x], &[self.more.len()]);
        more.answer(of.output(0));
        more.answer(node.output(0));
    }
}

#[test]
fn own_cells_read_and_write_sequences_of_any_length() {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut cells = Cells::new();
    let mirror = Mirror::add(&mut cells);
    let chain = ChainCell::new(Lstm::new(FEATURES, 4).random(1).unwrap()).unwrap();
    let chain = Chain::add(&mut cells, chain);
    let mut alone = UnbatchedRunner::new(&cells).unwrap();
    for policy in PolicyKind::ALL {
        let options = EngineOptions {
            policy,
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells.clone(), &options).unwrap();
        let mut served = Vec::new();
        for _ in 0..200 {
            let steps = rng.usize(1..30);
            let x: Vec<f32> = (0..2 * steps).map(|_| rng.u8(..) as f32).collect();
            let offset = rng.u8(..) as f32;
            let (first, count) = Mirror::expected(offset, &x);
            let mut graph = Graph::new();
            let (given, of) = (graph.give(&x), graph.give(&[offset]));
            let node = Mirror::node(mirror, &mut graph, of, given, steps);
            let (request, expected) = match rng.u8(..3) {
                0 => {
                    // A chain of sequences, and one beside it.
                    let next =
                        Mirror::node(mirror, &mut graph, Source::Zeros, node.output(0), 2 * steps);
                    graph.answer(next.output(1));
                    graph.answer(next.output(0));
                    let (second, counts) = Mirror::expected(0.0, &first);
                    (Request::new(graph), [vec![counts], second].concat())
                }
                1 => {
                    graph.watch(node);
                    let more: Vec<f32> = (0..2 * steps).map(|_| rng.u8(..) as f32).collect();
                    let (second, _) = Mirror::expected(count, &first);
                    let (third, _) = Mirror::expected(count, &more);
                    let request = Request::new(graph).grow(Grow { mirror, more });
                    (request, [second.clone(), second, third, first].concat())
                }
                _ => {
                    let xs = random(&mut rng, steps * FEATURES);
                    let graph = chain.unfold(&xs, None, Outputs::Each).unwrap();
                    let expected = alone.run(graph.clone(), None).unwrap();
                    (Request::new(graph), expected)
                }
            };
            served.push((engine.submit(request).unwrap(), expected));
        }
        for (ticket, expected) in served {
            assert_eq!(
                bits(&ticket.wait().unwrap().values),
                bits(&expected),
                "{policy}"
            );
        }
        let cells = &engine.stats().models[0].cells;
        assert!(cells[0].batches.iter().skip(2).sum::<u64>() > 0, "{policy}");
    }
}

#[test]
fn refused_nodes_harm_no_other_request() {
    let mut cells = Cells::new();
    let mirror = Mirror::add(&mut cells);
    let cell = WholeCell::new(Gru::new(1, 2).random(1).unwrap(), 9).named("nine");
    let whole = Whole::add(&mut cells, cell);
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let refused = |graph| match engine.submit(Request::new(graph)).err() {
        Some(SubmitError::Graph(why)) => why,
        other => panic!("{other:?}"),
    };
    let good = |steps| {
        whole
            .unfold(&vec![0.5; steps], None, Outputs::Each)
            .unwrap()
    };
    let before = engine.submit(Request::new(good(9))).unwrap();
    let why = "cell `nine` refuses node 0: the sequence has 10 steps; the maximum is 9";
    assert_eq!(refused(good(10)).to_string(), why);

    let node = |x: &[f32], lengths: &[usize]| {
        let mut graph = Graph::new();
        let x = if x.is_empty() {
            Source::Zeros
        } else {
            graph.give(x)
        };
        graph.node_of_lengths(mirror, &[Source::Zeros, x], lengths);
        graph
    };
    let (of, cell) = (0, || "mirror".to_owned());
    let sequence = |found| GraphError::Sequence {
        node: of,
        cell: cell(),
        port: "x".into(),
        width: 2,
        found,
    };
    assert_eq!(refused(node(&[1.0; 3], &[2])), sequence(3));
    assert_eq!(
        refused(node(&[], &[2])),
        sequence(0),
        "zeros have no length"
    );
    let lengths = |found| GraphError::Lengths {
        node: of,
        cell: cell(),
        expected: 1,
        found,
    };
    assert_eq!(refused(node(&[1.0; 2], &[])), lengths(0));
    assert_eq!(refused(node(&[1.0; 2], &[2, 2])), lengths(2));
    let why = CellError::new("y is twice as long as x");
    let twice = |why| GraphError::Refused {
        node: of,
        cell: cell(),
        why,
    };
    assert_eq!(refused(node(&[1.0; 2], &[3])), twice(why));
    let why = CellError::new("an output sequence has more than 2^32 values");
    assert_eq!(refused(node(&[1.0; 2], &[usize::MAX])), twice(why));

    assert_eq!(before.wait().unwrap().values.len(), 9 * 2);
}

#[test]
fn whole_requests_have_deadlines_limits_and_errors_of_their_own() {
    let mut cells = Cells::new();
    let mirror = Mirror::add(&mut cells);
    let engine = Engine::start(cells.clone(), &EngineOptions::default()).unwrap();
    let options = ModelOptions {
        limits: Limits {
            bytes: 100_000,
            ..Limits::default()
        },
        ..ModelOptions::default()
    };
    let model = engine.add_model(cells, &options).unwrap();
    let graph = |x: &[f32]| {
        let mut graph = Graph::new();
        let given = graph.give(x);
        let node = Mirror::node(mirror, &mut graph, Source::Zeros, given, x.len() / 2);
        graph.answer(node.output(0));
        graph
    };
    let late = Request::new(graph(&[1.0; 2])).deadline(Instant::now());
    let late = model.submit(late).unwrap().wait();
    assert!(matches!(late, Err(RequestError::Late)), "{late:?}");
    let failed = model
        .submit(Request::new(graph(&[-1.0; 4])))
        .unwrap()
        .wait();
    assert!(
        matches!(failed, Err(RequestError::Cell { .. })),
        "{failed:?}"
    );
    // The response counts.
    match model.submit(Request::new(graph(&[1.0; 10_000]))) {
        Err(SubmitError::Refused(Refused::Overloaded { what, needs, .. })) => {
            assert_eq!(what, Reason::Bytes);
            assert!(needs > 3 * 10_000 * 4, "{needs} bytes");
        }
        other => panic!("{:?}", other.err()),
    }
    let answer = model
        .submit(Request::new(graph(&[1.0; 100])))
        .unwrap()
        .wait();
    assert_eq!(answer.unwrap().values, [1.0; 200]);
    let counts = model.stats().unwrap().counts;
    let ends = [End::Late, End::Failed, End::Completed].map(|end| counts.of(end));
    assert_eq!(ends, [1, 1, 1]);
}

/// The sum of each row's sequence; each batch passes the gate with its sums.
fn gated_sums(gate: &Gate, batch: &mut Batch<'_>) -> Result<(), CellError> {
    let (rows, xs) = (batch.rows(), batch.input(0));
    let sum = |row| xs.row(row, xs.row_len(row)).iter().sum();
    let sums: Vec<f32> = (0..rows).map(sum).collect();
    gate.pass(&sums)?;
    let [mut y] = batch.written_rows();
    for (row, sum) in sums.into_iter().enumerate() {
        y.row(row, 1)[0] = sum;
    }
    Ok(())
}

#[test]
fn whole_requests_are_cancelled_and_ordered_by_priority() {
    let gate = Arc::new(Gate::default());
    let mut cells = Cells::new();
    let sums = cells.add(Gated {
        ports: Ports::new().input_sequence("x", 1).output("sum", 1),
        gate: Arc::clone(&gate),
        supports_multiple_steps: false,
        run: gated_sums,
        prepared: Arc::default(),
    });
    let options = EngineOptions {
        workers: Workers::OneOver(1),
        sizes: vec![BatchSizes { min: 1, max: 1 }],
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let submit = |x: &[f32], priority| {
        let mut graph = Graph::new();
        let x = graph.give(x);
        let node = graph.node(sums, &[x]);
        graph.answer(node.output(0));
        let request = Request::new(graph).priority(priority);
        engine.submit(request).unwrap()
    };
    let running = submit(&[1.0, 2.0], 0);
    gate.wait_for(1);
    let low = submit(&[3.0; 5], 0);
    let cancelled = submit(&[100.0], 9);
    let high = submit(&[4.0; 3], 5);
    drop(cancelled);
    gate.let_all_go();
    for (ticket, sum) in [(running, 3.0), (low, 15.0), (high, 12.0)] {
        assert_eq!(ended(ticket).unwrap().values, [sum]);
    }
    assert_eq!(gate.came(), [[3.0], [12.0], [15.0]]);
    drained(&engine, &[(End::Completed, 3), (End::Cancelled, 1)]);
}

/// A state that grows by the sum of a sequence.
struct Total(Ports);

impl Cell for Total {
    fn name(&self) -> &str {
        "total"
    }

    fn ports(&self) -> &Ports {
        &self.0
    }

    fn supports_multiple_steps(&self) -> bool {
        true // not of sequences
    }

    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        struct Ready;
        impl PreparedCell for Ready {
            fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
                let (rows, xs) = (batch.rows(), batch.input(0));
                let [mut total] = batch.written_rows();
                for row in 0..rows {
                    total.row(row, 1)[0] += xs.row(row, xs.row_len(row)).iter().sum::<f32>();
                }
                Ok(())
            }
        }
        Ok(Box::new(Ready))
    }
}

#[test]
fn states_go_on_from_sequence_to_sequence() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut cells = Cells::new();
    let total = cells.add(Total(Ports::new().input_sequence("x", 1).state("total", 1)));
    let options = EngineOptions {
        sizes: vec![BatchSizes { min: 1, max: 3 }],
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options).unwrap();
    let stream = engine.stream(total, None).err();
    assert!(
        matches!(stream, Some(StreamError::Sequences { .. })),
        "{stream:?}"
    );
    let served = (0..50).map(|_| {
        let (mut graph, mut before, mut sum) = (Graph::new(), Source::Zeros, 0.0);
        for _ in 0..rng.usize(1..6) {
            let x: Vec<f32> = (0..rng.usize(1..9)).map(|_| rng.u8(..) as f32).collect();
            sum += x.iter().sum::<f32>();
            let x = graph.give(&x);
            before = graph.node(total, &[x, before]).output(0);
        }
        graph.answer(before);
        (engine.submit(Request::new(graph)).unwrap(), sum)
    });
    for (ticket, sum) in served.collect::<Vec<_>>() {
        assert_eq!(ticket.wait().unwrap().values, [sum]);
    }
}
