//! Plans and packs once, then runs many sequences of different lengths and batches.
//!
//!     cargo run --release --example plan_once_run_many

use std::error::Error;
use std::time::Instant;

use gatestream::machine::Topology;
use gatestream::model::Lstm;
use gatestream::{Input, Output, Plan, Session, reference};

const FEATURES: usize = 64;
const HIDDEN: usize = 128;
const RUNS: usize = 31;

fn main() -> Result<(), Box<dyn Error>> {
    // A trained model would come from `Model::open("model.safetensors")`.
    let model = Lstm::new(FEATURES, HIDDEN).random(1)?;

    // Once: who owns which weights, packed on their cores, with room for 8 sequences of 100 steps.
    let cores = Topology::detect().team_size();
    let plan = Plan::estimate(&model, 8, 100, cores);
    let mut session = Session::new(&model, &plan)?;
    session.pin_caller();
    println!("{} thread(s), {}", plan.threads(), session.packed().isa());

    // Many times: any batch and length that there is room for.
    println!("batch  steps     time per run   as the reference");
    for (batch, steps) in [(1, 1), (1, 10), (1, 100), (3, 40), (8, 100)] {
        let input = wave(steps * batch * FEATURES);
        // The first sequence of a batch is shorter than the others; no work is done past its end.
        let mut lengths = vec![steps; batch];
        if batch > 1 {
            lengths[0] = steps / 2;
        }
        let input = Input::new(&input, steps, batch).lengths(&lengths);
        let mut output = vec![0.0; steps * batch * HIDDEN];

        let mut times = Vec::new();
        for _ in 0..RUNS {
            let start = Instant::now();
            session.run(&input, &mut Output::new(&mut output))?;
            times.push(start.elapsed());
        }
        times.sort();

        let mut expected = vec![0.0; output.len()];
        reference::run(&model, &input, &mut Output::new(&mut expected))?;
        let equal = output
            .iter()
            .zip(&expected)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        let verdict = if equal { "bit for bit" } else { "NO" };
        println!(
            "{batch:5}  {steps:5}  {:>15.1?}   {verdict}",
            times[RUNS / 2]
        );
        if !equal {
            return Err("an answer differs from the reference".into());
        }
    }
    Ok(())
}

/// Some input.
fn wave(values: usize) -> Vec<f32> {
    (0..values).map(|i| (i as f32 * 0.37).sin()).collect()
}
