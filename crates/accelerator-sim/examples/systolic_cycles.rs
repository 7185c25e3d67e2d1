//! Cycles of products on an output-stationary array, for `tuning/ebatch/compare_scale_sim.py`.
//!
//! Reads lines `rows columns M N K` from standard input and writes the cycles of each.

use std::io::BufRead;

use gatestream_accelerator_sim::accelerator::{Product, systolic_cycles};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let numbers: Vec<usize> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let [array_rows, array_columns, rows, columns, depth] = numbers[..] else {
            return Err(format!("expected five numbers, not {line:?}").into());
        };
        let product = Product {
            rows,
            columns,
            depth,
        };
        println!("{}", systolic_cycles(array_rows, array_columns, product));
    }
    Ok(())
}
