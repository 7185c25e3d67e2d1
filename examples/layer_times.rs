//! Runs applications around recurrent layers (text similarity, the attention sum reader, BiDAF),
//! compares their answers with PyTorch's, and prints the time of each layer.
//!
//!     pip install torch safetensors onnx onnxscript
//!     python tuning/applications/modules.py target/applications
//!     cargo run --release --example layer_times -- target/applications/*.safetensors

#[path = "applications/mod.rs"]
mod applications;

use std::error::Error;
use std::time::Duration;

use applications::{Case, File, Planning};

/// Largest difference that rounding explains, of probabilities and similarities.
const TOLERANCE: f32 = 1e-6;
const RUNS: usize = 101;

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.is_empty() {
        return Err("give files that tuning/applications/modules.py wrote".into());
    }
    for path in paths {
        run(&path).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

fn run(path: &str) -> Result<(), Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    let file = File::read(&bytes)?;
    let mut case = Case::open(&file, Planning::estimate())?;
    case.run()?;
    let mut difference = 0.0f32;
    for (name, answer) in case.answers() {
        let expected = file.answer(name)?;
        if expected.len() != answer.len() {
            return Err(format!("{name}: another number of answers than PyTorch's").into());
        }
        let differences = answer.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        difference = differences.fold(difference, f32::max);
    }
    println!("{path}: differs from PyTorch by at most {difference:.1e}");
    if difference.is_nan() || difference > TOLERANCE {
        return Err(format!("more than {TOLERANCE:e}").into());
    }
    let mut total = Duration::ZERO;
    for mut layer in case.time_layers(RUNS)? {
        layer.times.sort();
        let median = layer.times[RUNS / 2];
        total += median;
        println!("{:>9.3} ms  {}", 1e3 * median.as_secs_f64(), layer.name);
    }
    println!("{:>9.3} ms  all\n", 1e3 * total.as_secs_f64());
    Ok(())
}
