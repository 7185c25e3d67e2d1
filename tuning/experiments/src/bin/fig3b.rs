//! DeepCPU figure 3b: two independent products, side by side or one after the other.
//!
//! Question: are two products (the two directions of a layer) better run at the same time, each on
//! half of the cores, or in turn, each on all of them?
//!
//! Method: two products [batch × K]·[K × 4K], each with its own weights and operand, 50 times over,
//! all cores meeting after each pair. One core; in sequence on all cores; in parallel on halves; by
//! parallel GEMM and by the crate's kernels. Interleaved rounds. Needs two cores.
//!
//! Reading: in sequence/in parallel above 1 means side by side is better. For kept slices both move
//! the same weights; side by side needs one meeting less and each operand on half of the cores
//! only.

use std::ops::Range;
use std::time::Duration;

use clap::Parser;
use gatestream::execute::team::Team;
use gatestream_experiments::Outcome;
use gatestream_experiments::gemm::{Gemm, Library, Product, Split};
use gatestream_experiments::report::{Report, two};
use gatestream_experiments::rounds::Contender;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::numbers;
use gatestream_experiments::sliced::Sliced;

const BATCHES: [usize; 3] = [1, 10, 20];
const DEPTHS: [usize; 4] = [64, 128, 256, 512];
const TIMES: usize = 50;

/// DeepCPU figure 3b
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

/// How two products are laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    OneCore,
    Sequence,
    Parallel,
}

const LAYOUTS: [(&str, Layout); 3] = [
    ("one core", Layout::OneCore),
    ("in sequence", Layout::Sequence),
    ("in parallel", Layout::Parallel),
];

fn main() -> Outcome {
    let settings = Arguments::parse().settings;
    if settings.cores() < 2 {
        return Err("two cores are needed for two products at a time".into());
    }
    let libraries = Library::ALL.iter().map(|library| library.name());
    let programs: Vec<&str> = libraries.chain(["ours"]).collect();
    let both = programs
        .iter()
        .flat_map(|program| LAYOUTS.map(|(layout, _)| (program, layout)));
    let names: Vec<String> = both
        .map(|(program, layout)| format!("{program}, {layout}"))
        .collect();
    let mut columns = vec!["[batch, K]".to_string()];
    columns.extend(names.clone());
    columns.extend(
        programs
            .iter()
            .map(|program| format!("{program}: sequence / parallel")),
    );
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let question = "Two products [batch × K]·[K × 4K], GFLOP/s";
    let mut report = Report::new(&settings, "fig3b", question, &columns)?;
    for &batch in settings.cut(&BATCHES, 1) {
        for &depth in settings.cut(&DEPTHS, 2) {
            let (rates, ratios) = measure(&settings, batch, depth)?;
            let mut cells = vec![format!("[{batch}, {depth}]")];
            cells.extend(rates.iter().map(|rate| two(*rate)));
            cells.extend(ratios);
            report.row(cells);
        }
    }
    report.write()
}

/// GFLOP/s of each contender, and the ratios in words.
fn measure(
    settings: &Settings,
    batch: usize,
    depth: usize,
) -> Result<(Vec<f64>, Vec<String>), Box<dyn std::error::Error>> {
    let cores = settings.cores();
    let a = [0, 1].map(|index| numbers(batch * depth + index));
    let b = [0, 1].map(|index| numbers(4 * depth * depth + index));
    let gemms = Gemm::of_each(cores)?;
    let mut contenders: Vec<Contender<'_>> = Vec::new();
    for gemm in &gemms {
        for (_, layout) in LAYOUTS {
            let (a, b) = (&a, &b);
            let mut c = [0, 1].map(|_| vec![0.0; batch * 4 * depth]);
            let size = (batch, depth);
            let mut run = move |split| pairs(gemm, split, layout, size, [a, b], &mut c);
            let split = match layout {
                Layout::OneCore => Split::Whole,
                Layout::Sequence => gemm.best_split(batch, &mut run),
                Layout::Parallel if cores < 4 => Split::Whole,
                Layout::Parallel => Split::Columns(cores / 2),
            };
            contenders.push(Contender::timing_itself("", move || run(split)));
        }
    }
    for (_, layout) in LAYOUTS {
        let mut ours = Ours::new(layout, cores, batch, depth)?;
        let a = &a;
        contenders.push(Contender::new("", move || ours.run(a)));
    }
    let flops = (TIMES * 2 * 2 * batch * depth * 4 * depth) as f64;
    let times = settings.rounds().race(&mut contenders);
    let rates = times.iter().map(|times| 1e-9 * flops / times.median());
    let ratios = times.chunks(3).map(|times| times[1].over(&times[2]).text());
    Ok((rates.collect(), ratios.collect()))
}

fn pairs(
    gemm: &Gemm,
    split: Split,
    layout: Layout,
    (rows, depth): (usize, usize),
    [a, b]: [&[Vec<f32>; 2]; 2],
    c: &mut [Vec<f32>; 2],
) -> Duration {
    let [c0, c1] = c;
    let product = |index: usize, c: &mut [f32]| {
        let product = Product {
            rows,
            depth,
            columns: 4 * depth,
            a: &a[index],
            b: &b[index],
            c,
            add: false,
        };
        gemm.multiply(split, product);
    };
    gemm.time(|| {
        for _ in 0..TIMES {
            match layout {
                Layout::Parallel => {
                    rayon::join(|| product(0, &mut *c0), || product(1, &mut *c1));
                }
                _ => [(0, &mut *c0), (1, &mut *c1)]
                    .into_iter()
                    .for_each(|(i, c)| product(i, c)),
            }
        }
    })
}

/// Two products by the crate's kernels.
struct Ours {
    team: Team,
    owners: [Range<usize>; 2],
    products: [Sliced; 2],
    layout: Layout,
}

impl Ours {
    fn new(
        layout: Layout,
        cores: usize,
        batch: usize,
        depth: usize,
    ) -> Result<Ours, Box<dyn std::error::Error>> {
        let cores = if layout == Layout::OneCore { 1 } else { cores };
        let mut team = Team::with_threads(cores)?;
        team.pin_caller();
        let owners = match layout {
            Layout::Parallel => [0..cores / 2, cores / 2..cores],
            _ => [0..cores, 0..cores],
        };
        let mut product =
            |owners: &Range<usize>| Sliced::new((batch, depth, depth), owners.clone(), &mut team);
        let products = [product(&owners[0])?, product(&owners[1])?];
        Ok(Ours {
            team,
            owners,
            products,
            layout,
        })
    }

    fn run(&mut self, a: &[Vec<f32>; 2]) {
        let products = self.products.each_mut().map(Sliced::share);
        let (owners, layout) = (&self.owners, self.layout);
        let done = self.team.run(|worker| {
            for _ in 0..TIMES {
                for index in 0..2 {
                    if owners[index].contains(&worker.index) {
                        let slice = worker.index - owners[index].start;
                        // SAFETY: every owner has a slice of its own.
                        unsafe { products[index].multiply(slice, &a[index]) };
                    }
                    // In sequence, the second begins when the first is done.
                    if layout == Layout::Sequence || index == 1 {
                        worker.barrier();
                    }
                }
            }
        });
        done.expect("no worker panics");
    }
}
