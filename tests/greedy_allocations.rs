//! Decoding allocates nothing: neither the embedding, nor the step, nor the dense layer.

#[path = "common/counting.rs"]
mod counting;

use cellstream::execute::{Session, State};
use cellstream::layers::{Dense, Embedding, Greedy, GreedyOptions};
use cellstream::model::{Gru, Lstm, Matrix, Model, Precision};
use cellstream::plan::Plan;
use counting::calls;

fn main() {
    let before = calls();
    drop(vec![0u8; 100]);
    assert_eq!(calls() - before, 2, "the counter counts");

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
            let session = Session::new(&model, &Plan::with_threads(&model, 1, 1, threads)).unwrap();
            let embedding = Embedding::new(matrix(symbols, features));
            let weights = matrix(symbols, hidden).in_precision(precision).unwrap();
            let dense = Dense::new(&weights, &[0.0; 41]).unwrap();
            let options = GreedyOptions::new(0, 1, 40);
            let mut decoder = Greedy::new(session, embedding, dense, options).unwrap();
            let mut initial = State::zero(model.signature(), 1);
            for run in 0..5 {
                initial.h.fill(0.1 * run as f32);
                let before = calls();
                let decoded = decoder.decode(&initial).unwrap().symbols.len();
                let made = calls() - before;
                assert!(decoded > 0, "a decoder that does nothing allocates nothing");
                assert_eq!(made, 0, "{precision}, {threads} threads, run {run}");
            }
        }
    }
}
