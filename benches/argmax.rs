//! A choice among many words: the greatest output of a dense layer, all of it in f32, and screened
//! in int8 first (`layers::Argmax`), in turns: `cargo bench --bench argmax [-- --quick]`.
//!
//! Weights and inputs are uniform at random, so that many outputs come close to the greatest; a
//! model that has learnt to choose leaves fewer. Prints, by rows, the median time of a choice each
//! way and their ratio, from the same rounds, and the time of the same choice in int8, whose
//! answers differ: what screening takes besides is spent on bounds, and on outputs in f32. Then of
//! rows one of whose inputs is 20 times as large as the others may be, which leaves wide bounds,
//! and of weights that are all zeros, where nothing can be ruled out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gatestream::execute::team::{SharedTeam, Team};
use gatestream::kernels::Isa;
use gatestream::layers::{Argmax, ArgmaxScratch, Dense};
use gatestream::model::{Matrix, Precision};

const FEATURES: usize = 1024;
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Cargo's tests run benches, too, but without this argument.
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    let is_quick = has("--quick") || !has("--bench");
    let (words, rounds) = if is_quick { (3000, 2) } else { (30_000, 41) };
    let threads = std::thread::available_parallelism()?.get();
    let team = SharedTeam::new(Team::with_threads(threads)?);
    let mut rng = fastrand::Rng::with_seed(1);
    let most = 1.0 / (FEATURES as f32).sqrt();
    let weights = uniform(&mut rng, words * FEATURES, most);
    let bias = uniform(&mut rng, words, most);
    println!(
        "{words} words of {FEATURES} features on {threads} threads, {}",
        Isa::select()?
    );
    println!("rows   f32 µs   screened µs   ratio   int8 µs");
    compare(&team, &weights, &bias, &ROWS, rounds, || {
        uniform(&mut rng, FEATURES, 1.0)
    })?;
    println!("one input large");
    compare(&team, &weights, &bias, &[1, 16, 64], rounds, || {
        let mut x = uniform(&mut rng, FEATURES, 0.05);
        x[FEATURES / 2] = 1.0;
        x
    })?;
    println!("weights of zero");
    let zeros = vec![0.0; words * FEATURES];
    compare(&team, &zeros, &vec![0.0; words], &[1, 16, 64], 3, || {
        uniform(&mut rng, FEATURES, 1.0)
    })
}

fn uniform(rng: &mut fastrand::Rng, count: usize, most: f32) -> Vec<f32> {
    let value = |_| most * (2.0 * rng.f32() - 1.0);
    (0..count).map(value).collect()
}

fn compare(
    team: &SharedTeam,
    weights: &[f32],
    bias: &[f32],
    rows: &[usize],
    rounds: usize,
    mut row: impl FnMut() -> Vec<f32>,
) -> Result<(), Box<dyn std::error::Error>> {
    let isa = Isa::select()?;
    let most = rows.iter().copied().max().unwrap_or(0);
    let weights = Arc::new(Matrix::new(bias.len(), FEATURES, weights.to_vec())?);
    let dense = Dense::on_team(&weights, bias, isa, team)?;
    let mut room = ArgmaxScratch::new(&dense, most, team.threads());
    let int8 = weights.in_precision(Precision::Int8)?;
    let int8 = Dense::on_team(&int8, bias, isa, team)?;
    let mut int8_room = ArgmaxScratch::new(&int8, most, team.threads());
    let mut argmax = Argmax::new(&weights, bias, isa, team, most)?;
    for &rows in rows {
        let x: Vec<f32> = (0..rows).flat_map(|_| row()).collect();
        let mut symbols = [vec![0.0; rows], vec![0.0; rows], vec![0.0; rows]];
        let [whole, screened, others] = &mut symbols;
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let begin = Instant::now();
            dense.argmax_on(team, &x, &mut room, whole)?;
            times[0].push(begin.elapsed());
            let begin = Instant::now();
            argmax.run(&x, screened)?;
            times[1].push(begin.elapsed());
            let begin = Instant::now();
            int8.argmax_on(team, &x, &mut int8_room, others)?;
            times[2].push(begin.elapsed());
            assert_eq!(whole, screened);
        }
        let [whole, screened, int8] = times.map(median);
        let ratio = whole.as_secs_f64() / screened.as_secs_f64();
        println!(
            "{rows:4} {:8} {:13} {ratio:7.2} {:9}",
            whole.as_micros(),
            screened.as_micros(),
            int8.as_micros()
        );
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
