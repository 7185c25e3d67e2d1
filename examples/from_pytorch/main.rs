//! Runs a model that PyTorch saved, and compares with PyTorch's own answer.
//!
//!     python examples/from_pytorch/save_model.py
//!     cargo run --release --example from_pytorch

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use gatestream::machine::Topology;
use gatestream::{Input, Model, Output, Plan, Session};

/// Largest difference that rounding explains, where |values| ≤ 1.
const TOLERANCE: f32 = 1e-5;

fn main() -> Result<(), Box<dyn Error>> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/target/from_pytorch");
    let folder = std::env::args_os().nth(1).unwrap_or(default.into());
    let folder = PathBuf::from(folder);
    if !folder.join("lstm.safetensors").exists() {
        eprintln!("no lstm.safetensors in {}; make it with", folder.display());
        eprintln!(
            "    pip install torch safetensors numpy && python examples/from_pytorch/save_model.py"
        );
        std::process::exit(1);
    }

    let model = Model::open(folder.join("lstm.safetensors"))?;
    let (shape, input) = read_npy(&folder.join("input.npy"))?;
    let (_, pytorch) = read_npy(&folder.join("output.npy"))?;
    let [steps, batch, _] = shape[..] else {
        return Err("input.npy: expected [time, batch, feature]".into());
    };

    let plan = Plan::estimate(&model, batch, steps, Topology::detect().team_size());
    let mut session = Session::new(&model, &plan)?;
    let mut output = vec![0.0; steps * batch * model.signature().output];
    session.run(
        &Input::new(&input, steps, batch),
        &mut Output::new(&mut output),
    )?;

    if output.len() != pytorch.len() {
        return Err(format!("{} values, PyTorch gave {}", output.len(), pytorch.len()).into());
    }
    let differences = output.iter().zip(&pytorch).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f32::max);
    println!(
        "{} layers of {}, {batch} sequences of {steps} steps: {} values, max |difference| from \
         PyTorch {largest:.1e}",
        model.layers().len(),
        model.layers()[0].kind(),
        output.len(),
    );
    if largest > TOLERANCE {
        return Err(format!("more than {TOLERANCE:e}").into());
    }
    Ok(())
}

/// Shape and values of an array of f32.
fn read_npy(path: &Path) -> Result<(Vec<usize>, Vec<f32>), Box<dyn Error>> {
    let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let array = npyz::NpyFile::new(BufReader::new(file))?;
    if array.order() != npyz::Order::C {
        return Err(format!("{}: save it in C order", path.display()).into());
    }
    let shape = array.shape().iter().map(|&n| n as usize).collect();
    Ok((shape, array.into_vec()?))
}
