//! Any bytes as a safetensors file: read whole, tensor by tensor, and as a model with and without
//! options. Nothing may panic, and a model may not be larger than the file justifies.
#![no_main]

use gatestream::model::{Cell, Model, SafetensorsOptions, Tensors};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|bytes: &[u8]| {
    let mut choices = vec![
        SafetensorsOptions::new(),
        SafetensorsOptions::new().prefix(""),
        SafetensorsOptions::new().cell(Cell::GRU),
    ];
    if let Ok(tensors) = Tensors::from_bytes(bytes) {
        for name in tensors.names() {
            if let Ok(vector) = tensors.vector(name) {
                assert!(vector.len() <= bytes.len() / 2);
            }
            if let Ok(matrix) = tensors.matrix(name) {
                assert_eq!(matrix.data().len(), matrix.rows() * matrix.cols());
                assert!(matrix.data().len() <= bytes.len() / 2);
            }
            if let Some((prefix, _)) = name.split_once("weight_ih") {
                choices.push(SafetensorsOptions::new().prefix(prefix));
            }
        }
    }
    for options in choices {
        if let Ok(model) = Model::from_safetensors(bytes, &options) {
            // Twice the file for f16, and as much again for biases that it leaves out.
            assert!(model.weight_bytes() <= 4 * bytes.len());
        }
    }
});

// Most mutations of the header change its length, and a wrong length hides all that comes after.
// So three times in four the length is set to what the header has become.
fuzz_mutator!(
    |bytes: &mut [u8], size: usize, max_size: usize, seed: u32| {
        let size = fuzzer_mutate(bytes, size, max_size);
        if !seed.is_multiple_of(4)
            && size > 8
            && let Some(length) = json_length(&bytes[8..size])
        {
            bytes[..8].copy_from_slice(&(length as u64).to_le_bytes());
        }
        size
    }
);

/// The bytes up to the brace that closes the one which `bytes` starts with.
fn json_length(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut text, mut escaped) = (0usize, false, false);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if text => escaped = true,
            b'"' => text = !text,
            b'{' if !text => depth += 1,
            b'}' if !text => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}
