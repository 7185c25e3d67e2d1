//! DeepCPU figure 3c: a sequence of products with the same weights.
//!
//! Question: what does a private-cache-aware partition bring over a parallel GEMM, and what more if
//! each slice stays on its core from step to step?
//!
//! Method: 100 products [batch × K]·[K × 4K] with the same weights, all cores meeting after each.
//! Parallel GEMM; PCP: the crate's kernels on slices of columns, the slices changing cores at each
//! step; PCP + WCS: the same loops, each core keeping its slice. Interleaved rounds.
//!
//! Reading: PCP/(PCP + WCS) is large where all weights exceed a private cache, but a core's slice
//! does not: the weights then come from the shared cache at each step, or from the private one.

use clap::Parser;
use gatestream::execute::team::Team;
use gatestream::machine::Topology;
use gatestream_experiments::Outcome;
use gatestream_experiments::gemm::{Gemm, Library, Product, Split};
use gatestream_experiments::report::{Report, two};
use gatestream_experiments::rounds::Contender;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::numbers;
use gatestream_experiments::sliced::{Mapping, Sliced};

const BATCHES: [usize; 3] = [1, 10, 20];
const DEPTHS: [usize; 6] = [128, 256, 320, 384, 512, 1024];
const STEPS: usize = 100;

/// DeepCPU figure 3c
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

fn main() -> Outcome {
    let settings = Arguments::parse().settings;
    let cores = settings.cores();
    let libraries = Library::ALL.iter().map(|library| library.name());
    let names: Vec<&str> = libraries.chain(["PCP", "PCP + WCS"]).collect();
    let mut columns = vec!["[batch, K]".to_string(), "KiB per core".to_string()];
    columns.push("private KiB".to_string());
    columns.extend(names.iter().map(|name| format!("{name}, GFLOP/s")));
    columns.push("PCP / (PCP + WCS)".to_string());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let question =
        format!("100 products [batch × K]·[K × 4K] with the same weights, {cores} cores");
    let mut report = Report::new(&settings, "fig3c", &question, &columns)?;
    let topology = Topology::detect();
    let private = topology.cores.first();
    let private = private.map_or(0, |core| topology.private_cache_bytes(core));

    let gemms = Gemm::of_each(cores)?;
    for &batch in settings.cut(&BATCHES, 1) {
        for &depth in settings.cut(&DEPTHS, 2) {
            let mut teams = Vec::new();
            for _ in 0..2 {
                let mut team = Team::with_threads(cores)?;
                team.pin_caller();
                let sliced = Sliced::new((batch, depth, depth), 0..cores, &mut team)?;
                teams.push((team, sliced));
            }
            let flops = teams[0].1.flops() * STEPS as f64;
            let a = numbers(batch * depth);
            let b = numbers(depth * 4 * depth);
            let mut contenders = Vec::new();
            for gemm in &gemms {
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
                    gemm.time_of(STEPS, split, product)
                };
                let split = gemm.best_split(batch, &mut run);
                contenders.push(Contender::timing_itself("", move || run(split)));
            }
            for ((team, sliced), mapping) in teams.iter_mut().zip([Mapping::Rotated, Mapping::Kept])
            {
                let a = &a;
                contenders.push(Contender::new("", move || {
                    by_slices(team, sliced, mapping, a)
                }));
            }
            let times = settings.rounds().race(&mut contenders);
            let rates = times.iter().map(|times| 1e-9 * flops / times.median());
            let rates: Vec<f64> = rates.collect();
            let [.., rotated, kept] = &times[..] else {
                return Err("no contender".into());
            };
            let mut cells = vec![format!("[{batch}, {depth}]")];
            cells.push((16 * depth * depth / cores / 1024).to_string());
            cells.push((private >> 10).to_string());
            cells.extend(rates.iter().map(|rate| two(*rate)));
            cells.push(rotated.over(kept).text());
            report.row(cells);
        }
    }
    report.write()
}

fn by_slices(team: &mut Team, sliced: &mut Sliced, mapping: Mapping, a: &[f32]) {
    let slices = sliced.slices();
    let shared = sliced.share();
    let done = team.run(|worker| {
        for step in 0..STEPS {
            let slice = mapping.slice(worker.index, step, slices);
            // SAFETY: at each step the mapping gives every worker another slice, and all meet
            // between steps.
            unsafe { shared.multiply(slice, a) };
            worker.barrier();
        }
    });
    done.expect("no worker panics");
}
