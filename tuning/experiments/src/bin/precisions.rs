//! f32, bf16 and int8, beside loops that only read as many bytes.
//!
//! Question: what do fewer bytes a weight bring, and what is left of it where a core's slice of the
//! weights fits no private cache in any precision?
//!
//! Method: one layer, input 64, 100 steps, all cores, the estimate's plan of each precision. Beside
//! each a loop on the same cores that reads slices as large as the recurrent weights, to and fro as
//! a serpentine order does, at each step, and does nothing else. All six in turn, in rounds.
//!
//! Reading: f32 / bf16 and f32 / int8 are the gains. "read / ours" is how much of our time such a
//! loop takes: near 1, nothing but another cache can make it faster, and the gain can be no more
//! than that of the loops. (It can be above 1: a run may hide reading from L3 behind arithmetic on
//! what is in L2.) Where the weights stay in the private caches, arithmetic counts, which int8 has
//! four times as much of, and the states' activations.

use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use gatestream::execute::team::Team;
use gatestream::model::Precision;
use gatestream::{Model, Plan};
use gatestream_experiments::Outcome;
use gatestream_experiments::report::{Report, ms};
use gatestream_experiments::rounds::Contender;
use gatestream_experiments::runner::Runner;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::Shape;
use gatestream_kernels::Isa;
use gatestream_kernels::probe::read_sum;

const HIDDEN: [usize; 6] = [64, 256, 512, 768, 1024, 1536];
const BATCHES: [usize; 3] = [1, 10, 20];
/// Bytes that are read in a row, as a panel is.
const PIECE: usize = 16 << 10;

/// f32, bf16 and int8, beside loops that only read as many bytes
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

fn main() -> Outcome {
    let arguments = Arguments::parse();
    let settings = &arguments.settings;
    let question = "one layer, input 64, 100 steps: precisions, and reading alone";
    let columns = [
        "cell",
        "[batch, hidden]",
        "int8 KiB per core",
        "f32, ms",
        "bf16, ms",
        "int8, ms",
        "f32 / bf16",
        "f32 / int8",
        "read / ours: f32",
        "bf16",
        "int8",
        "reading: f32 / int8",
    ];
    let mut report = Report::new(settings, "precisions", question, &columns)?;
    let cores = settings.cores();
    for batch in settings.cut(&BATCHES, 1) {
        for hidden in settings.cut(&HIDDEN, 2) {
            let shape = Shape {
                input: 64,
                hidden: *hidden,
                batch: *batch,
                steps: 100,
            };
            for (cell, model, gates) in [("LSTM", shape.lstm()?, 4), ("GRU", shape.gru()?, 3)] {
                let weights = gates * hidden * hidden;
                let times = race(&model, &shape, weights, cores, settings)?;
                let [f32, bf16, int8, reads @ ..] = &times[..] else {
                    return Err("six contenders".into());
                };
                let read = |at: usize| format!("{:.2}", reads[at].over(&times[at]).median);
                report.row(vec![
                    cell.into(),
                    format!("[{batch}, {hidden}]"),
                    (weights / cores / 1024).to_string(),
                    ms(f32.median()),
                    ms(bf16.median()),
                    ms(int8.median()),
                    f32.over(bf16).text(),
                    f32.over(int8).text(),
                    read(0),
                    read(1),
                    read(2),
                    format!("{:.2}", reads[0].over(&reads[2]).median),
                ]);
            }
        }
    }
    report.write()
}

/// Times in each precision, then of reading as much.
fn race(
    model: &Model,
    shape: &Shape,
    weights: usize,
    cores: usize,
    settings: &Settings,
) -> Result<Vec<gatestream_experiments::rounds::Times>, Box<dyn std::error::Error>> {
    let mut runners = Vec::new();
    let mut readers = Vec::new();
    for precision in Precision::ALL {
        let model = model.in_precision(precision)?;
        let plan = Plan::estimate(&model, shape.batch, shape.steps, cores);
        runners.push(Runner::new(&model, &plan)?);
        // As many cores as the plan wakes: small models are faster on one.
        let cores = plan.threads();
        readers.push(Reader::new(weights * precision.bytes() / cores, cores)?);
    }
    let runners = runners.iter_mut().map(|runner| runner.contender("run"));
    let readers = readers.iter_mut().map(|reader| {
        Contender::timing_itself("read", move || {
            let start = Instant::now();
            reader.read(shape.steps);
            start.elapsed()
        })
    });
    let mut contenders: Vec<_> = runners.chain(readers).collect();
    Ok(settings.rounds().race(&mut contenders))
}

/// A slice for each core, and the team that reads them.
struct Reader {
    team: Team,
    slices: Vec<Vec<f32>>,
    isa: Isa,
}

impl Reader {
    fn new(bytes: usize, cores: usize) -> Result<Reader, Box<dyn std::error::Error>> {
        Ok(Reader {
            team: Team::with_threads(cores)?,
            slices: vec![vec![1.0; bytes.div_ceil(4)]; cores],
            isa: Isa::select()?,
        })
    }

    /// To and fro, `steps` times.
    fn read(&mut self, steps: usize) {
        let (slices, isa) = (&self.slices, self.isa);
        let done = self.team.run(|worker| {
            let slice = &slices[worker.index];
            let piece = |piece: &[f32]| {
                let sum = read_sum(isa, piece, 1);
                black_box(sum.unwrap_or_default());
            };
            for step in 0..steps {
                match step % 2 {
                    0 => slice.chunks(PIECE / 4).for_each(piece),
                    _ => slice.chunks(PIECE / 4).rev().for_each(piece),
                }
            }
        });
        // Nothing in it panics.
        debug_assert!(done.is_ok());
    }
}
