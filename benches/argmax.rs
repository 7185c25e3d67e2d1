//! A choice among many words: the greatest output of a dense layer, all of it in f32, and screened in int8 first
//! (`layers::Argmax`), in turns: `cargo bench --bench argmax [-- --quick]`.
//!
//! Weights and inputs are uniform at random, so that many outputs come close to the greatest; a model that has learnt to choose
//! leaves fewer. Prints, by rows, the median time of a choice each way and their ratio, from the same rounds, and beside it that of
//! the choice in int8 itself, whose answers are others: what is above it is spent on bounds, and on outputs in f32.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellstream::execute::team::{SharedTeam, Team};
use cellstream::kernels::Isa;
use cellstream::layers::{Argmax, ArgmaxRoom, Dense};
use cellstream::model::{Matrix, Precision};

const WORDS: usize = 30_000;
const FEATURES: usize = 1024;
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Cargo adds --bench; --test is what `cargo test --benches` asks for.
    let is_quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let rounds = if is_quick { 2 } else { 41 };
    let mut rng = fastrand::Rng::with_seed(1);
    let mut random = |count: usize, most: f32| -> Vec<f32> {
        (0..count).map(|_| most * (2.0 * rng.f32() - 1.0)).collect()
    };
    let most = 1.0 / (FEATURES as f32).sqrt();
    let weights = Arc::new(Matrix::new(
        WORDS,
        FEATURES,
        random(WORDS * FEATURES, most),
    )?);
    let bias = random(WORDS, most);
    let threads = std::thread::available_parallelism()?.get();
    let team = SharedTeam::new(Team::with_threads(threads)?);
    let isa = Isa::select()?;
    let rows = ROWS[ROWS.len() - 1];
    let dense = Dense::on_team(&weights, &bias, isa, &team)?;
    let mut room = ArgmaxRoom::new(&dense, rows, team.threads());
    let int8 = weights.in_precision(Precision::Int8)?;
    let int8 = Dense::on_team(&int8, &bias, isa, &team)?;
    let mut int8_room = ArgmaxRoom::new(&int8, rows, team.threads());
    let mut argmax = Argmax::new(&weights, &bias, isa, &team, rows)?;
    println!(
        "{WORDS} words of {FEATURES} features on {} threads, {isa}",
        team.threads()
    );
    println!("rows   f32 µs   screened µs   ratio   int8 µs");
    for rows in ROWS {
        let x = random(rows * FEATURES, 1.0);
        let (mut whole, mut screened, mut others) =
            (vec![0.0; rows], vec![-1.0; rows], vec![0.0; rows]);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let begin = Instant::now();
            dense.argmax_on(&team, &x, &mut room, &mut whole)?;
            times[0].push(begin.elapsed());
            let begin = Instant::now();
            argmax.run(&x, &mut screened)?;
            times[1].push(begin.elapsed());
            let begin = Instant::now();
            int8.argmax_on(&team, &x, &mut int8_room, &mut others)?;
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
