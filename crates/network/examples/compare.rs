//! Runs networks on the arrays `in:NAME` of `.npz` files and compares with their arrays `out:NAME`.
//!
//! ```text
//! cargo run --release -p gatestream-network --example compare -- model.onnx model.npz [...]
//! ```

#[path = "../tests/common/npz.rs"]
mod npz;

use std::path::Path;
use std::time::Instant;

use gatestream_network::{Network, NetworkError};
use npz::{Case, difference};

fn compare(model: &Path, arrays: &Path) -> Result<String, NetworkError> {
    let case = Case::open(arrays);
    let begin = Instant::now();
    let network = Network::open(model)?;
    let opened = begin.elapsed();
    let outputs = network.run(&case.borrowed())?;
    let first = begin.elapsed() - opened;
    let apart = case.outputs.iter().map(|expected| {
        let mut of_name = outputs.iter().filter(|output| output.name == expected.name);
        let found = of_name.next();
        found.map_or(f64::INFINITY, |found| {
            difference(&found.tensor, &expected.tensor)
        })
    });
    let apart = apart.fold(0.0, f64::max);
    let mut times: Vec<_> = (0..5)
        .map(|_| {
            let begin = Instant::now();
            network.run(&case.borrowed()).map(|_| begin.elapsed())
        })
        .collect::<Result<_, _>>()?;
    times.sort();
    let run = times[times.len() / 2];
    Ok(format!(
        "{apart:.1e} apart; open {opened:.1?}, first {first:.1?}, run {run:.1?}"
    ))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for pair in arguments.chunks(2) {
        let [model, arrays] = pair else {
            eprintln!("give pairs of a model and its arrays");
            std::process::exit(2);
        };
        match compare(Path::new(model), Path::new(arrays)) {
            Ok(line) => println!("{model}: {line}"),
            Err(why) => println!("{model}: {why}"),
        }
    }
}
