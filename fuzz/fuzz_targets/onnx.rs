//! Any bytes as an ONNX file. Nothing may panic, a model may not be larger than the file
//! justifies, and what is accepted is coherent.
#![no_main]

use gatestream::model::{Axis, Model, Role};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Model::from_onnx(bytes) {
        // The loader's own bound: eight values for each byte, and a little for tiny files.
        Ok(model) => {
            assert!(model.weight_bytes() <= 4 * (8 * bytes.len() + (1 << 16)));
            let ports = model.interface();
            let inputs = ports.inputs.iter().filter(|p| p.role == Role::Input);
            assert_eq!(inputs.count(), 1);
            for port in ports.inputs.iter().chain(&ports.outputs) {
                let axes = || port.axes.iter().flatten();
                let count = |axis| axes().filter(|a| **a == axis).count();
                let sequence = matches!(port.role, Role::Input | Role::Output);
                assert_eq!(count(Axis::Time), usize::from(sequence));
                assert_eq!(count(Axis::Batch), 1);
                assert_eq!(
                    count(Axis::Feature),
                    usize::from(port.role != Role::Lengths)
                );
                assert!(port.axes.iter().all(|group| !group.is_empty()));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
