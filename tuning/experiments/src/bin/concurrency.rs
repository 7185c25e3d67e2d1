//! Two directions, and two layers, on two cores.
//!
//! Question: how much faster are two directions, and a stack of two layers, on all cores than on
//! one, and how are they best laid out?
//!
//! Method: LSTM, 256 units, batch 1, 100 steps, random input. The best plan that tuning finds for
//! one core and for all; and the fixed layouts: every layer's units split over all cores, the
//! directions each on half of the cores, the layers each on half of the cores a chunk of 8 steps
//! apart (the wavefront). Interleaved rounds, answers checked against the reference.
//!
//! Reading: the last column is the speed-up over the best plan of one core. Above the number of
//! cores, the weights did not fit one core's private cache, but their halves do.

use clap::Parser;
use gatestream::Model;
use gatestream::model::{Lstm, Merge};
use gatestream::plan::{Configuration, Partition, Plan, split_units};
use gatestream_experiments::Outcome;
use gatestream_experiments::report::{Report, ms};
use gatestream_experiments::runner::{Expected, Runner, tuned};
use gatestream_experiments::settings::Settings;

const HIDDEN: usize = 256;
const STEPS: usize = 100;

/// Two directions, and two layers, on two cores
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Input features
    #[arg(long, default_value_t = HIDDEN)]
    input: usize,
}

fn main() -> Outcome {
    let Arguments { settings, input } = Arguments::parse();
    let question = "LSTM, 256 units, batch 1, 100 steps: all cores against one";
    let columns = ["model and layout", "cores", "ms", "one core / this", "plan"];
    let mut report = Report::new(&settings, "concurrency", question, &columns)?;
    let lstm = Lstm::new(input, HIDDEN);
    let models = [
        (
            "two directions",
            lstm.clone().bidirectional(Merge::Concat).random(1)?,
        ),
        ("two layers", lstm.layers(2).random(1)?),
    ];
    let cores = settings.cores();
    for (name, model) in &models {
        let mut ways = Vec::new();
        for (way, cores) in [("best, one core", 1), ("best, all cores", cores)] {
            let plan = tuned(model, (1, STEPS), cores, settings.tuning(10.0))?.plan;
            ways.push((way, plan));
        }
        if cores > 1 {
            let fixed = |configuration| Plan::of(configuration, 1, STEPS);
            ways.push(("units split", fixed(units_split(model, cores))));
            ways.push(match model.layers().len() {
                1 => ("directions apart", fixed(halves(model, cores, |_, d| d))),
                _ => ("wavefront", fixed(wavefront(model, cores))),
            });
        }
        let mut runners = Vec::new();
        for (way, plan) in &ways {
            let runner = Runner::new(model, plan)?;
            let expected = Expected::new(model, 1, runner.x())?;
            expected.check(way, runner.y(), 0.0)?;
            runners.push(runner);
        }
        let contenders = runners.iter_mut().map(|runner| runner.contender(""));
        let times = settings.rounds().race(&mut contenders.collect::<Vec<_>>());
        for ((way, plan), time) in ways.iter().zip(&times) {
            let ratio = times[0].over(time);
            report.row(vec![
                format!("{name}: {way}"),
                plan.threads().to_string(),
                ms(time.median()),
                ratio.text(),
                plan.entries[0].configuration.to_string(),
            ]);
        }
    }
    report.write()
}

/// Every direction of every layer on all cores.
fn units_split(model: &Model, cores: usize) -> Configuration {
    let mut configuration = Configuration::with_threads(model, 1, STEPS, cores);
    for (plan, layer) in configuration.layers.iter_mut().zip(model.layers()) {
        for plan in &mut plan.directions {
            plan.partition = Partition {
                units: split_units(layer.hidden_size(), cores),
                projected: split_units(0, cores),
            };
        }
    }
    configuration
}

/// The layers on halves of the cores, in chunks that are short enough for both to be at work.
fn wavefront(model: &Model, cores: usize) -> Configuration {
    let mut configuration = halves(model, cores, |layer, _| layer);
    let layers = configuration.layers.iter_mut();
    layers.for_each(|layer| layer.chunk_steps = 8);
    configuration
}

/// Half of the cores for each layer or direction, as `which` says.
fn halves(model: &Model, cores: usize, which: impl Fn(usize, usize) -> usize) -> Configuration {
    let mut configuration = units_split(model, cores);
    let half = cores / 2;
    for (layer, plan) in configuration.layers.iter_mut().enumerate() {
        for (direction, plan) in plan.directions.iter_mut().enumerate() {
            let hidden = model.layers()[layer].hidden_size();
            plan.partition.units = match which(layer, direction) {
                0 => [
                    split_units(hidden, half),
                    vec![hidden..hidden; cores - half],
                ]
                .concat(),
                _ => [vec![0..0; half], split_units(hidden, cores - half)].concat(),
            };
        }
    }
    configuration
}
