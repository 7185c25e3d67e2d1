//! How long it takes from a model and a plan in memory to a session that can run.
//!
//! Question: is a session for 32 MiB of weights ready within 100 ms?
//!
//! Method: LSTM, input and hidden size 1024, batch 1, 100 steps; the plan is the estimate for all
//! cores, as the text of a plan file. Timed: looking at the machine and reading the plan; making
//! the session, which starts the team, packs the weights on it and makes room for the run; and one
//! run after it. Repeated, the session dropped each time.
//!
//! Reading: medians and quartiles in milliseconds. Most of it is packing: reading 32 MiB, writing
//! 32 MiB to fresh pages.

use std::time::Instant;

use clap::Parser;
use gatestream::plan::Stamp;
use gatestream::{Input, Output, Plan, Session};
use gatestream_experiments::Outcome;
use gatestream_experiments::report::{Report, ms};
use gatestream_experiments::rounds::Quartiles;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::{Shape, numbers};

/// From model and plan to a session
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Input and hidden size
    #[arg(long, default_value_t = 1024)]
    dimension: usize,
}

fn main() -> Outcome {
    let Arguments {
        settings,
        dimension,
    } = Arguments::parse();
    let question = "From a model and a plan in memory to a ready session, milliseconds";
    let columns = ["what", "MiB", "median", "low quartile", "high quartile"];
    let mut report = Report::new(&settings, "prepare", question, &columns)?;
    let shape = Shape::square(1, dimension);
    let model = shape.lstm()?;
    let x = numbers(shape.steps * dimension);
    let mut y = vec![0.0; shape.steps * dimension];
    let mut samples = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut mib = 0.0;
    let stamp = Stamp::detect()?;
    let text = Plan::estimate(&model, 1, shape.steps, settings.cores()).to_text(&model, &stamp)?;
    for _ in 0..settings.rounds().count {
        let start = Instant::now();
        let stamp = Stamp::detect()?;
        let plan = Plan::from_text(text.as_bytes(), &model, &stamp)?;
        let parsed = start.elapsed().as_secs_f64();
        let mut session = Session::new(&model, &plan)?;
        let ready = start.elapsed().as_secs_f64();
        session.run(&Input::new(&x, shape.steps, 1), &mut Output::new(&mut y))?;
        let ran = start.elapsed().as_secs_f64();
        let times = [parsed, ready - parsed, ready, ran - ready];
        for (samples, time) in samples.iter_mut().zip(times) {
            samples.push(time);
        }
        mib = session.packed().bytes() as f64 / f64::from(1 << 20);
    }
    let names = [
        "read the plan",
        "make the session",
        "both: ready",
        "first run",
    ];
    let quartiles = samples.map(Quartiles::of);
    for (name, q) in names.iter().zip(quartiles) {
        let cells = [q.median, q.low, q.high].map(ms);
        let cells = [name.to_string(), format!("{mib:.1}")]
            .into_iter()
            .chain(cells);
        report.row(cells.collect());
    }
    report.write()
}
