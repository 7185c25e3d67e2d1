//! Networks on the engine: each response equals that of the unbatched request.

use std::collections::VecDeque;
use std::sync::Arc;

use gatestream::execute::Session;
use gatestream::layers::{BeamOptions, Embedding};
use gatestream::model::{Gru, Input, LightGru, Lstm, Matrix, Output, Precision};
use gatestream::plan::Plan;
use gatestream::reference;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::{Cells, Graph};
use gatestream_serve::engine::{EngineOptions, Request, Workers};
use gatestream_serve::networks::{
    BeamSeq2Seq, BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, ChildSumTreeLstm,
    ChildSumWeights, DecoderCell, Dependencies, EncoderCell, FeedPrevious, Outputs, Seq2Seq,
    UnbatchedRunner, Until,
};
use gatestream_serve::policy::PolicyKind;
use gatestream_serve::scheduler::End;

const FEATURES: usize = 3;
const SYMBOLS: usize = 70;

struct Networks {
    chain: Chain,
    translation: Seq2Seq,
    binary: BinaryTreeLstm,
    child_sum: ChildSumTreeLstm,
}

fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| 4.0 * rng.f32() - 2.0).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All in `precision`.
fn networks(rng: &mut fastrand::Rng, precision: Precision) -> (Cells, Networks) {
    let mut matrix =
        |rows: usize, cols: usize| Matrix::new(rows, cols, random(rng, rows * cols)).unwrap();
    let table = Arc::new(Embedding::new(matrix(SYMBOLS, FEATURES)));
    let mut cells = Cells::new();
    let gru = Gru::new(FEATURES, 33).layers(2).random(1).unwrap();
    let gru = gru.into_precision(precision).unwrap();
    let chain = Chain::add(&mut cells, ChainCell::new(gru).unwrap());
    let lstm = Lstm::new(FEATURES, 20).random(2).unwrap();
    let lstm = Arc::new(lstm.into_precision(precision).unwrap());
    let encoder = EncoderCell::new(table.clone(), lstm.clone()).unwrap();
    let weights = matrix(SYMBOLS, 20).into_precision(precision).unwrap();
    let mut bias = vec![0.0; SYMBOLS];
    bias[1] = 5.0; // ends some answers
    let decoder = DecoderCell::new(table, lstm, weights, bias).unwrap();
    let translation = Seq2Seq::add(&mut cells, encoder, decoder, 0).unwrap();
    let mut weights = BinaryTreeWeights::random(FEATURES, 17, 3).unwrap();
    let BinaryTreeWeights {
        leaf, left, right, ..
    } = &mut weights;
    for matrix in [leaf, left, right] {
        *matrix = matrix.in_precision(precision).unwrap();
    }
    let binary = BinaryTreeLstm::add(&mut cells, weights).unwrap();
    let mut weights = ChildSumWeights::random(FEATURES, 17, 4).unwrap();
    let ChildSumWeights { input, sum, .. } = &mut weights;
    for matrix in [input, sum] {
        *matrix = matrix.in_precision(precision).unwrap();
    }
    for matrix in [&mut weights.forget_input, &mut weights.forget_state] {
        *matrix = matrix.in_precision(precision).unwrap();
    }
    let child_sum = ChildSumTreeLstm::add(&mut cells, weights).unwrap();
    let networks = Networks {
        chain,
        translation,
        binary,
        child_sum,
    };
    (cells, networks)
}

fn request(networks: &Networks, rng: &mut fastrand::Rng) -> (Graph, Option<FeedPrevious>) {
    let length = rng.usize(1..12);
    let xs = random(rng, length * FEATURES);
    let answer = [Outputs::Last, Outputs::Each][rng.usize(..2)];
    // Every word hangs on one before it: chains, stars and all between.
    let heads: Vec<usize> = (0..length)
        .map(|word| rng.usize(word.min(1)..=word))
        .collect();
    let words = Dependencies::new(&heads).unwrap();
    let graph = match rng.u8(..5) {
        0 => networks.chain.unfold(&xs, None, answer),
        1 => {
            let source: Vec<usize> = (0..length).map(|_| rng.usize(..SYMBOLS)).collect();
            let until = Until::Eos { eos: 1, limit: 9 };
            let (graph, grow) = networks.translation.unfold(&source, until).unwrap();
            return (graph, Some(grow));
        }
        2 => networks.child_sum.unfold(&words, &xs, answer),
        3 => networks
            .binary
            .unfold(&BinaryTree::of_dependencies(&words), &xs, answer),
        _ => networks
            .binary
            .unfold(&BinaryTree::complete(length).unwrap(), &xs, answer),
    };
    (graph.unwrap(), None)
}

#[test]
fn requests_of_all_networks_together_are_answered_as_each_alone() {
    for precision in Precision::ALL {
        answered_as_each_alone(precision);
    }
}

fn answered_as_each_alone(precision: Precision) {
    let mut rng = fastrand::Rng::with_seed(1);
    let (cells, networks) = networks(&mut rng, precision);
    let mut alone = UnbatchedRunner::new(&cells).unwrap();
    let mut cancelled = 0;
    for (workers, policy) in [
        (Workers::OneOver(2), PolicyKind::Cellular),
        (Workers::OnePerCore, PolicyKind::Cellular),
        (Workers::OnePerCore, PolicyKind::Shortest),
        (Workers::OneOver(2), PolicyKind::EBatch),
        (Workers::OnePerCore, PolicyKind::EBatch),
    ] {
        let options = EngineOptions {
            workers,
            policy,
            tasks_at_once: 2,
            ..EngineOptions::default()
        };
        let engine = Engine::start(cells.clone(), &options).unwrap();
        let (mut served, mut leaving) = (Vec::new(), VecDeque::new());
        for _ in 0..100 {
            let (graph, grow) = request(&networks, &mut rng);
            let mut asked = Request::new(graph.clone());
            if let Some(grow) = grow.clone() {
                asked = asked.grow(grow);
            }
            let ticket = engine.submit(asked).unwrap();
            // Some leave again, at once or while others have come.
            match rng.u8(..8) {
                0 => leaving.push_back(ticket),
                _ => served.push((ticket, graph, grow)),
            }
            if rng.u8(..8) == 0 {
                leaving.pop_front();
            }
        }
        drop(leaving);
        for (ticket, graph, grow) in served {
            let answer = ticket.wait().unwrap().values;
            let grow = grow.map(|grow| Box::new(grow) as Box<_>);
            let expected = alone.run(graph, grow).unwrap();
            assert_eq!(bits(&answer), bits(&expected), "{precision}, {policy}");
        }
        cancelled += engine.stats().counts.of(End::Cancelled);
    }
    assert!(cancelled > 0);
}

/// Hypotheses are rows of batches with those of other requests.
#[test]
fn beam_searches_together_are_answered_as_each_alone() {
    let mut rng = fastrand::Rng::with_seed(6);
    let mut matrix =
        |rows: usize, cols: usize| Matrix::new(rows, cols, random(&mut rng, rows * cols)).unwrap();
    let table = Arc::new(Embedding::new(matrix(SYMBOLS, FEATURES)));
    let lstm = Arc::new(Lstm::new(FEATURES, 20).layers(2).random(2).unwrap());
    let encoder = EncoderCell::new(table.clone(), lstm.clone()).unwrap();
    let mut bias = vec![0.0; SYMBOLS];
    bias[1] = 5.0; // ends some answers
    let decoder = DecoderCell::new(table, lstm, matrix(SYMBOLS, 20), bias).unwrap();
    let mut cells = Cells::new();
    let options = BeamOptions::new(0, 1, 9, 4);
    let network = BeamSeq2Seq::add(&mut cells, encoder, decoder, options).unwrap();
    let mut alone = UnbatchedRunner::new(&cells).unwrap();
    let engine = Engine::start(cells.clone(), &EngineOptions::default()).unwrap();
    let requests = (0..60).map(|_| {
        let length = rng.usize(1..12);
        let source: Vec<usize> = (0..length).map(|_| rng.usize(..SYMBOLS)).collect();
        let (graph, search) = network.unfold(&source).unwrap();
        let asked = Request::new(graph.clone()).grow(search.clone());
        (engine.submit(asked).unwrap(), graph, search)
    });
    let requests: Vec<_> = requests.collect();
    for (ticket, graph, search) in requests {
        let answer = ticket.wait().unwrap().values;
        let expected = alone.run(graph, Some(Box::new(search))).unwrap();
        assert_eq!(bits(&answer), bits(&expected));
    }
    let decoder = network.decoder().index();
    let batches = &engine.stats().models[0].cells[decoder].batches;
    let several = batches.iter().skip(2).sum::<u64>();
    assert!(several > 0, "no batch had several requests: {batches:?}");
}

/// Requests of some steps each, from the states of the one before, have the bits of one request of
/// all steps; the states are those of a stream.
#[test]
fn a_chain_goes_on_from_the_states_of_a_response() {
    for precision in Precision::ALL {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut cells = Cells::new();
        let model = Lstm::new(FEATURES, 20).layers(2).random(4).unwrap();
        let model = model.into_precision(precision).unwrap();
        let chain = Chain::add(&mut cells, ChainCell::new(model).unwrap());
        let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
        let run = |graph| {
            let ticket = engine.submit(Request::new(graph)).unwrap();
            ticket.wait().unwrap().values
        };
        let xs = random(&mut rng, 30 * FEATURES);
        let expected = run(chain.unfold(&xs, None, Outputs::Each).unwrap());
        let mut stream = engine.stream(chain.cell(), None).unwrap();
        let (mut outputs, mut states) = (Vec::new(), Vec::new());
        let mut rest = &xs[..];
        while !rest.is_empty() {
            let steps = rng.usize(1..=4).min(rest.len() / FEATURES);
            let (now, after) = rest.split_at(steps * FEATURES);
            rest = after;
            let initial: Vec<&[f32]> = states.iter().map(Vec::as_slice).collect();
            let initial = (!initial.is_empty()).then_some(&initial[..]);
            let which = Outputs::Each;
            let response = run(chain.unfold_with_states(now, initial, which).unwrap());
            let response = chain.split(&response).unwrap();
            outputs.extend_from_slice(response.outputs);
            states = response.states.iter().map(|state| state.to_vec()).collect();
            for x in now.chunks(FEATURES) {
                stream.push(x).unwrap().wait().unwrap();
            }
            assert_eq!(bits(&states.concat()), bits(&stream.state()));
        }
        assert_eq!(bits(&outputs), bits(&expected));
        assert!(chain.split(&[0.0; 79]).is_err());
    }
}

#[test]
fn a_light_gru_is_served_with_the_bits_of_a_session_and_of_plain_loops() {
    const STEPS: usize = 12;
    let mut rng = fastrand::Rng::with_seed(2);
    let model = Arc::new(LightGru::new(FEATURES, 33).layers(2).random(5).unwrap());
    let mut session = Session::new(&model, &Plan::estimate(&model, 1, STEPS, 2)).unwrap();
    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, ChainCell::new(Arc::clone(&model)).unwrap());
    let engine = Engine::start(cells, &EngineOptions::default()).unwrap();
    let sequences: Vec<Vec<f32>> = (0..60)
        .map(|_| {
            let steps = rng.usize(1..=STEPS);
            random(&mut rng, steps * FEATURES)
        })
        .collect();
    let served = sequences.iter().map(|xs| {
        let graph = chain.unfold(xs, None, Outputs::Each).unwrap();
        engine.submit(Request::new(graph)).unwrap()
    });
    let served: Vec<_> = served.collect();
    for (xs, ticket) in sequences.iter().zip(served) {
        let steps = xs.len() / FEATURES;
        let input = Input::new(xs, steps, 1);
        let [mut loops, mut whole] = [(); 2].map(|()| vec![0.0; steps * 33]);
        reference::run(&model, &input, &mut Output::new(&mut loops)).unwrap();
        session.run(&input, &mut Output::new(&mut whole)).unwrap();
        assert_eq!(bits(&whole), bits(&loops));
        assert_eq!(bits(&ticket.wait().unwrap().values), bits(&loops));
    }
    let batches = &engine.stats().models[0].cells[0].batches;
    let several = batches.iter().skip(2).sum::<u64>();
    assert!(several > 0, "no batch had several rows: {batches:?}");
}
