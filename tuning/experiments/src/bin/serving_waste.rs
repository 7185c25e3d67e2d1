//! How near serving comes to a server that wastes nothing.
//!
//! Question: where every row of every batch is useful, and batches are full, how much of the time
//! do the cells run, and where does the rest go?
//!
//! Method: an engine on all cores is given many times as many requests as its batches have rows,
//! all at once and before the clock starts, so that nothing but the engine runs; once to warm up,
//! and once to measure. The clock starts at the end of a batch: of one that runs then, all would be
//! counted. Chains of 24 steps, and complete binary trees of 16 leaves; hidden size 1024, from 1024
//! inputs.
//!
//! Reading: shares of the time from then to the last answer, medians of the rounds; "cells" also
//! with the least and the greatest. What they lack to 100 % is waste: the longest time that any
//! choice of batches could save with these cells. What no column has goes into replies, mostly, and
//! to the threads that wait for them, on the same cores. "Rows run" are those of a batch on
//! average, of the cell that fills its batches least: the levels of the last trees are narrower
//! than a batch.

use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use gatestream::model::{Lstm, Precision};
use gatestream_experiments::Outcome;
use gatestream_experiments::report::Report;
use gatestream_experiments::rounds::Spread;
use gatestream_experiments::settings::Settings;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::{Cells, Graph};
use gatestream_serve::engine::{CellStats, EngineOptions, Request, Stats};
use gatestream_serve::networks::{
    BinaryTree, BinaryTreeLstm, BinaryTreeWeights, Chain, ChainCell, Outputs,
};

const STEPS: usize = 24;
const LEAVES: usize = 16;
/// Requests, as many times as a batch has rows.
const TIMES: usize = 6;

/// How near serving comes to a server that wastes nothing
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Only networks with this in their names, as in trees or "chains, int8"
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

#[derive(Clone, Copy)]
enum Network {
    Chains(Precision),
    Trees(Precision),
}

/// Parts of the time, and rows a second.
struct Sample {
    cells: f64,
    gather: f64,
    scatter: f64,
    scheduler: f64,
    rows: f64,
    /// Rows of a batch on average, of the cell that has the fewest.
    filled: f64,
}

fn main() -> Outcome {
    let Arguments { settings, only } = Arguments::parse();
    let question = "full batches of useful rows: parts of the time, %";
    let columns = [
        "network",
        "rows a batch",
        "rows run",
        "cells",
        "gather",
        "hand on",
        "scheduler",
        "rows a second",
    ];
    let mut report = Report::new(&settings, "serving_waste", question, &columns)?;
    // Smaller ones are through before all have been submitted.
    let hidden = if settings.quick { 256 } else { 1024 };
    let networks = [
        ("chains, f32", Network::Chains(Precision::F32)),
        ("chains, int8", Network::Chains(Precision::Int8)),
        ("trees, f32", Network::Trees(Precision::F32)),
        ("trees, int8", Network::Trees(Precision::Int8)),
    ];
    for (name, network) in networks
        .into_iter()
        .filter(|(name, _)| name.contains(&only))
    {
        for batch in [64, 128] {
            let samples = (0..settings.samples()).map(|_| sample(network, hidden, batch));
            let samples = samples.collect::<Result<Vec<_>, _>>()?;
            let spread = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of));
            let median = |of| spread(of).median;
            let cells = spread(|one| one.cells);
            let (least, greatest) = (cells.least, cells.greatest);
            report.row(vec![
                name.into(),
                batch.to_string(),
                format!("{:.1}", median(|one| one.filled)),
                format!("{:.1} ({least:.1}-{greatest:.1})", cells.median),
                format!("{:.1}", median(|one| one.gather)),
                format!("{:.1}", median(|one| one.scatter)),
                format!("{:.1}", median(|one| one.scheduler)),
                format!("{:.0}", median(|one| one.rows)),
            ]);
        }
    }
    report.write()
}

/// The cells of `network`, and one of its requests.
fn prepare(network: Network, hidden: usize) -> Result<(Cells, Graph), Box<dyn std::error::Error>> {
    let mut cells = Cells::new();
    let graph = match network {
        Network::Chains(precision) => {
            let model = Lstm::new(hidden, hidden).random(1)?;
            let cell = ChainCell::new(model.into_precision(precision)?)?;
            let xs = vec![0.1; STEPS * hidden];
            Chain::add(&mut cells, cell).unfold(&xs, None, Outputs::Last)?
        }
        Network::Trees(precision) => {
            let mut weights = BinaryTreeWeights::random(hidden, hidden, 1)?;
            for matrix in [&mut weights.leaf, &mut weights.left, &mut weights.right] {
                *matrix = matrix.in_precision(precision)?;
            }
            let trees = BinaryTreeLstm::add(&mut cells, weights)?;
            let xs = vec![0.1; LEAVES * hidden];
            trees.unfold(&BinaryTree::complete(LEAVES)?, &xs, Outputs::Last)?
        }
    };
    Ok((cells, graph))
}

/// One round.
fn sample(
    network: Network,
    hidden: usize,
    batch: usize,
) -> Result<Sample, Box<dyn std::error::Error>> {
    let (cells, graph) = prepare(network, hidden)?;
    let options = EngineOptions {
        sizes: vec![BatchSizes { min: 1, max: batch }; cells.iter().count()],
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options)?;
    let submit = || {
        let submitted = (0..TIMES * batch).map(|_| engine.submit(Request::new(graph.clone())));
        submitted.collect::<Result<Vec<_>, _>>()
    };
    for ticket in submit()? {
        ticket.wait()?;
    }
    let tickets = submit()?;
    let (begin, before) = when_a_batch_ends(&engine)?;
    for ticket in tickets {
        ticket.wait()?;
    }
    let (wall, after) = (begin.elapsed(), engine.stats());
    let part = |time: Duration| 100.0 * time.as_secs_f64() / wall.as_secs_f64();
    let mut sample = Sample {
        cells: 0.0,
        gather: 0.0,
        scatter: 0.0,
        scheduler: part(after.scheduling - before.scheduling),
        rows: 0.0,
        filled: f64::INFINITY,
    };
    for (after, before) in after.models[0].cells.iter().zip(&before.models[0].cells) {
        sample.cells += part(after.run - before.run);
        sample.gather += part(after.gather - before.gather);
        sample.scatter += part(after.scatter - before.scatter);
        let rows = (after.rows - before.rows) as f64;
        let batches = batches(after) - batches(before);
        sample.rows += rows / wall.as_secs_f64();
        sample.filled = sample.filled.min(rows / batches as f64);
    }
    Ok(sample)
}

/// The next end of a batch, which is counted then, with all of its time.
///
/// # Errors
/// None ends any more.
fn when_a_batch_ends(engine: &Engine) -> Result<(Instant, Stats), Box<dyn std::error::Error>> {
    let ended = |stats: &Stats| stats.models[0].cells.iter().map(batches).sum::<u64>();
    let ended_before = ended(&engine.stats());
    loop {
        thread::sleep(Duration::from_micros(20));
        let (now, stats) = (Instant::now(), engine.stats());
        if stats.counts.live() == 0 {
            return Err("all requests were answered before the clock started".into());
        }
        if ended(&stats) > ended_before {
            return Ok((now, stats));
        }
    }
}

fn batches(cell: &CellStats) -> u64 {
    cell.batches.iter().sum()
}
