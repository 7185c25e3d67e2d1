//! Networks against plain loops: each request alone, and many in random batches.

mod chain;
#[path = "../../../../../tests/common/measured_plan.rs"]
mod measured_plan;
mod seq2seq;
mod tree;

use super::unbatched::{Walk, run_rows};
use super::{
    BinaryTreeLstm, BinaryTreeWeights, ChainCell, ChildSumTreeLstm, ChildSumWeights, DecoderCell,
    EncoderCell, UnbatchedError, UnbatchedRunner,
};
use crate::cell_graph::{Cells, DynamicGraph, Graph, NodeId, PreparedCell, WorkerEnv};
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::layers::Embedding;
use gatestream::model::{Lstm, Matrix};

type Request = (Graph, Option<Box<dyn DynamicGraph>>);
type Answered = Result<Vec<f32>, UnbatchedError>;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| 4.0 * rng.f32() - 2.0).collect()
}

/// Answers each request by itself.
fn alone(cells: &Cells, requests: Vec<Request>) -> Vec<Answered> {
    let mut alone = UnbatchedRunner::new(cells).unwrap();
    let requests = requests.into_iter();
    requests
        .map(|(graph, grow)| alone.run(graph, grow))
        .collect()
}

/// Answers all requests in batches of random ready nodes of a random cell, in random order.
fn together(cells: &Cells, requests: Vec<Request>, rng: &mut fastrand::Rng) -> Vec<Answered> {
    let env = WorkerEnv::one_step(
        SharedTeam::new(Team::with_threads(rng.usize(1..4)).unwrap()),
        rng.usize(1..20),
    );
    let prepared = cells.iter().map(|(_, cell)| cell.prepare(&env).unwrap());
    let mut prepared: Vec<Box<dyn PreparedCell>> = prepared.collect();
    let mut walks: Vec<Result<Walk<'_>, UnbatchedError>> = (requests.into_iter())
        .map(|(graph, grow)| Walk::new(cells, graph, grow))
        .collect();
    loop {
        let walking = walks.iter().enumerate();
        let walking = walking.filter_map(|(at, walk)| Some((at, walk.as_ref().ok()?)));
        let mut ready: Vec<(usize, NodeId)> = walking
            .flat_map(|(at, walk)| walk.ready().map(move |node| (at, node)))
            .collect();
        if ready.is_empty() {
            break;
        }
        rng.shuffle(&mut ready);
        let walk = |at: usize| walks[at].as_ref().ok().unwrap();
        let cell = walk(ready[0].0).graph.cell(ready[0].1);
        ready.retain(|(at, node)| walk(*at).graph.cell(*node) == cell);
        ready.truncate(rng.usize(1..=env.rows));
        let rows: Vec<_> = ready
            .iter()
            .map(|(at, node)| walk(*at).reads(*node))
            .collect();
        let outputs = run_rows(cells, &mut *prepared[cell.index()], cell, &rows).unwrap();
        for ((at, node), outputs) in ready.into_iter().zip(outputs) {
            // A request may have failed by another row of this batch.
            if let Ok(walk) = &mut walks[at]
                && let Err(error) = walk.give(node, outputs)
            {
                walks[at] = Err(error);
            }
        }
    }
    let answers = walks.into_iter();
    answers.map(|walk| walk.map(|walk| walk.answer())).collect()
}

#[test]
fn places_beyond_all_memory_are_refused_by_every_cell() {
    let model = || Lstm::new(2, 3).random(1).unwrap();
    let table = || Embedding::new(Matrix::new(4, 2, vec![0.0; 8]).unwrap());
    let weights = Matrix::new(4, 3, vec![0.0; 12]).unwrap();
    let mut cells = Cells::new();
    BinaryTreeLstm::add(&mut cells, BinaryTreeWeights::random(2, 3, 1).unwrap()).unwrap();
    ChildSumTreeLstm::add(&mut cells, ChildSumWeights::random(2, 3, 1).unwrap()).unwrap();
    cells.add(ChainCell::new(model()).unwrap());
    cells.add(EncoderCell::new(table(), model()).unwrap());
    cells.add(DecoderCell::new(table(), model(), weights, vec![0.0; 4]).unwrap());
    for (_, cell) in cells.iter() {
        for (rows, steps) in [(usize::MAX / 2, 1), (usize::MAX / 8, 4)] {
            let team = SharedTeam::new(Team::with_threads(1).unwrap());
            let error = cell
                .prepare(&WorkerEnv {
                    steps,
                    step_rows: rows * steps,
                    ..WorkerEnv::one_step(team, rows)
                })
                .err();
            let text = error.map(|error| error.to_string()).unwrap_or_default();
            let expected = format!("no memory for {rows} sequences");
            assert!(text.starts_with(&expected), "{}: {text}", cell.name());
        }
    }
}
