//! Checkpoints of PyTorch, with the outputs of their modules
//! (`tests/fixtures/checkpoints/make.py`).

use std::io::Write;
use std::path::PathBuf;

use cellstream::model::{Input, LoadError, Model, Output, SafetensorsOptions};
use cellstream::reference;
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/checkpoints");
    PathBuf::from(folder).join(name)
}

struct Expected(Value);

impl Expected {
    fn read() -> Expected {
        let text = std::fs::read_to_string(file("expected.json")).unwrap();
        Expected(serde_json::from_str(&text).unwrap())
    }

    fn floats(value: &Value) -> Vec<f32> {
        let values = value.as_array().unwrap().iter();
        values.map(|value| value.as_f64().unwrap() as f32).collect()
    }

    fn options(&self, name: &str) -> SafetensorsOptions {
        let options = SafetensorsOptions::new();
        match self.0["cases"][name]["prefix"].as_str() {
            Some(prefix) => options.prefix(prefix),
            None => options,
        }
    }

    fn model(&self, name: &str) -> Result<Model, LoadError> {
        Model::from_pytorch(file(&format!("{name}.pt")), &self.options(name))
    }

    fn check(&self, name: &str) {
        let model = self
            .model(name)
            .unwrap_or_else(|why| panic!("{name}: {why}"));
        let x = Expected::floats(&self.0["x"]);
        let size = |what: &str| self.0[what].as_u64().unwrap() as usize;
        let (steps, batch) = (size("steps"), size("batch"));
        let expected = Expected::floats(&self.0["cases"][name]["output"]);
        let mut found = vec![0.0; expected.len()];
        let input = Input::new(&x, steps, batch);
        reference::run(&model, &input, &mut Output::new(&mut found)).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 1e-6,
                "{name}: {found}, {expected}"
            );
        }
    }
}

#[test]
fn checkpoints_have_the_outputs_of_their_modules() {
    let expected = Expected::read();
    for name in ["module", "legacy", "training", "double", "cell"] {
        expected.check(name);
    }
}

#[test]
fn parametrisations_are_computed() {
    let expected = Expected::read();
    for name in ["weight_norm", "parametrized", "pruned"] {
        expected.check(name);
    }
}

/// The plain recurrent weight of each module is not the trained one.
#[test]
fn weight_drop_reads_the_raw_weights_of_a_list_of_modules() {
    Expected::read().check("weight_drop");
    // Without a prefix, the list is offered.
    let without = Model::open(file("weight_drop.pt")).unwrap_err().to_string();
    assert!(
        without.contains("or \"rnns.\" for the modules"),
        "{without}"
    );
}

#[test]
fn parametrisations_that_are_not_known_are_refused() {
    let expected = Expected::read();
    for (name, tensor) in [
        ("spectral_norm", "parametrizations.weight_hh_l0."),
        ("half", "weight_hh_l0_g"),
    ] {
        match expected.model(name) {
            Err(LoadError::Tensor { name, reason }) => {
                assert!(name.starts_with(tensor), "{name}");
                assert!(reason.contains("remove_parametrizations"), "{reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn an_archive_that_unpacks_to_more_than_it_has_is_refused() {
    let mut bytes = std::fs::read(file("module.pt")).unwrap();
    // The sizes of each entry in the central directory.
    let signature = b"PK\x01\x02";
    let entries: Vec<usize> = (0..bytes.len() - 4)
        .filter(|&at| &bytes[at..at + 4] == signature)
        .collect();
    assert!(entries.len() > 3);
    for at in entries {
        bytes[at + 24..at + 28].copy_from_slice(&0x7000_0000u32.to_le_bytes());
    }
    let mut broken = tempfile::Builder::new().suffix(".pt").tempfile().unwrap();
    broken.write_all(&bytes).unwrap();
    match Model::open(broken.path()) {
        Err(LoadError::Malformed { reason, .. }) => {
            assert!(reason.contains("bytes"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_cut_short_are_refused() {
    for name in ["module.pt", "legacy.pt"] {
        let bytes = std::fs::read(file(name)).unwrap();
        for length in (0..bytes.len()).step_by(97) {
            let mut broken = tempfile::Builder::new().suffix(".pt").tempfile().unwrap();
            broken.write_all(&bytes[..length]).unwrap();
            assert!(
                Model::open(broken.path()).is_err(),
                "{name}: {length} bytes"
            );
        }
    }
}

#[test]
fn changed_bytes_are_models_or_errors() {
    let mut random = fastrand::Rng::with_seed(29);
    let mut read = 0;
    for name in ["module.pt", "legacy.pt", "training.pt", "weight_norm.pt"] {
        let bytes = std::fs::read(file(name)).unwrap();
        for _ in 0..300 {
            let mut changed = bytes.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..changed.len());
                changed[at] = random.u8(..);
            }
            let mut broken = tempfile::Builder::new().suffix(".pt").tempfile().unwrap();
            broken.write_all(&changed).unwrap();
            let options = SafetensorsOptions::new();
            read += usize::from(Model::from_pytorch(broken.path(), &options).is_ok());
        }
    }
    assert!(read > 0);
}

/// The reader's own error has several lines and control characters of the file.
#[test]
fn an_error_has_one_line() {
    let refused = Model::open(file("hostile_legacy.pt")).unwrap_err();
    let told = refused.to_string();
    assert!(told.contains("not a readable PyTorch file"), "{told}");
    assert!(!told.contains(char::is_control), "{told:?}");
}
