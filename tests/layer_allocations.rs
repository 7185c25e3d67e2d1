//! Layers allocate nothing once they have grown, and decoding allocates nothing at all.

#[path = "common/counting.rs"]
mod counting;

use counting::calls;
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::execute::{Session, State};
use gatestream::kernels::{Activation, Isa};
use gatestream::layers::{
    Attention, AttentionFlow, AttentionSum, Beam, BeamOptions, Dense, Embedding, Greedy,
    GreedyOptions, Highway, HighwayWeights, MaxOverTime, Mlp, Score, Sequences, Softmax,
};
use gatestream::model::{Gru, Lstm, Matrix, Model, Precision};
use gatestream::plan::Plan;

fn main() {
    let before = calls();
    drop(vec![0u8; 100]);
    assert_eq!(calls() - before, 2, "the counter counts");

    layers();
    decoding();
}

/// Layers of all kinds, with enough work for the team.
fn layers() {
    let (batch, steps, features) = (2, 40, 64);
    let team = SharedTeam::new(Team::with_threads(2).unwrap());
    let isa = Isa::select().unwrap();
    let values: Vec<f32> = (0..batch * steps * features)
        .map(|v| (v as f32 * 0.3).sin())
        .collect();
    let square = Matrix::new(features, features, values[..features * features].to_vec()).unwrap();
    let int8 = square.in_precision(Precision::Int8).unwrap();
    let bias = &values[..features];
    let lengths = [steps, 3];
    let x = Sequences::new(&values, batch, steps, features).lengths(&lengths);
    let score = Score::Additive {
        query: &square,
        memory: &square,
        bias,
        score: bias,
    };
    let mut attention = Attention::new(&team, score, isa).unwrap();
    let mut flow = AttentionFlow::new(&values[..3 * features], isa).unwrap();
    let mut sum = AttentionSum::new(isa).unwrap();
    let mut mlp = Mlp::new(isa).unwrap();
    for weights in [&square, &int8] {
        mlp.push(&team, weights, bias, Some(Activation::Tanh))
            .unwrap();
    }
    let highway = HighwayWeights {
        transform: &square,
        transform_bias: bias,
        gate: &square,
        gate_bias: bias,
        activation: Activation::Relu,
    };
    let mut highway = Highway::new(&team, &[highway], isa).unwrap();
    let (pooling, softmax) = (MaxOverTime::new(isa).unwrap(), Softmax::new(isa).unwrap());
    let mut rows = values.clone();
    let mut g = vec![0.0; 4 * values.len()];
    let tokens = vec![0; batch * steps];
    for run in 0..4 {
        rows.copy_from_slice(&values);
        let before = calls();
        mlp.run(&team, &values, &mut rows).unwrap();
        highway.run(&team, &mut rows).unwrap();
        softmax.run(&team, &mut rows, features).unwrap();
        attention.set_memory(&team, &x).unwrap();
        attention.run(&team, &x, &mut rows).unwrap();
        flow.run(&team, &x, &x, &mut g).unwrap();
        pooling.run(&team, &x, &mut g[..batch * features]).unwrap();
        let query = &values[..batch * features];
        sum.run(&team, query, &x, &tokens, &[0, 1], &mut g[..2])
            .unwrap();
        let made = calls() - before;
        assert_eq!(made > 0, run == 0, "run {run}: {made}");
    }
}

fn decoding() {
    let (symbols, features, hidden) = (41, 9, 33);
    let models: [Model; 2] = [
        Gru::new(features, hidden).random(1).unwrap(),
        Lstm::new(features, hidden).layers(2).random(2).unwrap(),
    ];
    let matrix = |rows: usize, cols: usize| {
        let values = (0..rows * cols).map(|v| (v as f32 * 0.7).sin()).collect();
        Matrix::new(rows, cols, values).unwrap()
    };
    for model in models {
        for (precision, threads) in [(Precision::F32, 1), (Precision::Int8, 2)] {
            let parts = || {
                let plan = Plan::with_threads(&model, 1, 1, threads);
                let embedding = Embedding::new(matrix(symbols, features));
                let weights = matrix(symbols, hidden).in_precision(precision).unwrap();
                let dense = Dense::new(&weights, &[0.0; 41]).unwrap();
                (Session::new(&model, &plan).unwrap(), embedding, dense)
            };
            let (session, embedding, dense) = parts();
            let options = GreedyOptions::new(0, 1, 40);
            let mut decoder = Greedy::new(session, embedding, dense, options).unwrap();
            let (session, embedding, dense) = parts();
            let options = BeamOptions::new(0, 1, 40, 4).length_penalty(0.6);
            let mut beam = Beam::new(session, embedding, dense, options).unwrap();
            let mut initial = State::zero(model.signature(), 1);
            for run in 0..5 {
                initial.h.fill(0.1 * run as f32);
                let before = calls();
                let decoded = decoder.decode(&initial).unwrap().symbols.len();
                let found = beam.decode(&initial).unwrap().map(|a| a.symbols.len());
                let decoded = decoded.min(found.sum());
                let made = calls() - before;
                assert!(decoded > 0, "a decoder that does nothing allocates nothing");
                assert_eq!(made, 0, "{precision}, {threads} threads, run {run}");
            }
        }
    }
}
