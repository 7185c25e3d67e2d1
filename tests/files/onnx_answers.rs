//! Every fixture of `tests/fixtures/onnx`, loaded and run by the plain-loop reference, against what
//! ONNX Runtime answered to the same named arrays; and sessions against the reference, bit for bit.

use std::path::{Path, PathBuf};

use gatestream::execute::Session;
use gatestream::model::{Array, ArrayMap, Elements, Model};
use gatestream::plan::Plan;
use gatestream::reference;
use safetensors::{Dtype, SafeTensors};

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "onnx"));
    files.sort();
    files
}

fn array(tensors: &SafeTensors, name: &str) -> Array {
    let tensor = tensors.tensor(name).unwrap();
    let data = tensor.data();
    Array {
        shape: tensor.shape().to_vec(),
        elements: match tensor.dtype() {
            Dtype::F32 => {
                let all = data.as_chunks::<4>().0.iter();
                Elements::Floats(all.map(|b| f32::from_le_bytes(*b)).collect())
            }
            Dtype::I32 => {
                let all = data.as_chunks::<4>().0.iter();
                Elements::Integers(all.map(|b| i32::from_le_bytes(*b).into()).collect())
            }
            Dtype::I64 => {
                let all = data.as_chunks::<8>().0.iter();
                Elements::Integers(all.map(|b| i64::from_le_bytes(*b)).collect())
            }
            other => panic!("{name}: {other:?}"),
        },
    }
}

#[test]
fn every_fixture_answers_as_onnx_runtime_did() {
    let files = fixtures();
    assert!(files.len() >= 20, "{} fixtures", files.len());
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let model = Model::open(&file).unwrap_or_else(|e| panic!("{e}"));
        let bytes = std::fs::read(file.with_extension("safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();

        let map = ArrayMap::new(&model);
        let inputs: Vec<(String, Array)> = model
            .interface()
            .inputs
            .iter()
            .map(|port| (port.name.clone(), array(&tensors, &port.name)))
            .collect();
        let input = map.input(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut results = map.output_buffers(&input);
        reference::run(&model, &input.borrow(), &mut results.borrow()).unwrap();

        for threads in [1, 2] {
            let plan = Plan::with_threads(&model, input.batch, input.steps, threads);
            let mut session = Session::new(&model, &plan).unwrap();
            let mut found = map.output_buffers(&input);
            for values in [&mut found.values, &mut found.hn, &mut found.cn] {
                values.fill(f32::NAN);
            }
            (session.run(&input.borrow(), &mut found.borrow())).unwrap();
            for (found, expected) in [
                (&found.values, &results.values),
                (&found.hn, &results.hn),
                (&found.cn, &results.cn),
            ] {
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(found), bits(expected), "{name}: {threads} threads");
            }
        }

        assert!(!model.interface().outputs.is_empty(), "{name}");
        for port in &model.interface().outputs {
            let found = map.output(&port.name, &input, &results).unwrap();
            let expected = array(&tensors, &port.name);
            assert_eq!(found.shape, expected.shape, "{name}: {}", port.name);
            let (Elements::Floats(found), Elements::Floats(expected)) =
                (found.elements, expected.elements)
            else {
                panic!("{name}: {} holds integers", port.name);
            };
            for (at, (a, b)) in found.iter().zip(&expected).enumerate() {
                let difference = (a - b).abs();
                assert!(
                    difference <= 1e-5,
                    "{name}: {}[{at}] is {a}, ONNX Runtime says {b}",
                    port.name
                );
            }
        }
    }
}
