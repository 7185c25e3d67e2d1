//! What serving costs beside the cells: choosing batches, and moving values into and out of them.
//!
//! Question: of the time of a step of a batch, how much goes into the scheduler, how much into
//! gathering rows, how much into handing results on?
//!
//! Method: an engine on all cores is given chains of 24 steps, all at once, more than it has rows
//! for, so that every batch is full until the last; requests join as others leave. Its own clocks
//! tell the shares. Beside it, a session that makes the same steps on one batch that never changes.
//!
//! Reading: "scheduler + gather" is the median over the rounds of both, over the time in the cell
//! of the same round, with the least and the greatest; other columns are medians by themselves.

use std::time::{Duration, Instant};

use clap::Parser;
use gatestream::execute::{Session, State};
use gatestream::model::Lstm;
use gatestream::plan::Plan;
use gatestream_experiments::Outcome;
use gatestream_experiments::report::Report;
use gatestream_experiments::rounds::Spread;
use gatestream_experiments::settings::Settings;
use gatestream_serve::Engine;
use gatestream_serve::cell_graph::BatchSizes;
use gatestream_serve::cell_graph::Cells;
use gatestream_serve::engine::{EngineOptions, Request};
use gatestream_serve::networks::{Chain, ChainCell, Outputs};

const STEPS: usize = 24;

/// What serving costs beside the cells
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

/// Where the time of a step went, in µs.
struct Sample {
    session: f64,
    cell: f64,
    scheduler: f64,
    gather: f64,
    scatter: f64,
    wall: f64,
}

fn main() -> Outcome {
    let Arguments { settings } = Arguments::parse();
    let question = "LSTM chains of 24 steps: time beside the cells, µs a step";
    let columns = [
        "hidden",
        "batch",
        "session",
        "cell",
        "scheduler",
        "gather",
        "hand on",
        "wall",
        "scheduler + gather",
    ];
    let mut report = Report::new(&settings, "serving_cost", question, &columns)?;
    let hidden = settings.cut(&[128, 256, 512, 1024], 2);
    let of_hidden = |hidden: &usize| [1, 8, 32].map(|batch| (*hidden, batch));
    let sizes: Vec<_> = hidden.iter().flat_map(of_hidden).collect();
    let mut samples: Vec<Vec<Sample>> = sizes.iter().map(|_| Vec::new()).collect();
    for _ in 0..settings.samples() {
        for ((hidden, batch), samples) in sizes.iter().zip(&mut samples) {
            samples.push(sample(*hidden, *batch, settings.cores())?);
        }
    }
    for ((hidden, batch), samples) in sizes.iter().zip(&samples) {
        let spread = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of));
        let median = |of| spread(of).median;
        let share = spread(|one| 100.0 * (one.scheduler + one.gather) / one.cell);
        let (least, greatest) = (share.least, share.greatest);
        report.row(vec![
            hidden.to_string(),
            batch.to_string(),
            format!("{:.1}", median(|one| one.session)),
            format!("{:.1}", median(|one| one.cell)),
            format!("{:.2}", median(|one| one.scheduler)),
            format!("{:.2}", median(|one| one.gather)),
            format!("{:.2}", median(|one| one.scatter)),
            format!("{:.1}", median(|one| one.wall)),
            format!("{:.1} % ({least:.1}-{greatest:.1})", share.median),
        ]);
    }
    report.write()
}

/// One round of one size.
fn sample(hidden: usize, batch: usize, cores: usize) -> Result<Sample, Box<dyn std::error::Error>> {
    let model = Lstm::new(hidden, hidden).random(1)?;
    let plan = Plan::estimate(&model, batch, 1, cores);
    let mut session = Session::new(&model, &plan)?;
    session.pin_caller();
    let mut state = State::zero(model.signature(), batch);
    let (x, mut y) = (vec![0.1; batch * hidden], vec![0.0; batch * hidden]);
    let mut alone = Vec::new();
    for _ in 0..200 {
        let begin = Instant::now();
        session.step(&x, &mut state, &mut y)?;
        alone.push(begin.elapsed());
    }
    alone.sort();
    drop(session);

    let mut cells = Cells::new();
    let chain = Chain::add(&mut cells, ChainCell::new(model)?);
    let options = EngineOptions {
        sizes: vec![BatchSizes { min: 1, max: batch }],
        ..EngineOptions::default()
    };
    let engine = Engine::start(cells, &options)?;
    let count = (8 * batch).max(1600 * 128 / hidden / 8);
    let xs = vec![0.1; STEPS * hidden];
    let graph = chain.unfold(&xs, None, Outputs::Last)?;
    let tickets: Result<Vec<_>, _> = (0..count)
        .map(|_| engine.submit(Request::new(graph.clone())))
        .collect();
    let tickets = tickets?;
    let before = engine.stats();
    let begin = Instant::now();
    for ticket in tickets {
        ticket.wait()?;
    }
    let (wall, after) = (begin.elapsed(), engine.stats());
    let (a, b) = (&after.models[0].cells[0], &before.models[0].cells[0]);
    let tasks = (a.batches.iter().sum::<u64>() - b.batches.iter().sum::<u64>()) as f64;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / tasks;
    Ok(Sample {
        session: alone[alone.len() / 2].as_secs_f64() * 1e6,
        cell: micros(a.run - b.run),
        scheduler: micros(after.scheduling - before.scheduling),
        gather: micros(a.gather - b.gather),
        scatter: micros(a.scatter - b.scatter),
        wall: micros(wall),
    })
}
