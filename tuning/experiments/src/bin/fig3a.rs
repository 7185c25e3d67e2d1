//! DeepCPU figure 3a: one product at rising parallelism.
//!
//! Question: is a product fastest on all cores?
//!
//! Method: [batch × K]·[K × 4K], the recurrent product of an LSTM with K units, repeated with the
//! same weights, all cores meeting after each. On 1, 2, … cores: the parallel GEMM with its best
//! split for that many parts, and the crate's kernels on slices of columns. Interleaved rounds.
//!
//! Reading: GFLOP/s over cores. Where a line falls, the cores' meetings, or moving operands to all
//! of them, cost more than they bring; the best degree is then below the number of cores.

use clap::Parser;
use gatestream::execute::team::Team;
use gatestream_experiments::Outcome;
use gatestream_experiments::gemm::{Gemm, Library, Product, Split};
use gatestream_experiments::report::{Report, two};
use gatestream_experiments::rounds::Contender;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::numbers;
use gatestream_experiments::sliced::Sliced;

const SHAPES: [(usize, usize); 7] = [
    (1, 64),
    (1, 256),
    (1, 512),
    (10, 64),
    (10, 256),
    (20, 256),
    (20, 1024),
];
/// Products per timed run.
const TIMES: usize = 50;

/// DeepCPU figure 3a
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

fn main() -> Outcome {
    let settings = Arguments::parse().settings;
    let question = "One product [batch × K]·[K × 4K] at rising parallelism, GFLOP/s";
    let libraries = Library::ALL.iter().map(|library| library.name());
    let names: Vec<&str> = libraries.chain(["ours"]).collect();
    let mut columns = vec!["[batch, K]", "cores"];
    columns.extend(&names);
    let mut report = Report::new(&settings, "fig3a", question, &columns)?;
    for &(batch, depth) in settings.cut(&SHAPES, 2) {
        let rates = measure(&settings, batch, depth)?;
        for (cores, rates) in (1..).zip(&rates) {
            let mut cells = vec![format!("[{batch}, {depth}]"), cores.to_string()];
            cells.extend(rates.iter().map(|rate| two(*rate)));
            report.row(cells);
        }
    }
    report.write()
}

/// GFLOP/s for 1, 2, … cores, of each library and of ours.
fn measure(
    settings: &Settings,
    batch: usize,
    depth: usize,
) -> Result<Vec<Vec<f64>>, Box<dyn std::error::Error>> {
    let (a, b) = (numbers(batch * depth), numbers(4 * depth * depth));
    let degrees = 1..=settings.cores();
    let mut ours = Vec::new();
    let mut gemms = Vec::new();
    for cores in degrees.clone() {
        let mut team = Team::with_threads(cores)?;
        team.pin_caller();
        let sliced = Sliced::new((batch, depth, depth), 0..cores, &mut team)?;
        ours.push((team, sliced));
        for library in Library::ALL {
            gemms.push((cores, Gemm::new(cores, *library)?));
        }
    }
    let flops = ours[0].1.flops() * TIMES as f64;
    let mut contenders: Vec<Contender<'_>> = Vec::new();
    for (cores, gemm) in &gemms {
        let (a, b) = (&a, &b);
        let mut c = vec![0.0; batch * 4 * depth];
        let mut run = move |split: Split| {
            let product = Product {
                rows: batch,
                depth,
                columns: 4 * depth,
                a,
                b,
                c: &mut c,
                add: false,
            };
            gemm.time_of(TIMES, split, product)
        };
        // Only splits over all of these cores: how many are best is the question.
        let parts = |split: Split| match split {
            Split::Whole => 1,
            Split::Columns(parts) | Split::Rows(parts) => parts,
        };
        let fits = |split: Split| parts(split) == *cores;
        let timed = |split: Split| {
            if fits(split) {
                run(split)
            } else {
                std::time::Duration::MAX
            }
        };
        let split = gemm.best_split(batch, timed);
        contenders.push(Contender::timing_itself("", move || run(split)));
    }
    for (team, sliced) in &mut ours {
        let a = &a;
        contenders.push(Contender::new("", move || {
            let shared = sliced.share();
            let done = team.run(|worker| {
                for _ in 0..TIMES {
                    // SAFETY: every worker has a slice of its own.
                    unsafe { shared.multiply(worker.index, a) };
                    worker.barrier();
                }
            });
            done.expect("no worker panics");
        }));
    }
    let times = settings.rounds().race(&mut contenders);
    let rates: Vec<f64> = times
        .iter()
        .map(|times| 1e-9 * flops / times.median())
        .collect();
    let libraries = Library::ALL.len();
    let row = |cores: usize| {
        let ours = rates[gemms.len() + cores - 1];
        let of_gemms = &rates[(cores - 1) * libraries..cores * libraries];
        of_gemms.iter().copied().chain([ours]).collect()
    };
    Ok(degrees.map(row).collect())
}
