//! A recurrent cell of our own, written against the public interface alone, that does what the
//! ready-made [`ChainCell`] does: the same bits, as fast.
//!
//!     cargo run --release -p cellstream-serve --example own_cell
//!
//! It says once how it wants the rows of a batch ([`Cell::layout`]), takes several steps of a chain
//! in one batch, and passes rows to [`Session::step_rows`] where they are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellstream::execute::{PackedModel, Session};
use cellstream::model::{Lstm, Model};
use cellstream::plan::Plan;
use cellstream_serve::Engine;
use cellstream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, Graph, Ports, PreparedCell, RowLayout, Source, WorkerEnv,
};
use cellstream_serve::engine::{EngineOptions, Request};
use cellstream_serve::networks::{ChainCell, run_alone};

const INPUT: usize = 64;
const HIDDEN: usize = 128;

/// One step of an LSTM: input `x`, states `h` and `c`, output `y`.
struct OwnCell {
    ports: Ports,
    model: Arc<Model>,
    plan: Plan,
}

impl Cell for OwnCell {
    fn name(&self) -> &str {
        "own"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Inputs are read where they came with their requests; states stay in their rows.
    fn layout(&self) -> RowLayout {
        RowLayout::GatheredInputs
    }

    fn takes_steps(&self) -> bool {
        true
    }

    fn prepare(&self, env: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let packed = env
            .team
            .turn(|team| PackedModel::new(&self.model, &self.plan, team));
        let packed = packed.map_err(CellError::new)?.map_err(CellError::new)?;
        let mut session = Session::on_team(packed, env.team.clone()).map_err(CellError::new)?;
        session
            .reserve(env.rows, env.steps)
            .map_err(CellError::new)?;
        Ok(Box::new(Prepared(session)))
    }
}

struct Prepared(Session);

impl PreparedCell for Prepared {
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let steps = batch.session_steps(batch.input(0));
        let (states, mut outputs) = batch.written();
        let stepped = self.0.step_rows(steps, states, outputs.next());
        stepped.map_err(CellError::new)
    }
}

/// A chain of cells; the answer is the last output.
fn unfold(cell: CellId, words: &[f32]) -> Graph {
    let mut graph = Graph::new();
    let mut states = [Source::Zeros; 2];
    let mut last = Source::Zeros;
    for word in words.chunks_exact(INPUT) {
        let word = graph.give(word);
        let node = graph.node(cell, &[word, states[0], states[1]]);
        (states, last) = ([node.output(0), node.output(1)], node.output(2));
    }
    graph.answer(last);
    graph
}

/// Answers all sequences at once. Returns the answers, and how long they took.
fn serve(cells: &Cells, cell: CellId, sequences: &[Vec<f32>]) -> (Vec<Vec<f32>>, Duration) {
    let engine = Engine::start(cells.clone(), &EngineOptions::default()).expect("an engine");
    let begin = Instant::now();
    let requests = sequences
        .iter()
        .map(|words| Request::new(unfold(cell, words)));
    let tickets: Vec<_> = requests
        .map(|request| engine.submit(request).expect("room"))
        .collect();
    let answers = tickets
        .into_iter()
        .map(|ticket| ticket.wait().expect("an answer").values);
    (answers.collect(), begin.elapsed())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Arc::new(Lstm::new(INPUT, HIDDEN).random(1)?);
    let sizes = [1, 4, 16, 64]
        .into_iter()
        .flat_map(|rows| [(rows, 1), (rows, 4)]);
    let plan = Plan {
        entries: sizes
            .flat_map(|(rows, steps)| Plan::estimate(&model, rows, steps, 1).entries)
            .collect(),
    };
    let mut cells = [Cells::new(), Cells::new()];
    let ready_made = cells[0].add(ChainCell::new(Arc::clone(&model))?.with_plan(plan.clone())?);
    let own = cells[1].add(OwnCell {
        ports: (Ports::new().input("x", INPUT))
            .state("h", HIDDEN)
            .state("c", HIDDEN)
            .output("y", HIDDEN),
        model,
        plan,
    });

    let mut random = fastrand::Rng::with_seed(1);
    let sequences: Vec<Vec<f32>> = (0..200)
        .map(|_| {
            (0..INPUT * random.usize(1..=40))
                .map(|_| random.f32() - 0.5)
                .collect()
        })
        .collect();
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for round in 0..5 {
        let (expected, before) = serve(&cells[0], ready_made, &sequences);
        let (found, after) = serve(&cells[1], own, &sequences);
        for ((words, expected), found) in sequences.iter().zip(&expected).zip(&found) {
            assert_eq!(bits(expected), bits(found));
            if round == 0 {
                let alone = run_alone(&cells[1], unfold(own, words), None)?;
                assert_eq!(bits(&alone), bits(found));
            }
        }
        println!("ready-made {before:.1?}, own {after:.1?}");
    }
    println!("{} requests: the same bits", sequences.len());
    Ok(())
}
