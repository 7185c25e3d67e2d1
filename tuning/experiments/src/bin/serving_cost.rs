//! What serving costs beside the cells: choosing batches, and moving values into and out of them.
//!
//! Question: of the time of a step of a batch, how much goes into the scheduler, how much into gathering
//! rows, how much into handing results on?
//!
//! Method: an engine on all cores is given chains of 24 steps, all at once, more than it has rows for, so
//! that every batch is full until the last; requests join as others leave. Its own clocks tell the shares.
//! Beside it, a session that makes the same steps on one batch that never changes.
//!
//! Reading: "serving / step" is scheduling, gathering and handing on, over the time in the cell.

use std::time::Instant;

use cellstream::execute::{Session, State};
use cellstream::model::Lstm;
use cellstream::plan::Plan;
use cellstream::serve::Engine;
use cellstream::serve::cell_graph::Cells;
use cellstream::serve::engine::{EngineOptions, Request};
use cellstream::serve::networks::{Answer, Chain, ChainCell};
use cellstream::serve::policy::BatchSizes;
use cellstream_experiments::Outcome;
use cellstream_experiments::report::Report;
use cellstream_experiments::settings::Settings;
use clap::Parser;

const STEPS: usize = 24;

/// What serving costs beside the cells
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
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
        "serving / step",
    ];
    let mut report = Report::new(&settings, "serving_cost", question, &columns);
    for hidden in [128, 256, 512, 1024] {
        for batch in [1, 8, 32] {
            let model = Lstm::new(hidden, hidden).random(1)?;
            let plan = Plan::estimate(&model, batch, 1, settings.cores());
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
            let graph = chain.unfold(&xs, None, Answer::Last)?;
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
            let (a, b) = (&after.cells[0], &before.cells[0]);
            let tasks = (a.batches.iter().sum::<u64>() - b.batches.iter().sum::<u64>()) as f64;
            let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 / tasks;
            let (cell, gather, hand_on) = (
                micros(a.run - b.run),
                micros(a.gather - b.gather),
                micros(a.hand_on - b.hand_on),
            );
            let scheduling = micros(after.scheduling - before.scheduling);
            let serving = scheduling + gather + hand_on;
            report.row(vec![
                hidden.to_string(),
                batch.to_string(),
                format!("{:.1}", alone[alone.len() / 2].as_secs_f64() * 1e6),
                format!("{cell:.1}"),
                format!("{scheduling:.2}"),
                format!("{gather:.2}"),
                format!("{hand_on:.2}"),
                format!("{:.1}", micros(wall)),
                format!("{:.1} %", 100.0 * serving / cell),
            ]);
        }
    }
    report.write()
}
