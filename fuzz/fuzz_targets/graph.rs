//! Any bytes as a whole ONNX graph, which runs on small inputs if it can be prepared. Nothing may
//! panic but tract, whose panics are errors.
#![no_main]

use std::sync::Once;

use gatestream_network::{Data, ElementType, Network, NetworkOptions, NetworkPort, Tensor};
use libfuzzer_sys::fuzz_target;

/// Most elements of an input.
const MAX_ELEMENTS: usize = 4096;

static HOOK: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    // The hook of the fuzzer ends the process at panics that are caught, too.
    HOOK.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let options = NetworkOptions {
        threads: Some(1),
        ..NetworkOptions::default()
    };
    let Ok(network) = Network::from_bytes(bytes, options) else {
        return;
    };
    let inputs: Option<Vec<(&str, Tensor)>> = (network.inputs().iter())
        .map(|port| Some((port.name.as_str(), value(port)?)))
        .collect();
    let Some(inputs) = inputs else {
        return;
    };
    let borrowed: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, of)| (*name, of)).collect();
    // An error is as good as an answer.
    let _ = network.run(&borrowed);
});

/// Zeros; axes of any size have 2.
fn value(port: &NetworkPort) -> Option<Tensor> {
    let shape = port.shape.as_ref()?.iter().map(|size| size.unwrap_or(2));
    let shape: Vec<usize> = shape.collect();
    let elements = shape
        .iter()
        .try_fold(1usize, |all, &one| all.checked_mul(one))?;
    if elements > MAX_ELEMENTS {
        return None;
    }
    let data: Data = match port.element_type? {
        ElementType::F32 => vec![0f32; elements].into(),
        ElementType::I64 => vec![0i64; elements].into(),
        ElementType::I32 => vec![0i32; elements].into(),
        ElementType::Bool => vec![false; elements].into(),
        _ => return None,
    };
    Tensor::new(&shape, data).ok()
}
