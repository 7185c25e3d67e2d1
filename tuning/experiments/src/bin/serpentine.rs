//! Cyclic against serpentine order of weight panels.
//!
//! Question: what does going through a core's panels backwards at every other step bring, and does
//! it ever cost?
//!
//! Method: LSTM, input 64, 100 steps, all cores, the estimate's plan with either order. Answers
//! must agree to the bit. Interleaved rounds. The weights are packed anew several times and the
//! samples put together, since which pages they come to lie in moves times by a few per cent.
//!
//! Reading: cyclic/serpentine above 1 is the gain. It is expected where a core's slice is somewhat
//! larger than its private cache (KiB per core against it is printed): a cyclic sweep then evicts
//! each panel just before its reuse. Far below and far above there is nothing to win, and nothing
//! should be lost.

use clap::Parser;
use gatestream::Plan;
use gatestream::machine::Topology;
use gatestream::schedule::PanelOrder;
use gatestream_experiments::Outcome;
use gatestream_experiments::plans::race;
use gatestream_experiments::report::{Report, ms};
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::Shape;

const HIDDEN: [usize; 9] = [256, 384, 512, 640, 768, 896, 1024, 1280, 1536];
const BATCHES: [usize; 2] = [1, 10];

/// Cyclic against serpentine order of weight panels
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Times the weights are packed anew
    #[arg(long, default_value_t = 3)]
    packings: usize,
}

fn main() -> Outcome {
    let arguments = Arguments::parse();
    let settings = &arguments.settings;
    let question = "LSTM, input 64, 100 steps: cyclic and serpentine order of panels";
    let columns = [
        "[batch, hidden]",
        "cores",
        "KiB per core",
        "private KiB",
        "cyclic, ms",
        "serpentine, ms",
        "cyclic / serpentine",
    ];
    let mut report = Report::new(settings, "serpentine", question, &columns)?;
    let topology = Topology::detect();
    let private = topology.cores.first();
    let private = private.map_or(0, |core| topology.private_cache_bytes(core));
    let cores = settings.cores();
    for batch in settings.cut(&BATCHES, 1) {
        for hidden in settings.cut(&HIDDEN, 3) {
            let shape = Shape {
                input: 64,
                hidden: *hidden,
                batch: *batch,
                steps: 100,
            };
            let model = shape.lstm()?;
            let plan = Plan::with_threads(&model, *batch, shape.steps, cores);
            let [cyclic, serpentine] = [PanelOrder::Cyclic, PanelOrder::Serpentine].map(|order| {
                let mut plan = plan.clone();
                let entries = plan.entries.iter_mut();
                let layers = entries.flat_map(|entry| &mut entry.configuration.layers);
                layers.for_each(|layer| layer.order = order);
                plan
            });
            let plans = [&cyclic, &serpentine];
            let times = race(&model, &plans, settings.rounds(), arguments.packings)?;
            let (cyclic, serpentine) = (&times[0], &times[1]);
            let ratio = cyclic.over(serpentine);
            report.row(vec![
                format!("[{batch}, {hidden}]"),
                cores.to_string(),
                (16 * hidden * hidden / cores / 1024).to_string(),
                (private >> 10).to_string(),
                ms(cyclic.median()),
                ms(serpentine.median()),
                ratio.text(),
            ]);
        }
    }
    report.write()
}
