//! Loads the file that `save_model.py` beside it wrote, and prints what is in it.
//!
//!     python examples/from_pytorch/save_model.py
//!     cargo run --release --example from_pytorch

use std::error::Error;

use cellstream::model::Model;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or("target/from_pytorch/lstm.safetensors".into());
    let model = Model::open(&path)?;
    println!("{path}: {} KiB of weights", model.weight_bytes() / 1024);
    for (number, layer) in model.layers().iter().enumerate() {
        println!(
            "layer {number}: {}{} {} -> {} ({} hidden units)",
            if layer.directions().len() == 2 {
                "bidirectional "
            } else {
                ""
            },
            layer.kind(),
            layer.input_size(),
            layer.output_size(),
            layer.hidden_size(),
        );
    }
    Ok(())
}
