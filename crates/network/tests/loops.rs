//! Loops, with the outputs of ONNX Runtime (`tests/loops/make.py`).

#[path = "common/npz.rs"]
mod npz;

use std::path::Path;

use gatestream_network::{NamedTensor, Network, NetworkError};
use npz::{Case, difference};

fn run(name: &str) -> (Case, Result<Vec<NamedTensor>, NetworkError>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loops");
    let case = Case::open(&folder.join(format!("{name}.npz")));
    let network = Network::open(folder.join(format!("{name}.onnx")));
    let outputs = network.and_then(|network| network.run(&case.borrowed()));
    (case, outputs)
}

fn check(name: &str) {
    let (case, outputs) = run(name);
    let outputs = outputs.unwrap_or_else(|why| panic!("{name}: {why}"));
    assert_eq!(outputs.len(), case.outputs.len());
    for (found, expected) in outputs.iter().zip(&case.outputs) {
        assert_eq!(found.tensor.shape(), expected.tensor.shape());
        let apart = difference(&found.tensor, &expected.tensor);
        assert!(apart <= 2e-6, "{name}: {} differs by {apart}", found.name);
    }
}

#[test]
fn iterations_may_be_the_steps_of_the_input() {
    check("steps_of_the_input");
}

#[test]
fn exporters_count_in_a_state_and_write_states_that_nothing_reads() {
    check("counter_of_the_exporter");
}

#[test]
fn a_body_may_read_its_states_alone() {
    check("states_alone");
}

#[test]
fn a_condition_on_values_is_refused_by_name() {
    let (_, outputs) = run("condition_on_values");
    match outputs {
        Err(NetworkError::Unsupported { operator, .. }) => assert_eq!(operator, "Loop"),
        other => panic!("{other:?}"),
    }
}
