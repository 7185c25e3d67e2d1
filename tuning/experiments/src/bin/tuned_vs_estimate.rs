//! Is a tuned plan ever slower than the estimate, and how far is the estimate off?
//!
//! Method: DeepCPU's Table 1, 15 shapes as LSTM and GRU. Each is tuned afresh (`--seconds` each),
//! then the tuned plan and the estimate race, interleaved, with the weights packed anew three
//! times. Where both are the same configuration there is nothing to race and the ratio is 1.
//!
//! Reading: estimate/tuned, with quartiles over the rounds. A tuned plan is called slower where
//! three quarters of the rounds say so and the median does by more than 2 %. The estimate is called
//! near where its median is at most 1.10 times the tuned one's.

use clap::Parser;
use gatestream::Plan;
use gatestream_experiments::Outcome;
use gatestream_experiments::plans::race;
use gatestream_experiments::report::{Report, ms};
use gatestream_experiments::rounds::{Quartiles, geometric_mean};
use gatestream_experiments::runner::tuned;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::TABLE1;

/// Tuned plans against estimates, on the 30 rows of Table 1
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

fn main() -> Outcome {
    let settings = Arguments::parse().settings;
    let question = "Table 1: tuned plan against estimate (estimate / tuned above 1: tuning pays)";
    let columns = [
        "cell input/hidden/batch/steps",
        "tuned, ms",
        "estimate, ms",
        "estimate / tuned",
        "verdict",
        "tuned plan",
        "estimated plan",
    ];
    let mut report = Report::new(&settings, "tuned_vs_estimate", question, &columns)?;
    let cores = settings.cores();
    let (mut slower, mut near, mut ratios) = (Vec::new(), 0, Vec::new());
    let shapes = settings.cut(&TABLE1, 2);
    for shape in shapes {
        let models = [("LSTM", shape.lstm()?), ("GRU", shape.gru()?)];
        let size_text = format!(
            "{}/{}/{}/{}",
            shape.input, shape.hidden, shape.batch, shape.steps
        );
        for (cell, model) in &models {
            let size = (shape.batch, shape.steps);
            let best = tuned(model, size, cores, settings.tuning(8.0))?.plan;
            let estimate = Plan::estimate(model, size.0, size.1, cores);
            let plans = [&best, &estimate];
            let names = plans.map(|plan| plan.entries[0].configuration.to_string());
            let same = best.entries[0].configuration == estimate.entries[0].configuration;
            let raced = if same { &plans[..1] } else { &plans };
            let times = race(model, raced, settings.rounds(), 3)?;
            let (tuned, estimated) = (&times[0], &times[times.len() - 1]);
            let ratio = estimated.over(tuned);
            let verdict = verdict(ratio, same);
            let row = format!("{cell} {size_text}");
            if verdict.contains("slower") {
                slower.push(row.clone());
            }
            near += usize::from(ratio.median <= 1.10);
            ratios.push(ratio.median);
            let [tuned_plan, estimated_plan] = names;
            report.row(vec![
                row,
                ms(tuned.median()),
                ms(estimated.median()),
                ratio.text(),
                verdict.to_string(),
                tuned_plan,
                estimated_plan,
            ]);
        }
    }
    let rows = ratios.len();
    report.note(format!(
        "estimate within 10 % of tuned: {near} of {rows} rows"
    ));
    report.note(format!(
        "tuned slower beyond noise: {} of {rows} rows {slower:?}",
        slower.len()
    ));
    let mean = geometric_mean(&ratios);
    report.note(format!("geometric mean of estimate / tuned: {mean:.3}"));
    report.write()
}

fn verdict(ratio: Quartiles, same: bool) -> &'static str {
    match ratio {
        _ if same => "same plan",
        r if r.high < 1.0 && r.median < 0.98 => "tuned slower",
        r if r.low > 1.0 && r.median > 1.02 => "tuned faster",
        _ => "within noise",
    }
}
