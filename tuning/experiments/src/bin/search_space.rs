//! The search space: schedules without pruning and after each rule, and what a tuning tries.
//!
//! Question: how much does each rule of DeepCPU's section 5.1 cut, and how many runs find a plan?
//!
//! Method: schedules are counted, not listed (`gatestream::schedule::model_counts`). A 256-unit
//! LSTM, batch 1, 100 steps, is then tuned with effort `measure`, and what that took is counted.
//!
//! Reading: the paper's Q is the last number of LSTM, 16. P × Q configurations (P cores) is what
//! the paper tries; a tuning here tries the dimensions one after another, chunks and panel orders
//! too.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

use clap::Parser;
use gatestream::Model;
use gatestream::model::{Gru, Lstm, Merge, ResetForm, Rnn};
use gatestream::schedule::{model_counts, schedule_count};
use gatestream::tune::{Options, tune};
use gatestream_experiments::Outcome;
use gatestream_experiments::report::Report;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::Shape;

/// The search space, and what a tuning tries of it
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

fn models() -> Result<[(&'static str, Model); 8], Box<dyn std::error::Error>> {
    let lstm = || Lstm::new(64, 64);
    let before = || Gru::new(64, 64).reset(ResetForm::Before);
    Ok([
        ("RNN", Rnn::new(64, 64).random(1)?),
        ("GRU, reset after", Gru::new(64, 64).random(1)?),
        ("GRU, reset before", before().random(1)?),
        ("LSTM", lstm().random(1)?),
        ("LSTM, projection", lstm().projection(32).random(1)?),
        (
            "LSTM, bidirectional",
            lstm().bidirectional(Merge::Concat).random(1)?,
        ),
        ("LSTM, 2 layers", lstm().layers(2).random(1)?),
        (
            "GRU b., bidirectional",
            before().bidirectional(Merge::Concat).random(1)?,
        ),
    ])
}

fn main() -> Outcome {
    let settings = Arguments::parse().settings;
    let question = "Phased schedules: all, and those left by each rule";
    let models = models()?;
    let names = model_counts(&models[0].1, 1).rows().map(|(name, _)| name);
    let columns: Vec<&str> = ["model", "steps"].into_iter().chain(names).collect();
    let mut report = Report::new(&settings, "search_space", question, &columns)?;
    for (name, model) in &models {
        for steps in [2, 10, 100] {
            let counts = model_counts(model, steps).rows().map(|(_, count)| count);
            let mut cells = vec![name.to_string(), steps.to_string()];
            cells.extend(counts.map(|count| count.to_string()));
            report.row(cells);
        }
    }
    tuning(&settings, &mut report)?;
    report.write()
}

/// Tunes a 256-unit LSTM and notes what that took.
fn tuning(settings: &Settings, report: &mut Report) -> Outcome {
    let shape = Shape::square(1, 256);
    let model = shape.lstm()?;
    let options = Options::new(
        vec![(shape.batch, shape.steps)],
        settings.cores(),
        settings.tuning(20.0),
    );
    let mut most = BTreeMap::<&'static str, usize>::new();
    let start = Instant::now();
    let tuned = tune(&model, &options, |progress| {
        let standing = most.entry(progress.stage).or_default();
        *standing = progress.standing.max(*standing);
        ControlFlow::Continue(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let kept = schedule_count(&model).ok_or("too many schedules")?;
    let (cores, best) = (options.cores, &tuned.plan.entries[0]);
    report.note(format!(
        "tuning LSTM 256/256/1/100: P x Q = {cores} x {kept}; {} candidates, {} timed runs, \
         {seconds:.1} s of {:.0}",
        tuned.candidates,
        tuned.runs,
        options.budget.as_secs_f64()
    ));
    let took = match &best.measured {
        Some(measured) => format!("{:.3} ms", 1e-6 * measured.cost.median_ns as f64),
        None => "the estimate, not measured".into(),
    };
    report.note(format!("chosen: {} ({took})", best.configuration));
    report.note(format!(
        "standing after the first round of each stage, at most: {most:?}"
    ));
    Ok(())
}
