use std::sync::Arc;

use super::super::{Chain, ChainCell, NetworkError, Outputs};
use super::measured_plan::measured_plan;
use super::{alone, bits, random, together};
use crate::cell_graph::{
    BatchSizes, Cell, Cells, DynamicGraph, Graph, Growth, NodeId, NodeOutputs,
};
use gatestream::model::{Gru, Input, LightGru, Lstm, Merge, Model, Output, Precision, Rnn};
use gatestream::plan::Plan;
use gatestream::reference;

/// Stacks of all cells, with projections, mixed, and of all precisions.
fn models() -> Vec<Model> {
    let lstm = Lstm::new(5, 20).layers(2).random(1).unwrap();
    let projected = Lstm::new(3, 17).projection(6).layers(2).random(2).unwrap();
    let gru = Gru::new(20, 33).random(3).unwrap();
    let below = lstm.layers()[0].clone();
    let mixed = Model::new(vec![
        below.clone(),
        gru.layers()[0].clone(),
        Lstm::new(33, 8).random(4).unwrap().layers()[0].clone(),
    ]);
    vec![
        Rnn::new(1, 1).random(5).unwrap(),
        LightGru::new(4, 19).layers(2).random(6).unwrap(),
        lstm.in_precision(Precision::Int8).unwrap(),
        gru.in_precision(Precision::Bf16).unwrap(),
        projected,
        mixed.unwrap(),
    ]
}

/// The whole sequence at once: all outputs, and the states at the end, layer by layer.
fn whole(model: &Model, xs: &[f32], h0: &[f32], c0: &[f32]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let signature = model.signature();
    let steps = xs.len() / signature.input;
    let mut values = vec![0.0; steps * signature.output];
    let (mut hn, mut cn) = (h0.to_vec(), c0.to_vec());
    let input = Input::new(xs, steps, 1).h0(h0).c0(c0);
    let mut output = Output::new(&mut values).hn(&mut hn).cn(&mut cn);
    reference::run(model, &input, &mut output).unwrap();
    (values, split(model, &hn, &cn))
}

fn split(model: &Model, mut h: &[f32], mut c: &[f32]) -> Vec<Vec<f32>> {
    let mut states = Vec::new();
    for layer in model.layers() {
        let direction = &layer.directions()[0];
        let (of_layer, rest) = h.split_at(direction.output_size());
        states.push(of_layer.to_vec());
        h = rest;
        let (of_layer, rest) = c.split_at(direction.cell_state_size());
        if !of_layer.is_empty() {
            states.push(of_layer.to_vec());
        }
        c = rest;
    }
    states
}

#[test]
fn sequences_alone_or_in_any_batches_are_those_of_the_reference() {
    let mut rng = fastrand::Rng::with_seed(1);
    for model in models() {
        let signature = model.signature();
        let mut cells = Cells::new();
        let chain = Chain::add(&mut cells, ChainCell::new(model.clone()).unwrap());
        let (mut graphs, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            let steps = 1 + rng.usize(..9);
            let xs = random(&mut rng, signature.input * steps);
            let given = rng.bool();
            let start = |rng: &mut fastrand::Rng, size| {
                if given {
                    random(rng, size)
                } else {
                    vec![0.0; size]
                }
            };
            let h0 = start(&mut rng, signature.hidden_state);
            let c0 = start(&mut rng, signature.cell_state);
            let (values, last) = whole(&model, &xs, &h0, &c0);
            let initial = split(&model, &h0, &c0);
            let initial: Vec<&[f32]> = initial.iter().map(Vec::as_slice).collect();
            let outputs = [Outputs::Last, Outputs::Each][rng.usize(..2)];
            let mut graph = chain
                .unfold(&xs, given.then_some(&initial[..]), outputs)
                .unwrap();
            // And all states at the end.
            let node = NodeId::new(graph.len() - 1);
            (0..last.len()).for_each(|state| graph.answer(node.output(state)));
            graphs.push(graph);
            let first = match outputs {
                Outputs::Last => values.len() - signature.output,
                Outputs::Each => 0,
            };
            expected.push([&values[first..], &last.concat()].concat());
        }
        let requests = |graphs: &[Graph]| graphs.iter().map(|g| (g.clone(), None)).collect();
        for answers in [
            alone(&cells, requests(&graphs)),
            together(&cells, requests(&graphs), &mut rng),
            together(&cells, requests(&graphs), &mut rng),
        ] {
            for (answer, expected) in answers.iter().zip(&expected) {
                assert_eq!(bits(answer.as_ref().unwrap()), bits(expected));
            }
        }
    }
}

/// Feeds the rest of a sequence a step at a time.
struct Fed {
    chain: Chain,
    xs: Vec<f32>,
    width: usize,
}

impl DynamicGraph for Fed {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        more.answer(node.output(self.chain.y()));
        assert_eq!(outputs.port(self.chain.y()).len(), 8);
        if !self.xs.is_empty() {
            let rest = self.xs.split_off(self.width.min(self.xs.len()));
            let step = self.chain.step(more, node, &self.xs);
            self.xs = rest;
            if let Err(error) = step {
                more.fail(error);
            }
        }
    }
}

#[test]
fn streams_give_what_whole_sequences_give() {
    let model = Lstm::new(3, 8).random(1).unwrap();
    let mut rng = fastrand::Rng::with_seed(2);
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, ChainCell::new(model.clone()).unwrap());
    let streams: Vec<_> = (1..7).map(|steps| random(&mut rng, 3 * steps)).collect();
    let fed = |xs: &[f32]| {
        let grow: Box<dyn DynamicGraph> = Box::new(Fed {
            chain: chain.clone(),
            xs: xs[3..].to_vec(),
            width: 3,
        });
        (chain.open(&xs[..3], None).unwrap(), Some(grow))
    };
    let requests = streams.iter().map(|xs| fed(xs)).collect();
    for (answer, xs) in together(&cells, requests, &mut rng).iter().zip(&streams) {
        let (values, _) = whole(&model, xs, &[0.0; 8], &[0.0; 8]);
        assert_eq!(bits(answer.as_ref().unwrap()), bits(&values));
    }
    // A step of another size ends its stream, not the others.
    let requests = vec![fed(&[0.5; 7]), fed(&[0.5; 6])];
    let answers = together(&cells, requests, &mut rng);
    let error = answers[0].as_ref().unwrap_err().to_string();
    assert_eq!(error, "x: expected 3 values, found 1");
    assert!(answers[1].is_ok());
}

#[test]
fn a_given_plan_is_used_and_one_for_too_many_threads_refused() {
    let model = Arc::new(Gru::new(4, 64).random(1).unwrap());
    let cell = |threads| {
        let plan = Plan::with_threads(&model, 2, 1, threads);
        ChainCell::new(Arc::clone(&model))
            .unwrap()
            .with_plan(plan)
            .unwrap()
    };
    let mut cells = Cells::new();
    Chain::add(&mut cells, cell(2).named("two"));
    assert_eq!(cells.iter().next().unwrap().1.name(), "two");
    let error = super::super::UnbatchedRunner::new(&cells).err().unwrap();
    assert!(
        error
            .to_string()
            .starts_with("the plan is for 2 threads, the team has 1"),
        "{error}"
    );
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, cell(1));
    let graph = chain.unfold(&[0.5; 8], None, Outputs::Last).unwrap();
    let answer = alone(&cells, vec![(graph, None)]).remove(0).unwrap();
    let (values, _) = whole(&model, &[0.5; 8], &[0.0; 64], &[]);
    assert_eq!(bits(&answer), bits(&values[64..]));
    let other = Plan::with_threads(&Gru::new(4, 32).random(1).unwrap(), 2, 1, 1);
    let refused = ChainCell::new(Arc::clone(&model)).unwrap().with_plan(other);
    assert!(matches!(refused.err(), Some(NetworkError::Plan(_))));
}

#[test]
fn batches_have_the_rows_of_a_measured_plan() {
    let model = Arc::new(Gru::new(4, 8).random(1).unwrap());
    let rows = |entries: &[_]| {
        let cell = ChainCell::new(Arc::clone(&model)).unwrap();
        let plan = measured_plan(&model, entries);
        cell.with_plan(plan).unwrap().cost().rows.max
    };
    // Rates of 10, 40 and 41 rows a microsecond.
    assert_eq!(rows(&[(1, 1, 100), (8, 1, 200), (16, 1, 390)]), 8);
    let default = BatchSizes::default();
    assert_eq!(rows(&[(8, 1, 200)]), default.max);
    let cost = ChainCell::new(Arc::clone(&model)).unwrap().cost();
    assert_eq!(cost.rows, default);
    assert_eq!(cost.weight_bytes, model.weight_bytes());
}

#[test]
fn what_is_no_chain_is_refused() {
    let both = Gru::new(3, 4)
        .bidirectional(Merge::Concat)
        .random(1)
        .unwrap();
    let reverse = ChainCell::new(both).err();
    assert_eq!(reverse, Some(NetworkError::Reverse { layer: 0 }));
    let mut cells = Cells::new();
    let cell = ChainCell::new(Lstm::new(3, 4).random(1).unwrap()).unwrap();
    let chain = Chain::add(&mut cells, cell);
    let refused = |xs: &[f32], initial: Option<&[&[f32]]>| {
        let both = [
            chain.unfold(xs, initial, Outputs::Last),
            chain.open(xs, initial),
        ];
        let [unfolded, opened] = both.map(|graph| graph.unwrap_err());
        assert_eq!(unfolded, opened);
        unfolded
    };
    assert_eq!(refused(&[], None), NetworkError::Empty { what: "step" });
    let mut cells = Cells::new();
    let cell = ChainCell::new(Lstm::new(0, 3).random(1).unwrap()).unwrap();
    let nothing = Chain::add(&mut cells, cell).unfold(&[], None, Outputs::Last);
    assert_eq!(nothing, Err(NetworkError::NoFeatures { name: "xs" }));
    let rows = NetworkError::Rows {
        name: "xs",
        width: 3,
        found: 4,
    };
    assert_eq!(refused(&[0.0; 4], None), rows);
    let values = |name, expected, found| NetworkError::Values {
        name,
        expected,
        found,
    };
    let states = refused(&[0.0; 3], Some(&[&[0.0; 4]]));
    assert_eq!(states, values("initial states", 2, 1));
    let state = refused(&[0.0; 3], Some(&[&[0.0; 4], &[0.0; 3]]));
    assert_eq!(state, values("initial state", 4, 3));
}
