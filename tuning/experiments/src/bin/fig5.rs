//! DeepCPU figures 5a, 5b and 5c: time and GFLOP/s of an LSTM by dimension, length and batch.
//!
//! Question: how do times grow with the size of the state, the length of sequences and their
//! number?
//!
//! Method: 5a input = hidden from 32 to 1024, batch 1, 100 steps; 5b length from 1 to 100, 256
//! units, batch 1; 5c batch from 1 to 20, 256 units, 100 steps. Ours is a session with a tuned
//! plan; the opponents are eight products per step, and one, by a parallel GEMM. Interleaved
//! rounds.
//!
//! Reading: GFLOP/s counts products only. In 5a ours falls where a core's slice leaves its private
//! cache; in 5b it rises with the length, as the weights are loaded once per sequence; in 5c all
//! rise, as weights are used for more rows each time they are read.

use clap::{Parser, ValueEnum};
use gatestream::plan::flops;
use gatestream_experiments::Outcome;
use gatestream_experiments::gemm::{Gemm, Library};
use gatestream_experiments::lstm_by_gemm::LstmByGemm;
use gatestream_experiments::report::{Report, ms, two};
use gatestream_experiments::rounds::Contender;
use gatestream_experiments::runner::{Expected, Runner, tuned};
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::Shape;

/// DeepCPU figures 5a, 5b and 5c
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Only this figure
    #[arg(long)]
    part: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// By dimension
    A,
    /// By length
    B,
    /// By batch
    C,
}

impl Part {
    /// File, question, first column and values.
    fn what(self) -> (&'static str, &'static str, &'static str, &'static [usize]) {
        match self {
            Part::A => (
                "fig5a",
                "LSTM, batch 1, 100 steps, by input = hidden size",
                "input = hidden size",
                &[32, 64, 128, 256, 512, 1024],
            ),
            Part::B => (
                "fig5b",
                "LSTM, input = hidden = 256, batch 1, by number of steps",
                "steps",
                &[1, 2, 5, 10, 20, 50, 100],
            ),
            Part::C => (
                "fig5c",
                "LSTM, input = hidden = 256, 100 steps, by batch",
                "batch",
                &[1, 2, 5, 10, 15, 20],
            ),
        }
    }

    fn shape(self, value: usize) -> Shape {
        match self {
            Part::A => Shape::square(1, value),
            Part::B => Shape {
                steps: value,
                ..Shape::square(1, 256)
            },
            Part::C => Shape::square(value, 256),
        }
    }
}

fn main() -> Outcome {
    let arguments = Arguments::parse();
    for part in [Part::A, Part::B, Part::C] {
        if arguments.part.is_none_or(|only| only == part) {
            table(&arguments.settings, part)?;
            println!();
        }
    }
    Ok(())
}

fn table(settings: &Settings, part: Part) -> Outcome {
    let (file, question, first, values) = part.what();
    let mut names = vec!["ours".to_string()];
    for library in Library::ALL {
        names.push(format!("8 × {}", library.name()));
        names.push(format!("fused, {}", library.name()));
    }
    let mut columns = vec![first.to_string(), "cores".to_string()];
    columns.extend(names.iter().map(|name| format!("{name}, ms")));
    columns.extend(names.iter().map(|name| format!("{name}, GFLOP/s")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut report = Report::new(settings, file, question, &columns)?;
    for &value in settings.cut(values, 3) {
        let (cores, flops, seconds) = measure(settings, part.shape(value))?;
        let rates = seconds.iter().map(|seconds| 1e-9 * flops / seconds);
        let mut cells = vec![value.to_string(), cores.to_string()];
        cells.extend(seconds.iter().map(|seconds| ms(*seconds)));
        cells.extend(rates.map(two));
        report.row(cells);
    }
    report.write()
}

/// Cores of the plan, operations, and seconds of each contender.
fn measure(
    settings: &Settings,
    shape: Shape,
) -> Result<(usize, f64, Vec<f64>), Box<dyn std::error::Error>> {
    let (model, batch, cores) = (shape.lstm()?, shape.batch, settings.cores());
    let plan = tuned(&model, (batch, shape.steps), cores, settings.tuning(2.0))?.plan;
    let gemms = Gemm::of_each(cores)?;
    let mut ours = Runner::new(&model, &plan)?;
    let x = ours.x().to_vec();
    let expected = Expected::new(&model, batch, &x)?;
    expected.check("ours", ours.y(), 0.0)?;
    let mut by_gemm = LstmByGemm::of_each(&model, &gemms, batch, &x, &expected)?;
    let mut contenders = vec![ours.contender("")];
    for lstm in &mut by_gemm {
        contenders.push(Contender::timing_itself("", || lstm.run()));
    }
    let times = settings.rounds().race(&mut contenders);
    let seconds = times.iter().map(|times| times.median()).collect();
    Ok((plan.threads(), flops(&model, batch, shape.steps), seconds))
}
