//! A user's recurrent cell that equals [`ChainCell`], written against the public interface only.
//! The example compares both: the bits of all responses, and the times of interleaved rounds.
//!
//!     cargo run --release -p gatestream-serve --example own_cell -- 9
//!
//! The argument is the number of rounds. The cell chooses the layout of its rows
//! ([`Cell::layout`]), runs several steps of a chain in one batch, and passes row views to
//! [`Session::step_rows`].

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gatestream::execute::{PackedModel, Session};
use gatestream::model::{Lstm, Model};
use gatestream::plan::Plan;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, Graph, Ports, PreparedCell, RowLayout, Source, WorkerEnv,
};
use gatestream_serve::engine::{EngineOptions, Request};
use gatestream_serve::networks::{ChainCell, UnbatchedError, UnbatchedRunner};

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

    /// Inputs are read in place from the requests; states keep their rows.
    fn layout(&self) -> RowLayout {
        RowLayout::GatheredInputs
    }

    fn supports_multiple_steps(&self) -> bool {
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

/// A chain of cells; the response is the last output.
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

/// Serves all sequences at once. Returns the responses and the time.
fn serve(cells: &Cells, cell: CellId, sequences: &[Vec<f32>]) -> (Vec<Vec<f32>>, Duration) {
    let engine = Engine::start(cells.clone(), &EngineOptions::default()).expect("an engine");
    let begin = Instant::now();
    let requests = sequences
        .iter()
        .map(|words| Request::new(unfold(cell, words)));
    let tickets: Vec<_> = requests
        .map(|request| engine.submit(request).expect("room"))
        .collect();
    let responses = tickets
        .into_iter()
        .map(|ticket| ticket.wait().expect("a response").values);
    (responses.collect(), begin.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: NonZeroUsize = std::env::args().nth(1).as_deref().unwrap_or("9").parse()?;
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
    let mut unbatched = UnbatchedRunner::new(&cells[1])?;
    let expected = (sequences.iter())
        .map(|words| Ok(bits(&unbatched.run(unfold(own, words), None)?)))
        .collect::<Result<Vec<_>, UnbatchedError>>()?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds.get() {
        // Each goes first in every second round.
        for at in [round % 2, 1 - round % 2] {
            let (responses, time) = serve(&cells[at], [ready_made, own][at], &sequences);
            let found = responses.iter().map(|values| bits(values));
            assert!(found.eq(expected.iter().cloned()), "the bits differ");
            times[at].push(time);
        }
    }
    let [ready_made, own] = times.each_mut().map(|times| median(times));
    let ratio = own.as_secs_f64() / ready_made.as_secs_f64();
    println!(
        "{} requests, {rounds} rounds: the same bits",
        sequences.len()
    );
    println!("medians: ChainCell {ready_made:.1?}, own cell {own:.1?}, ratio {ratio:.3}");
    Ok(())
}
