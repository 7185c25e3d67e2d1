//! Ready-made cells allocate nothing when they run, whatever the number of rows.

#[path = "../../../tests/common/counting.rs"]
mod counting;

use std::sync::Arc;

use counting::calls;
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::kernels::Isa;
use gatestream::layers::{Argmax, Embedding};
use gatestream::model::{Lstm, Matrix, Precision};
use gatestream_serve::cell_graph::{Batch, Cells, WorkerEnv};
use gatestream_serve::networks::{
    BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, ChildSumTreeLstm, ChildSumWeights,
    DecoderCell, EncoderCell, Seq2Seq, Whole, WholeCell,
};

const ROWS: usize = 9;
const STEPS: usize = 3;

fn cells(precision: Precision, symbols: usize) -> Cells {
    let (features, hidden) = (6, 24);
    let matrix = |rows: usize, cols: usize| {
        let values = (0..rows * cols).map(|v| (v as f32 * 0.7).sin()).collect();
        Matrix::new(rows, cols, values).unwrap()
    };
    let table = || Embedding::new(matrix(symbols, features));
    let model = || {
        let model = Lstm::new(features, hidden).layers(2).random(1).unwrap();
        model.into_precision(precision).unwrap()
    };
    let mut cells = Cells::new();
    Chain::add(&mut cells, ChainCell::new(model()).unwrap());
    let encoder = EncoderCell::new(table(), model()).unwrap();
    let weights = matrix(symbols, hidden).into_precision(precision).unwrap();
    let decoder = DecoderCell::new(table(), model(), weights, vec![0.0; symbols]).unwrap();
    Seq2Seq::add(&mut cells, encoder, decoder, 0).unwrap();
    let weights = BinaryTreeWeights::random(features, hidden, 1).unwrap();
    BinaryTreeLstm::add(&mut cells, weights).unwrap();
    Whole::add(&mut cells, WholeCell::new(model(), STEPS));
    let weights = ChildSumWeights::random(features, hidden, 1).unwrap();
    ChildSumTreeLstm::add(&mut cells, weights).unwrap();
    cells
}

fn main() {
    let before = calls();
    drop(vec![0u8; 100]);
    assert_eq!(calls() - before, 2, "the counter counts");

    // Of many symbols, those of f32 are screened in int8 first.
    for (precision, symbols, threads) in [
        (Precision::F32, 150, 1),
        (Precision::F32, 150, 2),
        (Precision::F32, 50_000, 1),
        (Precision::F32, 50_000, 2),
        (Precision::Int8, 150, 2),
    ] {
        let cells = cells(precision, symbols);
        let env = WorkerEnv {
            steps: STEPS,
            step_rows: ROWS * STEPS,
            ..WorkerEnv::one_step(SharedTeam::new(Team::with_threads(threads).unwrap()), ROWS)
        };
        let mut taking_steps = 0;
        for (_, cell) in cells.iter() {
            let ports = cell.ports();
            let buffer = |width: usize| vec![1.0f32; STEPS * ROWS * width];
            let inputs: Vec<_> = ports.inputs().iter().map(|p| buffer(p.width())).collect();
            let mut states: Vec<_> = ports.states().iter().map(|p| buffer(p.width())).collect();
            let mut outputs: Vec<_> = ports.outputs().iter().map(|p| buffer(p.width())).collect();
            let mut prepared = cell.prepare(&env).unwrap();
            for rows in [ROWS, 1, 4, ROWS] {
                let mut batch = Batch::new(ports, rows, &inputs, &mut states, &mut outputs);
                let before = calls();
                prepared.run(&mut batch).unwrap();
                let made = calls() - before;
                assert_eq!(
                    made,
                    0,
                    "{}, {precision}, {threads} threads, {rows} rows",
                    cell.name()
                );
            }
            taking_steps += usize::from(cell.supports_multiple_steps());
            if cell.supports_multiple_steps() {
                let lengths = [STEPS, 1, 2, STEPS];
                let mut batch =
                    Batch::of_steps(ports, &lengths, &inputs, &mut states, &mut outputs);
                let before = calls();
                prepared.run(&mut batch).unwrap();
                assert_eq!(
                    calls() - before,
                    0,
                    "{}, {precision}, several steps",
                    cell.name()
                );
            }
            let written = states.iter().chain(&outputs).flatten();
            assert!(written.into_iter().any(|v| *v != 1.0), "{}", cell.name());
        }
        assert_eq!(taking_steps, 2, "chain and encoder");
    }

    // Rows of which all outputs are computed, as one has no bound and the others are alike.
    let (symbols, hidden) = (50_000, 24);
    let weights = Arc::new(Matrix::new(symbols, hidden, vec![0.5; symbols * hidden]).unwrap());
    let team = SharedTeam::new(Team::with_threads(2).unwrap());
    let isa = Isa::select().unwrap();
    let mut argmax = Argmax::new(&weights, &vec![0.0; symbols], isa, &team, ROWS).unwrap();
    let mut x = vec![1.0; ROWS * hidden];
    x[hidden] = f32::INFINITY;
    let mut chosen = vec![-1.0; ROWS];
    let before = calls();
    argmax.run(&x, &mut chosen).unwrap();
    assert_eq!(calls() - before, 0, "of rows that are not decided");
    assert_eq!(chosen, vec![0.0; ROWS]);
}
