//! Graphs as exporters write them, with the outputs of ONNX Runtime (`tests/cases`). Those of
//! `application_*` are PyTorch's, with PyTorch's outputs (`tuning/applications/modules.py`).

#[path = "common/npz.rs"]
mod npz;

use std::path::Path;

use gatestream_network::Network;
use npz::{Case, difference};

/// Largest difference from the expected outputs.
const TOLERANCE: f64 = 2e-5;

#[test]
fn graphs_of_exporters_have_the_expected_outputs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    files.sort_by_key(|file| file.path());
    let models = files.iter().map(|file| file.path());
    let models: Vec<_> = models
        .filter(|path| path.extension() == Some("onnx".as_ref()))
        .collect();
    assert_eq!(models.len(), 35);
    let mut wrong = Vec::new();
    for model in models {
        let case = Case::open(&model.with_extension("npz"));
        let name = model.file_stem().unwrap().to_string_lossy().into_owned();
        let outputs = Network::open(&model).and_then(|network| network.run(&case.borrowed()));
        match outputs {
            Err(why) => wrong.push(format!("{name}: {why}")),
            Ok(outputs) => {
                for expected in &case.outputs {
                    let mut of_name = outputs.iter().filter(|output| output.name == expected.name);
                    let found = of_name.next().map(|output| &output.tensor);
                    let apart = found.map(|found| difference(found, &expected.tensor));
                    if !apart.is_some_and(|apart| apart <= TOLERANCE) {
                        wrong.push(format!("{name}: {} differs by {apart:?}", expected.name));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
