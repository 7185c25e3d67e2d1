//! Many users, one network, one process: an engine with a cell of our own beside a ready-made one.
//!
//!     cargo run --release --example serve_in_process
//!
//! Each request is a sentence: an LSTM reads it, word by word, and a cell of ours says how sure it
//! is. The engine batches both cells across all requests that are under way, whatever their
//! lengths; each answer is, to the last bit, the one that its request gets alone.

use std::time::{Duration, Instant};

use gatestream::layers::Dense;
use gatestream::model::{Lstm, Matrix};
use gatestream_serve::Engine;
use gatestream_serve::RequestError;
use gatestream_serve::cell_graph::{
    Batch, Cell, CellError, CellId, Cells, Graph, NodeId, Ports, PreparedCell, Source, WorkerEnv,
};
use gatestream_serve::engine::{EngineOptions, Request};
use gatestream_serve::networks::{ChainCell, run_unbatched};

const WORD: usize = 64;
const HIDDEN: usize = 128;

/// Our own cell type: `sure = 1 / (1 + exp(-(w h + b)))`. The weights are in the cell; what goes in
/// and out is named, and its first dimension is the batch.
struct Verdict {
    ports: Ports,
    weights: Matrix,
}

impl Verdict {
    fn new() -> Result<Verdict, Box<dyn std::error::Error>> {
        let weights = (0..HIDDEN).map(|k| (k as f32).sin());
        Ok(Verdict {
            ports: Ports::new().input("h", HIDDEN).output("sure", 1),
            weights: Matrix::new(1, HIDDEN, weights.collect())?,
        })
    }
}

impl Cell for Verdict {
    fn name(&self) -> &str {
        "verdict"
    }

    fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Called once by each worker: packs the weights where that worker reads them.
    fn prepare(&self, _: &WorkerEnv) -> Result<Box<dyn PreparedCell>, CellError> {
        let dense = Dense::new(&self.weights, &[0.0]).map_err(CellError::new)?;
        Ok(Box::new(PreparedVerdict(dense)))
    }
}

struct PreparedVerdict(Dense);

impl PreparedCell for PreparedVerdict {
    /// Rows must not depend on each other; these do not.
    fn run(&mut self, batch: &mut Batch<'_>) -> Result<(), CellError> {
        let ([h], [], [sure]) = batch.split();
        self.0.run(h, sure).map_err(CellError::new)?;
        for sure in sure {
            *sure = 1.0 / (1.0 + (-*sure).exp());
        }
        Ok(())
    }
}

/// Our unfold function: a chain of LSTM cells over the words, then the verdict on the last state.
fn unfold(lstm: CellId, verdict: CellId, words: &[f32]) -> Graph {
    let mut graph = Graph::new();
    let (mut h, mut c) = (Source::Zeros, Source::Zeros);
    for word in words.chunks_exact(WORD) {
        let word = graph.give(word);
        let node: NodeId = graph.node(lstm, &[word, h, c]);
        (h, c) = (node.output(0), node.output(1));
    }
    let verdict = graph.node(verdict, &[h]);
    graph.answer(verdict.output(0));
    graph
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cells = Cells::new();
    let lstm = cells.add(ChainCell::new(Lstm::new(WORD, HIDDEN).random(1)?)?);
    // Added later, so preferred: a sentence that has been read gets its verdict at once.
    let verdict = cells.add(Verdict::new()?);
    let engine = Engine::start(cells.clone(), &EngineOptions::default())?;

    // Users on threads of their own, each with sentences of 1 to 40 words.
    let users = 4;
    std::thread::scope(|scope| {
        for user in 0..users {
            let (engine, cells) = (&engine, &cells);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(user);
                let sentences: Vec<Vec<f32>> = (0..100)
                    .map(|_| {
                        (0..WORD * random.usize(1..=40))
                            .map(|_| random.f32() - 0.5)
                            .collect()
                    })
                    .collect();
                let tickets: Vec<_> = sentences
                    .iter()
                    .map(|words| {
                        let request = Request::new(unfold(lstm, verdict, words));
                        let deadline = Instant::now() + Duration::from_secs(10);
                        engine
                            .submit(request.deadline(deadline))
                            .expect("there is room")
                    })
                    .collect();
                for (words, ticket) in sentences.iter().zip(tickets) {
                    // In async code: `ticket.await`.
                    let answer = ticket.wait().expect("in time");
                    let alone = run_unbatched(cells, unfold(lstm, verdict, words), None);
                    let alone = alone.expect("it computes");
                    let bits =
                        |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&answer.values), bits(&alone));
                }
            });
        }
    });

    // What is cancelled frees its rows at the next batch. Dropping the ticket cancels, too.
    let long = vec![0.1; WORD * 100_000];
    let ticket = engine.submit(Request::new(unfold(lstm, verdict, &long)))?;
    ticket.cancel();
    assert_eq!(ticket.wait(), Err(RequestError::Cancelled));

    engine.drain(); // accepts no more, and waits for those under way
    let stats = engine.stats();
    println!(
        "{} requests answered, each compared: the same bits as alone",
        users * 100
    );
    for ((_, cell), stats) in engine.cells().iter().zip(&stats.models[0].cells) {
        let batches: u64 = stats.batches.iter().sum();
        let mean = stats.rows as f64 / batches as f64;
        println!(
            "{:>8}: {} calls in {batches} batches, {mean:.1} rows each",
            cell.name(),
            stats.rows
        );
    }
    println!(
        "waited before the first cell: {:.1} ms (median; each user asks 100 things at once); \
         computed for {:.1} ms",
        stats.times.queueing.value_at_quantile(0.5) as f64 / 1e3,
        stats.times.computing.value_at_quantile(0.5) as f64 / 1e3
    );
    Ok(())
}
