//! DeepCPU figure 4b: misses of the private cache, at [20, 256].
//!
//! Question: how much less do the cores fetch from the shared cache, if slices of the weights stay?
//!
//! Method: valgrind's cache simulation of one core's part (`fig4b_replay`), with this machine's L1
//! and private last level as its two levels: a miss of the second is a line fetched from the shared
//! cache. Misses of preparation alone are taken off. Valgrind knows no AVX-512, so the replay uses
//! AVX2; lines fetched depend on it little. What it cannot show: lines that one core takes from
//! another (the state of each step). Beside it the prediction: the bytes of deepcpu's Theorem 5.2
//! for this core, in lines.
//!
//! Reading: misses of a GEMM over those of kept slices is the paper's factor of 8. "chunk" is how
//! many steps' input products are taken together (first, as tuned for time): few keep results and
//! input in the cache but read the input weights more often, and these push out the recurrent ones;
//! with too many the input of a chunk no longer fits and is read again for each panel. Where the
//! GEMM's weights should stay by the formula and do not: it copies them before use, and the half
//! rows that a part of the columns consists of fall into half of the cache's sets. `--private` and
//! `--of-cores` ask the same of another machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use gatestream::machine::{Cache, Topology};
use gatestream::partition::{self, Grain, Problem, Sequence, Split};
use gatestream::plan::UNIT_GRANULE;
use gatestream::schedule::PanelOrder;
use gatestream_experiments::Outcome;
use gatestream_experiments::report::{Report, two};
use gatestream_experiments::runner::tuned;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::Shape;
use rayon::prelude::*;

/// DeepCPU figure 4b
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Sequences
    #[arg(long, default_value_t = 20)]
    batch: usize,
    /// Input and hidden size
    #[arg(long, default_value_t = 256)]
    dimension: usize,
    /// Steps; valgrind takes its time
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Another private cache than this machine's, in KiB; results go to a file of their own
    #[arg(long, value_name = "KIB")]
    private: Option<usize>,
    /// Another number of cores than this machine's, likewise
    #[arg(long, value_name = "N")]
    of_cores: Option<usize>,
}

fn main() -> Outcome {
    let arguments = Arguments::parse();
    let settings = &arguments.settings;
    let shape = Shape {
        steps: if settings.quick {
            8
        } else {
            arguments.steps.max(1)
        },
        ..Shape::square(arguments.batch, arguments.dimension)
    };
    let topology = Topology::detect();
    let core = topology.cores.first().ok_or("no core")?;
    let mut private = topology
        .private_cache(core)
        .ok_or("no private cache")?
        .clone();
    let mut name = "fig4b".to_string();
    if let Some(kib) = arguments.private {
        private.bytes = kib << 10;
        name += &format!("_{kib}KiB");
    }
    if let Some(cores) = arguments.of_cores {
        name += &format!("_{cores}cores");
    }
    let private = &private;
    let l1 = topology.cache_at(core, 1).ok_or("no first-level cache")?;
    let (cores, steps) = (settings.cores(), shape.steps);
    let model = shape.lstm()?;
    let plan = tuned(&model, (shape.batch, steps), cores, settings.tuning(4.0))?.plan;
    let plan = &plan.entries[0].configuration.layers[0];
    let chunk = plan.chunk_steps.min(steps);
    let serpentine = plan.order == PanelOrder::Serpentine;
    let cores = arguments.of_cores.unwrap_or(cores);
    // The replay's core takes every core's slice in turn, in buffers for one of them.
    if cores == 0 || !shape.hidden.is_multiple_of(UNIT_GRANULE * cores) {
        return Err(format!(
            "{} units are not dealt out evenly to {cores} cores",
            shape.hidden
        )
        .into());
    }
    let question = format!(
        "LSTM [{}, {}], {steps} steps, one of {cores} cores: lines fetched into its private cache \
         of {} KiB",
        shape.batch,
        shape.hidden,
        private.bytes >> 10
    );
    let columns = [
        "what",
        "chunk",
        "misses/step",
        "predicted",
        "KiB/step",
        "GEMM / this",
    ];
    let mut report = Report::new(settings, &name, &question, &columns)?;
    let modes = [
        ("parallel GEMM", "gemm", steps),
        ("all but WCS", "moving", chunk),
        ("all", "kept", chunk),
        ("all, chunk of 10", "kept", 10.min(steps)),
        ("all, chunk of 25", "kept", 25.min(steps)),
        ("all, chunk of 50", "kept", 50.min(steps)),
    ];
    // Simulations do not disturb each other.
    let each = modes.par_iter().map(|&(_, mode, chunk)| {
        let replay = |runs| {
            let mut replay = vec![mode.to_string()];
            let numbers = [
                ("batch", shape.batch),
                ("dimension", shape.hidden),
                ("steps", steps),
                ("cores", cores),
                ("chunk", chunk),
                ("runs", runs),
            ];
            replay.extend(numbers.map(|(flag, number)| format!("--{flag}={number}")));
            replay.extend(serpentine.then(|| "--serpentine".to_string()));
            replay
        };
        let misses = |runs| simulate(&replay(runs), (l1, private));
        Ok::<_, String>(misses(1)?.saturating_sub(misses(0)?) as f64 / steps as f64)
    });
    let misses: Vec<f64> = each.collect::<Result<_, _>>()?;
    let line = private.line_bytes.max(1) as f64;
    let predicted = modes.map(|(_, mode, chunk)| {
        predicted(mode, shape, cores, chunk, private) / line / steps as f64
    });
    for (index, (name, _, chunk)) in modes.into_iter().enumerate() {
        report.row(vec![
            name.to_string(),
            chunk.to_string(),
            format!("{:.0}", misses[index]),
            format!("{:.0}", predicted[index]),
            format!("{:.0}", misses[index] * line / 1024.0),
            two(misses[0] / misses[index].max(1e-9)),
        ]);
    }
    report.write()
}

/// Bytes that one core moves, by the theorem. What its weights share the private cache with depends
/// on the loops, so whether they stay is decided here.
fn predicted(mode: &str, shape: Shape, cores: usize, chunk: usize, private: &Cache) -> f64 {
    let (dimension, batch, steps) = (shape.hidden, shape.batch, shape.steps);
    let chunks = steps.div_ceil(chunk);
    let moved = |rows: usize, gates: usize, times: usize, stays: bool| {
        let problem = Problem {
            shape: partition::Shape::f32(rows, dimension, dimension, gates),
            grain: Grain::default(),
            sequence: Sequence::of_steps(times),
            cache: partition::Cache::fully_associative(if stays { usize::MAX } else { 0 }),
        };
        let slices = Split {
            rows: 1,
            units: cores,
            depth: 1,
        };
        problem.formula(slices) as f64 / cores as f64
    };
    let block = 16 * dimension * dimension / cores;
    // The operands need room beside the weights.
    let (one, both) = (block < private.bytes, 2 * block < private.bytes);
    match mode {
        "gemm" => 8.0 * moved(batch, 1, steps, both),
        "kept" if both => moved(chunk * batch, 4, chunks, true) + moved(batch, 4, steps, true),
        // The input weights of the next chunk push them out.
        "kept" if one => {
            moved(chunk * batch, 4, chunks, false) + chunks as f64 * moved(batch, 4, chunk, true)
        }
        _ => moved(chunk * batch, 4, chunks, false) + moved(batch, 4, steps, false),
    }
}

/// Misses of the simulated second level, data only, of a whole process with these arguments.
fn simulate(arguments: &[String], (l1, private): (&Cache, &Cache)) -> Result<u64, String> {
    let said = |error: std::io::Error| error.to_string();
    let replay = std::env::current_exe()
        .map_err(said)?
        .with_file_name("fig4b_replay");
    let out = format!("cachegrind-{}{}", std::process::id(), arguments.concat());
    let out = std::env::temp_dir().join(out);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=yes"]);
    valgrind.arg(format!("--D1={}", geometry(l1)));
    valgrind.arg(format!("--LL={}", geometry(private)));
    valgrind.arg(format!("--cachegrind-out-file={}", out.display()));
    valgrind
        .arg(&replay)
        .args(arguments)
        .env("GATESTREAM_ISA", "avx2");
    let done = valgrind
        .output()
        .map_err(|e| format!("valgrind: {e}; is it installed?"))?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    let misses = read_misses(&out).map_err(|error| error.to_string());
    std::fs::remove_file(&out).map_err(said)?;
    misses
}

/// Reads and writes that missed the last level, from cachegrind's file.
fn read_misses(path: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(path)?;
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let (events, summary) = (line("events:"), line("summary:"));
    let (events, summary) = events
        .zip(summary)
        .ok_or("cachegrind's file has another form")?;
    let counts = events.split_whitespace().zip(summary.split_whitespace());
    let misses = counts.filter(|(event, _)| ["DLmr", "DLmw"].contains(event));
    Ok(misses
        .map(|(_, count)| count.parse::<u64>())
        .sum::<Result<u64, _>>()?)
}

/// `size,ways,line`, as valgrind takes it: sets must be a power of two.
fn geometry(cache: &Cache) -> String {
    let line = cache.line_bytes.max(1);
    let ways = ways(cache).unwrap_or_else(|| {
        let lines = cache.bytes / line;
        let possible =
            (4..=32).find(|ways| lines.is_multiple_of(*ways) && (lines / ways).is_power_of_two());
        possible.unwrap_or(8)
    });
    format!("{},{ways},{line}", cache.bytes)
}

/// What the system tells of a cache's associativity.
fn ways(cache: &Cache) -> Option<usize> {
    let folder = PathBuf::from(format!(
        "/sys/devices/system/cpu/cpu{}/cache",
        cache.cpus.first()?
    ));
    let read = |index: usize, file: &str| {
        let path = folder.join(format!("index{index}/{file}"));
        Some(std::fs::read_to_string(path).ok()?.trim().to_string())
    };
    (0..8).find_map(|index| {
        let level = read(index, "level")?.parse::<u8>().ok()?;
        let found = level == cache.level && read(index, "type")? != "Instruction";
        let ways: usize = read(index, "ways_of_associativity")?.parse().ok()?;
        let sets = cache.bytes / cache.line_bytes.max(1) / ways.max(1);
        (found && sets.is_power_of_two()).then_some(ways)
    })
}
