//! How much memory a session holds, once the model it was made from is dropped: its packed weights
//! and little else. One test, alone in its process, since it reads the process's resident memory.
#![cfg(all(target_os = "linux", feature = "safetensors"))]

#[path = "common/resident.rs"]
mod resident;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use gatestream::execute::Session;
use gatestream::model::{Input, Model, Output};
use gatestream::plan::Plan;
use resident::{allocated, peak, resident};

const LAYERS: usize = 3;
const SIZE: usize = 1024;
const STEPS: usize = 10;
const MIB: f64 = (1 << 20) as f64;

/// Writes the stack piece by piece, so that this process never holds its weights.
fn write_stack(path: &Path) {
    let mut shapes = Vec::new();
    for layer in 0..LAYERS {
        shapes.push((format!("weight_ih_l{layer}"), vec![4 * SIZE, SIZE]));
        shapes.push((format!("weight_hh_l{layer}"), vec![4 * SIZE, SIZE]));
        shapes.push((format!("bias_ih_l{layer}"), vec![4 * SIZE]));
        shapes.push((format!("bias_hh_l{layer}"), vec![4 * SIZE]));
    }
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in &shapes {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        let info =
            serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
        header.insert(name.clone(), info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(&header).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..end / 4 {
        let value = (random.f32() - 0.5) / 16.0;
        file.write_all(&value.to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// Opens the file, makes a session, drops the model; with the model's bytes.
fn open(path: &Path) -> (Session, f64) {
    let model = Model::open(path).unwrap();
    let plan = Plan::with_threads(&model, 1, STEPS, 2);
    let session = Session::new(&model, &plan).unwrap();
    (session, model.weight_bytes() as f64)
}

/// What a session of this size needs at the most besides weights: states twice, cell states and
/// outputs of layers; and per worker the pre-activations of all steps, for two directions.
fn buffers() -> f64 {
    let states = LAYERS * 3 * SIZE;
    let outputs = 2 * STEPS * SIZE;
    let pre_activations = 2 * STEPS * 4 * SIZE;
    (4 * (states + outputs + pre_activations)) as f64
}

#[test]
fn a_session_holds_its_packed_weights_and_little_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.safetensors");
    write_stack(&path);

    // More than once: an allocator that has seen large blocks come and go deals with the next ones
    // in another way.
    let before = resident();
    let mut first = None;
    for round in 1..=4 {
        drop(first.take());
        let left = resident() - before;
        let (session, weights) = open(&path);
        let held = resident() - before;
        println!(
            "round {round}: {:.1} MiB before, weights {:.1} MiB, held {:.1} MiB, peak {:.1} MiB",
            left / MIB,
            weights / MIB,
            held / MIB,
            (peak() - before) / MIB
        );
        assert!(left <= 16.0 * MIB, "{:.1} MiB", left / MIB);
        assert!(held >= weights, "{held} bytes cannot hold {weights}");
        assert!(held <= 1.15 * weights + 16.0 * MIB, "{:.1} MiB", held / MIB);
        first = Some(session);
    }
    let first = first.unwrap();

    let before = allocated();
    let mut second = Session::from_packed(first.packed().clone()).unwrap();
    let input = vec![0.5; STEPS * SIZE];
    let mut output = vec![0.0; STEPS * SIZE];
    second
        .run(&Input::new(&input, STEPS, 1), &mut Output::new(&mut output))
        .unwrap();
    let added = allocated() - before - (4 * 2 * STEPS * SIZE) as f64;
    println!("a second session adds {:.2} MiB", added / MIB);
    assert!(added <= buffers() + MIB, "{:.2} MiB", added / MIB);
}
