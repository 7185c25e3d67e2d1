//! Any bytes as a checkpoint of `torch.save`. Nothing may panic, and a model may not be larger than
//! the file justifies.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gatestream::model::{Model, SafetensorsOptions};
use libfuzzer_sys::fuzz_target;

/// The reader takes a path.
static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("gatestream-fuzz-{}.pt", std::process::id());
    std::env::temp_dir().join(name)
});

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(&*PATH, bytes).unwrap();
    for options in [
        SafetensorsOptions::new(),
        SafetensorsOptions::new().prefix(""),
    ] {
        match Model::from_pytorch(&*PATH, &options) {
            // Twice the file for f16, and as much again for biases that it leaves out.
            Ok(model) => assert!(model.weight_bytes() <= 4 * bytes.len()),
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
});
